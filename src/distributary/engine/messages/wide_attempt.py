"""One attempt to deliver a batch to the one table of layout `wide`: all tasks write files, the driver commits once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

import pyarrow as pa

from distributary.engine.appending import ReplayCheck
from distributary.engine.attempts import RouteFault
from distributary.engine.decisions import Decision
from distributary.engine.messages.attempt import Attempt
from distributary.engine.messages.deliver import open_own
from distributary.engine.messages.wide_commit import commit_wide
from distributary.engine.outcomes import Append, Delivered
from distributary.engine.packing import Packing
from distributary.errors import BadInput, ReplayMismatch, StoreDown
from distributary.errors.border import contained
from distributary.names import table_name
from distributary.scratch import Scratch
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution, widened_in_words
from distributary.tables.faults import CommitConflict
from distributary.tables.outage import own_fault
from distributary.tables.rewrite import committed_widening
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.wide import committed_routes
from distributary.version import __version__

LEFT_OUT = "this batch was committed without it"


class WideAttempt(Attempt):
    """An Attempt whose routes share one table.

    A conflict with another writer ends it with CommitConflict; the next attempt decides anew.
    """

    _table: Snapshot | None = None
    _before: pa.Schema | None = None
    """The table's columns as they were before this batch."""
    _evolutions: dict[str, Evolution]
    _taken: Mapping[str, int] | None = None
    """Where an earlier attempt has committed the batch: route -> rows."""

    def _of_the_driver(self, packing: Packing) -> Set[str]:
        return self.writers.keys()

    def _ask(self, routes: Collection[str]) -> None:
        self._open()
        if self._taken is None:
            super()._ask(routes)

    def _columns(self, route: str) -> pa.Schema | None:
        return self.spec.seen(route, self._before)

    def _open(self) -> None:
        try:
            self._table = open_own("", self.spec)
            if self._table is not None:
                self._before = self._table.schema
                if self._table.has(self.spec.txn):
                    self._taken = self._committed(self._table)
        except (BadInput, ReplayMismatch):
            raise
        except BaseException as e:  # the one table of all routes: without it there is nothing to go on with
            raise StoreDown(path=str(self.spec.wide), detail=contained(e)) from e

    def _prepare_shared(self, routes: Collection[str]) -> set[str]:
        self._evolutions = {}
        self.spec = self.spec.deciding({route: self._prepare(route) for route in sorted(routes)})
        return set()

    def _committed(self, table: Snapshot) -> Mapping[str, int]:
        rows_of = committed_routes(table, self.spec.txn)
        if rows_of is None:
            uri, batch = str(self.spec.wide), self.spec.batch
            raise ReplayMismatch(table=uri, batch=batch, committed="no longer known", decoded="?", version=__version__)
        return rows_of

    def _prepare(self, route: str) -> Decision:
        if self._taken is not None and route not in self._taken:
            # Its rows are not in the table: to count them as written would lose them. A replay brings them.
            return Decision("parked", why=LEFT_OUT)
        try:
            before = self.spec.seen(route, self._before)
            evolution = self.spec.evolve(route, self._table, before, self._incoming(route))
        except BaseException as e:
            self._end(e, route)
        self._evolutions[route] = evolution
        return Decision("files" if self._taken is None else "counted", schema=evolution.schema)

    def _commit_shared(self, delivered: Delivered) -> None:
        mine = {route: delivered.outcomes[route] for route in self._evolutions if route in delivered.outcomes}
        for outcome in mine.values():
            self._none_failed(outcome)
        rows = {route: outcome.rows_written for route, outcome in mine.items()}
        if self._taken is not None:
            appends = {route: self._count(route, self._taken[route], rows[route]) for route in mine}
        else:
            appends = self._commit_all({r: o.append.files for r, o in mine.items() if o.append.files}, rows)
        for route, outcome in mine.items():
            delivered.outcomes[route] = replace(outcome, append=appends.get(route, Append()))

    def _commit_all(self, files: Mapping[str, Sequence[DataFile]], rows: Mapping[str, int]) -> dict[str, Append]:
        """One commit of the files of all routes; what it did, for those that have any."""
        if not files:
            return {}
        columns = {route: self._evolutions[route].schema for route in files}
        before = {route: self.spec.seen(route, self._before) for route in files}
        every = [file for route_files in files.values() for file in route_files]
        try:
            # Also those of which no row was good: an attempt that finds them left out would take them for parked.
            commit_wide(self._table, self.spec, columns, every, rows)
        except CommitConflict:
            raise
        except BaseException as e:
            raise self._blamed(e, list(files)) from e
        return {
            route: Append(
                "written",
                rows[route],
                columns_before is None,
                self._evolutions[route].changed,
                {} if columns_before is None else widened_in_words(columns_before, columns[route]),
            )
            for route, columns_before in before.items()
        }

    def _blamed(self, error: BaseException, routes: Collection[str]) -> Exception:
        """Whose fault it is that the commit of all routes failed. A route's, if its columns were to change: the batch
        is tried without the first that cannot make a table of its own, else without the first. Else it is the table's,
        and so everybody's. Nobody's, if the commit has come in all the same: the next attempt counts by it."""
        why = contained(error)
        self._open()
        if self._taken is not None:
            return CommitConflict(why)
        changed = [r for r in sorted(routes) if self._evolutions[r].schema != self.spec.seen(r, self._before)]
        if not changed:
            return StoreDown(path=str(self.spec.wide), detail=why)
        own_fault(error, str(self.spec.wide))
        return RouteFault(next((r for r in changed if self._fails_alone(r)), changed[0]), why)

    def _fails_alone(self, route: str) -> bool:
        with Scratch("wide") as folder:
            try:
                trial = replace(self.spec, wide=str(folder), store=Store())
                commit_wide(None, trial, {route: self._evolutions[route].schema}, [], {})
            except BaseException as e:
                contained(e)
                return True
        return False

    def _count(self, route: str, committed: int, decoded: int) -> Append:
        """What an earlier attempt has committed of a route."""
        try:
            rows = ReplayCheck(self.spec.batch).rows(committed, decoded, self.spec.table(route))
            return Append("replayed", rows, widened=self._widened(route))
        except BaseException as e:
            self._end(e, route)

    def _widened(self, route: str) -> dict[str, str]:
        """Columns of the route that an earlier attempt at this batch has widened."""
        assert self._table is not None
        prefix = f"{table_name(route)}."
        widened = committed_widening(self._table, self.spec.txn)
        return {path.removeprefix(prefix): text for path, text in widened.items() if path.startswith(prefix)}
