"""Debezium's messages in JSON to events in normal form: with the schema in the message or without, plain or flattened.

A message is cut into its tokens, as a line of a JSON change file is (`changes.json_files`), and its values are
converted column by column: by the schema that the message brings, else by what all values of a column have in common.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from distributary.changes.debezium.connect import Connect, parse
from distributary.changes.debezium.heads import PLAIN, Form, Head, Record, Said, Unusable, head_of
from distributary.changes.debezium.positions import sequence
from distributary.changes.debezium.token_columns import column
from distributary.changes.digits import with_unchanged
from distributary.changes.file_events import EventParts
from distributary.changes.json_values import Tokens, token_array
from distributary.changes.metadata import Rows
from distributary.changes.model import BadEvent, FileEvents, Kind, Reading, SourceTable
from distributary.errors import Reason

Fields = dict[str, msgspec.Raw]

AT_ONCE = 2_048
NULL = msgspec.Raw(b"null")
NO_DOCUMENT = "the message does not hold the row as it is after the change"
_FIELDS: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)
_PERHAPS: msgspec.json.Decoder[Fields | None] = msgspec.json.Decoder(Fields | None)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_META = frozenset(
    {
        "op",
        "deleted",
        "db",
        "schema",
        "table",
        "collection",
        "connector",
        "name",
        "version",
        "snapshot",
        "sequence",
        "ts_ms",
        "ts_us",
        "ts_ns",
        "transaction_id",
        "file",
        "pos",
        "row",
        "gtid",
        "server_id",
        "lsn",
        "txId",
        "xmin",
        "commit_lsn",
        "change_lsn",
        "event_serial_no",
        "scn",
        "commit_scn",
        "rs_id",
        "ssn",
        "row_id",
        "redo_thread",
        "ord",
    }
)
"""What ExtractNewRecordState may be asked to add to a row."""


class Message(NamedTuple):
    """One message; `value` None: a tombstone."""

    record: Record
    key: bytes | None
    value: bytes | None


def read_messages(messages: Sequence[Message], reading: Reading, form: Form = PLAIN) -> FileEvents:
    """Every message: in `events`, in `bad`, or counted in `skipped` (a tombstone behind its delete; what says nothing
    of a row, as a heartbeat). Numbers are the places in `messages`."""
    parts = EventParts(reading, typed=True, sequence=partial(sequence, by_offset=form.by_offset))
    groups: dict[tuple[Any, ...], _Group] = {}
    skipped = 0
    for number, message in enumerate(messages):
        try:
            change = _change(message, form)
            if change is None:
                skipped += 1
                continue
            head = head_of(change.said, message.record, form)
            row = _row(change, head, form, message.value or b"")
        except UNDECODABLE as exc:
            words = "it is nested too deep" if isinstance(exc, RecursionError) else str(exc)
            parts.bad.append(_bad(number, message, Reason.CORRUPT_EVENT, f"it is no JSON object: {words}"))
            continue
        except Unusable as exc:
            parts.bad.append(_bad(number, message, exc.reason, exc.detail))
            continue
        kind = (head.table, change.schema, change.keys, row.unchanged, form.flattened)
        group = groups.get(kind)
        if group is None:
            group = groups[kind] = _Group(head.table, change.schema, change.keys, row.unchanged)
        group.add(number, head, row.values)
    for group in groups.values():
        for rows in group.rows(reading, form, parts.bad, messages):
            parts.add(rows, group.table.kind)
    return replace(parts.file_events(), skipped=skipped)


def _bad(number: int, message: Message, reason: Reason, detail: str) -> BadEvent:
    return BadEvent(number, reason, detail, message.value if message.value is not None else message.key or b"")


# -- one message ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """A message taken apart. `row`: after the change, of a delete before it; `key`: the fields of the record's key."""

    said: Said
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
        return _Change(Said("d", {}), key_schema, None, key, keys) if alone else None
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
    said = Said(op, source, _int(fields.get("ts_ms")), str(transaction.get("id") or ""))
    if str(source.get("connector")) != "mongodb":
        row = _PERHAPS.decode(fields.get("before" if op == "d" else "after", NULL))
        return _Change(said, schema, row, key, keys)
    # A document and its id are JSON in a text.
    key = {"_id": key.get("id", key.get("_id", NULL))}
    after = fields.get("after", NULL)
    document = None if op != "d" and bytes(after) == b"null" else {**key, "data": NULL if op == "d" else after}
    return _Change(said, schema, document, key, ("_id",))


