"""One attempt at a batch of change files: who reads what, the deliver job, shared logs, merges, a pass for strays.

Everything here is idempotent under the batch's marks. What turns out only when several tasks have done their part (a
shared table that cannot be written, parts that disagree on a column) ends the attempt with `Again`: the next one knows,
and finds what this one wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.deliver import Work
from distributary.engine.changes.gather import shares_of
from distributary.engine.changes.joining import agrees, columns_of_all, joined, schema_of, source_of, take_merge
from distributary.engine.changes.keys import key_types
from distributary.engine.changes.merging import MergeWork
from distributary.engine.changes.orders import STRAY, ChangeOrders, ChangeOutcome, RouteOrder, Seen, WorkFile
from distributary.engine.changes.routing import groups
from distributary.engine.changes.tasks import run_deliver, run_merges
from distributary.engine.packing import ChunkRef, Packing, pack
from distributary.errors import StoreDown
from distributary.errors.border import contained
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution, evolve
from distributary.tables.snapshot import columns_of
from distributary.tables.widening import said_of, settled

GZIP_GROWTH = 8
"""About how many bytes of events a compressed byte stands for."""
ROW_BYTES = 150
"""About what an event takes in an uncompressed file."""


class Again(Exception):
    """The attempt cannot end well; another one, with these orders, can."""

    def __init__(self, routes: Mapping[str, RouteOrder]) -> None:
        super().__init__(", ".join(sorted(routes)))
        self.routes = routes


@dataclass
class Result:
    """What became of each route and file, and the quarantine's data files."""

    outcomes: dict[str, ChangeOutcome] = field(default_factory=dict)
    quarantine: list[DataFile] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)


class Attempt:
    """One attempt at one batch."""

    def __init__(self, by_spark: BySpark, orders: ChangeOrders, slots: int) -> None:
        self.by_spark = by_spark
        self.orders = orders
        self.slots = slots

    def run(self, files: Sequence[WorkFile], routes: Mapping[str, tuple[str, ...]]) -> Result:
        """Write the batch's files. `routes`: file -> what it is likely to hold.

        Raises Again, SourceDown, StoreDown.
        """
        together = groups(routes)
        self.orders = _bounded(self.orders, together)
        of_file = [min(together[routes[f.path][0]]) if routes[f.path] else None for f in files]
        done = self._pass(files, of_file, together, self.orders, "")
        foreign = {f.path: tuple(sorted(_foreign(done, f.path))) for f in files if _foreign(done, f.path)}
        if foreign:
            strays = [replace(f, routes=frozenset(foreign[f.path])) for f in files if f.path in foreign]
            # A file is read once more, however many tables it holds.
            alike = groups(foreign)
            owners = [min(alike[foreign[f.path][0]]) for f in strays]
            orders = replace(_bounded(self.orders, alike, together), part=STRAY)
            second = self._pass(strays, owners, alike, orders, "stray")
            for route, outcome in second.outcomes.items():
                done.outcomes[route] = joined(done.outcomes.get(route), outcome)
            done.quarantine += second.quarantine
        self._check(done)
        return done

    def _pass(
        self,
        files: Sequence[WorkFile],
        of_file: Sequence[str | None],
        together: Mapping[str, frozenset[str]],
        orders: ChangeOrders,
        name: str,
    ) -> Result:
        packing = _packed(files, of_file, self.slots)
        shared = {route for group in packing.shared for route in together[group]}
        orders = replace(orders, routes={**orders.routes, **{r: _shared(orders.order(r)) for r in shared}})
        done, parts = Result(), dict[str, list[ChangeOutcome]]()
        for answer in run_deliver(self.by_spark.spark, _buckets(files, of_file, together, packing), orders, name):
            if isinstance(answer, DataFile):
                done.quarantine.append(answer)
            elif isinstance(answer, Seen):
                done.seen.setdefault(answer.path, answer)
            else:
                parts.setdefault(answer.route, []).append(answer)
        self._settle(parts, orders)
        for route, found in parts.items():
            for one in found:
                done.outcomes[route] = joined(done.outcomes.get(route), one)
        self._commit_files(done, orders)
        self._merge(done, orders)
        for outcome in done.outcomes.values():
            self.by_spark.drop(outcome, orders)
        return done

    # -- routes whose commit is the driver's ---------------------------------------------------------------

    def _settle(self, parts: Mapping[str, Sequence[ChangeOutcome]], orders: ChangeOrders) -> None:
        """Raises Again where one part of a shared route failed, or gave a column another type than another part."""
        again: dict[str, RouteOrder] = {}
        for route, outcomes in parts.items():
            if len(outcomes) < 2 or orders.order(route).log == "parked":
                continue
            failed = next((o for o in outcomes if o.state == "failed"), None)
            if failed is not None:
                again[route] = self._parked(failed, failed.error or "")
                continue
            try:
                columns = columns_of_all(outcomes, orders.named.policy(route))
            except BaseException as e:
                again[route] = self._parked(outcomes[0], contained(e))
                continue
            if not all(agrees(columns, schema_of(o)) for o in outcomes):
                again[route] = replace(orders.order(route), schema=columns)
        if again:
            raise Again(again)

    def _parked(self, outcome: ChangeOutcome, why: str) -> RouteOrder:
        if outcome.store_fault:
            raise StoreDown(path=outcome.table, detail=why)
        return replace(self.orders.order(outcome.route), log="parked", why=why)

    def _commit_files(self, done: Result, orders: ChangeOrders) -> None:
        for outcome in done.outcomes.values():
            if outcome.state not in ("files", "spark") or not outcome.has_log:
                continue
            try:
                self._commit(outcome, orders)
            except BaseException as e:
                why = contained(e)
                outcome.blame(e)
                raise Again({outcome.route: self._parked(outcome, why)}) from e

    def _commit(self, outcome: ChangeOutcome, orders: ChangeOrders) -> None:
        """One commit for the files of many tasks, or of a table that only Spark may write."""
        target = orders.target(outcome.table, outcome.route)
        table = target.open()
        if table is not None and table.has(orders.mark):
            outcome.state = "replayed"
            committed = table.rows_of(orders.mark)
            if committed is not None:
                outcome.changed, outcome.rows_written = committed != outcome.rows_written, committed
            return
        if not outcome.files:
            outcome.state = "empty"
            return
        found = columns_of(table)
        if outcome.files_at != outcome.table:
            evolution = self._evolution(found, [outcome], orders)
            self.by_spark.append(outcome, evolution, orders)
        else:
            evolution = settled(table, schema_of(outcome))
            target.commit(table, evolution, outcome.files, orders.mark)
        outcome.state, outcome.created, outcome.evolved = "written", table is None, evolution.changed
        outcome.widened = said_of(table, evolution)

    def _evolution(self, found: pa.Schema | None, outcomes: Sequence[ChangeOutcome], orders: ChangeOrders) -> Evolution:
        return evolve(found, [schema_of(o) for o in outcomes], orders.named.policy(outcomes[0].route))

    # -- merges --------------------------------------------------------------------------------------------

    def _merge(self, done: Result, orders: ChangeOrders) -> None:
        """Merge the routes whose events lie in files."""
        work = []
        for outcome in done.outcomes.values():
            if outcome.merge_state == "rows" and outcome.changed:
                outcome.merge_state = "waiting"
            elif outcome.merge_state == "rows" and not outcome.merge_spark:
                files = tuple(f.path for f in outcome.files)
                brought = tuple(outcome.brought.items())
                shares = shares_of(sum(f.size for f in outcome.files))
                source, at, keys = source_of(outcome), outcome.files_at, outcome.keys
                types = key_types(schema_of(outcome), keys)
                work.append(MergeWork(source, keys, at, files, orders.batch, -1, brought, shares, types))
        found = {o.route: o for o in done.outcomes.values() if o.merge_spark}
        found |= {merged.route: merged for merged in run_merges(self.by_spark.spark, work, orders)}
        for route, merged in found.items():
            outcome = done.outcomes[route]
            if merged is not outcome:
                take_merge(outcome, merged)
            if merged.merge_spark:
                self.by_spark.merge(outcome, orders)
            if outcome.has_log:
                continue
            if outcome.merge_state == "parked":
                raise Again({outcome.route: self._parked(outcome, outcome.merge_error or "")})
            outcome.state = "written"

    def _check(self, done: Result) -> None:
        """Raises StoreDown when the store, not a table, is at fault. Asserts that no event is unaccounted for."""
        tried = [o for o in done.outcomes.values() if self.orders.order(o.route).log != "parked"]
        failed = [o for o in tried if o.state == "failed" or (o.merge_state == "parked" and o.merge_error)]
        for outcome in failed:
            if outcome.store_fault or (len(failed) == len(tried) > 1 and all(o.store_doubt for o in failed)):
                raise StoreDown(path=outcome.table, detail=outcome.error or outcome.merge_error)


