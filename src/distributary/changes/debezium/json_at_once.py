"""Debezium's messages in JSON, many at a time: those that are as the connectors write them.

One call of the parser takes a message apart, and what it says beside its row is worked out for all messages of a table
together (`side_by_side`). Whatever is not as expected is left to `json_messages`, which reads messages one by one and
says what is wrong with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from distributary.changes.debezium.heads import NEW_KEY, OLD_KEY, Form, Message, source_table
from distributary.changes.debezium.message_fields import FIELDS, UNDECODABLE, Fields, MessageOpener
from distributary.changes.debezium.positions import KINDS
from distributary.changes.debezium.side_by_side import SOURCE, Bools, ChangeHeaders, RecordOrigins, metadata, places
from distributary.changes.debezium.token_rows import NULL, TokenRows, schema_key_of
from distributary.changes.debezium.unlogged import stands_for_unchanged, txns
from distributary.changes.metadata import Rows
from distributary.changes.model import Kind, Reading

_Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None
_Time = Annotated[int, msgspec.Meta(ge=0, lt=10**14)] | None


class _Source(msgspec.Struct):
    connector: str
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    snapshot: str | None = None
    ts_ms: _Time = None
    file: str | None = None
    pos: _Whole = None
    row: _Whole = None
    gtid: str | None = None
    lsn: _Whole = None
    txId: int | str | None = None
    commit_lsn: str | None = None
    change_lsn: str | None = None
    event_serial_no: _Whole = None
    scn: str | None = None
    rs_id: str | None = None
    ssn: _Whole = None
    row_id: str | None = None
    ord: _Whole = None


class _Transaction(msgspec.Struct):
    id: str | None = None


class _Change(msgspec.Struct):
    op: str
    source: _Source
    before: Fields | None = None
    after: Fields | None = None
    ts_ms: _Time = None
    transaction: _Transaction | None = None


_NAMES = tuple(name for name in SOURCE if name in _Source.__struct_fields__)
_FIELDS = attrgetter(*_NAMES)
_CHANGES = msgspec.json.Decoder(_Change)
_OPS = frozenset("curd")
Add = Callable[[Rows, Kind], None]


@dataclass
class _Group:
    rows: TokenRows
    changes: list[_Change] = field(default_factory=list)


def read_at_once(messages: Sequence[Message], reading: Reading, form: Form, add: Add) -> list[int]:
    """Gives `add` the rows of the messages that can be read so; returns the numbers of the others."""
    if form.flattened:
        return list(range(len(messages)))
    groups: dict[tuple[Any, ...], _Group] = {}
    left = _gathered(messages, form, groups)
    for group in groups.values():
        left += _taken(group, messages, reading, form, add)
    return sorted(left)


def _gathered(messages: Sequence[Message], form: Form, groups: dict[tuple[Any, ...], _Group]) -> list[int]:
    left: list[int] = []
    values, names = MessageOpener(), MessageOpener()
    every = b"\n".join(message.value or b"" for message in messages)
    unlogged = [txn for txn in txns(form.placeholder) if txn in every]
    for number, message in enumerate(messages):
        try:
            schema, body = values.cut(message.value or b"")
            change = _CHANGES.decode(body)
            key = FIELDS.decode(names.cut(message.key)[1]) if message.key else {}
        except UNDECODABLE:
            left.append(number)
            continue
        source, deleted = change.source, change.op == "d"
        row = change.before if deleted else change.after
        if row is None or change.op not in _OPS or not source.table or source.connector == "mongodb":
            left.append(number)
            continue
        unchanged: tuple[str, ...] = ()
        if deleted:
            row |= {name: raw for name, raw in key.items() if name in row or not row}
        elif unlogged and any(txn in body for txn in unlogged):
            unchanged = tuple(sorted(n for n, raw in row.items() if stands_for_unchanged(bytes(raw), form.placeholder)))
            row |= dict.fromkeys(unchanged, NULL)
        kind = (source.connector, source.db, source.schema, source.table, schema, tuple(key), unchanged)
        group = groups.get(kind)
        if group is None:
            table = source_table(KINDS.get(source.connector, Kind.GENERIC), msgspec.structs.asdict(source), form)
            group = groups[kind] = _Group(TokenRows(table, schema, tuple(key), unchanged))
        group.rows.add(number, row)
        group.changes.append(change)
    return left


def _taken(group: _Group, messages: Sequence[Message], reading: Reading, form: Form, add: Add) -> list[int]:
    rows = group.rows
    ops = [change.op for change in group.changes]
    headers, origins = _said(group.changes), _found([messages[n] for n in rows.numbers], ops)
    where, sure = places(rows.table.kind, headers, origins, form)
    try:
        columns, faults, untyped = rows.columns(reading, form)
    except ValueError:
        return rows.numbers
    key = schema_key_of(columns, rows.unchanged, typed=bool(rows.schema))
    top, source = metadata(rows.table, rows.keys, headers, origins, where, form, key)
    numbers = np.array(rows.numbers, np.int64)
    group_rows = Rows(numbers, top, source, columns, tuple(faults), untyped)
    if sure.all():
        add(group_rows, rows.table.kind)
        return []
    add(_only(group_rows, sure), rows.table.kind)
    return [int(n) for n in numbers[~sure]]


def _only(rows: Rows, sure: Bools) -> Rows:
    at = np.flatnonzero(sure)
    new = {int(old): place for place, old in enumerate(at)}
    sure_rows = rows.take(at)
    faults = tuple((new[place], reason, why) for place, reason, why in rows.faults if place in new)
    return Rows(sure_rows.numbers, sure_rows.top, sure_rows.source, sure_rows.payload, faults, rows.untyped)


def _said(changes: Sequence[_Change]) -> ChangeHeaders:
    columns = dict(zip(_NAMES, zip(*(_FIELDS(change.source) for change in changes), strict=True), strict=True))
    # 0 is none
    columns["txId"] = tuple(str(number) if number else None for number in columns["txId"])
    nothing = (None,) * len(changes)
    source = {name: pa.array(values, SOURCE[name]) for name, values in columns.items() if values != nothing}
    return ChangeHeaders(
        pa.array([change.op for change in changes], pa.string()),
        source,
        pa.array([change.ts_ms for change in changes], pa.int64()),
        pa.array([change.transaction and change.transaction.id for change in changes], pa.string()),
    )


def _found(messages: Sequence[Message], ops: Sequence[str]) -> RecordOrigins:
    records = [message.record for message in messages]
    moved = None
    if any(record.headers for record in records):
        halves = [NEW_KEY if op == "d" else OLD_KEY for op in ops]
        flags = [half in record.headers for half, record in zip(halves, records, strict=True)]
        moved = pa.array(flags, pa.bool_())
    return RecordOrigins(
        pa.array([record.topic for record in records], pa.string()),
        pa.array([record.partition for record in records], pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.time_ms for record in records], pa.int64()),
        moved,
    )
