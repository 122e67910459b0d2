"""A Delta table as a stream of envelopes: one binary `value`, or the envelope's own columns."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.config import DeltaSource, Envelope
from distributary.errors import SourceMissing
from distributary.names import quoted

ORIGIN_COLUMNS = ("topic", "partition", "offset", "timestamp")
"""Columns of a Kafka export that say where a row came from; taken over where the table has them."""

_NO_TABLE = ("DELTA_SCHEMA_NOT_SET", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")


def delta_stream(spark: SparkSession, source: DeltaSource, envelope: Envelope) -> DataFrame:
    """The streaming DataFrame. Build it anew for every start: a plan that is kept goes stale (delta-io/delta#6050).

    Raises SourceMissing when there is no such table, or when it lacks a column that the envelope needs.
    """
    options: dict[str, str] = {}
    if source.starting_version is not None:
        options["startingVersion"] = str(source.starting_version)
    if source.starting_timestamp is not None:
        options["startingTimestamp"] = source.starting_timestamp
    if source.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_batch)
    if source.max_bytes_per_batch is not None:
        options["maxBytesPerTrigger"] = str(source.max_bytes_per_batch)
    if source.skip_change_commits:
        options["skipChangeCommits"] = "true"
    try:
        rows = spark.readStream.format("delta").options(**options).load(source.path)
    except AnalysisException as e:
        if e.getCondition() not in _NO_TABLE:
            raise
        raise SourceMissing(source=source.path, what="Delta table. Check source.path, or write to it first.") from e
    if envelope.format == "columns":
        needed = {name: name for name in (envelope.route, envelope.schema_id, envelope.payload)}
    else:
        needed = {source.value: "value"}
    for name in needed:
        if name not in rows.columns:
            has = ", ".join(rows.columns)
            raise SourceMissing(source=f"the Delta table {source.path}", what=f"column {name!r}; it has: {has}")
    origin = [c for c in ORIGIN_COLUMNS if c in rows.columns and c not in needed]
    kinds = dict(zip(needed, ("string", "int", "binary") if envelope.format == "columns" else ("binary",), strict=True))
    # try_cast: a value that is no id or name is one bad row, not a failed batch
    columns = (F.expr(f"try_cast({quoted(n)} AS {kinds[n]})").alias(a) for n, a in needed.items())
    return rows.select(*columns, *(F.col(quoted(c)) for c in origin))
