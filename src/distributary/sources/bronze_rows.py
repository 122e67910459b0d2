"""What a row of bronze is, and how the fan-out over bronze tells its rows apart.

Three kinds, all in one table, so that nothing of the source is anywhere else:

- a record of a route: route, schema id and payload as the envelope held them;
- a record that has no route, because its envelope cannot be read or names none: bronze's quarantine. `rejected` says
  why and keeps the bytes;
- a tombstone of the source: neither route nor `rejected`.

The partition column is not the route but its table name (`names.table_name`): it has only a-z, 0-9 and _, and no two
routes share one. A raw route as partition value would lose `''` and `__HIVE_DEFAULT_PARTITION__` (both read back as
null) and break the listing of its siblings with `a:b`. Names never begin with `_`, so rows without a route have a
partition of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from distributary.names import table_name
from distributary.tables.quarantine import ORIGIN_FIELDS, REJECTED_SCHEMA

KEY = "route_key"
UNROUTED = "_unrouted"
"""The partition of rows without a route."""

RECEIVED, REJECTED = "received_at", "rejected"
RECORD_KEY = "record_key"
"""The record's key, where the pipeline file asks for it (`source.key`)."""
_KEY_BESIDE = "key"
"""The same column beside a record's origin."""
REJECTED_TYPE = pa.struct(
    [("reason", pa.string()), ("detail", pa.string()), ("level", pa.string()), ("value", pa.binary())]
)
"""`level`, `value`: as in the quarantine (`REJECTED_SCHEMA`)."""


class RowsWithoutRoute(Protocol):
    """Takes rows that have no route (`engine.messages.chunks.Cut`)."""

    def bad(self, rows: pa.Table) -> None: ...

    def tombstones(self, route: str | None, rows: int) -> None: ...


def bronze_schema(envelope: Sequence[str], *, headers: bool, keys: bool = False) -> pa.Schema:
    """`envelope`: the names of route, schema id and payload. `keys`: the records' are kept too."""
    route, schema_id, payload = envelope
    return pa.schema(
        [
            (RECEIVED, pa.timestamp("us", tz="UTC")),
            (route, pa.string()),
            (schema_id, pa.int32()),
            (payload, pa.binary()),
            *(f for f in ORIGIN_FIELDS if headers or f.name != "headers"),
            *([(RECORD_KEY, pa.binary())] if keys else ()),
            (REJECTED, REJECTED_TYPE),
            (KEY, pa.string()),
        ]
    )


def routed(
    route: pa.Array, schema_id: pa.Array, payload: pa.Array, origin: pa.Table, schema: pa.Schema
) -> pa.RecordBatch:
    """Records that have a route. `origin`: `ORIGIN_FIELDS` of the same rows; `schema`: `bronze_schema`."""
    return _batch(schema, origin, dict(zip(schema.names[1:4], (route, schema_id, payload), strict=True)), keys(route))


def unrouted(rejected: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Records that have none (`rejected`: `REJECTED_SCHEMA`)."""
    rejected = rejected.combine_chunks()
    why = pa.StructArray.from_arrays([_one(rejected.column(f.name)) for f in REJECTED_TYPE], fields=list(REJECTED_TYPE))
    columns = {schema.names[2]: _one(rejected.column("envelope_schema_id")), REJECTED: why}
    return _batch(schema, rejected, columns, pa.repeat(UNROUTED, rejected.num_rows))


def tombstones(origin: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    return _batch(schema, origin, {}, pa.repeat(UNROUTED, origin.num_rows))


def keys(route: pa.Array) -> pa.Array:
    """Each route's partition."""
    encoded = route.dictionary_encode()
    names = pa.array([table_name(name) for name in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def set_apart(
    window: pa.Table, origin: pa.Table, names: Sequence[str], cut: RowsWithoutRoute
) -> tuple[pa.Table, pa.Table]:
    """Of rows read from bronze: those without a route go into `cut`; returns the records, and their origin.

    `names`: of route, schema id and payload.
    """
    route, rejected = window.column(names[0]), window.column(REJECTED)
    has_route = pc.is_valid(route)
    if not pc.all(has_route).as_py():
        bad = pc.is_valid(rejected)
        if pc.any(bad).as_py():
            why = pa.Table.from_struct_array(rejected.filter(bad))
            wrapped = window.column(names[1]).filter(bad)
            cut.bad(_rejected(why, wrapped, origin.filter(bad)))
        if dropped := window.num_rows - has_route.combine_chunks().true_count - pc.sum(bad).as_py():
            cut.tombstones(None, dropped)
        window, origin = window.filter(has_route), origin.filter(has_route)
    return window, origin


def _rejected(why: pa.Table, wrapped: pa.ChunkedArray, origin: pa.Table) -> pa.Table:
    reject_columns = {name: why.column(name) for name in why.column_names} | {"envelope_schema_id": wrapped}
    rows = why.num_rows
    columns = [
        reject_columns[f.name].cast(f.type)
        if f.name in reject_columns
        else origin.column(f.name)
        if f.name in origin.column_names
        else pa.nulls(rows, f.type)
        for f in REJECTED_SCHEMA
    ]
    return pa.table(columns, schema=REJECTED_SCHEMA)


def _batch(schema: pa.Schema, origin: pa.Table, record_columns: dict[str, pa.Array], key: pa.Array) -> pa.RecordBatch:
    rows = len(key)
    all_columns = {
        **record_columns,
        KEY: key,
        RECEIVED: pa.repeat(pa.scalar(int(time.time() * 1e6), pa.timestamp("us", "UTC")), rows),
    }
    if _KEY_BESIDE in origin.column_names:
        all_columns[RECORD_KEY] = _one(origin.column(_KEY_BESIDE))
    columns = [
        all_columns[f.name]
        if f.name in all_columns
        else _one(origin.column(f.name))
        if f.name in origin.column_names
        else pa.nulls(rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
