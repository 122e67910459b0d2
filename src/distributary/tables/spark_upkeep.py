"""Upkeep by Spark, of tables that delta-rs must not write: the same joining of files, the same vacuum."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.names import quoted
from distributary.tables.faults import CommitConflict
from distributary.tables.spark_engine import SparkEngineError, first_line

_OPTIMIZE = "spark.databricks.delta.optimize."
_CHECK = "spark.databricks.delta.retentionDurationCheck.enabled"


def compact_by_spark(spark: SparkSession, uri: str, target: int) -> None:
    """Join files of less than `target` bytes. Raises CommitConflict, SparkEngineError."""
    sizes = {f"{_OPTIMIZE}{name}": str(target) for name in ("minFileSize", "maxFileSize")}
    _run(spark, f"OPTIMIZE delta.{quoted(uri)}", sizes)


def vacuum_by_spark(spark: SparkSession, uri: str, hours: float, *, enforce: bool) -> None:
    """Remove files that no version of the last `hours` needs. `enforce`: refuse less than the table says.

    Raises CommitConflict, SparkEngineError.
    """
    _run(spark, f"VACUUM delta.{quoted(uri)} RETAIN {int(hours)} HOURS", {_CHECK: str(enforce).lower()})


def _run(spark: SparkSession, command: str, conf: Mapping[str, str]) -> None:
    own = spark.newSession()  # settings are a session's, and a stream's batches have theirs
    for name, value in conf.items():
        own.conf.set(name, value)
    try:
        own.sql(command).collect()
    except PySparkException as e:
        text = first_line(e)
        raise CommitConflict(text) if "DELTA_CONCURRENT" in text else SparkEngineError(text) from e
