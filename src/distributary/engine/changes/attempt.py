"""One attempt at a batch of change files: who reads what, the deliver job, shared logs, merges, a pass for strays.

Everything here is idempotent under the batch's marks. What turns out only when several tasks have done their part (a
shared table that cannot be written, parts that disagree on a column) ends the attempt (`engine.attempts`): the next one
knows, and finds what this one wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from distributary.engine.appending import commit_files, replayed
from distributary.engine.attempts import Again, RouteFault, end_attempt
from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.deliver import Work
from distributary.engine.changes.gather import shares_of
from distributary.engine.changes.joining import agrees, columns_of_all
from distributary.engine.changes.keys import key_types
from distributary.engine.changes.merging import MergeWork
from distributary.engine.changes.orders import STRAY, ChangeOrders, Seen, WorkFile
from distributary.engine.changes.routing import groups
from distributary.engine.changes.tasks import run_deliver, run_merges
from distributary.engine.decisions import Decision, too_many
from distributary.engine.outcomes import Append, Fault, Merge, Outcome, join_into, raise_store_faults
from distributary.engine.packing import ChunkRef, Packing, pack
from distributary.errors.border import contained
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import evolve
from distributary.tables.snapshot import columns_of
from distributary.tables.table import Table
from distributary.tables.widening import said_of

GZIP_GROWTH = 8
"""About how many bytes of events a compressed byte stands for."""
ROW_BYTES = 150
"""About what an event takes in an uncompressed file."""


@dataclass
class Result:
    """What became of each route and file, and the quarantine's data files."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
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
            for outcome in second.outcomes.values():
                join_into(done.outcomes, outcome)
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
        orders = orders.deciding({route: _shared(orders.decision(route)) for route in shared})
        done, parts = Result(), dict[str, list[Outcome]]()
        for answer in run_deliver(self.by_spark.spark, _buckets(files, of_file, together, packing), orders, name):
            if isinstance(answer, DataFile):
                done.quarantine.append(answer)
            elif isinstance(answer, Seen):
                done.seen.setdefault(answer.path, answer)
            else:
                parts.setdefault(answer.route, []).append(answer)
        self._settle(parts, orders)
        for found in parts.values():
            for one in found:
                join_into(done.outcomes, one)
        self._commit_files(done, orders)
        self._merge(done, orders)
        for outcome in done.outcomes.values():
            self.by_spark.drop(outcome, orders)
        return done

    # -- routes whose commit is the driver's ---------------------------------------------------------------

    def _settle(self, parts: Mapping[str, Sequence[Outcome]], orders: ChangeOrders) -> None:
        """Raises Again where one part of a shared route failed, or gave a column another type than another part."""
        faults: dict[str, str] = {}
        settled: dict[str, pa.Schema] = {}
        for route, outcomes in parts.items():
            if len(outcomes) < 2 or orders.decision(route).append == "parked":
                continue
            fault = next((o.fault for o in outcomes if o.fault is not None), None)
            if fault is not None:
                faults[route] = fault.own(outcomes[0].table)
                continue
            appends = [o.append for o in outcomes]
            try:
                columns = columns_of_all(appends, orders.named.policy(route))
            except BaseException as e:
                faults[route] = contained(e)
                continue
            if not all(agrees(columns, append.columns()) for append in appends):
                settled[route] = columns
        if faults or settled:
            raise Again(faults, settled)

    def _commit_files(self, done: Result, orders: ChangeOrders) -> None:
        for route, outcome in done.outcomes.items():
            if outcome.state != "files" or (outcome.events is not None and not outcome.events.has_log):
                continue
            try:
                done.outcomes[route] = replace(outcome, append=self._commit(outcome, orders))
            except BaseException as e:
                end_attempt(e, route, outcome.table)

    def _commit(self, outcome: Outcome, orders: ChangeOrders) -> Append:
        """One commit for the files of many tasks, or of a table that only Spark may write."""
        files = outcome.append
        target = orders.target(outcome.table, outcome.route)
        if files.folder == outcome.table:
            done = commit_files(target, files.files, files.rows, files.columns(), orders.mark, orders.replay)
        else:
            done = self._commit_by_spark(target, outcome, orders)
        return replace(done, why_spark=files.why_spark, files=files.files, folder=files.folder, schema=files.schema)

    def _commit_by_spark(self, target: Table, outcome: Outcome, orders: ChangeOrders) -> Append:
        table, rows = target.open(), outcome.rows_written
        if table is not None and table.has(orders.mark):
            return replayed(table, orders.mark, orders.replay, rows)
        if not outcome.append.files:
            return Append()
        evolution = evolve(columns_of(table), [outcome.append.columns()], orders.named.policy(outcome.route))
        self.by_spark.append(outcome, evolution, orders)
        widened = said_of(table, evolution)
        return Append("written", rows, table is None, evolution.changed, widened, by_spark=True)

    # -- merges --------------------------------------------------------------------------------------------

    def _merge(self, done: Result, orders: ChangeOrders) -> None:
        """Merge the routes whose events lie in files."""
        work = []
        by_spark = []
        for route, outcome in done.outcomes.items():
            merge = outcome.merge or Merge()
            if merge.why_spark:
                by_spark.append(route)
            elif merge.state == "rows" and outcome.append.other:
                done.outcomes[route] = replace(outcome, merge=replace(merge, state="waiting"))
            elif merge.state == "rows":
                work.append(_merge_work(outcome, orders))
        merged = {o.route: o.merge for o in run_merges(self.by_spark.spark, work, orders)}
        for route in (*by_spark, *merged):
            done.outcomes[route] = self._merged(done.outcomes[route], merged.get(route), orders)

    def _merged(self, outcome: Outcome, merge: Merge | None, orders: ChangeOrders) -> Outcome:
        """With what a task has merged (None: none has), and what it left to Spark."""
        if merge is not None and outcome.merge is not None:
            outcome = replace(outcome, merge=outcome.merge.joined(merge))
        if outcome.merge is not None and outcome.merge.why_spark:
            outcome = self.by_spark.merge(outcome, orders)
        if outcome.events is None or outcome.events.has_log:
            return outcome
        if outcome.merge is not None and outcome.merge.state == "parked":
            fault = outcome.merge.fault or Fault("")
            raise RouteFault(outcome.route, fault.own(outcome.table))
        return replace(outcome, append=replace(outcome.append, state="written"))

    def _check(self, done: Result) -> None:
        """Raises StoreDown when the store, not a table, is at fault."""
        raise_store_faults({r: o for r, o in done.outcomes.items() if not self.orders.decision(r).is_closed})


