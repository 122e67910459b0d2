"""Debezium's messages in JSON to events in normal form: with the schema in the message or without, plain or flattened.

A message is cut into its tokens, as a line of a JSON change file is (`changes.json_files`), and its values are
converted column by column: by the schema that the message brings, else by what all values of a column have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from distributary.changes.debezium.file_heads import in_words_of_files
from distributary.changes.debezium.heads import (
    FLAT_FIELDS,
    NO_DOCUMENT,
    PLAIN,
    ChangeHeader,
    Form,
    Head,
    Message,
    Unusable,
    head_of,
)
from distributary.changes.debezium.json_at_once import read_at_once
from distributary.changes.debezium.message_fields import PERHAPS, UNDECODABLE, opened
from distributary.changes.debezium.positions import sequence
from distributary.changes.debezium.token_rows import NULL, Fields, TokenRows, schema_key_of
from distributary.changes.debezium.unlogged import stands_for_unchanged, txns
from distributary.changes.file_events import EventParts
from distributary.changes.metadata import TRUNCATE, Rows
from distributary.changes.model import DEBEZIUM, BadEvent, FileEvents, Reading
from distributary.changes.sequence import sequence_numbers
from distributary.errors import Reason


def read_messages(messages: Sequence[Message], reading: Reading, form: Form = PLAIN) -> FileEvents:
    """Every message: in `events`, in `bad`, or counted in `skipped` (a tombstone behind its delete; what says nothing
    of a row, as a heartbeat). Numbers are the places in `messages`."""
    number_by = sequence_numbers if form.in_files else partial(sequence, by_offset=form.by_offset)
    event_parts = EventParts(reading, typed=True, sequence=number_by)
    groups: dict[tuple[Any, ...], _Group] = {}
    skipped = 0
    left = range(len(messages)) if form.in_files else read_at_once(messages, reading, form, event_parts.add)
    for number in left:
        message = messages[number]
        try:
            change = _change(message, form)
            if change is None:
                skipped += 1
                continue
            head = head_of(change.said, message.record, form)
            head = in_words_of_files(head) if form.in_files else head
            row = _row(change, head, form, message.value or b"")
        except UNDECODABLE as exc:
            words = "it is nested too deep" if isinstance(exc, RecursionError) else str(exc)
            event_parts.bad.append(bad_message(number, message, Reason.CORRUPT_EVENT, f"it is no JSON object: {words}"))
            continue
        except Unusable as exc:
            event_parts.bad.append(bad_message(number, message, exc.reason, exc.detail))
            continue
        kind = (head.table, change.schema, change.keys, row.unchanged, form.flattened)
        group = groups.get(kind)
        if group is None:
            group = groups[kind] = _Group(TokenRows(head.table, change.schema, change.keys, row.unchanged))
        group.add(number, head, row.values)
    for group in groups.values():
        for rows in group.made(reading, form, event_parts.bad, messages):
            event_parts.add(rows, group.rows.table.kind)
    return replace(event_parts.file_events(), skipped=skipped)


def bad_message(number: int, message: Message, reason: Reason, detail: str) -> BadEvent:
    return BadEvent(number, reason, detail, message.value if message.value is not None else message.key or b"")


# -- one message ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """A message taken apart. `row`: after the change, of a delete before it; `key`: the fields of the record's key."""

    said: ChangeHeader
    schema: bytes
    row: Fields | None
    key: Fields
    keys: tuple[str, ...]


class _Row(NamedTuple):
    values: Fields
    unchanged: tuple[str, ...]


def _change(message: Message, form: Form) -> _Change | None:
    """None: it says nothing of a row. Raises Unusable, and what the decoder raises."""
    key_schema, key = opened(message.key)
    keys = tuple(key)
    if message.value is None:
        # Behind the change that says it, or in its place.
        alone = form.flattened and form.by_offset and keys
        return _Change(ChangeHeader("d", {}), key_schema, None, key, keys) if alone else None
    schema, fields = opened(message.value)
    if form.flattened:
        return _flattened(schema, fields, key, keys, form)
    if "op" not in fields or not {"before", "after", "source"} & fields.keys():
        if is_notice(fields):
            return None
        names = ", ".join(list(fields)[:8]) or "nothing"
        raise Unusable(Reason.CORRUPT_EVENT, f"it is no change: it has {names}, not op, source, before and after")
    op = str(msgspec.json.decode(fields["op"]) or "")
    if op == "m":  # of PostgreSQL's pg_logical_emit_message
        return None
    source = _object(fields.get("source"))
    transaction = _object(fields.get("transaction"))
    change_head = ChangeHeader(op, source, _int(fields.get("ts_ms")), str(transaction.get("id") or ""))
    if str(source.get("connector")) != "mongodb":
        row = PERHAPS.decode(fields.get("before" if op == "d" else "after", NULL))
        return _Change(change_head, schema, row, key, keys)
    # A document and its id are JSON in a text.
    key = {"_id": key.get("id", key.get("_id", NULL))}
    after = fields.get("after", NULL)
    document = None if op != "d" and bytes(after) == b"null" else {**key, "data": NULL if op == "d" else after}
    return _Change(change_head, schema, document, key, ("_id",))