def opened(body: bytes | None) -> tuple[bytes, Fields]:
    """The schema that the message brings, b"" for none, and its fields."""
    if not body or body == b"null":
        return b"", {}
    if not body.isascii():
        body.decode()
    fields = _FIELDS.decode(body)
    if fields.keys() == {"schema", "payload"} and bytes(fields["schema"])[:1] in (b"{", b"n"):
        schema = bytes(fields["schema"])
        return b"" if schema == b"null" else schema, _PERHAPS.decode(fields["payload"]) or {}
    return b"", fields


def is_notice(fields: Fields) -> bool:
    """Heartbeats, begins and ends of transactions, DDL: messages of other topics that say nothing of a row; and what
    a converter writes for no value (`null`, or null with its schema)."""
    names = fields.keys()
    return not names or names == {"ts_ms"} or {"status", "id", "event_count"} <= names or {"ddl", "source"} <= names


def _object(raw: msgspec.Raw | None) -> dict[str, Any]:
    found = None if raw is None else msgspec.json.decode(raw)
    return found if isinstance(found, dict) else {}


def _int(raw: msgspec.Raw | None) -> int | None:
    return _millis(None if raw is None else msgspec.json.decode(raw))


def _millis(found: Any) -> int | None:
    return found if type(found) is int and abs(found) < 10**14 else None


def _flattened(schema: bytes, fields: Fields, key: Fields, keys: tuple[str, ...], form: Form) -> _Change:
    meta: dict[str, Any] = {}
    row: Fields = {}
    for name, raw in fields.items():
        inner = name.removeprefix(form.prefix).removeprefix("source_") if name.startswith(form.prefix) else ""
        if inner in _META:
            meta[inner if inner != "ts_ms" or "source" in name else "read_ms"] = msgspec.json.decode(raw)
        else:
            row[name] = raw
    gone = str(meta.pop("deleted", "")).lower() == "true"
    op = "d" if gone else str(meta.pop("op", None) or "u")
    said = Said(op, meta, _millis(meta.pop("read_ms", None)))
    return _Change(said, schema, row, key, keys)


def _row(change: _Change, head: Head, form: Form, body: bytes) -> _Row:
    """The row's fields; those that were not logged are null. Raises Unusable."""
    row = change.row
    if row is None:
        if not head.deleted:
            raise Unusable(Reason.NO_ROW_IMAGE, NO_DOCUMENT)
        return _Row(change.key, ())
    if head.deleted:
        return _Row({**row, **{name: raw for name, raw in change.key.items() if name in row or not row}}, ())
    if not any(mark in body for mark in _marks(form.placeholder)):
        return _Row(row, ())
    unchanged = tuple(sorted(n for n, raw in row.items() if _stands_for_unchanged(bytes(raw), form.placeholder)))
    if unchanged:
        row = {name: NULL if name in unchanged else raw for name, raw in row.items()}
    return _Row(row, unchanged)


@lru_cache(8)
def _placeholders(text: str) -> tuple[Any, ...]:
    """How the connectors write "not logged": as a text, as bytes, as an array of these or of numbers, as a map."""
    body = text.encode()
    encoded = base64.b64encode(body).decode()
    digest = bytearray(hashlib.md5(body, usedforsecurity=False).digest())
    digest[6], digest[8] = digest[6] & 0x0F | 0x30, digest[8] & 0x3F | 0x80
    named = str(uuid.UUID(bytes=bytes(digest)))
    return text, encoded, body.hex(), [text], [encoded], list(body), {text: text}, named, [named]


@lru_cache(8)
def _marks(text: str) -> tuple[bytes, ...]:
    """Of these, one is in every message that holds a placeholder."""
    forms = _placeholders(text)
    numbers = str(list(text.encode()[:6])).strip("[]").replace(" ", "")
    return (*(form.encode() for form in forms if isinstance(form, str)), numbers.encode())


def _stands_for_unchanged(token: bytes, placeholder: str) -> bool:
    known = _placeholders(placeholder)
    if len(token) > 8 * len(placeholder) or len(token) < len(placeholder):
        return False
    return token[:1] in b'"[{' and json.loads(token) in known


# -- messages of one table and schema --------------------------------------------------------------------------


