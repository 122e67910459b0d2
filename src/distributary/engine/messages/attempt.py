"""One attempt to deliver a batch: who writes what, the deliver job, engine `spark`, the commits of shared routes.

Everything here is idempotent under the batch's transaction. A table that turns out to be broken ends the attempt with a
`RouteFault`; the next attempt goes on without it and finds what this one wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession

from distributary.engine.appending import ReplayCheck, commit_files
from distributary.engine.attempts import RouteFault, end_attempt
from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.concluding import conclude
from distributary.engine.decisions import Decision
from distributary.engine.messages.batch_chunks import BatchChunks
from distributary.engine.messages.chunks import Groups, WriterSchema
from distributary.engine.messages.decode import incoming_schemas
from distributary.engine.messages.deliver import open_own
from distributary.engine.messages.pieces import cells_of
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.messages.tasks import RESULT_DDL, decode_results, deliver_task, entering_task, spark_rows_task
from distributary.engine.outcomes import Append, Delivered, Outcome, State, check_counts, join_into, raise_store_faults
from distributary.engine.packing import Packing
from distributary.schemas.registry.compile import CompiledSchema
from distributary.tables.datafile import DataFile
from distributary.tables.engines import why_spark
from distributary.tables.snapshot import columns_of
from distributary.tables.spark_engine import SparkEngine, spark_schema
from distributary.tables.store import Store

SPARK_WRITERS = 8
"""Tables that engine `spark` writes at a time."""


class Attempt:
    """One attempt to deliver a batch."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        by_spark: SparkEngine,
        on_spark: set[str],
        merging: BySpark,
        chunks: BatchChunks,
        writers: Mapping[str, set[WriterSchema]],
        spec: MessageSpec,
        compiled: Mapping[int, CompiledSchema],
    ) -> None:
        self.spark = spark
        self.store = store
        self.by_spark = by_spark
        self.on_spark = on_spark
        self.merging = merging
        self.chunks = chunks
        self.writers = writers
        self.spec = spec
        self.compiled = compiled
        self._enter: dict[str, set[WriterSchema]] = {}
        self.spark_did: dict[str, tuple[State, bool, bool]] = {}

    def run(self) -> Delivered:
        chunks = self.chunks
        delivered = Delivered(
            bad=chunks.bad(), tombstones=chunks.tombstones(), excluded=chunks.excluded(), newest=chunks.newest()
        )
        packing = chunks.packed(self._cells)
        open_routes = self.writers.keys() - self.spec.decisions.keys()
        events = {r for r in open_routes if self.spec.has_events(r)}
        for route in packing.shared & events:
            self._decide(route, self.spec.decision(route).shared())
        open_routes -= events
        # A table that a catalog keeps is Spark's from the start. Of others the tasks find out: an expectation that says
        # fail is to leave no table behind, and Spark makes the table before it reads a row.
        on_spark = set(open_routes) if self.spec.tables.managed else open_routes & self.on_spark
        shared = self._of_the_driver(packing) & open_routes - on_spark
        self._ask(shared | on_spark)
        on_spark |= self._prepare_shared(shared)
        self._write_by_spark(on_spark)
        self._pass(packing, delivered)
        late = {r for r, o in delivered.outcomes.items() if o.state == "spark"}
        if late:
            for route in late:
                del delivered.outcomes[route]
            self._ask(late)
            self._write_by_spark(late)
            self._pass(chunks.records_of(late), delivered, "late")
        for route, (state, created, evolved) in self.spark_did.items():
            if (outcome := delivered.outcomes.get(route)) is not None and outcome.state == "counted":
                append = replace(outcome.append, state=state, created=created, evolved=evolved)
                delivered.outcomes[route] = replace(outcome, append=append)
        self._commit_shared(delivered)
        self._check(delivered)
        return delivered

    def _pass(self, packing: Packing, delivered: Delivered, name: str = "") -> None:
        """The deliver job: chunks -> their bucket's task -> outcomes. `name` tells two passes of one batch apart."""
        if not packing.buckets:
            return
        events: dict[str, list[Outcome]] = {}
        task = partial(deliver_task, spec=self.spec, schemas=self.compiled, name=name)
        for answers in decode_results(self.chunks.hand_out(packing, task, RESULT_DDL).toArrow()):
            for answer in answers:
                if isinstance(answer, DataFile):
                    delivered.quarantine.append(answer)
                elif answer.merge is not None and not self.spec.decision(answer.route).is_closed:
                    events.setdefault(answer.route, []).append(answer)
                else:
                    join_into(delivered.outcomes, answer)
        if events:
            delivered.outcomes |= conclude(events, self.merging, self.spec.for_changes())

    def _cells(self, groups: Groups) -> int:
        return cells_of(groups, self.compiled, raw_nested_indexes=self.spec.raw_nested_indexes)

    def _incoming(self, route: str) -> list[pa.Schema]:
        return incoming_schemas(route, self._enter.get(route, self.writers[route]), self.compiled, self.spec)

    def _ask(self, routes: Collection[str]) -> None:
        """Which writers have a row that enters, of routes whose columns this batch may change
        (`engine.messages.entering`). Routes with a single writer need no answer: without a row that enters nothing is
        committed."""
        columns_asked: dict[str, pa.Schema | None] = {}
        for route in sorted(r for r in routes if len(self.writers[r]) > 1):
            try:
                columns = self._columns(route)
                if columns is None or self.spec.evolve(route, None, columns, self._incoming(route)).changed:
                    columns_asked[route] = columns
            except BaseException as e:
                self._end(e, route)
        if not columns_asked:
            return
        task = partial(entering_task, spec=self.spec, schemas=self.compiled, columns=columns_asked)
        self._enter |= {route: set() for route in columns_asked}
        for entered in decode_results(
            self.chunks.hand_out(self.chunks.records_of(columns_asked), task, RESULT_DDL).toArrow()
        ):
            for route, writer in entered:
                self._enter[route].add(writer)

    def _columns(self, route: str) -> pa.Schema | None:
        """Of the route's table, as the route sees it; None where there is none yet."""
        return self.spec.columns(route, open_own(route, self.spec))

    # -- routes that several tasks write -------------------------------------------------------------------

    def _of_the_driver(self, packing: Packing) -> Set[str]:
        """Routes of which the tasks only write files; the commit is the driver's."""
        return packing.shared

    def _prepare_shared(self, routes: Collection[str]) -> set[str]:
        """Evolve the tables of `routes` ahead of the tasks; returns those that turn out to need engine `spark`."""
        needs_spark: set[str] = set()
        for route in sorted(routes):
            try:
                table = open_own(route, self.spec)
                schema = columns_of(table)
                evolution = self.spec.evolve(route, table, schema, self._incoming(route))
            except BaseException as e:
                self._end(e, route)
            if why_spark(table, self.spec.tables, route, evolution):
                needs_spark.add(route)
                continue
            is_committed = table is not None and table.has(self.spec.txn)
            self._decide(route, Decision("counted" if is_committed else "files", schema=evolution.schema))
        return needs_spark

    def _decide(self, route: str, decision: Decision) -> None:
        self.spec = self.spec.deciding({route: decision})

    def _commit_shared(self, delivered: Delivered) -> None:
        for route, outcome in delivered.outcomes.items():
            decision = self.spec.decision(route)
            if decision.append not in ("files", "counted") or route in self.on_spark or outcome.merge is not None:
                continue
            self._none_failed(outcome)
            try:
                delivered.outcomes[route] = replace(outcome, append=self._commit(route, outcome, decision))
            except BaseException as e:
                self._end(e, route)

    def _none_failed(self, outcome: Outcome) -> None:
        """Raises when one of a route's tasks failed: a commit of the others' files would let its rows pass for
        written."""
        if outcome.fault is not None:
            raise RouteFault(outcome.route, outcome.fault.own(outcome.table))

    def _commit(self, route: str, outcome: Outcome, decision: Decision) -> Append:
        """One commit for the files of many tasks."""
        spec = self.spec
        files, rows, replay = outcome.append.files, outcome.rows_written, ReplayCheck(spec.batch)
        return commit_files(spec.target(route), files, rows, decision.schema, spec.txn, replay)

    # -- routes that engine `spark` writes -----------------------------------------------------------------

    def _write_by_spark(self, routes: Collection[str]) -> None:
        self.on_spark |= set(routes)
        with ThreadPoolExecutor(SPARK_WRITERS) as pool:
            for future in [pool.submit(self._spark_write, route) for route in sorted(routes)]:
                route, decision, self.spark_did[route] = future.result()
                self._decide(route, decision)

    def _spark_write(self, route: str) -> tuple[str, Decision, tuple[State, bool, bool]]:
        """Write a route by Spark; returns what the tasks are to count, and (state, created, evolved)."""
        spec, uri = self.spec, self.spec.table(route)
        try:
            table = open_own(route, spec)
            before = columns_of(table)
            incoming = self._incoming(route)
            if not incoming:
                # Nothing here can be decoded, and a table without columns could not be read.
                return route, Decision("counted", schema=before or pa.schema([])), ("empty", False, False)
            engine = self.by_spark
            schema = engine.prepare(spec.target(route), incoming, spec.policy(route), table)
            decision = Decision("counted", schema=schema)
            alone = replace(spec, decisions={route: decision})
            task = partial(spark_rows_task, spec=alone, schemas=self.compiled, route=route)
            rows = self.chunks.hand_out(self.chunks.records_of({route}), task, spark_schema(schema))
            wrote = engine.append(rows, uri, spec.txn, table)
        except BaseException as e:
            self._end(e, route)
        evolved = before is not None and before != schema
        return route, decision, ("written" if wrote else "replayed", wrote and table is None, wrote and evolved)

    # -- faults and counts ---------------------------------------------------------------------------------

    def _end(self, error: BaseException, route: str) -> NoReturn:
        end_attempt(error, route, self.spec.table(route))

    def _check(self, delivered: Delivered) -> None:
        """Raises StoreDown when the store, not a table, is at fault. Asserts that no row is unaccounted for."""
        raise_store_faults({r: o for r, o in delivered.outcomes.items() if self._was_tried(o)})
        check_counts(delivered.outcomes.values())

    def _was_tried(self, outcome: Outcome) -> bool:
        """Were the tasks to write the route's table? What had been written before says nothing of the store now."""
        decision = self.spec.decision(outcome.route)
        return not decision.is_closed and (decision.append != "counted" or bool(outcome.faults))
