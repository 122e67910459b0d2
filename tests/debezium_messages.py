"""Messages as Debezium 3.6 writes them, made by hand: a row, its types by their Connect names, where it stands."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from distributary.changes.debezium.heads import Message, Record

MS = 1_795_980_000_000
Kinds = Mapping[str, Any]
"""Column -> a plain type of Connect, or its whole schema."""

SOURCES: dict[str, dict[str, Any]] = {
    "mysql": {"db": "shop", "server_id": 1, "gtid": None, "file": "mysql-bin.000007", "pos": 400, "row": 0},
    "mariadb": {"db": "shop", "server_id": 1, "gtid": "0-1-9", "file": "mysql-bin.000007", "pos": 400, "row": 0},
    "postgresql": {"db": "shop", "schema": "public", "txId": 731, "lsn": 26_439_928, "xmin": None},
    "sqlserver": {
        "db": "shop",
        "schema": "dbo",
        "change_lsn": "00000025:00000728:0002",
        "commit_lsn": "00000025:00000728:0003",
        "event_serial_no": 1,
    },
    "oracle": {
        "db": "XE",
        "schema": "HR",
        "scn": "1000",
        "commit_scn": "1001",
        "rs_id": "0x000004.00000705.0010",
        "ssn": 0,
    },
    "mongodb": {"db": "shop", "collection": "orders", "ord": 1},
    "vitess": {"db": "shop", "keyspace": "k"},
}


def schema_of(kinds: Kinds, name: str = "Value") -> dict[str, Any]:
    fields = [
        {**({"type": kind, "optional": True} if isinstance(kind, str) else kind), "field": column}
        for column, kind in kinds.items()
    ]
    return {"type": "struct", "fields": fields, "optional": True, "name": name}


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    """A semantic type."""
    more = {"parameters": parameters} if parameters else {}
    return {"type": kind, "optional": True, "name": name, "version": 1, **more}


def base64_of(number: int) -> str:
    body = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    return base64.b64encode(body).decode()


def change(
    op: str,
    row: Mapping[str, Any] | None,
    /,
    *,
    connector: str = "mysql",
    keys: Sequence[str] = ("id",),
    kinds: Kinds | None = None,
    offset: int = 0,
    table: str = "orders",
    before: Mapping[str, Any] | None = None,
    snapshot: str = "false",
    ts_ms: int = MS,
    headers: Sequence[str] = (),
    **source: Any,
) -> Message:
    """`row`: after the change, of a delete before it. `kinds`: the message brings its schema."""
    said = {"connector": connector, "name": "srv", "table": table, "snapshot": snapshot, "ts_ms": ts_ms}
    said |= {**SOURCES[connector], **source}
    if connector == "mongodb":
        said.pop("table")
    value: dict[str, Any] = {"before": before, "after": row, "source": said, "transaction": None}
    if op == "d":
        value |= {"before": row, "after": None}
    value |= {"op": op, "ts_ms": ts_ms + 400}
    key = {name: (row or before or {})[name] for name in keys} if keys and (row or before) else None
    place = Record(f"srv.shop.{table}", 0, offset, ts_ms + 500, frozenset(headers))
    return Message(place, key_of(key, kinds), text(enveloped(value, kinds)))


def document(op: str, key: Any, row: Mapping[str, Any], **more: Any) -> Message:
    """A change of MongoDB: the document is JSON in a text, and so is its id."""
    made = change(op, None, connector="mongodb", keys=(), **more)
    after = None if op == "d" else json.dumps({"_id": key, **row})
    value = {**json.loads(made.value or b""), "after": after}
    return made._replace(key=text({"id": json.dumps(key)}), value=text(value))


def enveloped(value: dict[str, Any], kinds: Kinds | None) -> dict[str, Any]:
    if kinds is None:
        return value
    row = schema_of(kinds)
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {"type": "string", "optional": False, "field": "op"},
    ]
    return {"schema": {"type": "struct", "fields": fields, "name": "srv.Envelope"}, "payload": value}


def key_of(key: Mapping[str, Any] | None, kinds: Kinds | None) -> bytes | None:
    if key is None:
        return None
    if kinds is None:
        return text(key)
    return text({"schema": schema_of({name: kinds[name] for name in key}, "Key"), "payload": key})


def flattened(
    row: Mapping[str, Any] | None,
    *,
    key: Mapping[str, Any],
    offset: int = 0,
    topic: str = "srv.shop.orders",
    kinds: Kinds | None = None,
) -> Message:
    """By ExtractNewRecordState; `row` None: a tombstone."""
    value = None if row is None else row if kinds is None else {"schema": schema_of(kinds), "payload": row}
    return Message(Record(topic, 0, offset, MS), key_of(key, kinds), None if value is None else text(value))


def tombstone(message: Message) -> Message:
    return message._replace(record=message.record._replace(offset=message.record.offset + 1), value=None)


def text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
