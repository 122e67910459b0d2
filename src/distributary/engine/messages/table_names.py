"""Which table is whose, where names are made readable by rules and two routes can meet in one.

A route has the first of these names that is not another's: the readable one; the one without rules, under which it may
have a table from before; a name with a digest of the route, which nobody else can have. A table says itself whose it
is, and whoever makes it first has it, so nothing is written down for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distributary.config import Tables
from distributary.names import digest_name, rules_of, table_name, without_rules
from distributary.tables.files import names_in
from distributary.tables.snapshot import Owner
from distributary.tables.store import Store, join
from distributary.tables.table import Table


class TableNames:
    """Settles names on the driver, before tasks use them. Remembers what it has settled."""

    def __init__(self, pipeline: str, tables: Tables, store: Store) -> None:
        self._pipeline, self._tables, self._store = pipeline, tables, store
        self._by_rules = bool(rules_of(tables.name))
        self._settled: dict[str, str] = {}

    def remember(self, written: Mapping[str, str]) -> None:
        """Routes that have tables, by the ledger, and their addresses: nobody need look."""
        for route, uri in written.items():
            name = uri.rpartition("/")[2]
            if self._has_choice(route) and name in self._names(route):
                self._settled[route] = name

    def settle(self, routes: Iterable[str]) -> dict[str, str]:
        """The names of those routes whose table is not called what the pipeline file says. In the order of the routes'
        names, so that an attempt made anew settles the same. Raises TableFault, OSError."""
        choosing = [route for route in set(routes) if self._has_choice(route)]
        if new := sorted(route for route in choosing if route not in self._settled):
            folders = frozenset(names_in(self._tables.root, self._store))
            for route in new:
                self._settled[route] = self._name(route, folders)
        named = {route: self._settled[route] for route in choosing}
        return {route: name for route, name in named.items() if name != self._tables.table_name(route)}

    def forget(self, route: str) -> None:
        """Settle it anew: another stream may have made the table that it was to have."""
        self._settled.pop(route, None)

    def _has_choice(self, route: str) -> bool:
        return self._by_rules or self._own(route) is not None

    def _own(self, route: str) -> str | None:
        """The name that the pipeline file gives this one route."""
        table_config = self._tables.routes.get(route)
        return None if table_config is None else table_config.name

    def _names(self, route: str) -> list[str]:
        """The names that a route can have, the best first."""
        plain = table_name(route, without_rules(self._tables.name))
        configured = self._tables.table_name(route)
        if self._own(route) is not None:
            return [configured, table_name(route, self._tables.name), plain]
        return [configured, plain, digest_name(route, self._tables.name)]

    def _name(self, route: str, folders: frozenset[str]) -> str:
        names = self._names(route)
        for name in names:
            if name in folders and self._is_mine(route, name):
                return name
        if self._own(route) is not None:
            return names[0]  # if it is another's, that is to be said
        names_taken = {*folders, *self._settled.values()}
        return next((name for name in names if name not in names_taken), names[-1])

    def _is_mine(self, route: str, name: str) -> bool:
        table = Table(join(self._tables.root, name), self._store).open()
        return table is not None and table.owner == Owner(self._pipeline, route)
