"""How many new tables one batch may make.

A producer can make up any number of routes. Each would be a folder and a commit, and an entry in every listing, status
and plan for good. So a batch makes up to `tables.max_new_tables`; the rows of further routes are kept aside, and come
in by a replay. Only what has no table is ever refused, so an attempt made anew finds the tables of the one before it,
and takes the same rows for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distributary.engine.decisions import too_many
from distributary.engine.messages.orders import Orders
from distributary.tables.files import names_in
from distributary.tables.snapshot import columns_of
from distributary.tables.table import Table


def refused_routes(rows: Mapping[str, int], existing: Collection[str], orders: Orders) -> dict[str, str]:
    """The routes of a batch of which no table is made, and why. `rows`: of each. `existing`: routes that have a table.

    Those with the most rows come first. Nothing is looked up where there are few. Raises TableFault, OSError.
    """
    most = orders.tables.max_new_tables
    new = [route for route in rows if route not in existing]
    if len(new) > most:
        new = _without_table(new, orders)
    new.sort(key=lambda route: (-rows[route], route))
    return too_many(new, most, "routes without a table")


def _without_table(routes: Collection[str], orders: Orders) -> list[str]:
    if orders.wide is not None:
        table = Table(orders.wide, orders.store).open()
        columns = columns_of(table)
        return [route for route in routes if orders.seen(route, columns) is None]
    folders = frozenset(names_in(orders.tables.root, orders.store))
    return [route for route in routes if orders.name(route) not in folders]
