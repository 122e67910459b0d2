"""One dry run of a stream of messages: the run's own parts, with nothing at the end that writes.

    a copy of the checkpoint -> the batches that a run would take -> cut -> decode -> fit -> counts

The copy makes the query start where the run would, under the run's own stream id, so a batch that the ledger has
finished is passed over here as there. Tables, ledger, quarantine and the real checkpoint are only read.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from distributary.audit.plan_report import PlanReport, TablePlan, add_counts
from distributary.config import Pipeline
from distributary.engine.apart import limited
from distributary.engine.decisions import Decision
from distributary.engine.first_batch import Example, is_first, structural_reason, unreadable
from distributary.engine.messages.batch_chunks import BatchChunks
from distributary.engine.messages.chunks import read_records, read_rejected
from distributary.engine.messages.decode import decode, incoming_schemas
from distributary.engine.messages.deliver import deliver_route, open_own
from distributary.engine.messages.events import as_merged
from distributary.engine.messages.micro_batch import Fanout
from distributary.engine.messages.pieces import cut_pieces
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.messages.tasks import RESULT_DDL, chunk_rows, decode_results, encode_result
from distributary.engine.outcomes import Outcome
from distributary.engine.schemas import schemas_of
from distributary.errors import Reason
from distributary.errors.border import contained
from distributary.running.failures import translated
from distributary.running.report import build
from distributary.running.stream import source_stream
from distributary.schemas.registry.compile import CompiledSchema
from distributary.scratch import Scratch
from distributary.state.checkpoint import stream_id
from distributary.state.ledger import Ledger
from distributary.tables.engines import policy_of, why_spark
from distributary.tables.snapshot import Snapshot
from distributary.tables.spark_engine import SPARK_ERRORS
from distributary.tables.store import Store, local_path
from distributary.tables.table import Table
from distributary.tables.widening import growing

COPY_ATTEMPTS = 3
"""A run that is at work replaces files of its checkpoint while they are copied."""


class _Stopped(Exception):
    """A limit of the quarantine would end the run here."""


@dataclass(frozen=True)
class _Fit:
    """A table's columns before and after a batch, and why Spark would write it. `incoming`: of the batch's rows so far,
    where only the rows say it; `begin`: the columns that the earlier batches of the dry run would have made."""

    before: pa.Schema | None
    after: pa.Schema | None
    why_spark: str | None
    table: Snapshot | None = None
    begin: pa.Schema | None = None
    incoming: tuple[pa.Schema, ...] = ()


class DryRun:
    """One dry run. Remembers the columns that earlier batches would have given each table."""

    def __init__(
        self,
        config: Pipeline,
        spark: SparkSession,
        plan: PlanReport,
        tables: dict[str, TablePlan],
        columns: dict[str, pa.Schema | None],
        bronze: str | None,
    ) -> None:
        self.config = config
        self.spark = spark
        store = Store.of(config.tables)
        self.store = store
        self.ledger = Ledger(config.state_root, config.pipeline, store)
        self.fanout = Fanout(spark, config, schemas_of(config, keep=False), store)
        self.fanout.names.remember_ledger(self.ledger)
        self.plan = plan
        self._checkpoint = ""
        self._tables = tables
        self._columns = columns
        self._bronze = bronze
        self._fits: dict[str, _Fit] = {}
        self._bad_batches = 0
        self._failure: BaseException | None = None
        self._examples: dict[str, Example] = {}

    def go(self) -> None:
        try:
            self._go()
        finally:
            self._note_killers()

    def _note_killers(self) -> None:
        killers = self.fanout.killed
        if killers:
            ways = ", ".join(f"{count:,} {how}" for how, count in sorted(Counter(killers.values()).items()))
            self.plan.notes.append(
                f"{len(killers):,} different records end the process that reads them ({ways}): a run sets them aside "
                "(KILLED_READER), with where they come from, and goes on"
            )

    def _go(self) -> None:
        with _copied(self.config.checkpoint_path, self.spark) as checkpoint:
            self._checkpoint = checkpoint
            stream = stream_id(checkpoint, Store())
            if stream is not None and stream in self.ledger.finished:
                self.plan.after_batch = self.ledger.finished[stream]
            writer = source_stream(self.spark, self.config).writeStream.foreachBatch(self._batch)
            try:
                query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
                query.awaitTermination()
            except SPARK_ERRORS as e:
                if self.plan.stops is None:
                    raise translated(self._failure or e, build(self.config).source, checkpoint) from e

    def _batch(self, rows: DataFrame, batch: int) -> None:
        try:
            stream = stream_id(self._checkpoint, Store()) or ""
            if not self.ledger.is_finished(stream, batch) and not self._is_in_bronze(stream, batch):
                self._take(rows, stream, batch)
        except BaseException as e:
            # Spark would turn it into text.
            self._failure = e
            raise

    def _is_in_bronze(self, stream: str, batch: int) -> bool:
        """A batch of hop 1 that bronze has taken, though Spark was stopped before it wrote that down."""
        if self._bronze is None:
            return False
        table = Table(self._bronze, self.store).open()
        return table is not None and table.newest(stream) >= batch

    def _take(self, rows: DataFrame, stream: str, batch: int) -> None:
        earlier = self.fanout.journal.refused(stream, batch)
        self.fanout.killed |= self.fanout.journal.killed(stream, batch)
        with self.fanout.cut(rows, earlier or {}) as chunks:
            writers = chunks.writers()
            compiled, refused = self.fanout.schemas.resolve(chunks.schema_ids(), earlier)
            spec = self.fanout.admit(chunks, self.fanout.spec(stream, batch, refused, {}, writers))
            self._fits = {}
            decisions = {
                route: self._decision(route, route_writers, compiled, spec) for route, route_writers in writers.items()
            }
            rows_in, bad = self._count(chunks, replace(spec, decisions=decisions), compiled)
        self._check_first(rows_in)
        self._bad_batches = self._bad_batches + 1 if bad else 0
        self.plan.stops = self.config.quarantine.passed(rows_in, bad, self._bad_batches)
        if self.plan.stops is not None:
            raise _Stopped

    def _check_first(self, rows_in: int) -> None:
        """Raises FirstBatchUnreadable where a run would."""
        first = self.plan.batches == 1 and is_first(self.config, self.ledger.finished)
        example = self._examples.get(structural_reason(rows_in, self.plan.reasons) or "")
        if first and example is not None:
            raise unreadable(self.config, rows_in, example)

    # -- one table -----------------------------------------------------------------------------------------

    def _decision(
        self, route: str, writers: set[tuple[int, str]], compiled: Mapping[int, CompiledSchema], spec: MessageSpec
    ) -> Decision:
        """The columns that a run would give the table of `route`, or why it would not be written."""
        uri = spec.table(route)
        table_plan = self._tables.setdefault(route, TablePlan(route, uri, new=False))
        if route in spec.decisions:
            return spec.decisions[route]
        table_plan.parked = self.ledger.resting(time.time()).get(route)
        try:
            if table_plan.parked is None:
                if self.config.envelope.is_debezium:  # each of its messages says what columns it has
                    return self._as_it_is(table_plan, spec)
                incoming = incoming_schemas(route, writers, compiled, spec)
                if spec.has_events(route):
                    incoming = [as_merged(columns, spec) for columns in incoming]
                return self._fit(table_plan, incoming, spec)
        except BaseException as e:
            table_plan.parked = contained(e)
        return Decision("parked", why=table_plan.parked)

    def _fit(self, table_plan: TablePlan, incoming: Sequence[pa.Schema], spec: MessageSpec) -> Decision:
        table = open_own(table_plan.route, spec)
        before = spec.columns(table_plan.route, table)
        evolution = spec.evolve(table_plan.route, table, self._columns.get(table_plan.route, before), incoming)
        # What earlier batches of this dry run would have made is no table yet: its columns grow without Spark.
        grown = evolution if table is not None else replace(evolution, widened=())
        why = why_spark(table, spec.tables, table_plan.route, grown) if spec.wide is None else None
        self._fits[table_plan.route] = _Fit(before, evolution.schema, why)
        return Decision("counted", schema=evolution.schema)

    def _as_it_is(self, table_plan: TablePlan, spec: MessageSpec) -> Decision:
        table = open_own(table_plan.route, spec)
        before = spec.columns(table_plan.route, table)
        begin = self._columns.get(table_plan.route, before)
        why = why_spark(table, spec.tables, table_plan.route)
        self._fits[table_plan.route] = _Fit(before, begin, why, table, begin)
        return Decision("counted", schema=begin)

    def _grown(self, outcome: Outcome, fit: _Fit) -> _Fit:
        """With the columns that the rows of `outcome` brought."""
        brought = (pa.ipc.read_schema(pa.py_buffer(message)) for message in outcome.append.incoming)
        incoming = tuple(dict.fromkeys((*fit.incoming, *brought)))
        evolution = growing(fit.table, policy_of(self.config.tables, outcome.route))(fit.begin, incoming)
        why = None if fit.table is None else why_spark(fit.table, self.config.tables, outcome.route, evolution)
        return replace(fit, after=evolution.schema, incoming=incoming, why_spark=fit.why_spark or why)

    def _change(self, table_plan: TablePlan, fit: _Fit) -> None:
        """What a batch that writes rows to a table does to it."""
        self._columns[table_plan.route] = fit.after
        table_plan.new = fit.before is None
        table_plan.why_spark = table_plan.why_spark or fit.why_spark
        table_plan.engine = "spark" if table_plan.why_spark else "task"
        table_plan.add_changes(fit.before, fit.after)

    # -- counts --------------------------------------------------------------------------------------------

    def _count(self, chunks: BatchChunks, spec: MessageSpec, compiled: Mapping[int, CompiledSchema]) -> tuple[int, int]:
        """Counts the rows of one batch: (rows in, those of them that would be quarantined for what they are)."""
        rows = bad = 0
        self.plan.batches += 1
        self.plan.tombstones += sum(chunks.tombstones().values())
        self.plan.excluded += chunks.excluded()
        # An id that the registry does not have is told by the text of its refusal, the same for both levels.
        ids = {detail: schema_id for schema_id, (_, detail) in {**chunks.refused, **spec.refused}.items()}
        for counted in self._counted(chunks, spec, compiled):
            if counted.outcome is None:
                rows, bad = rows + sum(counted.nameless.values()), bad + sum(counted.nameless.values())
                self._add_nameless(counted.nameless)
                if counted.example is not None:
                    self._examples.setdefault(counted.example.reason, counted.example)
            else:
                rows += counted.outcome.rows_in
                bad += 0 if counted.outcome.state == "failed" else sum(counted.outcome.reasons.values())
                self._add(counted.outcome)
            add_counts(self.plan.unknown_schema_ids, {ids[d]: n for d, n in counted.unknown.items()})
        return rows, bad

    def _counted(
        self, chunks: BatchChunks, spec: MessageSpec, compiled: Mapping[int, CompiledSchema]
    ) -> Sequence[_Counted]:
        packing = chunks.packed()
        while packing.buckets:
            task = partial(_count_task, spec=spec, schemas=compiled)
            try:
                return list(decode_results(chunks.hand_out(packing, task, RESULT_DDL).toArrow()))
            except SPARK_ERRORS as e:
                self.fanout.find_killers(chunks, spec, compiled, e)
                spec = replace(spec, killed=dict(self.fanout.killed))
        return []

    def _add_nameless(self, reasons: Mapping[str, int]) -> None:
        rows = sum(reasons.values())
        self.plan.rows_in += rows
        self.plan.rows_quarantined += rows
        add_counts(self.plan.reasons, reasons)

    def _add(self, outcome: Outcome) -> None:
        table_plan = self._tables[outcome.route]
        fit = self._fits.pop(outcome.route, None) if outcome.rows_written else None
        if fit is not None:
            if outcome.append.incoming:  # each chunk of the route may bring others
                fit = self._fits[outcome.route] = self._grown(outcome, fit)
            self._change(table_plan, fit)
        table_plan.rows_in += outcome.rows_in
        table_plan.rows_written += outcome.rows_written
        table_plan.rows_quarantined += sum(outcome.reasons.values())
        add_counts(table_plan.reasons, outcome.reasons)
        add_counts(table_plan.schema_ids, outcome.schema_ids)


@contextmanager
def _copied(checkpoint: str, spark: SparkSession) -> Iterator[str]:
    """A copy of a checkpoint folder (empty where there is none) that is gone afterwards."""
    with Scratch("plan") as folder:
        copy = folder / "checkpoint"
        local = local_path(checkpoint)
        if local is None:
            _copy_by_hadoop(checkpoint, copy, spark)
        elif local.exists():
            _copy_folder(local, copy)
        yield str(copy)


def _copy_folder(source: Path, target: Path) -> None:
    for attempt in range(COPY_ATTEMPTS):
        try:
            shutil.copytree(source, target, dirs_exist_ok=True)
            return
        except shutil.Error:
            if attempt == COPY_ATTEMPTS - 1:
                raise
            shutil.rmtree(target)


def _copy_by_hadoop(source: str, target: Path, spark: SparkSession) -> None:
    hadoop = spark.sparkContext._jvm.org.apache.hadoop  # type: ignore[union-attr]
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    source_path = hadoop.fs.Path(source)
    if source_path.getFileSystem(conf).exists(source_path):
        target_path = hadoop.fs.Path(target.as_uri())
        hadoop.fs.FileUtil.copy(
            source_path.getFileSystem(conf), source_path, target_path.getFileSystem(conf), target_path, False, conf
        )


# -- what runs in Spark tasks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counted:
    """What a task says of one chunk: the outcome of its route, or for rows without one their number by reason.

    `unknown`: rows by what was said of a schema id that the registry does not have. `example`: a row without a route.
    """

    outcome: Outcome | None
    nameless: Mapping[str, int]
    unknown: Mapping[str, int]
    example: Example | None = None


def _count_task(
    batches: Iterator[pa.RecordBatch], spec: MessageSpec, schemas: Mapping[int, CompiledSchema]
) -> Iterator[pa.RecordBatch]:
    for chunk in chunk_rows(batches):
        if chunk["kind"] == "bad":
            rows = read_rejected(chunk["blob"])
            reasons = Counter(rows.column("reason").to_pylist())
            yield encode_result(
                _Counted(None, reasons, _unknown([rows]), _example(rows, max(reasons, key=lambda name: reasons[name])))
            )
        elif chunk["kind"] == "rows":
            records = [(json.loads(chunk["groups"]), read_records(chunk["blob"]))]
            for piece in cut_pieces(records, schemas, raw_nested_indexes=spec.raw_nested_indexes):
                with limited(spec.read_sec):
                    decoded = decode(chunk["route"], piece, spec, schemas)
                outcome, bad = deliver_route(chunk["route"], decoded, spec)
                yield encode_result(_Counted(outcome, {}, _unknown(bad)))


def _example(rows: pa.RecordBatch, reason: str) -> Example:
    of_reason = rows.filter(pc.equal(rows.column("reason"), reason))
    return Example(**of_reason.slice(0, 1).select(["reason", "detail", "level", "value"]).to_pylist()[0])


def _unknown(rejected: Sequence[pa.Table | pa.RecordBatch]) -> Mapping[str, int]:
    return Counter(
        detail
        for rows in rejected
        for reason, detail in zip(rows.column("reason").to_pylist(), rows.column("detail").to_pylist(), strict=True)
        if reason == Reason.UNKNOWN_SCHEMA_ID
    )