def is_notice(fields: Iterable[str]) -> bool:
    """Heartbeats, begins and ends of transactions, DDL: messages of other topics that say nothing of a row; and what
    a converter writes for no value (`null`, or null with its schema)."""
    names = set(fields)
    return not names or names == {"ts_ms"} or {"status", "id", "event_count"} <= names or {"ddl", "source"} <= names


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, dict) else {}


def _int(raw: msgspec.Raw | None) -> int | None:
    return _millis(None if raw is None else msgspec.json.decode(raw))


def _millis(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 10**14 else None


def _flattened(schema: bytes, fields: Fields, key: Fields, keys: tuple[str, ...], form: Form) -> _Change:
    meta: dict[str, Any] = {}
    row: Fields = {}
    for name, raw in fields.items():
        inner = name.removeprefix(form.prefix).removeprefix("source_") if name.startswith(form.prefix) else ""
        if inner in FLAT_FIELDS:
            meta[inner if inner != "ts_ms" or "source" in name else "read_ms"] = msgspec.json.decode(raw)
        else:
            row[name] = raw
    is_deleted = str(meta.pop("deleted", "")).lower() == "true"
    op = "d" if is_deleted else str(meta.pop("op", None) or "u")
    change_head = ChangeHeader(op, meta, _millis(meta.pop("read_ms", None)))
    return _Change(change_head, schema, row, key, keys)


def _row(change: _Change, head: Head, form: Form, body: bytes) -> _Row:
    """The row's fields; those that were not logged are null. Raises Unusable."""
    row = change.row
    if head.change_type == TRUNCATE:
        return _Row(row or {}, ())
    if row is None:
        if not head.deleted:
            raise Unusable(Reason.NO_ROW_IMAGE, NO_DOCUMENT)
        return _Row(change.key, ())
    if head.deleted:
        return _Row({**row, **{name: raw for name, raw in change.key.items() if name in row or not row}}, ())
    if not any(txn in body for txn in txns(form.placeholder)):
        return _Row(row, ())
    unchanged = tuple(sorted(n for n, raw in row.items() if stands_for_unchanged(bytes(raw), form.placeholder)))
    if unchanged:
        row = {name: NULL if name in unchanged else raw for name, raw in row.items()}
    return _Row(row, unchanged)


# -- messages of one table and schema --------------------------------------------------------------------------


@dataclass
class _Group:
    rows: TokenRows
    heads: list[Head] = field(default_factory=list)

    def add(self, number: int, head: Head, values: Fields) -> None:
        self.rows.add(number, values)
        self.heads.append(head)

    def made(self, reading: Reading, form: Form, bad: list[BadEvent], messages: Sequence[Message]) -> Iterator[Rows]:
        rows = self.rows
        try:
            columns, faults, untyped = rows.columns(reading, form)
        except ValueError as exc:
            bad += [bad_message(n, messages[n], Reason.BROKEN_SCHEMA, str(exc)) for n in rows.numbers]
            return
        top, source = self._metadata(schema_key_of(columns, rows.unchanged, typed=bool(rows.schema)))
        yield Rows(np.array(rows.numbers, np.int64), top, source, columns, tuple(faults), untyped)

    def _metadata(self, schema_key: str) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        heads, count, table = self.heads, len(self.heads), self.rows.table
        methods = [f"{DEBEZIUM}{'-backfill' if head.backfill else ''}" for head in heads]
        places = [[str(number) for number in _sort_keys(head)] for head in heads]
        top = {
            "uuid": pa.array([head.uuid for head in heads], pa.string()),
            "source_timestamp": pa.array([head.source_ms for head in heads], pa.int64()),
            "read_timestamp": pa.array([head.read_ms for head in heads], pa.int64()),
            "sort_keys": pa.array(places, pa.list_(pa.string())),
            "read_method": pa.array(methods, pa.string()),
            "object": pa.array([head.topic for head in heads], pa.string()),
            "schema_key": pa.repeat(pa.scalar(schema_key), count),
        }
        names = {"database": table.database, "schema": table.schema, "table": table.table}
        source = {name: pa.repeat(pa.scalar(value), count) for name, value in names.items()}
        source["change_type"] = pa.array([head.change_type for head in heads], pa.string())
        keys = pa.array([list(self.rows.keys)], pa.list_(pa.string()))
        source["primary_keys"] = keys.take(pa.array(np.zeros(count, np.int64)))
        for name, kind in _SOURCE.items():
            source[name] = pa.array([head.source[name] for head in heads], kind)
        return top, source


def _sort_keys(head: Head) -> tuple[int, ...]:
    return head.place if head.offset < 0 else (*head.place, head.offset)


_SOURCE = {
    "log_file": pa.string(),
    "log_position": pa.int64(),
    "scn": pa.int64(),
    "rs_id": pa.string(),
    "ssn": pa.int64(),
    "row_id": pa.string(),
    "lsn": pa.string(),
    "tx_id": pa.string(),
}
