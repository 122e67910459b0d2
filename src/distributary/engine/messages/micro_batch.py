"""One micro-batch, source rows to tables, in two Spark jobs: cut into chunks by route; deliver each route's chunks.

    rows -> demux (map side) -> chunks, kept on disk -> [driver: which schemas, which task] -> deliver -> outcomes

Every write is idempotent under the batch's transaction, so a batch can be attempted again at any moment: by Spark after
a crash, or right here without a table that turned out to be broken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.config.debezium import decoded_format
from distributary.engine.attempts import attempted, killers_after
from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.table_settings import Named, named_of
from distributary.engine.decisions import Decision
from distributary.engine.messages.admission import refused_routes
from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.batch_chunks import BatchChunks, CarriedChunks, SpooledChunks
from distributary.engine.messages.chunks import CHUNK_DDL, WriterSchema
from distributary.engine.messages.decode import Decoded, fit, incoming_schema
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.spool import Spool
from distributary.engine.messages.table_names import TableNames
from distributary.engine.messages.task_spec import MessageSpec, of_route
from distributary.engine.messages.tasks import (
    RESULT_DDL,
    decode_results,
    demux_files_task,
    demux_task,
    envelope_killers_task,
    killers_task,
)
from distributary.engine.messages.wide_attempt import WideAttempt
from distributary.engine.outcomes import Append, Delivered, Merge, Outcome
from distributary.engine.schemas import Schemas
from distributary.schemas.registry.compile import CompiledSchema
from distributary.sources.data_files import BatchFiles
from distributary.state.journal import Journal, Refusals
from distributary.tables.merge_tip import MergeTip
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.spark_engine import SPARK_ERRORS, SparkEngine, spark_schema
from distributary.tables.spark_names import told
from distributary.tables.spark_types import struct_of
from distributary.tables.store import Store
from distributary.tables.tip import Tip

log = logging.getLogger("distributary")


class Fanout:
    """Writes batches of one pipeline to its tables. Keeps what is for good: compiled schemas, tables' engines."""

    def __init__(self, spark: SparkSession, config: Pipeline, schemas: Schemas, store: Store) -> None:
        self.spark = spark
        self.config = config
        self.schemas = schemas
        self.envelopes = Envelopes(config, schemas)
        self.store = store
        self.journal = Journal(config.state_root, store)
        self.quarantine = quarantine_uri(config.state_root)
        self.by_spark = SparkEngine(spark, store)
        one_machine = (spark.conf.get("spark.master", None) or "").startswith("local")
        first, *_ = (spark.conf.get("spark.local.dir", None) or "").split(",")
        self.spool = Spool(first or None) if one_machine else None
        """Where all tasks see the same local files, a chunk's bytes need not pass through Spark."""
        self.merging = BySpark(spark, store)
        self.on_spark: set[str] = set()
        """Routes whose table needs engine `spark`, as far as known."""
        self.tips: dict[str, Tip] = {}
        """What the last batch's commits left behind, by route: spares the next batch the opening of the table."""
        self.merge_tips: dict[str, MergeTip] = {}
        """And those in merged tables."""
        self.names = TableNames(config.pipeline, config.tables, store)
        self.killed: dict[str, str] = {}
        """Records, by `fingerprint`, that have ended a worker, and how: they may come again."""
        self.files: Callable[[int], BatchFiles | None] = lambda _: None
        """The files that a batch stands for, where its tasks can read them; else Spark brings the rows."""
        self.was_read: Callable[[int], None] = lambda _: None
        """Called once a batch has been read, before it is decided; raises where it must not be."""
        self.will_write: Callable[[Mapping[str, Sequence[str]], str, int], None] = lambda *_: None
        """Hears which tables a stream is to write in a batch, by route, and may raise (`state.provenance`)."""

    def write(self, rows: DataFrame, stream: str, batch: int, parked: Mapping[str, str]) -> Delivered:
        """Write one batch. `parked`: routes that are not tried, and why; their rows are kept aside.

        Raises Outage (registry, store): nothing is advanced, and the same batch can be written again.
        """
        started = time.monotonic()
        earlier = self.journal.refused(stream, batch)
        self.killed |= self.journal.killed(stream, batch)
        if earlier is not None:
            # An earlier attempt may have committed to some tables: only an opened table shows its transactions.
            self.tips.clear()
            self.merge_tips.clear()
        try:
            cut_up = self.cut(self.files(batch) or rows, earlier or {})
        except Exception:
            self.was_read(batch)  # a source that is another one now explains it
            raise
        with cut_up as chunks:
            self.was_read(batch)
            if self.killed:  # also where an earlier batch has found them: every attempt at this one goes by the same
                self.journal.write_killed(stream, batch, self.killed)
            cut = time.monotonic()
            writers = chunks.writers()
            compiled, refused = self.schemas.resolve(chunks.schema_ids(), earlier)
            if earlier is None:
                self.journal.write_refused(stream, batch, {**chunks.refused, **refused})
            # Only this batch's tips: the spec travels with every task.
            tips = {route: self.tips[route] for route in writers if route in self.tips}
            merge_tips = {route: self.merge_tips[route] for route in writers if route in self.merge_tips}
            spec = self.spec(stream, batch, refused, parked, writers)
            spec = replace(spec, tips=tips, merge_tips=merge_tips)
            spec = self.admit(chunks, spec)
            self.will_write(_tables(writers, spec), stream, batch)
            delivered = self._deliver(chunks, writers, spec, compiled)
        delivered.seconds = {"cut": cut - started, "deliver": time.monotonic() - cut}
        return delivered

    def admit(self, chunks: BatchChunks, spec: MessageSpec) -> MessageSpec:
        """Orders without the new routes that are too many for one batch. Raises TableFault, OSError."""
        routes_with_table = {*self.tips, *self.merge_tips, *self.on_spark, *spec.decisions}
        refused = refused_routes(chunks.rows(), routes_with_table, spec)
        return spec.deciding({route: Decision("refused", why=why) for route, why in refused.items()})

    def cut(self, rows: DataFrame | BatchFiles, refused: Refusals) -> BatchChunks:
        """Demultiplex the source rows; looks up the envelope schemas that a batch brings for the first time."""
        reader = replace(self.envelopes.batch(), killed=dict(self.killed))
        while True:
            try:
                chunks = self._cut(rows, reader)
            except SPARK_ERRORS as e:
                self._find_envelope_killers(rows, reader, e)
                reader = replace(reader, killed=dict(self.killed))
                continue
            try:
                unknown = chunks.unknown_ids()
                if not unknown:
                    return chunks
                newly = self.envelopes.learn(unknown, refused)
            except BaseException:
                chunks.release(succeeded=False)
                raise
            chunks.release(succeeded=True)
            reader = replace(reader, schemas=self.envelopes.known(), refused={**reader.refused, **newly})

    def _find_envelope_killers(self, rows: DataFrame | BatchFiles, reader: EnvelopeReader, error: Exception) -> None:
        """After the job that cuts has failed: the records that end the process which opens them. Raises `error` where
        there are no new ones."""
        if reader.format == "columns" or not reader.opens:
            raise error
        files = rows if isinstance(rows, BatchFiles) else None
        frame = self._numbers(rows) if isinstance(rows, BatchFiles) else rows
        task = partial(envelope_killers_task, reader=reader, files=files)
        self._note_killers(frame.mapInArrow(task, RESULT_DDL), error)

    def _note_killers(self, search: DataFrame, error: Exception) -> None:
        """What a search after `error` has found. Raises it where that is nothing new, or no worker has died."""

        def search_result() -> dict[str, str]:
            return {record: how for task_answer in decode_results(search.toArrow()) for record, how in task_answer}

        all_killers = killers_after(error, self.killed, search_result)
        new = len(all_killers) - len(self.killed)
        log.warning("a worker died of %d records, which are set aside (KILLED_READER); the batch goes on", new)
        self.killed = all_killers

    def _numbers(self, files: BatchFiles) -> DataFrame:
        return self.spark.range(0, len(files.tasks), 1, len(files.tasks))

    def _cut(self, rows: DataFrame | BatchFiles, reader: EnvelopeReader) -> BatchChunks:
        spool, columns = None if self.spool is None else self.spool.open(), struct_of(CHUNK_DDL)
        if isinstance(rows, BatchFiles):
            task = partial(demux_files_task, files=rows, reader=reader, spool=spool)
            cut = self._numbers(rows).mapInArrow(task, columns)
        else:
            cut = rows.mapInArrow(partial(demux_task, reader=reader, spool=spool), columns)
        return CarriedChunks.of(cut, reader.refused) if spool is None else SpooledChunks.of(cut, reader.refused, spool)

    def spec(
        self, stream: str, batch: int, refused: Refusals, parked: Mapping[str, str], routes: Iterable[str] = ()
    ) -> MessageSpec:
        """Orders for some routes. Raises TableFault, OSError."""
        wide = self.config.shared_table
        is_plain = wide is None and not self.config.envelope.is_debezium
        routes = list(routes)
        names = self.names.settle(routes) if is_plain else {}
        logs = self.names.settle_logs(routes) if is_plain else {}
        named = named_of(self.config, names, logs)
        return MessageSpec(
            pipeline=self.config.pipeline,
            stream=stream,
            batch=batch,
            tables=self.config.tables.for_tasks,
            store=self._store(named, routes),
            quarantine=self.quarantine,
            payload_format=decoded_format(self.config),
            payload_framed=self.config.payload.is_framed,
            has_key_schemas=self.config.envelope.is_debezium and decoded_format(self.config) != "bytes",
            raw_nested_indexes=self.config.payload.raw_nested_indexes,
            null_out_of_range=self.config.payload.out_of_range == "null",
            refused=refused,
            killed=dict(self.killed),
            read_sec=self.config.quarantine.read_sec,
            decisions={route: Decision("parked", why=why) for route, why in parked.items()},
            names=names,
            wide=wide,
            named=named,
            record_key=self.config.source.record_key,
            parts=self.config.state_folder.parts,
        )

    def _store(self, named: Named | None, routes: Sequence[str]) -> Store:
        """With what tasks must know of tables that they cannot open, where events are merged into such."""
        if named is None or not self.config.tables.managed:
            return self.store
        return told(
            self.store, [uri for route in routes if named.takes(route) for uri in named.all_of(of_route(route))]
        )

    def write_decoded(self, route: str, decoded: Decoded, spec: MessageSpec) -> Outcome:
        """Write a few decoded rows by engine `spark`, outside of a batch.

        Raises SparkEngineError, TableFault, OSError.
        """
        uri = spec.table(route)
        incoming = [incoming_schema(b.schema, spec) for b in decoded.batches if b.num_rows]
        self.on_spark.add(route)
        schema = self.by_spark.prepare(spec.target(route), incoming, spec.policy(route))
        fitted = fit(route, decoded, schema, spec)
        frame = self.spark.createDataFrame(fitted.table, spark_schema(schema))
        self.by_spark.append(frame, uri, spec.txn)
        return Outcome(route, uri, decoded.rows_in, Append("written", fitted.rows), schema_ids=fitted.schema_ids)

    # -- deliver -------------------------------------------------------------------------------------------

    def _deliver(
        self,
        chunks: BatchChunks,
        writers: Mapping[str, set[WriterSchema]],
        spec: MessageSpec,
        compiled: Mapping[int, CompiledSchema],
    ) -> Delivered:
        """Attempt the batch until every table is either written or parked."""
        kind = Attempt if spec.wide is None else WideAttempt

        def attempt(spec: MessageSpec) -> Delivered:
            shared_arguments = (self.spark, self.store, self.by_spark, self.on_spark, self.merging)
            return kind(*shared_arguments, chunks, writers, spec, compiled).run()

        def killed(spec: MessageSpec, error: Exception) -> dict[str, str]:
            self.find_killers(chunks, spec, compiled, error)
            # Written down before a table is touched without them.
            self.journal.write_killed(spec.stream, spec.batch, self.killed)
            return dict(self.killed)

        delivered = attempted(spec, attempt, killed)
        self._remember(delivered)
        return delivered

    def find_killers(
        self, chunks: BatchChunks, spec: MessageSpec, compiled: Mapping[int, CompiledSchema], error: Exception
    ) -> None:
        """After a job over a batch's chunks has failed: the records that end their reader, into `killed`. Raises
        `error` where there are no new ones."""
        packing = chunks.records_of({chunk["route"] for chunk in chunks.meta if chunk["kind"] == "rows"})
        if not packing.buckets:
            raise error
        task = partial(killers_task, spec=spec, schemas=compiled)
        self._note_killers(chunks.hand_out(packing, task, RESULT_DDL), error)

    def _remember(self, delivered: Delivered) -> None:
        """Keep the tips of the tables just written; any other knowledge of a table that was touched is stale."""
        for route, outcome in delivered.outcomes.items():
            if outcome.append.tip is not None:
                self.tips[route] = outcome.append.tip
            elif outcome.state != "empty":
                self.tips.pop(route, None)
            if (merge := outcome.merge) is not None:
                self._remember_merge(route, merge)
            if outcome.state == "failed":
                self.names.forget(route)

    def _remember_merge(self, route: str, merge: Merge) -> None:
        if merge.tip is not None:
            self.merge_tips[route] = merge.tip
        else:
            self.merge_tips.pop(route, None)
        if merge.by_spark:
            self.on_spark.add(route)
        elif merge.state == "merged":
            self.on_spark.discard(route)


def _tables(routes: Iterable[str], spec: MessageSpec) -> dict[str, list[str]]:
    """Addresses of the tables that a batch writes, by the route of their owner."""
    return {("" if spec.wide else r): spec.all_of(r) for r in routes if r not in spec.decisions}
