"""Which table is whose, where names are readable and two routes can meet in one.

A route has the first of these names that is not another's: the readable one; the name of its own, under which it may
have a table from before; a name with a digest of the route, which nobody else can have. A table says itself whose it
is, and whoever makes it first has it, so nothing is written down for this. The log of a route with keys is named in the
same way, and its history as its log is (`names.name_beside`), so that the ledger, which has the log, tells both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distributary.config import Tables
from distributary.names import name_beside, names_of, readable_name, rules_of, table_name, without_rules
from distributary.state.ledger import Ledger
from distributary.tables.files import names_in
from distributary.tables.outage import own_fault
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store, join
from distributary.tables.table import Table

UNREADABLE = Owner("", "")
"""In place of the owner of a table that cannot be read: its route keeps it, and says so where it is written."""


class TableNames:
    """Settles names on the driver, before tasks use them. Remembers what it has settled."""

    def __init__(self, pipeline: str, tables: Tables, store: Store) -> None:
        self._pipeline, self._tables, self._store = pipeline, tables, store
        self._rules = rules_of(tables.name)
        self._settled: dict[str, str] = {}
        self._logs: dict[str, str] = {}

    def remember_ledger(self, ledger: Ledger) -> None:
        """Of each route the tables to which its newest entry has written rows."""
        written = {r: e for r, e in ledger.newest.items() if r and e.table and e.rows_written}
        self.remember({route: str(entry.merged or entry.table) for route, entry in written.items()})
        for route, entry in written.items():
            name = str(entry.table).rpartition("/")[2]
            if entry.merged not in (None, entry.table) and name in self._log_names(route):
                self._logs[route] = name

    def remember(self, written: Mapping[str, str]) -> None:
        """Routes that have tables, by the ledger, and their addresses: nobody need look."""
        for route, uri in written.items():
            name = uri.rpartition("/")[2]
            if self._has_choice(route) and name in self._names(route):
                self._settled[route] = name

    def settle(self, routes: Iterable[str]) -> dict[str, str]:
        """The names of those routes whose table is not called what the pipeline file says. In the order of the routes'
        names, those that are names already first, so that an attempt made anew settles the same. Raises TableFault,
        OSError, StoreDown."""
        choosing = [route for route in set(routes) if self._has_choice(route)]
        if new := [route for route in choosing if route not in self._settled]:
            folders = frozenset(names_in(self._tables.root, self._store))
            for route in sorted(new, key=lambda route: (not self._is_name(route), route)):
                self._settled[route] = self._name(route, folders)
        named = {route: self._settled[route] for route in choosing}
        return {route: name for route, name in named.items() if name != self._tables.table_name(route)}

    def settle_logs(self, routes: Iterable[str]) -> dict[str, str]:
        """Likewise of the logs of routes with keys, once their tables are settled. Raises as `settle`."""
        choosing = [route for route in sorted(set(routes)) if self._tables.keys_of(route) and self._log_names(route)]
        if new := [route for route in choosing if route not in self._logs]:
            folders = frozenset(names_in(self._tables.root, self._store))
            for route in new:
                self._logs[route] = self._log_name(route, folders)
        pattern = str(self._tables.message_log)
        return {route: self._logs[route] for route in choosing if self._logs[route] != table_name(route, pattern)}

    def forget(self, route: str) -> None:
        """Settle it anew: another stream may have made the table that it was to have."""
        self._settled.pop(route, None)
        self._logs.pop(route, None)

    def _has_choice(self, route: str) -> bool:
        return self._rules != ("exact",) or self._own(route) is not None

    def _own(self, route: str) -> str | None:
        """The name that the pipeline file gives this one route."""
        table_config = self._tables.routes.get(route)
        return None if table_config is None else table_config.name

    def _names(self, route: str) -> list[str]:
        """The names that a route can have, the best first."""
        own = self._own(route)
        if self._rules == ("exact",):
            names = [table_name(route, self._tables.name)]
        else:
            names = names_of(route, self._tables.name)
        return names if own is None else [own, *names]

    def _is_name(self, route: str) -> bool:
        return readable_name(route, self._tables.name) == table_name(route, without_rules(self._tables.name))

    def _log_names(self, route: str) -> list[str]:
        """The names that the log of a route can have, the best first; none where it has one name only."""
        pattern = self._tables.message_log
        return [] if pattern is None or rules_of(pattern) == ("exact",) else names_of(route, pattern)

    def _beside(self, route: str, log: str) -> list[str]:
        """The log's name, and that of the history beside it."""
        pattern, history = str(self._tables.message_log), self._tables.history
        return [log] if history is None else [log, name_beside(route, history, log, pattern)]

    def _taken(self) -> set[str]:
        """Names that routes of this process have, whether their tables are there or not yet."""
        of_logs = (name for route, log in self._logs.items() for name in self._beside(route, log))
        return {*self._settled.values(), *of_logs}

    def _log_name(self, route: str, folders: frozenset[str]) -> str:
        names = self._log_names(route)
        owners = self._owners([name for log in names for name in self._beside(route, log)], folders)
        if (own_name := self._own_name(route, {name: owners[name] for name in names if name in owners})) is not None:
            return own_name
        others = {*self._taken(), self._settled.get(route, self._tables.table_name(route))}
        own = Owner(self._pipeline, route)
        for name in names:
            if not any(table in others or owners.get(table, own) != own for table in self._beside(route, name)):
                return name
        return names[-1]  # if that is another's, that is to be said

    def _owners(self, names: Iterable[str], folders: frozenset[str]) -> dict[str, Owner | None]:
        """Of the tables that are there. Raises StoreDown."""
        tables = {name: self._table(name) for name in names if name in folders}
        # Files of a task that was killed before its first commit take no name: the next attempt settles the same.
        return {name: owner for name, (is_there, owner) in tables.items() if is_there}

    def _own_name(self, route: str, owners: Mapping[str, Owner | None]) -> str | None:
        """The name of a table that the route has; else of one that cannot be read, of which nobody can say so."""
        for owner_sought in (Owner(self._pipeline, route), UNREADABLE):
            if (own_name := next((name for name, owner in owners.items() if owner == owner_sought), None)) is not None:
                return own_name
        return None

    def _name(self, route: str, folders: frozenset[str]) -> str:
        names = self._names(route)
        owners = self._owners(names, folders)
        if (own_name := self._own_name(route, owners)) is not None:
            return own_name
        if self._own(route) is not None:
            return names[0]  # if it is another's, that is to be said
        settled = self._taken()
        readable, plain = names[0], table_name(route, without_rules(self._tables.name))
        free = [name for name in (readable, plain) if name not in owners and name not in settled]
        if self._rules or readable in free:
            return free[0] if free else names[-1]
        # That the name of the route's own is a stranger's is to be said; a route of ours only was there first.
        owner = owners.get(plain)
        is_ours = plain in settled or (owner is not None and owner.pipeline == self._pipeline)
        return names[-1] if is_ours else plain

    def _table(self, name: str) -> tuple[bool, Owner | None]:
        """Is there a table in a folder, and whose is it (None: it does not say)? Raises StoreDown."""
        address = join(self._tables.root, name)
        try:
            table = Table(address, self._store).open()
        except BaseException as e:
            own_fault(e, address)
            return True, UNREADABLE
        return table is not None, None if table is None else table.owner
