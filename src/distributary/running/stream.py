"""A pipeline from config to running stream: `build(config)` is a value that can be printed; `run` runs it.

One stream per pipeline. Outages restart it from the checkpoint, with a stream built anew each time; everything else
that is wrong ends it with an error that says what to do.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from distributary.backoff import Backoff, any_chance
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport, BatchWriter, Replayer
from distributary.engine.changes.file_intake import FileIntake
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.writer import ChangeWriter
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.replay import Replay
from distributary.engine.schemas import schemas_of
from distributary.errors import (
    AlreadyRunning,
    BadInput,
    DistributaryError,
    Reason,
    StoreDown,
)
from distributary.errors.border import forget_locals, in_words
from distributary.log_context import about
from distributary.running.catalog import register_tables
from distributary.running.failures import translated, tries
from distributary.running.gaps import Gaps
from distributary.running.report import RunReport, added, build
from distributary.running.short_runs import is_short
from distributary.running.state_names import StateNames
from distributary.running.wide_views import refresh
from distributary.schemas.row_sql import check_sql
from distributary.sources.data_files import BatchFiles
from distributary.sources.registered import source_of
from distributary.spark.session import build_session
from distributary.state.checkpoint import check_checkpoint, check_source, last_begun, position_after
from distributary.state.cleaning import at_work
from distributary.state.identity import SourceIdentity
from distributary.state.layout_claim import claim_layout
from distributary.state.ledger import Ledger, totals
from distributary.state.lock import only_run
from distributary.state.provenance import Provenance
from distributary.tables.faults import reading
from distributary.tables.spark_engine import SPARK_ERRORS
from distributary.tables.store import Store, local_path

FIRST_REST_SEC = 1.0
LONGEST_REST_SEC = 60.0

# A stream of foreachBatch jobs knows its own plan: adaptive execution only adds time to each of them. Merges by Spark
# have a session of their own (`tables.spark_merge.merge_session`).
RUN_CONF = {"spark.sql.adaptive.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "65536"}

log = logging.getLogger("distributary")


Progress = Callable[[BatchReport], None]


def session_of(config: Pipeline, *, short_lived: bool = False) -> SparkSession:
    """The Spark session of a pipeline. `short_lived`: its JVM is not to have many rows. Raises JavaMissing,
    EnvironmentFault."""
    return build_session(
        f"distributary {config.pipeline}",
        master=config.spark.master,
        conf={**RUN_CONF, **config.spark.conf},
        local_state=local_path(config.checkpoint_path) is not None,
        short_lived=short_lived,
    )


def source_stream(spark: SparkSession, config: Pipeline) -> DataFrame:
    """What the stream reads: the source, or bronze, where this is the second of two hops."""
    return source_of(config).stream(spark)


def triggered(writer: DataStreamWriter, config: Pipeline, once: bool) -> DataStreamWriter:
    """The stream with the file's trigger; `once`: it takes what is there, then ends."""
    if config.trigger.ends(once):
        return writer.trigger(availableNow=True)
    if config.trigger.mode == "every":
        return writer.trigger(processingTime=f"{int(config.trigger.every * 1000)} milliseconds")
    return writer


def rest_sec(outages: int) -> float:
    """How long a stream rests after so many outages in a row, before it begins again."""
    return Backoff(FIRST_REST_SEC, LONGEST_REST_SEC, jitter=0.5).rest_sec(outages, any_chance())


class _Stopped(Exception):
    """A batch that begins once the run is to stop is left to the next run."""


