"""Engine `spark`: Spark's own Delta writer, for tables whose protocol delta-rs cannot write.

A Spark job per table and batch, so it is slower than engine `task` by the figures in docs/benchmarks.md; it is used
where it must be (type widening, row tracking, in-commit timestamps, column mapping, constraints); the ledger says so.
Idempotence is Delta's own: options txnAppId and txnVersion on the write (never the session conf, which other tables
share: delta-io/delta#3934).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from distributary.names import literal, quoted
from distributary.tables.comments import comment_of
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.snapshot import OWNER_KEY, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.widening import for_spark

WIDENING = "delta.enableTypeWidening"
SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Of a job. One that is collected raises the second kind (pyspark 4.2.0)."""


class SparkEngineError(Exception):
    """Spark refused the write; the text is its first line."""


class SparkEngine:
    def __init__(self, spark: SparkSession, store: Store) -> None:
        self.spark = spark
        self.store = store

    def prepare(self, target: Table, incoming: Sequence[pa.Schema], policy: Policy) -> pa.Schema:
        """Create the table, or widen its columns, so that `incoming` fits; returns the schema rows are to have.

        New columns are left to the write itself (mergeSchema). Safe to repeat. Raises SparkEngineError.
        """
        table = Snapshot.open(target.uri, self.store)
        evolution = evolve(columns_of(table), incoming, for_spark(policy, table))
        try:
            if table is None:
                self._create(target, evolution.schema)
            else:
                self._widen(target.uri, evolution, table)
        except PySparkException as e:
            raise SparkEngineError(first_line(e)) from e
        return evolution.schema

    def _create(self, target: Table, schema: pa.Schema) -> None:
        for key, columns in (("partition_by", target.partitioned_by), ("cluster_by", target.clustered_by)):
            if missing := [name for name in columns if name.split(".")[0] not in schema.names]:
                raise SparkEngineError(f"tables.{key} names {missing[0]!r}, and the rows have no such column")
        builder = SparkDeltaTable.createIfNotExists(self.spark).location(target.uri)
        for key, value in {**_mapping(schema), **target.properties_of_new}.items():
            builder = builder.property(key, value)
        builder = builder.addColumns(spark_schema(schema))
        if target.partitioned_by:
            builder = builder.partitionedBy(*target.partitioned_by)
        if target.clustered_by:
            builder = builder.clusterBy(*target.clustered_by)
        if target.comment is not None:
            builder = builder.comment(target.comment)
        builder.execute()

    def _widen(self, uri: str, evolution: Evolution, table: Snapshot) -> None:
        owner, properties = table.owner, table.properties
        needed = {**_mapping(evolution.schema), **({WIDENING: "true"} if evolution.widened else {})}
        missing = {key: value for key, value in needed.items() if properties.get(key) != value}
        if owner is not None and OWNER_KEY not in properties:
            missing |= owner.properties()  # as `Snapshot.keep_owner`
        name = f"delta.{quoted(uri)}"
        if missing:
            # In one statement: Spark takes no other property of a table that needs its names mapped.
            pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in missing.items())
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})")
        for path, kind in evolution.widened:
            column, wide = ".".join(map(quoted, path)), from_arrow_type(kind).simpleString()
            self.spark.sql(f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {wide}")

    def append(self, rows: DataFrame, uri: str, txn: Txn) -> bool:
        """Append `rows` under the batch's transaction; False when the table has taken this batch before.

        Raises SparkEngineError.
        """
        table = Snapshot.open(uri, self.store)
        if table is not None and table.has(txn):
            return False
        try:
            (
                rows.write.format("delta")
                .mode("append")
                .option("mergeSchema", "true")
                .option("txnAppId", txn.app_id)
                .option("txnVersion", str(txn.version))
                .option("userMetadata", json.dumps(txn.about()))
                .save(uri)
            )
        except PySparkException as e:
            raise SparkEngineError(first_line(e)) from e
        return True


MAPPING = "delta.columnMapping.mode"
_ODD = re.compile(r"[ ,;{}()\n\t=]")


def _mapping(schema: pa.Schema) -> dict[str, str]:
    """What a table needs where Spark refuses names of its columns in Parquet files: other names there."""
    return {MAPPING: "name"} if _ODD.search("".join(_names(schema))) else {}


def _names(fields: Iterable[pa.Field]) -> Iterator[str]:
    for field in fields:
        yield field.name
        if pa.types.is_struct(field.type):
            yield from _names(field.type)
        elif pa.types.is_list(field.type):
            yield from _names([field.type.value_field])
        elif pa.types.is_map(field.type):
            yield from _names([field.type.key_field, field.type.item_field])


def spark_schema(schema: pa.Schema) -> StructType:
    """A table's Arrow schema as Spark spells it, with the comments of its columns (not of fields inside of them)."""
    return StructType([StructField(f.name, from_arrow_type(f.type), f.nullable, _comment(f)) for f in schema])


def _comment(field: pa.Field) -> dict[str, str] | None:
    about = comment_of(field)
    return None if about is None else {key.decode(): text.decode() for key, text in about.items()}


def spark_ended(error: BaseException) -> bool:
    """Whether an error says that Spark itself is gone or was told to stop, which is no table's fault."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Py4JNetworkError):
            return True
        if isinstance(cause, PySparkException) and _condition(cause) == "SPARK_JOB_CANCELLED":
            return True
        cause = cause.__cause__
    return False


def _condition(error: PySparkException) -> str | None:
    """Spark's own word for the error; it asks the JVM, which may not answer."""
    try:
        return error.getCondition()
    except Exception:
        return None


def first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:500]


def ddl(kind: pa.DataType) -> str:
    """An Arrow type as Spark SQL spells it, names inside it quoted."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(f.name)}: {ddl(f.type)}' for f in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl(kind.key_type)}, {ddl(kind.item_type)}>"
    return str(from_arrow_type(kind).simpleString())