def _bounded(orders: ChangeOrders, routes: Collection[str], before: Collection[str] = ()) -> ChangeOrders:
    """Orders that make no table of the new routes that are too many for one batch; a task sees whether one has a table
    already. `before`: routes that the batch has taken up already."""
    most = orders.named.tables.max_new_tables
    known = {*orders.tips, *orders.merge_tips}
    new, taken = sorted({*routes} - known), len({*before} - known)
    why = f"the batch has {taken + len(new):,} tables that may be new; tables.max_new_tables allows {most:,}"
    refused = {route: replace(orders.order(route), no_table=why) for route in new[max(0, most - taken) :]}
    return replace(orders, routes={**orders.routes, **refused})


def _foreign(done: Result, path: str) -> Mapping[str, int]:
    return done.seen[path].foreign if path in done.seen else {}


def _shared(order: RouteOrder) -> RouteOrder:
    if order.log != "own":
        return order
    return replace(order, log="files", merge="rows" if order.merge == "now" else order.merge)


def _packed(files: Sequence[WorkFile], of_file: Sequence[str | None], slots: int) -> Packing:
    chunks = []
    for number, (file, group) in enumerate(zip(files, of_file, strict=True)):
        size = file.size * (GZIP_GROWTH if file.path.endswith(".gz") else 1)
        chunks.append(ChunkRef(number, 0, group, max(1, size // ROW_BYTES), size))
    return pack(chunks, slots)


def _buckets(
    files: Sequence[WorkFile],
    of_file: Sequence[str | None],
    together: Mapping[str, frozenset[str]],
    packing: Packing,
) -> list[list[Work]]:
    """Each task's work, one group of routes after the other."""
    found: list[dict[str | None, list[WorkFile]]] = [{} for _ in range(packing.buckets)]
    for number, (file, group) in enumerate(zip(files, of_file, strict=True)):
        found[packing.bucket_of[number, 0]].setdefault(group, []).append(file)
    return [
        [
            Work(together[group] if group is not None else frozenset(), tuple(held))
            for group, held in sorted(bucket.items(), key=lambda item: item[0] or "")
        ]
        for bucket in found
    ]