def _merge_work(outcome: Outcome, orders: ChangeOrders) -> MergeWork:
    """The files of a route that the driver has merged."""
    files, about = outcome.append, outcome.events
    assert about is not None
    return MergeWork(
        about.source,
        about.keys,
        files.folder,
        tuple(f.path for f in files.files),
        orders.batch,
        brought=tuple(about.brought.items()),
        shares=shares_of(sum(f.size for f in files.files)),
        key_types=key_types(files.columns(), about.keys),
    )


def _bounded(orders: ChangeOrders, routes: Collection[str], before: Collection[str] = ()) -> ChangeOrders:
    """Orders that make no table of the new routes that are too many for one batch; a task sees whether one has a table
    already. `before`: routes that the batch has taken up already."""
    most = orders.named.tables.max_new_tables
    known = {*orders.tips, *orders.merge_tips}
    new, taken = sorted({*routes} - known), len({*before} - known)
    refused = too_many(new, most, "tables that may be new", taken)
    return orders.deciding({route: replace(orders.decision(route), no_table=why) for route, why in refused.items()})


def _foreign(done: Result, path: str) -> Mapping[str, int]:
    return done.seen[path].foreign if path in done.seen else {}


def _shared(decision: Decision) -> Decision:
    if decision.append != "own":
        return decision
    return replace(decision, append="files", merge="rows" if decision.merge == "now" else decision.merge)


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