class Run:
    """One run of one pipeline in this process."""

    def __init__(self, config: Pipeline, spark: SparkSession, progress: Progress, *, force: bool = False) -> None:
        """`force`: take a first batch also where no record of it can be read."""
        self.config = config
        self.force = force
        self.spark = spark
        self.progress = progress
        self.store = Store.of(config.tables)
        self.source = source_of(config)
        self.ledger = Ledger(config.state_root, config.pipeline, self.store)
        self.provenance = Provenance(config, self.ledger)
        self._busy = threading.Lock()
        self.intake: FileIntake | None = None
        self.writer: BatchWriter
        self.replay: Replayer
        if config.holds_changes:
            self._take_changes()
        else:
            self._take_messages()
        self.report = RunReport(config.pipeline, 0, 0, 0, 0, 0, ())
        self.query: StreamingQuery | None = None
        self._stream = threading.Event()
        self._stream_id = ""
        self._failure: BaseException | None = None
        self._raised: BaseException | None = None
        """What Spark was told of a batch that failed."""
        self._outages = 0
        self._stopping = threading.Event()
        self.state_names = StateNames(spark, config, self.store)
        self.gaps = Gaps(config, self.ledger, lambda: self.spark, self._busy)

    def _take_messages(self) -> None:
        fanout = Fanout(self.spark, self.config, schemas_of(self.config), self.store)
        fanout.on_spark |= self._on_spark()
        fanout.names.remember_ledger(self.ledger)
        fanout.files = self._files
        self.identity = SourceIdentity(self.config, self.store)
        fanout.was_read = self._check_source
        fanout.will_write = self.provenance.check
        self.writer = BatchWriter(self.config, fanout, self.ledger, force=self.force)
        self.replay = Replay(self.config, self.ledger, fanout)

    def _files(self, batch: int) -> BatchFiles | None:
        """The files of the running batch, where it is files of a Delta table that tasks can read."""
        return None if self.query is None else self.source.files(self.spark, self.query, batch)

    def _check_source(self, batch: int) -> None:
        """Raises when the batch was read from a source that took the place of ours."""
        if lost := self.identity.check(batch):
            self.ledger.note_loss(lost)

    def _take_changes(self) -> None:
        if self.config.share is not None:
            raise BadInput(detail="a pipeline of change files is one stream; it cannot be spread over several")
        changes = Changes(self.spark, self.config, self.store)
        changes.on_spark.update(self._on_spark())
        changes.will_write = self.provenance.check
        self.writer = ChangeWriter(self.config, changes, self.ledger)
        self.replay = self.intake = FileIntake(self.config, changes, self.ledger, self._busy)

    def _on_spark(self) -> set[str]:
        return {e.route for e in self.ledger.newest.values() if e.engine == "spark" and e.route}

    @property
    def outages(self) -> int:
        """Since the last batch that went through."""
        return self._outages

    def go(self, once: bool) -> RunReport:
        """Run to the end (`once`), or until `stop`. Raises the error that ended the stream."""
        with reading(self.config.state_root):
            claim_layout(self.config, self.store)
            check_checkpoint(self.config, self.ledger)
            self.provenance.begun = last_begun(self.config.checkpoint_path, self.store)
            check_source(self.config, self.store, self.ledger)
        if self.config.shared_table is not None:
            # A run that died after its last batch may have left some out of date.
            refresh(self.spark, self.config, self.ledger)
        self.gaps.begin()
        drained = False
        try:
            drained = self._run_queries(once)
        finally:
            self.gaps.end(drained)
        parked = tuple(sorted(e.route for e in self.ledger.newest.values() if e.state == "parked" and e.route))
        return replace(self.report, parked=parked, waiting=self._waiting())

    def _run_queries(self, once: bool) -> bool:
        """Query after query, until one ends; has it taken all that there was?"""
        while True:
            try:
                self._run_query(once)
                return not self._stopping.is_set()
            except DistributaryError as e:
                self._outages += 1
                self.store.ask_anew()
                most, rest = tries(e, once), rest_sec(self._outages)
                if not e.retryable or self._outages > most:
                    raise
                log.warning("the stream begins again in %.0f s (restart %d of %d): %s", rest, self._outages, most, e)
                if self._stopping.wait(rest):
                    return False

    def _waiting(self) -> dict[str, int]:
        """What the ledger says of the quarantine; rows of parked tables come in by themselves."""
        try:
            sums = totals(self.ledger.entries())
        except OSError:
            return {}  # the run is done, whatever becomes of the store now
        reasons: Counter[str] = Counter()
        for entry in sums.values():
            reasons.update(entry.reasons)
        del reasons[Reason.TABLE_PARKED.value]
        return dict((+reasons).most_common())

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
        if self._raised is not None:
            # pyspark keeps it for as long as the JVM keeps the stream that has ended.
            forget_locals(self._raised)
            self._raised = None
        self._stream.clear()
        once = self.config.trigger.ends(once)
        if self.intake is not None:
            self.intake.begin(once, self._fall)
        try:
            self._query(once)
        finally:
            if self.intake is not None:
                self.intake.end()
        if self.intake is not None and not self._stopping.is_set():
            self.intake.merges.run(None, anyway=True)

    def _fall(self, error: BaseException) -> None:
        """End the stream for an error outside of a batch."""
        self._failure = error
        if self.query is not None:
            self.query.stop()

    def _query(self, once: bool) -> None:
        writer = self.source.stream(self.spark).writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", self.config.checkpoint_path)
        try:
            self.query = triggered(writer, self.config, once).start()
            self._stream_id = str(self.query.id)
            self._stream.set()
            if self._stopping.is_set():
                self.query.stop()
            self.query.awaitTermination()
            if self._failure is not None:
                raise self._failure
        except SPARK_ERRORS as e:
            if self._stopping.is_set() and self._failure is None:
                return
            # A batch's own failure may be Spark's too: a job that could not read its rows, or write its files.
            raise translated(self._failure or e, build(self.config).source, self.config.checkpoint_path) from e

    def _batch(self, rows: DataFrame, batch: int) -> None:
        self._stream.wait()
        with self._busy, about(batch=batch):
            if self._stopping.is_set():
                raise _Stopped
            try:
                self._take(rows, batch)
            except BaseException as e:
                # Spark would turn it into text; the run wants the error itself. What the system says is of the
                # pipeline's own state: between two batches nothing else is read and written.
                is_state = isinstance(e, OSError)
                self._failure = StoreDown(path=self.config.state_root, detail=in_words(e)) if is_state else e
                self._raised = e
                raise

    def _take(self, rows: DataFrame, batch: int) -> None:
        report = self.writer.take(rows, self._stream_id, batch)
        self._outages = 0
        self.source.decided(partial(position_after, self.config.checkpoint_path, self.store, batch))
        self.report = added(self.report, report)
        self._bring_back(report)
        if self.intake is not None:
            self.intake.between_batches()
        created = {*report.created, *(self.intake.merges.drained() if self.intake is not None else ())}
        if self.config.tables.view is not None:
            created |= set(report.evolved)
        self._name(created | set(report.evolved) if self.config.shared_table is not None else created)
        self.state_names.give()
        self.progress(report)
        self.gaps.batch(report)

    def _name(self, routes: set[str]) -> None:
        """Make the tables of `routes` known by name: in the catalog, or as views."""
        if self.config.shared_table is None:
            register_tables(self.spark, self.config, self.ledger, sorted(routes))
        elif routes:
            refresh(self.spark, self.config, self.ledger, sorted(routes))

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
    force: bool = False,
    alone: bool = False,
) -> RunReport:
    """Run a pipeline; `handle` gets the Run before it starts, to stop it from a signal handler. `force`: as of Run.
    `alone`: this process ends with the run, so that its JVM is to do nothing else.

    Raises AlreadyRunning, CleanUnfinished, CheckpointLost, SqlInvalid, SourceDataLost, QuarantineLimit,
    FirstBatchUnreadable, and any EnvironmentFault.
    """
    check_sql(config.tables)
    with at_work(config, Store.of(config.tables)):
        spark = session_of(config, short_lived=alone and is_short(config, once))
        running = Run(config, spark, progress, force=force)
        handle(running)
        return running.go(once)
