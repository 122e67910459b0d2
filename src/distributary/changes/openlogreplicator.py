"""OpenLogReplicator's messages (Oracle) as changes of Debezium, which says the same in other words.

    {"e_scn": 4711, "tm": 1790000000123, "xid": "0x0002.012.00004162", "db": "ORCL", "payload": [{"op": "u", "num": 3,
     "schema": {"owner": "SHOP", "table": "ORDERS", "columns": [{"name": "ID"}, ...]}, "rid": "AAA...",
     "before": {"ID": 1, "N": 2}, "after": {"ID": 1, "N": 3}}]}

| OpenLogReplicator | Debezium |
|---|---|
| `op` c, u, d | the same |
| `e_scn` (`scn-type` 8), else `scn` (4); in hex `e_scns`, `scns` | `source.scn` |
| `num` (`message` 2), else the place among several changes | `source.ssn`: the place within the transaction |
| `db`, `schema.owner`, `schema.table` | `source.db`, `schema`, `table` |
| `e_tm`, else `tm`; as text `e_tms`, `tms` | `source.ts_ms` |
| `before` with `after` over it | the row; those of `schema.columns` that an update does not have are unchanged |

A message may hold a whole transaction (`message` 1), and an update of the row's key is two changes: where records are
cut each change becomes a message of its own (`divided`). Begin, commit, DDL and checkpoints say nothing of a row.

Source: OpenLogReplicator 1.9, documentation/json/4.format.adoc, user-manual/3.output-format.adoc, BuilderJson.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from distributary.changes.debezium.heads import NEW_KEY, OLD_KEY, PLAIN, Message
from distributary.changes.debezium.message_fields import UNDECODABLE, as_spelled
from distributary.changes.debezium.source_table import Routes
from distributary.changes.model import Kind, SourceTable

PARTIAL: Final = "an update without schema.columns"
"""In place of an op: nobody can say which columns of the row it leaves alone."""
_CHANGES: Final = ("c", "u", "d")
_NOTICES: Final = ("begin", "commit", "ddl", "chkpt")
_UNCHANGED: Final = msgspec.Raw(msgspec.json.encode(PLAIN.placeholder))
_NULL: Final = msgspec.Raw(b"null")
_MOVED: Final = {"u-d": ("d", NEW_KEY), "u-c": ("c", OLD_KEY)}
"""The halves of an update of the key, and what Debezium adds to the headers of such."""
_Fields = dict[str, msgspec.Raw]


class _Column(msgspec.Struct):
    name: str


class _Schema(msgspec.Struct):
    owner: str | None = None
    table: str | None = None
    columns: list[_Column] | None = None


class _Item(msgspec.Struct):
    op: str
    num: int | None = None
    rid: str | None = None
    schema: _Schema = msgspec.field(default_factory=_Schema)
    before: _Fields | None = None
    after: _Fields | None = None


class _Message(msgspec.Struct):
    payload: list[_Item]
    scn: int | None = None
    scns: str | None = None
    e_scn: int | None = None
    e_scns: str | None = None
    tm: int | None = None
    tms: str | None = None
    e_tm: int | None = None
    e_tms: str | None = None
    xid: str | None = None
    xidn: int | None = None
    db: str | None = None


class _Parts(msgspec.Struct):
    payload: list[msgspec.Raw]


_DECODER = msgspec.json.Decoder(_Message)
_PARTS = msgspec.json.Decoder(_Parts)
_FIELDS = msgspec.json.Decoder(_Fields)


def routes_of(bodies: Iterable[bytes]) -> Routes:
    """As `debezium.source_table.routes_of`; of a message with several changes the route of the first."""
    return Routes.read(bodies, "message of OpenLogReplicator", _first_route)


def _first_route(body: bytes) -> str | None:
    message = _DECODER.decode(body)
    items = [item for item in message.payload if item.op not in _NOTICES]
    if not all(item.schema.table for item in items):
        raise msgspec.ValidationError("schema.table is missing")
    return _route(message, items[0]) if items else None


def _route(message: _Message, item: _Item) -> str:
    return SourceTable(Kind.GENERIC, message.db or "", item.schema.owner or "", item.schema.table or "").route


def divided(
    routes: Sequence[str], keys: Sequence[bytes | None], bodies: Sequence[bytes], own: Mapping[str, Sequence[str]]
) -> tuple[list[int], list[str], list[bytes]] | None:
    """As `maxwell.divided`."""
    positions: list[int] = []
    part_routes: list[str] = []
    parts: list[bytes] = []
    for position, body in enumerate(bodies):
        for route, change_body in _divided(body, routes[position], own):
            positions.append(position)
            part_routes.append(route)
            parts.append(change_body)
    return None if len(positions) == len(bodies) else (positions, part_routes, parts)


def _divided(body: bytes, route: str, own: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, bytes]]:
    try:
        message = _DECODER.decode(body)
        raws, header = _PARTS.decode(body).payload, _FIELDS.decode(body)
    except UNDECODABLE:
        yield route, body
        return
    changes = [(item, raw) for item, raw in zip(message.payload, raws, strict=True) if item.op not in _NOTICES]
    if len(changes) == 1 and not _moves(changes[0][0], own.get(route, ())):
        yield route, body
        return
    for number, (item, raw) in enumerate(changes):
        item_route, fields = _route(message, item), _FIELDS.decode(raw)
        if item.num is None and len(changes) > 1:
            fields["num"] = msgspec.Raw(b"%d" % number)  # they stand in the order of the transaction
        ops = ["u-d", "u-c"] if _moves(item, own.get(item_route, ())) else [item.op]
        for op in ops:
            change_message = header | {"payload": msgspec.Raw(msgspec.json.encode([fields | {"op": op}]))}
            yield item_route, msgspec.json.encode(change_message)


def _moves(item: _Item, keys: Sequence[str]) -> bool:
    """Has an update another key than its row had?"""
    before, after = item.before or {}, item.after or {}
    return item.op == "u" and any(
        bytes(before[name]) != bytes(after[name])
        for name in as_spelled(keys, before)
        if name in before and name in after
    )


def as_debezium(message: Message, own: Sequence[str] = ()) -> Message:
    """The same change as Debezium would say it; what is no message of OpenLogReplicator stays as it is, and is none
    there. `own`: the key's columns, of which the messages do not speak."""
    if message.value is None:
        return message
    try:
        log_message = _DECODER.decode(message.value)
        ms = _millis(log_message)
        scn = _scn(log_message)
    except (*UNDECODABLE, ValueError, OverflowError):
        return message
    items = [item for item in log_message.payload if item.op not in _NOTICES]
    if len(items) != 1:
        return message
    (item,) = items
    op, moved = _MOVED.get(item.op, (item.op, ""))
    row = _row(item, op)
    source = {
        "connector": "oracle", "db": log_message.db, "schema": item.schema.owner, "table": item.schema.table,
        "ts_ms": ms, "scn": None if scn is None else str(scn), "ssn": item.num, "row_id": item.rid,
    }  # fmt: skip
    if item.op == "u" and item.schema.columns is None:
        op = PARTIAL
    envelope: dict[str, Any] = {"op": op, "source": source, "before" if op == "d" else "after": row}
    if (transaction := log_message.xid or log_message.xidn) is not None:
        envelope["transaction"] = {"id": str(transaction)}
    key = {name: row.get(name, _NULL) for name in as_spelled(own, row)}
    record = message.record._replace(headers=message.record.headers | {moved}) if moved else message.record
    return Message(record, msgspec.json.encode(key) if key else None, msgspec.json.encode(envelope))


def _row(item: _Item, op: str) -> _Fields:
    """The row after the change, of a delete before it."""
    before, after = item.before or {}, item.after or {}
    absent = _UNCHANGED if item.op in ("u", "u-c") else _NULL
    columns = {column.name: absent for column in item.schema.columns or ()}
    return columns | (after | before if op == "d" else before | after)


def _scn(log_message: _Message) -> int | None:
    texts = (int(text, 16) for text in (log_message.e_scns, log_message.scns) if text is not None)
    numbers = [number for number in (log_message.e_scn, log_message.scn) if number is not None]
    return numbers[0] if numbers else next(texts, None)


def _millis(log_message: _Message) -> int | None:
    """Of the commit, else of the change. A number of ns, us, ms or s since 1970, as its size tells; or a text."""
    number = log_message.e_tm if log_message.e_tm is not None else log_message.tm
    text = log_message.e_tms or log_message.tms
    if number is None and text is not None and not text.isdecimal():
        when = datetime.fromisoformat(text)
        when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return int(when.timestamp() * 1000)
    number = int(text) if number is None and text is not None else number
    if number is None:
        return None
    for most, divisor, factor in ((10**11, 1, 1000), (10**14, 1, 1), (10**17, 1000, 1)):
        if number < most:
            return number // divisor * factor
    return number // 10**6
