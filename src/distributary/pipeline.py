"""A pipeline from config to running stream: `build(config)` is a value that can be printed; `run` runs it.

One stream per pipeline. Outages restart it from the checkpoint, with a stream built anew each time; everything else
that is wrong ends it with an error that says what to do.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from distributary.batch import BatchReport, BatchWriter
from distributary.catalog import register_tables
from distributary.config import KafkaSource, Pipeline
from distributary.errors import (
    AlreadyRunning,
    DistributaryError,
    SourceDataLost,
    SourceDown,
    SourceHistoryGone,
    SourceRewritten,
)
from distributary.fanout.micro_batch import Fanout
from distributary.registry import Registry, open_registry
from distributary.replay import Replay
from distributary.schemas import Schemas
from distributary.session import build_session
from distributary.sources.delta import delta_stream
from distributary.sources.kafka import kafka_stream
from distributary.state.checkpoint import check_checkpoint, check_topics
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary.tables.store import Store, join, local_path

RESTARTS = 10
"""Outages in a row after which a run gives up; a finished batch starts the count anew."""
FIRST_REST_SEC = 1.0
LONGEST_REST_SEC = 60.0

# A stream of foreachBatch jobs knows its own plan: adaptive execution only adds time to each of them.
RUN_CONF = {"spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}

Progress = Callable[[BatchReport], None]


@dataclass(frozen=True)
class PipelinePlan:
    """What a pipeline file stands for, before anything is started."""

    pipeline: str
    source: str
    tables: str
    state: str
    checkpoint: str
    trigger: str


def build(config: Pipeline) -> PipelinePlan:
    """Describe the pipeline; touches nothing."""
    source = config.source
    what = f"Kafka {source.bootstrap_servers}" if isinstance(source, KafkaSource) else f"Delta {source.path}"
    trigger = f"every {config.trigger.every:g} s" if config.trigger.mode == "every" else config.trigger.mode
    return PipelinePlan(
        pipeline=config.pipeline,
        source=what,
        tables=join(config.tables.root, config.tables.name),
        state=config.state_root,
        checkpoint=config.checkpoint_path,
        trigger=trigger,
    )


@dataclass(frozen=True)
class RunReport:
    """The sum of a run's batches. `parked`: tables that need attention when the run ended."""

    pipeline: str
    batches: int
    rows_in: int
    rows_written: int
    rows_quarantined: int
    tombstones: int
    parked: tuple[str, ...]


def session_of(config: Pipeline) -> SparkSession:
    """The Spark session of a pipeline. Raises JavaMissing, EnvironmentFault."""
    return build_session(
        f"distributary {config.pipeline}", master=config.spark.master, conf={**RUN_CONF, **config.spark.conf}
    )


def source_stream(spark: SparkSession, config: Pipeline) -> DataFrame:
    source = config.source
    if isinstance(source, KafkaSource):
        return kafka_stream(spark, source)
    return delta_stream(spark, source, config.envelope)


def registry_of(config: Pipeline) -> Registry:
    """The pipeline's registry; a served one with a disk cache, below the state folder unless the file names another."""
    registry = config.registry
    assert registry is not None  # the config's own rule
    state = local_path(config.state_root)
    if registry.url is not None and registry.cache is None and state is not None:
        registry = registry.model_copy(update={"cache": str(state / "schemas")})
    return open_registry(registry)


class _Stopped(Exception):
    """A batch that begins once the run is to stop is left to the next run."""


