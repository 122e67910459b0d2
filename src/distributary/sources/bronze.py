"""Bronze as a stream, for hop 2: of all routes, of one share, or of one route."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from distributary.config import DeltaSource, Pipeline
from distributary.errors import SourceMissing
from distributary.names import quoted
from distributary.shares import Share
from distributary.sources.bronze_rows import KEY, RECORD_KEY, REJECTED, UNROUTED
from distributary.sources.delta import NO_TABLE, ORIGIN_COLUMNS, reader_options
from distributary.sources.delta_source import TableId, newest_of_table, seen_table, table_lag
from distributary.sources.port import AnswerCache, Position, Sight, Source, SourceLag
from distributary.sources.unread import AlreadyRead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_BRONZE = "bronze table yet. Hop 1 makes it: distributary run FILE, or run FILE --hop 1"


class Bronze(Source):
    """What hop 2 reads in place of the pipeline's source."""

    def __init__(self, config: Pipeline) -> None:
        super().__init__(config)
        self.keys = bronze_source(config)

    @property
    def name(self) -> str:
        return f"bronze {self.keys.path}"

    def look(self) -> list[Sight]:
        return [seen_table(self.keys.path, self.store, NO_BRONZE)]

    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        return bronze_stream(spark, self.config)

    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        return table_lag(self.keys, self.store, read, answers)

    def ids(self) -> TableId:
        return TableId(self.keys.path, self.store)

    def newest(self, count: int) -> pa.Table:
        envelope = self.config.envelope
        needed = {name: (name, "") for name in envelope.columns}
        return newest_of_table(self.keys, envelope, needed, self.store, count)


def bronze_source(config: Pipeline) -> DeltaSource:
    """Bronze as a source: what hop 2 reads."""
    bronze = config.bronze
    return DeltaSource(
        type="delta",
        path=config.bronze_path,
        starting_version=bronze.starting_version,
        starting_timestamp=bronze.starting_timestamp,
        max_files_per_batch=bronze.max_files_per_batch,
        max_bytes_per_batch=bronze.max_bytes_per_batch,
        skip_change_commits=bronze.skip_change_commits,
    )


def bronze_stream(spark: SparkSession, config: Pipeline) -> DataFrame:
    """The streaming DataFrame. Build it anew for every start (delta-io/delta#6050).

    Only the partitions that this stream needs are read. Raises SourceMissing when there is no bronze table yet.
    """
    from pyspark.errors import AnalysisException

    source = bronze_source(config)
    try:
        rows = spark.readStream.format("delta").options(**reader_options(source)).load(source.path)
    except AnalysisException as e:
        if e.getCondition() not in NO_TABLE:
            raise
        raise SourceMissing(source=source.path, what=NO_BRONZE) from e
    if (condition := wanted(config)) is not None:
        rows = rows.where(condition)
    return _columns(config, rows)


def bronze_rows(spark: SparkSession, config: Pipeline, key: str, read: AlreadyRead) -> DataFrame | None:
    """What a stream has read of one partition (`read`), as its batches had it; None for nothing."""
    from pyspark.sql import functions as F

    frames = []
    if read.version is not None:
        snapshot = spark.read.format("delta").option("versionAsOf", read.version).load(config.bronze_path)
        frames.append(_columns(config, snapshot.where(F.col(KEY) == key)))
    if read.paths:
        files = (f"{config.bronze_path}/{path}" for path in read.paths)
        frames.append(_columns(config, spark.read.parquet(*files)))
    return None if not frames else reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _columns(config: Pipeline, rows: DataFrame) -> DataFrame:
    names = [*config.envelope.columns, *ORIGIN_COLUMNS, REJECTED, "headers"]
    names += [RECORD_KEY] if config.source.record_key is not None else []
    return rows.select(*(quoted(name) for name in names if name in rows.columns))


def wanted(config: Pipeline) -> str | None:
    """The partitions that a stream reads, as a condition of Spark SQL on the partition column; None for all."""
    return None if config.share is None else partitions_of(config.share)


def partitions_of(share: Share) -> str:
    """A key without `_x` is its route (`names.table_name`), so the partition says whose it is. The few others are
    read by every share; each leaves out what is not its own (`engine.messages.owned`)."""
    nameless = "true" if share.owns(None) else "false"
    return (
        f"CASE WHEN {KEY} = '{UNROUTED}' THEN {nameless} WHEN instr({KEY}, '_x') > 0 THEN true "
        f"ELSE {share.condition(KEY)} END"
    )
