"""Maxwell's messages as changes of Debezium, which says the same in other words.

    {"database": "shop", "table": "orders", "type": "update", "ts": 1790000000, "xid": 7, "xoffset": 1,
     "position": "bin.000007:400", "primary_key_columns": ["id"], "data": {"id": 1, "n": 3}, "old": {"n": 2}}

| Maxwell | Debezium |
|---|---|
| `insert`, `update`, `delete`, `bootstrap-insert` | op `c`, `u`, `d`, `r` |
| `position` (`output_binlog_position`), `xoffset` (`output_xoffset`) | `source.file` and `pos`, `row` |
| `gtid` (`output_gtid_position`) | `source.gtid` |
| `ts`, in seconds | `source.ts_ms` |
| `primary_key_columns` (`output_primary_key_columns`), else the `pk.` fields of the record's key | the record's key |

DDL, and the begin and the end of a bootstrap, say nothing of a row. An update of the row's key is two changes in one
message; where records are cut it becomes two messages (`divided`), which say `update-delete` and `update-insert`.

Source: Maxwell's documentation, "Data format", "Reference" (output options) and "Producers" (keys of Kafka's records).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from distributary.changes.debezium.heads import NEW_KEY, OLD_KEY, Message
from distributary.changes.debezium.message_fields import UNDECODABLE, as_spelled
from distributary.changes.debezium.source_table import Routes
from distributary.changes.model import Kind, SourceTable

OPS: Final = {
    "insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r", "update-delete": "d", "update-insert": "c"
}  # fmt: skip
KEY_CHANGED: Final = "an update of the row's key"
"""In place of an op, where such a message was not divided: it was set aside by an earlier version."""
_MOVED: Final = {"update-delete": NEW_KEY, "update-insert": OLD_KEY}
"""What Debezium adds to the headers of such a half."""
_NOTICES: Final = ("bootstrap-start", "bootstrap-complete", "heartbeat")
_DDL: Final = ("table-", "database-")
_PK: Final = "pk."
_Fields = dict[str, msgspec.Raw]


class _Change(msgspec.Struct):
    database: str | None = None
    table: str | None = None
    type: str | None = None
    ts: float | int | None = None
    xid: int | None = None
    xoffset: int | None = None
    commit: bool | None = None
    position: str | None = None
    gtid: str | None = None
    primary_key_columns: list[str] | None = None
    data: _Fields | None = None
    old: _Fields | None = None


_DECODER = msgspec.json.Decoder(_Change)
_NULL = msgspec.Raw(b"null")
_LAST: Final = 2**63 - 1
_KEY = msgspec.json.Decoder(_Fields)


def routes_of(bodies: Iterable[bytes]) -> Routes:
    """As `debezium.source_table.routes_of`."""
    return Routes.read(bodies, "message of Maxwell", _route_of)


def _route_of(body: bytes) -> str | None:
    change = _DECODER.decode(body)
    kind = change.type or ""
    if kind in _NOTICES or kind.startswith(_DDL):
        return None
    if not change.table or kind == "":
        raise msgspec.ValidationError("it has no type, or no table")
    return SourceTable(Kind.GENERIC, change.database or "", "", change.table).route


def divided(
    routes: Sequence[str], keys: Sequence[bytes | None], bodies: Sequence[bytes], own: Mapping[str, Sequence[str]]
) -> tuple[list[int], list[str], list[bytes]] | None:
    """Which message each change is of, its route and its body, where some change their row's key, which is two changes;
    None where none does.

    `own`: the key's columns by route, where the pipeline file names them.
    """
    positions: list[int] = []
    divided_bodies: list[bytes] = []
    for position, (route, key, body) in enumerate(zip(routes, keys, bodies, strict=True)):
        halves = _halves(key, body, own.get(route, ())) if b'"old"' in body and b'"update"' in body else (body,)
        positions += [position] * len(halves)
        divided_bodies += halves
    if len(positions) == len(bodies):
        return None
    return positions, [routes[position] for position in positions], divided_bodies


def _halves(key: bytes | None, body: bytes, own: Sequence[str]) -> tuple[bytes, ...]:
    """The delete of the old key and the insert of the new one; else the message as it is."""
    try:
        change = _DECODER.decode(body)
        names = _keys(change, key) or own
    except UNDECODABLE:
        return (body,)
    row, old = change.data or {}, change.old or {}
    if change.type != "update" or not _moves(change, as_spelled(names, row)):
        return (body,)
    fields = {name: raw for name, raw in _KEY.decode(body).items() if name != "old"}
    encode = msgspec.json.encode
    return encode(fields | {"type": "update-delete", "data": row | old}), encode(fields | {"type": "update-insert"})


def _moves(change: _Change, keys: Iterable[str]) -> bool:
    """Has an update another key than its row had?"""
    row, old = change.data or {}, change.old or {}
    return any(bytes(old[name]) != bytes(row.get(name, _NULL)) for name in keys if name in old)


def as_debezium(message: Message, own: Sequence[str] = ()) -> Message:
    """The same change as Debezium would say it; what is no message of Maxwell stays as it is, and is none there.

    `own`: the key's columns, where neither the message nor its record says them.
    """
    if message.value is None:
        return message
    try:
        change = _DECODER.decode(message.value)
        keys = _keys(change, message.key)
    except UNDECODABLE:
        return message
    row = change.data or {}
    file, _, pos = (change.position or "").rpartition(":")
    ms = None if change.ts is None else int(change.ts * 1000)
    source = {
        "connector": "mysql", "db": change.database, "table": change.table, "ts_ms": ms, "gtid": change.gtid,
        "file": file or None, "pos": int(pos) if pos.isdecimal() else None, "row": _row_of(change),
    }  # fmt: skip
    keys = as_spelled(keys or own, row)
    op: str | None = OPS.get(change.type or "", change.type)
    if op == "u" and _moves(change, keys):
        op = KEY_CHANGED
    envelope: dict[str, Any] = {"op": op, "source": source, "before" if op == "d" else "after": row}
    if change.xid is not None:
        envelope["transaction"] = {"id": str(change.xid)}
    key = {name: row.get(name, _NULL) for name in keys}
    record = message.record
    if (moved := _MOVED.get(change.type or "")) is not None:
        record = record._replace(headers=record.headers | {moved})
    return Message(record, msgspec.json.encode(key) if key else None, msgspec.json.encode(envelope))


def _row_of(change: _Change) -> int | None:
    """The last row of a transaction has `commit` in place of its xoffset (Maxwell's RowMap)."""
    return _LAST if change.xoffset is None and change.commit else change.xoffset


def _keys(change: _Change, key: bytes | None) -> list[str]:
    """The columns of the table's primary key; none where the message does not say them."""
    if change.primary_key_columns:
        return change.primary_key_columns
    if key is None or not key.startswith(b"{"):
        return []
    return [name.removeprefix(_PK) for name in _KEY.decode(key) if name.startswith(_PK)]