@dataclass
class _Group:
    """Messages of one table, one schema and one list of keys, in whose rows the same columns were not logged."""

    table: SourceTable
    schema: bytes
    keys: tuple[str, ...]
    unchanged: tuple[str, ...]
    numbers: list[int] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    values: list[Fields] = field(default_factory=list)
    parts: list[dict[str, pa.Array]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, number: int, head: Head, values: Fields) -> None:
        self.numbers.append(number)
        self.heads.append(head)
        self.values.append(values)
        if len(self.values) == AT_ONCE:
            self._cut()

    def _cut(self) -> None:
        """The parser's small objects to arrays: a great many of them slow Python down."""
        names = dict.fromkeys(name for row in self.values for name in row)
        self.parts.append({name: token_array([row.get(name, NULL) for row in self.values]) for name in names})
        self.counts.append(len(self.values))
        self.values = []

    def rows(self, reading: Reading, form: Form, bad: list[BadEvent], messages: Sequence[Message]) -> Iterator[Rows]:
        if self.values:
            self._cut()
        try:
            kinds = self._kinds(form)
        except ValueError as exc:
            bad += [_bad(n, messages[n], Reason.BROKEN_SCHEMA, str(exc)) for n in self.numbers]
            return
        route, columns, faults = self.table.route, [], []
        names = [*(name for name in kinds), *self._names(kinds)]
        for name in names:
            tokens = Tokens(self._joined(name))
            found = column(kinds.get(name), tokens, reading, reading.wanted(route, name))
            columns.append((name, found.node, found.array))
            faults += [(place, Reason.VALUE_OUT_OF_RANGE, f"column {name}: {why}") for place, why in found.faults]
        untyped = frozenset(names) - kinds.keys()
        top, source = self._metadata(columns)
        yield Rows(np.array(self.numbers, np.int64), top, source, columns, tuple(faults), untyped)

    def _names(self, known: Iterable[str]) -> list[str]:
        return [n for n in dict.fromkeys(n for part in self.parts for n in part) if n not in set(known)]

    def _joined(self, name: str) -> pa.Array:
        return pa.concat_arrays([
            part[name] if name in part else pa.nulls(count, pa.string())
            for part, count in zip(self.parts, self.counts, strict=True)
        ])  # fmt: skip

    def _kinds(self, form: Form) -> dict[str, Connect]:
        """The type of each column, as the messages' schema says it; {} where there is none. Raises ValueError."""
        if self.table.kind is Kind.MONGODB and not form.flattened:
            return {"_id": Connect("string"), "data": Connect("string")}
        if not self.schema:
            return {}
        kind = parse(self.schema)
        if form.flattened:
            there = {n for part in self.parts for n in part}
            return {name: one for name, one in kind.fields if name in there}
        row = kind.field("after") or kind.field("before")
        return dict(row.fields) if row is not None else {}

    def _metadata(
        self, columns: Sequence[tuple[str, Any, pa.Array]]
    ) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        heads, count = self.heads, len(self.heads)
        said = repr([(name, node) for name, node, _ in columns]) if self.schema else ""
        key = hashlib.sha1(said.encode(), usedforsecurity=False).hexdigest() if said else ""
        methods = [f"debezium{'-backfill' if head.backfill else ''}" for head in heads]
        places = [[str(part) for part in (*head.place, head.offset)] for head in heads]
        top = {
            "uuid": pa.array([head.uuid for head in heads], pa.string()),
            "source_timestamp": pa.array([head.source_ms for head in heads], pa.int64()),
            "read_timestamp": pa.array([head.read_ms for head in heads], pa.int64()),
            "sort_keys": pa.array(places, pa.list_(pa.string())),
            "read_method": pa.array(methods, pa.string()),
            "object": pa.array([head.topic for head in heads], pa.string()),
            "schema_key": pa.repeat(pa.scalar(with_unchanged(key, self.unchanged)), count),
        }
        table = {"database": self.table.database, "schema": self.table.schema, "table": self.table.table}
        source = {name: pa.repeat(pa.scalar(value), count) for name, value in table.items()}
        source["change_type"] = pa.array([head.change_type for head in heads], pa.string())
        keys = pa.array([list(self.keys)], pa.list_(pa.string()))
        source["primary_keys"] = keys.take(pa.array(np.zeros(count, np.int64)))
        for name, kind in _SOURCE.items():
            source[name] = pa.array([head.source[name] for head in heads], kind)
        return top, source


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
