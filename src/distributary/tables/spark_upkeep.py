"""Upkeep by Spark, of tables that delta-rs must not write: the same joining of files, the same vacuum, and tombstones
that are old go as elsewhere (`running.maintain`)."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.names import literal
from distributary.tables.by_name import sql_name
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.spark_engine import SparkEngineError, first_line

_OPTIMIZE = "spark.databricks.delta.optimize."
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def compact_by_spark(spark: SparkSession, uri: str, target: int) -> None:
    """Join files of less than `target` bytes. Raises CommitConflict, SparkEngineError."""
    sizes = {f"{_OPTIMIZE}{name}": str(target) for name in ("minFileSize", "maxFileSize")}
    _run(spark, f"OPTIMIZE {sql_name(uri)}", sizes)


def vacuum_by_spark(spark: SparkSession, uri: str, hours: float, *, enforce: bool) -> None:
    """Remove files that no version of the last `hours` needs. `enforce`: refuse less than the table says.

    Raises CommitConflict, SparkEngineError.
    """
    _run(spark, f"VACUUM {sql_name(uri)} RETAIN {int(hours)} HOURS", {_CHECK: str(enforce).lower()})


def purge_by_spark(spark: SparkSession, uri: str, limit: int, name: str | None) -> int:
    """Remove tombstones from before `limit` (ms), which the table's property `name` (None: none) says first; how many.

    Raises CommitConflict, SparkEngineError.
    """
    if name is not None:
        _run(spark, f"ALTER TABLE {sql_name(uri)} SET TBLPROPERTIES ({literal(name)} = '{limit}')", {})
    return _run(spark, f"DELETE FROM {sql_name(uri)} WHERE {DELETED} AND {DELETED_AT} < timestamp_millis({limit})", {})


def _run(spark: SparkSession, command: str, conf: Mapping[str, str]) -> int:
    """What the command answers, where that is a number of rows."""
    own = spark.newSession()  # settings are a session's, and a stream's batches have theirs
    for name, value in conf.items():
        own.conf.set(name, value)
    try:
        rows = own.sql(command).collect()
    except PySparkException as e:
        text = first_line(e)
        raise CommitConflict(text) if "DELTA_CONCURRENT" in text else SparkEngineError(text) from e
    return int(rows[0]["num_affected_rows"]) if rows and "num_affected_rows" in rows[0] else 0
