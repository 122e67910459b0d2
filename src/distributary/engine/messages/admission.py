"""How many new tables one batch may make.

A producer can make up any number of routes. Each would be a folder and a commit, and an entry in every listing, status
and plan for good. So a batch makes up to `tables.max_new_tables`; the rows of further routes are kept aside, and come
in by a replay. Only what has no table is ever refused, so an attempt made anew finds the tables of the one before it,
and takes the same rows for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distributary.engine.decisions import too_many
from distributary.engine.messages.task_spec import MessageSpec
from distributary.tables.files import names_in
from distributary.tables.snapshot import columns_of
from distributary.tables.table import Table


def refused_routes(rows: Mapping[str, int], existing: Collection[str], spec: MessageSpec) -> dict[str, str]:
    """The routes of a batch of which no table is made, and why. `rows`: of each. `existing`: routes that have a table.

    Those with the most rows come first. Nothing is looked up where there are few. Raises TableFault, OSError.
    """
    most = spec.tables.max_new_tables
    new = [route for route in rows if route not in existing]
    if len(new) > most:
        new = _without_table(new, spec)
    new.sort(key=lambda route: (-rows[route], route))
    return too_many(new, most, "routes without a table")


def _without_table(routes: Collection[str], spec: MessageSpec) -> list[str]:
    if spec.wide is not None:
        table = Table(spec.wide, spec.store).open()
        columns = columns_of(table)
        return [route for route in routes if spec.seen(route, columns) is None]
    folders = frozenset(names_in(spec.tables.root, spec.store))
    return [route for route in routes if spec.name(route) not in folders]
