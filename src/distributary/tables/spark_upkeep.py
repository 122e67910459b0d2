"""Upkeep by Spark, of tables that delta-rs must not write: the same joining of files, the same vacuum, and tombstones
that are old go as elsewhere (`running.maintain`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.names import literal
from distributary.tables.by_name import sql_name
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.spark_engine import SparkEngineError, first_line, was_first
from distributary.tables.vacuum import ORPHAN_HOURS

_OPTIMIZE = "spark.databricks.delta.optimize."
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
"""Delta deals what it finds in a table's folders to so many tasks, by Spark's default to 10,000."""


class _LogTooShort(SparkEngineError):
    """It does not say any more what was taken out of the table: only a listing of its files does."""


def compact_by_spark(spark: SparkSession, uri: str, target: int) -> None:
    """Join files of less than `target` bytes. Raises CommitConflict, SparkEngineError."""
    sizes = {f"{_OPTIMIZE}{name}": str(target) for name in ("minFileSize", "maxFileSize")}
    _run(spark, f"OPTIMIZE {sql_name(uri)}", sizes)


def vacuum_by_spark(spark: SparkSession, uri: str, seconds: float, *, enforce: bool) -> None:
    """Remove files that no version of the last `seconds` needs. `enforce`: refuse less than the table says. Spark takes
    what no commit names too, so what is younger than `ORPHAN_HOURS` goes only where a commit took it out.

    Raises CommitConflict, SparkEngineError.
    """
    hours = math.ceil(seconds / 3600)
    conf = {_CHECK: str(enforce).lower(), _LISTING_TASKS: str(spark.sparkContext.defaultParallelism)}
    if hours < ORPHAN_HOURS:
        with suppress(_LogTooShort):
            _run(spark, f"VACUUM {sql_name(uri)} LITE RETAIN {hours} HOURS", conf)
    _run(spark, f"VACUUM {sql_name(uri)} RETAIN {max(hours, ORPHAN_HOURS)} HOURS", conf)


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
        if "[DELTA_CANNOT_VACUUM_LITE]" in text:
            raise _LogTooShort(text) from e
        raise CommitConflict(text) if was_first(e) else SparkEngineError(text) from e
    return int(rows[0]["num_affected_rows"]) if rows and "num_affected_rows" in rows[0] else 0
