"""One attempt to deliver a batch to the one table of layout `wide`: all tasks write files, the driver commits once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace

import pyarrow as pa

from distributary import __version__
from distributary.engine.messages.attempt import Attempt, Delivered, RouteFault
from distributary.engine.messages.deliver import check_replay, open_own
from distributary.engine.messages.orders import Outcome, Special
from distributary.engine.messages.wide import commit_wide
from distributary.engine.packing import Packing
from distributary.errors import BadInput, ReplayMismatch, StoreDown
from distributary.errors.border import contained
from distributary.names import table_name
from distributary.scratch import Scratch
from distributary.tables.evolve import Evolution, widened_in_words
from distributary.tables.faults import CommitConflict
from distributary.tables.outage import own_fault
from distributary.tables.rewrite import committed_widening
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.wide import committed_routes

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
        return self.orders.seen(route, self._before)

    def _open(self) -> None:
        try:
            self._table = open_own("", self.orders)
            if self._table is not None:
                self._before = self._table.schema
                if self._table.has(self.orders.mark):
                    self._taken = self._committed(self._table)
        except (BadInput, ReplayMismatch):
            raise
        except BaseException as e:  # the one table of all routes: without it there is nothing to go on with
            raise StoreDown(path=str(self.orders.wide), detail=contained(e)) from e

    def _prepare_shared(self, routes: Collection[str]) -> set[str]:
        self._evolutions = {}
        special = {route: self._prepare(route) for route in sorted(routes)}
        self.orders = replace(self.orders, special={**self.orders.special, **special})
        return set()

    def _committed(self, table: Snapshot) -> Mapping[str, int]:
        found = committed_routes(table, self.orders.mark)
        if found is None:
            uri, batch = str(self.orders.wide), self.orders.batch
            raise ReplayMismatch(table=uri, batch=batch, committed="no longer known", decoded="?", version=__version__)
        return found

    def _prepare(self, route: str) -> Special:
        if self._taken is not None and route not in self._taken:
            # Its rows are not in the table: to count them as written would lose them. A replay brings them.
            return Special("parked", why=LEFT_OUT)
        try:
            before = self.orders.seen(route, self._before)
            evolution = self.orders.evolve(route, self._table, before, self._incoming(route))
        except BaseException as e:
            raise self._fault(route, e) from e
        self._evolutions[route] = evolution
        return Special("files" if self._taken is None else "counted", evolution.schema)

    def _commit_shared(self, done: Delivered) -> None:
        mine = [done.outcomes[route] for route in self._evolutions if route in done.outcomes]
        for outcome in mine:
            self._none_failed(outcome)
        if self._taken is not None:
            self._count(mine, self._taken)
            return
        written = [outcome for outcome in mine if outcome.files]
        for outcome in mine:
            outcome.state = "empty"
        if not written:
            return
        columns: dict[str, pa.Schema] = {o.route: self._evolutions[o.route].schema for o in written}
        files = [file for outcome in written for file in outcome.files]
        new = {o.route for o in written if self.orders.seen(o.route, self._before) is None}
        try:
            # Also those of which no row was good: an attempt that finds them left out would take them for parked.
            commit_wide(self._table, self.orders, columns, files, {o.route: o.rows_written for o in mine})
        except CommitConflict:
            raise
        except BaseException as e:
            raise self._blamed(e, [o.route for o in written]) from e
        for outcome in written:
            outcome.state = "written"
            outcome.created = outcome.route in new
            outcome.evolved = self._evolutions[outcome.route].changed
            before = self.orders.seen(outcome.route, self._before)
            if before is not None:
                outcome.widened = widened_in_words(before, self._evolutions[outcome.route].schema)

    def _blamed(self, error: BaseException, routes: Collection[str]) -> Exception:
        """Whose fault it is that the commit of all routes failed. A route's, if its columns were to change: the batch
        is tried without the first that cannot make a table of its own, else without the first. Else it is the table's,
        and so everybody's. Nobody's, if the commit has come in all the same: the next attempt counts by it."""
        why = contained(error)
        self._open()
        if self._taken is not None:
            return CommitConflict(why)
        changed = [r for r in sorted(routes) if self._evolutions[r].schema != self.orders.seen(r, self._before)]
        if not changed:
            return StoreDown(path=str(self.orders.wide), detail=why)
        own_fault(error, str(self.orders.wide))
        return RouteFault(next((r for r in changed if self._fails_alone(r)), changed[0]), why)

    def _fails_alone(self, route: str) -> bool:
        with Scratch("wide") as folder:
            try:
                trial = replace(self.orders, wide=str(folder), store=Store())
                commit_wide(None, trial, {route: self._evolutions[route].schema}, [], {})
            except BaseException as e:
                contained(e)
                return True
        return False

    def _count(self, outcomes: Collection[Outcome], taken: Mapping[str, int]) -> None:
        for outcome in outcomes:
            try:
                check_replay(taken[outcome.route], outcome.rows_written, outcome.table, self.orders)
            except BaseException as e:
                raise self._fault(outcome.route, e) from e
            outcome.state, outcome.widened = "replayed", self._widened(outcome.route)

    def _widened(self, route: str) -> dict[str, str]:
        """Columns of the route that an earlier attempt at this batch has widened."""
        assert self._table is not None
        own = f"{table_name(route)}."
        found = committed_widening(self._table, self.orders.mark)
        return {path.removeprefix(own): text for path, text in found.items() if path.startswith(own)}
