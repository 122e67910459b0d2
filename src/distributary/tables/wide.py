"""One table for all routes: partitioned by route, a struct column for each, and where a row came from.

    _route_key | _route | _origin | ann_game {user, score ...} | bob_game {...} | ...

The partition column and the struct columns carry the route's table name (`names.table_name`), which never begins with
`_`; the raw route is in `_route`. A row has its own route's struct, all others are null. To everything that decides
about columns, a route looks like a table of its own: the fields of its struct, and `_origin`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pyarrow as pa

from distributary.names import table_name
from distributary.tables.evolve import Evolution, widenings
from distributary.tables.snapshot import ROUTES_KEY, Snapshot, Txn

KEY, ROUTE = "_route_key", "_route"

Rows = Mapping[str, int]
"""Route -> rows."""


def seen_by(route: str, schema: pa.Schema | None, origin: str) -> pa.Schema | None:
    """The table as `route` sees it; None where it has no rows of the route yet. `origin`: the origin column's name."""
    index = -1 if schema is None else schema.get_field_index(table_name(route))
    if schema is None or index < 0:
        return None
    columns, from_where = list(schema.field(index).type), schema.get_field_index(origin)
    return pa.schema([*columns, *([schema.field(from_where)] if from_where >= 0 else [])])


def grown(schema: pa.Schema | None, seen_schemas: Mapping[str, pa.Schema], origin: str) -> Evolution:
    """The whole table's schema once each route has the columns that `seen_schemas` says it sees."""
    start = schema or pa.schema([(KEY, pa.string()), (ROUTE, pa.string())])
    columns = {f.name: f for f in start}
    for route, route_schema in sorted(seen_schemas.items()):
        if origin in route_schema.names:
            seen = route_schema.field(origin)
            # It grows as a route's own columns do, and all routes have it.
            if origin not in columns or seen.type.num_fields > columns[origin].type.num_fields:
                columns[origin] = seen
        fields = [f for f in route_schema if f.name != origin]
        if fields:
            columns[table_name(route)] = pa.field(table_name(route), pa.struct(fields))
    after = pa.schema(list(columns.values()))
    wider = () if schema is None else tuple(widenings(schema, after))
    return Evolution(after, schema is not None and after != schema, wider, ())


def packed(route: str, rows: pa.Table, origin: str) -> pa.Table:
    """Rows as the route sees them -> rows of the wide table, without its partition column and other routes' structs."""
    rows = rows.combine_chunks()
    fields = [f for f in rows.schema if f.name != origin]
    columns: dict[str, pa.Array] = {ROUTE: pa.repeat(route, rows.num_rows)}
    if origin in rows.column_names:
        columns[origin] = _one(rows.column(origin))
    if fields:
        arrays = [_one(rows.column(f.name)) for f in fields]
        columns[table_name(route)] = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.table(columns)


def within(*routes: str) -> Callable[[Mapping[str, str]], bool]:
    """Does a partition hold rows of one of the routes?"""
    keys = {table_name(route) for route in routes}
    return lambda values: values.get(KEY) in keys


def partition(route: str) -> dict[str, str]:
    return {KEY: table_name(route)}


def about(rows: Rows) -> dict[str, str]:
    """What a commit says of the routes in it: a batch that is done again must know which it took."""
    return {ROUTES_KEY: json.dumps(rows, ensure_ascii=False, sort_keys=True)}


def committed_routes(table: Snapshot, txn: Txn) -> dict[str, int] | None:
    """Route -> rows that the commit of `txn` wrote; None where the log does not have it any more."""
    commit = table.commit_of(txn, limit=None)
    rows_of: dict[str, int] | None = None if commit is None else json.loads(commit.get(ROUTES_KEY, "{}"))
    return rows_of


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined
