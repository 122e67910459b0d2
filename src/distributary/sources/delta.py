"""A Delta table as a stream of envelopes: one binary `value`, or the envelope's own columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from distributary.changes.casts import FIRST_MICRO, LAST_MICRO
from distributary.config import DeltaSource, Envelope
from distributary.errors import SourceMissing
from distributary.names import quoted, quoted_parts
from distributary.shares import Share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN_COLUMNS = ("topic", "partition", "offset", "timestamp")
"""Columns of a Kafka export that say where a row came from; taken over where the table has them."""

_WHOLE = ("tinyint", "smallint", "int", "bigint")
FIRST_MS, LAST_MS = FIRST_MICRO // 1000, LAST_MICRO // 1000
"""The years that readers hold. Producers give any time."""

OF_RECORDS = {"key": "binary", "topic": "string", "partition": "int", "offset": "bigint"}
"""Columns of Kafka's records, and their types in Spark's words."""

NO_TABLE = (
    "DELTA_SCHEMA_NOT_SET",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_TABLE_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
)
NO_NAME = "Delta table of that name in the catalog. Check source.table, or make it first."
NO_TABLE_THERE = "Delta table. Check source.path, or write to it first."


def reader_options(source: DeltaSource) -> dict[str, str]:
    """The source's settings as Spark's reader names them."""
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
    return options


def needed_columns(source: DeltaSource, envelope: Envelope) -> dict[str, tuple[str, str]]:
    """The table's column -> the name that the envelope has for it, and its type in Spark's words."""
    if envelope.format == "columns":
        return {name: (name, kind) for name, kind in zip(envelope.columns, ("string", "int", "binary"), strict=True)}
    if envelope.is_debezium:  # a change is known by its key and its place in the topic
        record = {name: (name, kind) for name, kind in OF_RECORDS.items()}
        return {source.value: ("value", "binary"), **record}
    topic = {"topic": ("topic", "string")} if envelope.route.place == "topic" else {}
    return {source.value: ("value", "binary"), **topic}


def lacks(name: str, source: DeltaSource, envelope: Envelope, columns: Iterable[str]) -> str:
    """In words that the source has no column `name`, and which key of the pipeline file asks for it."""
    keys = dict(zip(envelope.columns, ("route", "schema_id", "payload"), strict=True))
    key = None
    if envelope.format == "columns":
        key = f"envelope.{keys[name]}"
    elif name == source.value:
        key = "source.value"
    named = "" if key is None else f", which {key} names"
    return f"column {name!r}{named}; it has: {', '.join(columns)}"


def delta_stream(
    spark: SparkSession,
    source: DeltaSource,
    envelope: Envelope,
    share: Share | None = None,
    optional: frozenset[str] = frozenset(),
) -> DataFrame:
    """The streaming DataFrame. Build it anew for every start: a plan that is kept goes stale (delta-io/delta#6050).

    `share`: only its routes, where the route is a column; a table partitioned by it is read as far as needed only.
    `optional`: columns that are null where the table lacks them.

    Raises SourceMissing when there is no such table, or when it lacks a column that the envelope needs.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    named = source.table or source.path
    reader = spark.readStream.format("delta").options(**reader_options(source))
    try:
        rows = reader.load(source.path) if source.table is None else reader.table(quoted_parts(source.table))
        names = rows.columns  # over Spark Connect, nothing is looked at before this
    except AnalysisException as e:
        if e.getCondition() not in NO_TABLE:
            raise
        raise SourceMissing(source=named, what=NO_TABLE_THERE if source.table is None else NO_NAME) from e
    needed = needed_columns(source, envelope)
    if missing := [name for name in needed if name not in names and name not in optional]:
        raise SourceMissing(source=f"the Delta table {named}", what=lacks(missing[0], source, envelope, names))
    origin = [c for c in ORIGIN_COLUMNS if c in names and c not in needed]
    # try_cast: a value that is no id or name is one bad row, not a failed batch
    if share is not None and envelope.format == "columns":
        rows = rows.where(share.condition(f"try_cast({quoted(envelope.columns[0])} AS string)"))
    columns = (
        F.expr(f"try_cast({quoted(name) if name in names else 'NULL'} AS {kind})").alias(alias)
        for name, (alias, kind) in needed.items()
    )
    times = [c for c in origin if c == "timestamp" and rows.schema[c].dataType.simpleString() in _WHOLE]
    return rows.select(*columns, *(F.expr(_time(c)) if c in times else F.col(quoted(c)) for c in origin))


def _time(column: str) -> str:
    """A whole number as a record's time: milliseconds since 1970, which is how Kafka has it."""
    name = quoted(column)
    return f"CASE WHEN {name} BETWEEN {FIRST_MS} AND {LAST_MS} THEN timestamp_millis({name}) END AS {name}"