class Run:
    """One run of one pipeline in this process."""

    def __init__(self, config: Pipeline, spark: SparkSession, progress: Progress) -> None:
        self.config = config
        self.spark = spark
        self.progress = progress
        self.store = Store.of(config.tables)
        self.ledger = Ledger(config.state_root, config.pipeline, self.store)
        fanout = Fanout(spark, config, Schemas(registry_of(config)), self.store)
        fanout.on_spark |= {e.route for e in self.ledger.newest.values() if e.engine == "spark" and e.route}
        self.writer = BatchWriter(config, fanout, self.ledger)
        self.replay = Replay(config, self.ledger, fanout)
        self.report = RunReport(config.pipeline, 0, 0, 0, 0, 0, ())
        self.query: StreamingQuery | None = None
        self._stream = threading.Event()
        self._stream_id = ""
        self._failure: BaseException | None = None
        self._outages = 0
        self._stopping = threading.Event()
        self._busy = threading.Lock()

    def go(self, once: bool) -> RunReport:
        """Run to the end (`once`), or until `stop`. Raises the error that ended the stream."""
        check_checkpoint(self.config, self.ledger)
        check_topics(self.config, self.store, self.ledger)
        while True:
            try:
                self._run_query(once)
                break
            except DistributaryError as e:
                self._outages += 1
                if not e.retryable or once or self._outages > RESTARTS:
                    raise
                rest = min(FIRST_REST_SEC * 2 ** (self._outages - 1), LONGEST_REST_SEC)
                if self._stopping.wait(random.uniform(rest / 2, rest)):
                    break
        parked = tuple(sorted(e.route for e in self.ledger.newest.values() if e.state == "parked" and e.route))
        return replace(self.report, parked=parked)

    def stop(self) -> None:
        """End the run after the batch that is being written; returns when it has. From any thread but the batch's.

        Not from a signal handler: it may have interrupted a call to the JVM, whose connection is the thread's own.
        """
        self._stopping.set()
        # Spark's own stop cancels the batch. The lock is not held over it: a batch that begins now must be able to end.
        with self._busy:
            pass
        if self.query is not None:
            self.query.stop()

    def _run_query(self, once: bool) -> None:
        self._failure = None
        self._stream.clear()
        writer = source_stream(self.spark, self.config).writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", self.config.checkpoint_path)
        if once or self.config.trigger.mode == "once":
            writer = writer.trigger(availableNow=True)
        elif self.config.trigger.mode == "every":
            writer = writer.trigger(processingTime=f"{int(self.config.trigger.every * 1000)} milliseconds")
        try:
            self.query = writer.start()
            self._stream_id = str(self.query.id)
            self._stream.set()
            if self._stopping.is_set():
                self.query.stop()
            self.query.awaitTermination()
        except PySparkException as e:
            if self._stopping.is_set() and self._failure is None:
                return
            raise self._failure or translated(e, self.config) from e

    def _batch(self, rows: DataFrame, batch: int) -> None:
        self._stream.wait()
        with self._busy:
            if self._stopping.is_set():
                raise _Stopped
            try:
                self._take(rows, batch)
            except BaseException as e:
                # Spark would turn it into text; the run wants the error itself.
                self._failure = e
                raise

    def _take(self, rows: DataFrame, batch: int) -> None:
        report = self.writer.take(rows, self._stream_id, batch)
        self._outages = 0
        if report is None:
            return
        self.report = replace(
            self.report,
            batches=self.report.batches + 1,
            rows_in=self.report.rows_in + report.rows_in,
            rows_written=self.report.rows_written + report.rows_written,
            rows_quarantined=self.report.rows_quarantined + report.rows_quarantined,
            tombstones=self.report.tombstones + report.tombstones,
        )
        self._bring_back(report)
        register_tables(self.spark, self.config, self.ledger, report.created)
        self.progress(report)

    def _bring_back(self, report: BatchReport) -> None:
        """Try parked tables again, unless another process replays just now: two would write the same rows."""
        try:
            with only_run(self.config.state_root, self.config.pipeline, "replay"):
                self.writer.retry(self.replay, report.recovered)
        except AlreadyRunning:
            self.writer.retry_later()


def run(
    config: Pipeline,
    *,
    once: bool = False,
    progress: Progress = lambda _: None,
    handle: Callable[[Run], None] = lambda _: None,
) -> RunReport:
    """Run a pipeline; `handle` gets the Run before it starts, to stop it from a signal handler.

    Raises AlreadyRunning, CheckpointLost, SourceDataLost, QuarantineLimit, and any EnvironmentFault.
    """
    with only_run(config.state_root, config.pipeline):
        spark = session_of(config)
        running = Run(config, spark, progress)
        handle(running)
        return running.go(once)


def translated(error: PySparkException, config: Pipeline) -> Exception:
    """Spark's own failures in our words; unknown ones pass unchanged."""
    text = str(error)
    source = build(config).source
    if any(sign in text for sign in ("Some data may have been lost", "offset was changed from", "DATA_LOSS")):
        return SourceDataLost(source=source, detail=_reason(text))
    if any(sign in text for sign in ("DELTA_LOG_FILE_NOT_FOUND", "DELTA_VERSIONS_NOT_CONTIGUOUS")):
        return SourceHistoryGone(source=source, detail=_reason(text))
    if "DELTA_SOURCE_TABLE_IGNORE_CHANGES" in text or "DELTA_SOURCE_IGNORE_DELETE" in text:
        return SourceRewritten(source=source, detail=_reason(text))
    if any(sign in text for sign in ("org.apache.kafka.common.errors", "TimeoutException", "KafkaException")):
        return SourceDown(source=source, detail=_reason(text))
    return error


def _reason(text: str) -> str:
    for line in text.splitlines():
        if "Caused by" in line or "Exception:" in line:
            return line.strip()[:300]
    return text.strip().splitlines()[0][:300]
