"""The end of a batch of Spark's sink, beside the driver: the files of all tasks into their tables, exactly once.

    written down once: which files go where  ->  one marked commit per table  ->  the quarantine's

What a batch commits is decided by the first attempt that gets so far: `<batch>.json`, put only if it is absent. An
attempt after a crash finds it, commits what is left of *it*, and drops its own files. So an attempt may decide
otherwise of a row than the one before (a column that is there by now, a table that works again), and no row is lost or
doubled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from distributary.engine.appending import ReplayCheck, commit_files
from distributary.engine.decisions import too_many
from distributary.engine.outcomes import Fault
from distributary.errors import Reason, ReplayMismatch, StoreDown, TableCollision
from distributary.errors.border import TableFault
from distributary.sink import books
from distributary.sink.by_routes import rejected
from distributary.sink.sink_options import SinkOptions
from distributary.sink.written import RouteFiles, WrittenFiles, discard, joined
from distributary.state.state_format import prove_new
from distributary.tables.conform import by_cause, conform
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy, Slot
from distributary.tables.faults import CommitConflict, writing
from distributary.tables.put_once import put_once, read
from distributary.tables.quarantine import commit_quarantine, write_rejected
from distributary.tables.snapshot import Snapshot, Txn, columns_of
from distributary.tables.store import filesystem, join
from distributary.tables.table import retried
from distributary.tables.widening import evolve_table

AT_A_TIME = 8
"""Tables that are committed at a time."""
KEPT = 100
"""Plans kept behind the newest one, as many as Spark keeps of its own offset log."""


@dataclass(frozen=True)
class BatchEnding:
    """The end of one batch. `txn`: what its commits are known by."""

    options: SinkOptions
    txn: Txn

    def commit(self, tasks: Iterable[WrittenFiles]) -> None:
        """Commit what the tasks wrote, or what is left of an earlier attempt. Safe to repeat.

        Raises StoreDown; the batch can be done again. Raises StoreUnfit before the first.
        """
        written = joined(tasks)
        if self.txn.version == 0:
            prove_new(self.options.state, (self.options.tables.root,), self.options.store)
        with writing(self.options.state):
            plan = self._planned()
            if plan is None:
                written = self._admitted(written)
                if not written.names() and not written.tombstones and not written.excluded:
                    return
                plan = None if self._write_down(written) else self._planned()
            if plan is not None and plan.names() != written.names():
                plan = self._still_there(plan, written)
                discard(written.without(plan.names()), self.options)
            parked = self._apply(plan or written, again=plan is not None)
            books.record(self.options, self.txn, plan or written, parked)
            self.options.store.delete(join(self.options.intents, self._folder), f"{self.txn.version - KEPT}.json")

    def abort(self, tasks: Iterable[WrittenFiles]) -> None:
        """Remove what tasks of a failed attempt wrote, unless it is written down that it is committed."""
        with writing(self.options.state):
            if self._planned() is None:
                discard(joined(tasks), self.options)

    # -- what is committed ---------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        return quote(self.txn.app_id, safe="").replace(".", "%2E")

    def _planned(self) -> WrittenFiles | None:
        body = read(self.options.intents, self.options.store, self._folder, f"{self.txn.version}.json")
        return None if body is None else WrittenFiles.from_json(json.loads(body))

    def _still_there(self, plan: WrittenFiles, written: WrittenFiles) -> WrittenFiles:
        """`plan`, with this attempt's own files in place of those that a vacuum has taken since, for no commit names
        them. Files of a table that has the batch may be gone: it may have been compacted.

        Raises StoreDown: this attempt's own are not as many rows, so that one would be lost or doubled.
        """
        options, own, parts, aside = self.options, written.by_route(), [], plan.quarantine
        quarantine = Snapshot.open(options.quarantine, options.store)
        for route, planned in plan.by_route().items():
            uri, files = planned[0].uri, [file for route_files in planned for file in route_files.files]
            is_parked = quarantine is not None and quarantine.has(self._parking(route))
            if not is_parked and self._is_any_gone(uri, files) and not self._may_have_batch(route):
                _check_rows(uri, planned, own.get(route, []))
                planned = own[route]
            parts += planned
        is_quarantined = quarantine is not None and quarantine.has(self.txn)
        if aside and not is_quarantined and self._is_any_gone(options.quarantine, aside):
            _check_rows(options.quarantine, aside, written.quarantine)
            aside = written.quarantine
        return replace(plan, parts=parts, quarantine=aside)

    def _is_any_gone(self, uri: str, files: Sequence[DataFile]) -> bool:
        infos = filesystem(uri, self.options.store).get_file_info([file.path for file in files])
        return any(info.type == pafs.FileType.NotFound for info in infos)

    def _may_have_batch(self, route: str) -> bool:
        """True also of a table that cannot be read."""
        try:
            return self._has_batch(route)
        except TableFault:
            return True

    def _has_batch(self, route: str) -> bool:
        """Whether the route's table has this batch. Raises OSError."""
        try:
            table = self.options.target(route).open()
        except TableCollision:
            return False  # another's: no attempt has written to it
        return table is not None and table.has(self.txn)

    def _write_down(self, written: WrittenFiles) -> bool:
        """False where an earlier attempt has come before."""
        body = json.dumps(written.to_json(), ensure_ascii=False).encode()
        return put_once(self.options.intents, self.options.store, self._folder, f"{self.txn.version}.json", body)

    def _admitted(self, written: WrittenFiles) -> WrittenFiles:
        """Without the rows of new tables that are too many for one batch, which are set aside."""
        most, routes = self.options.tables.max_new_tables, written.by_route()
        if len(routes) <= most:
            return written
        new = [route for route in routes if self.options.target(route).open() is None]
        new.sort(key=lambda route: -sum(route_files.rows for route_files in routes[route]))
        beyond = too_many(new, most, "routes without a table")
        refused = WrittenFiles([route_files for route in beyond for route_files in routes[route]])
        if not refused.parts:
            return written
        rows = [rejected(p.route, self._read(p), Reason.TOO_MANY_ROUTES, beyond[p.route]) for p in refused.parts]
        file = self._quarantine_file(rows, self.txn, "end")
        discard(refused, self.options)
        parts = [route_files for route_files in written.parts if route_files.route not in beyond]
        return replace(written, parts=parts, quarantine=[*written.quarantine, file])

    def _quarantine_file(self, rows: list[pa.Table], txn: Txn, task: str) -> DataFile:
        return write_rejected(self.options.quarantine, rows, txn.app_id, txn.version, task, self.options.store)

    def _read(self, route_files: RouteFiles) -> pa.Table:
        """The rows of its files."""
        columns, tables = route_files.columns(), []
        for file in route_files.files:
            with self.options.store.open(route_files.uri, file.path) as source:
                tables.append(pq.read_table(source))
        return pa.concat_tables(tables, promote_options="default").select(columns.names).cast(columns)

    # -- the commits ---------------------------------------------------------------------------------------

    def _apply(self, plan: WrittenFiles, *, again: bool) -> dict[str, str]:
        """`again`: an earlier attempt may have done a part of it. Returns the routes whose rows were set aside, and
        why."""
        routes, parked = plan.by_route(), {}
        if again and (quarantine := Snapshot.open(self.options.quarantine, self.options.store)) is not None:
            parked = {r: "set aside by an earlier attempt" for r in routes if quarantine.has(self._parking(r))}
            routes = {r: parts for r, parts in routes.items() if r not in parked}
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            whys = list(pool.map(partial(self._commit_or_park, again=again), routes, routes.values()))
        self._commit_quarantine(plan.quarantine, self.txn)
        return parked | {route: why for route, why in zip(routes, whys, strict=True) if why is not None}

    def _commit_quarantine(self, files: Sequence[DataFile], txn: Txn) -> None:
        options = self.options
        if files:
            commit_quarantine(options.quarantine, options.name, files, txn.app_id, txn.version, options.store)

    def _parking(self, route: str) -> Txn:
        """The transaction by which the quarantine knows that it has a route's rows of this batch."""
        return Txn(f"{self.txn.app_id} {route}", self.txn.version)

    def _commit_or_park(self, route: str, parts: list[RouteFiles], *, again: bool) -> str | None:
        """Commit a route's files; where the table cannot take them, its rows are set aside: returns why.

        Raises CommitConflict (others were first each time), StoreDown, ReplayMismatch.
        """
        try:
            self._commit(route, parts)
            return None
        except (CommitConflict, ReplayMismatch):
            raise
        except BaseException as e:
            uri, txn = parts[0].uri, self._parking(route)
            why = Fault.of(e).own(uri)
            if self._is_done(route, why, again=again):
                return None
            # Another owner's table is that for good: the batch would come again for nothing.
            if not self.options.parks and not isinstance(e, TableCollision):
                raise StoreDown(path=uri, detail=why) from e
            rows = [rejected(route, self._read(route_files), Reason.TABLE_PARKED, why) for route_files in parts]
            # By the batch's own stream, as the ledger knows it; the routes of a batch share no row's id.
            task = f"{books.PARKED}{hashlib.sha256(route.encode()).hexdigest()[:16]}"
            self._commit_quarantine([self._quarantine_file(rows, self.txn, task)], txn)
            return why

    def _is_done(self, route: str, why: str, *, again: bool) -> bool:
        """Whether a table that has just failed has the batch nevertheless, so that its rows must not be set aside.

        Raises StoreDown: an earlier attempt may have committed it (`again`), and the table's log does not say.
        """
        try:
            return self._has_batch(route)
        except OSError as e:
            if not again:
                return False
            detail = f"{why}; an earlier attempt may have written this batch to it, which its log must say first"
            raise StoreDown(path=self.options.target(route).uri, detail=detail) from e

    def _commit(self, route: str, parts: list[RouteFiles]) -> None:
        target, replay = self.options.target(route), ReplayCheck(self.txn.version)
        try:
            if len(parts) == 1:
                (route_files,) = parts
                retried(
                    lambda: commit_files(
                        target, route_files.files, route_files.rows, route_files.columns(), self.txn, replay
                    )
                )
                return
        except CommitConflict:
            pass  # somebody has given the table other columns since
        retried(lambda: self._refitted(route, parts))

    def _refitted(self, route: str, parts: list[RouteFiles]) -> None:
        """The rows of files that do not go with the table's columns, or with each other, in those that it has now.

        No single row is set aside here, for it is written down how many come in: a value that no column can hold gets a
        second column. Raises ValueError: a row lacks what the table asks for.
        """
        target, txn = self.options.target(route), self.txn
        table, rows = target.open(), [self._read(file_rows) for file_rows in parts]
        policy = Policy(type_change="new_column")
        evolution = evolve_table(table, columns_of(table), [file_rows.schema for file_rows in rows], policy)
        fitted = [
            _fitted(batch, slots, evolution.schema)
            for file_rows, slots in zip(rows, evolution.slots, strict=True)
            for batch in file_rows.to_batches()
        ]
        count = sum(file_rows.rows for file_rows in parts)
        if table is not None and table.has(txn):
            commit_files(target, [], count, evolution.schema, txn, ReplayCheck(txn.version))
            return
        file = target.write(pa.concat_tables(fitted))
        commit_files(target, [file], count, evolution.schema, txn, ReplayCheck(txn.version))


def _fitted(rows: pa.RecordBatch, slots: Sequence[Slot], schema: pa.Schema) -> pa.Table:
    """Raises ValueError."""
    conformed = conform(rows, slots, schema)
    for (reason, column), positions in by_cause(conformed.rejected).items():
        raise ValueError(
            f"{len(positions)} rows do not go with the column {column!r} of the table as it is by now: {reason.value}"
        )
    return pa.table(conformed.columns, schema=schema)


def _check_rows(uri: str, planned: Sequence[RouteFiles | DataFile], own: Sequence[RouteFiles | DataFile]) -> None:
    """Raises StoreDown: files that are gone cannot be replaced."""
    before, now = (sum(files.rows for files in several) for several in (planned, own))
    if before != now:
        detail = (
            f"files of an earlier attempt at this batch are gone, with {before} rows, and this attempt has {now} "
            "(docs/sink.md, Exactly once)"
        )
        raise StoreDown(path=uri, detail=detail)
