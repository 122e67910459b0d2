"""Spark's types as Arrow's, whichever Spark it is."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's columns; times are in UTC."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark before 4.2, where they are without being asked
        return to_arrow_schema(schema)


@cache
def struct_of(ddl: str) -> StructType:
    """Columns that Spark's DDL names; each new text is a question to the JVM."""
    struct = StructType.fromDDL(ddl)
    assert isinstance(struct, StructType)
    return struct
