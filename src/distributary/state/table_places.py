"""Do the tables lie where this pipeline has written them? Asked before anything is written.

The ledger knows each table by its address. Under another `tables.root` or another name every table would begin again,
empty, while the stream goes on from its checkpoint: the rows before would be missing, and nothing would say so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow.compute as pc

from distributary.config import Pipeline, RouteOverride, StateFolder
from distributary.config.addresses import absolute
from distributary.config.places import spelled
from distributary.errors import TablesMoved
from distributary.names import names_of, pattern_name, rules_of, table_name
from distributary.tables.store import Store, join
from distributary.tables.table import Table

_COLUMNS = ("route", "table", "merged", "about", "rows_written")


@dataclass
class _Written:
    """Where rows of a route are, of any time. `source`: database, schema and table, of change events."""

    tables: set[str] = field(default_factory=set)
    merged: set[str] = field(default_factory=set)
    source: tuple[str, str, str] | None = None


def check_tables_stay(config: Pipeline, store: Store) -> None:
    """Raises TablesMoved, LayoutChanged (the tables of another layout have other places), TableFault, OSError."""
    if config.is_declarative:
        return
    from distributary.state.layout_claim import check_layout  # which asks `cleaning`, and that asks this module

    check_layout(config, store)
    routes = _written(config, store)
    addresses = sorted({address for written in routes.values() for address in written.tables | written.merged})
    root = spelled(config.tables.root)
    if addresses and not any(address.rpartition("/")[0] == root for address in addresses):
        raise TablesMoved(pipeline=config.pipeline, key="tables.root", table=addresses[0], wanted=root)
    for route, written in sorted(routes.items()):
        for key, address, now in _places(config, route, written):
            if now and spelled(address) not in now:
                raise TablesMoved(pipeline=config.pipeline, key=key, table=min(now), wanted=address)


def _written(config: Pipeline, store: Store) -> dict[str, _Written]:
    ledger = Table(StateFolder(config.state_root).ledger, store).open()
    routes: dict[str, _Written] = defaultdict(_Written)
    if ledger is None:
        return routes
    data = ledger.dataset()
    rows = data.to_table(columns=[name for name in _COLUMNS if name in data.schema.names])
    for row in rows.filter(pc.greater(rows["rows_written"], 0)).to_pylist():
        if row["route"] is None:
            continue
        written = routes[row["route"]]
        for address, places in ((row["table"], written.tables), (row.get("merged"), written.merged)):
            if address:
                places.add(spelled(absolute(address)))
        if about := row.get("about"):
            _, database, schema, table = json.loads(about)["source"]
            written.source = (database, schema, table)
    return routes


def _places(config: Pipeline, route: str, written: _Written) -> Iterator[tuple[str, str, set[str]]]:
    """Key, address by the pipeline file, and addresses that have rows. A table that is there keeps any of the names
    that its route can have (`engine.messages.table_names`). Not of Debezium, whose routes are read for their names."""
    tables, own = config.tables, config.tables.routes.get(route) or RouteOverride()
    if config.shared_table is not None:
        yield "wide.name", config.shared_table, written.tables
    elif config.envelope.is_debezium:
        return
    elif config.holds_changes:
        for key, pattern, name, now in (
            ("log", tables.log, own.log, written.tables),
            ("merged", tables.merged, own.merged, written.merged),
        ):
            if pattern is not None and written.source is not None:
                yield f"tables.{key}", join(tables.root, name or pattern_name(pattern, *written.source)), now
    else:
        # Of a route with keys its own table is the merged one, and the other is its log.
        now = written.tables | written.merged
        is_exact = rules_of(tables.name) == ("exact",)
        names = [table_name(route, tables.name)] if is_exact else names_of(route, tables.name)
        addresses = [join(tables.root, name) for name in ([own.name] if own.name is not None else []) + names]
        key = "tables.name" if own.name is None else f"tables.routes.{route}.name"
        yield key, next((place for place in addresses if spelled(place) in now), addresses[0]), now
