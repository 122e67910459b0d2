"""Spark's types as Arrow's, whichever Spark it is."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

_FLAT: Mapping[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's columns; times are in UTC."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # Spark before 4.2, where they are without being asked
        return to_arrow_schema(schema)


def struct_of(ddl: str) -> StructType:
    """Columns of flat types as `a int, b string`. Spark's own reader of these asks the JVM.

    Raises KeyError: of another type.
    """
    columns = (column.split() for column in ddl.split(","))
    return StructType([StructField(name, _FLAT[kind]) for name, kind in columns])
