"""The fast way to many change events: MySQL tables of ten columns, as avro files, for benchmarks.

Every value follows from an event's place in its table, so the answer is known: `revision` of a key's last event.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from distributary.changes.model import Kind
from distributary_simulate.change_files.avro_encoding import BLOCK_BYTES, SYNC_BYTES, varint
from distributary_simulate.change_files.avro_vectors import (
    Field,
    Ints,
    big_endian,
    choices,
    constant,
    digits,
    doubles,
    file_of,
    longs,
    text,
)
from distributary_simulate.change_files.events import EventSchema, Layout, event_schema
from distributary_simulate.change_files.files import minute_folder
from distributary_simulate.change_files.writer import BATCH_EVENTS, STREAM
from distributary_simulate.changes.history import START_MS
from distributary_simulate.changes.model import CDC_METHOD, Column, Table
from distributary_simulate.changes.unified import DOUBLE, INTEGER, LONG, STRING, TIMESTAMP, Unified, decimal

COLUMNS: Final[dict[str, Unified]] = {
    "id": LONG,
    "revision": LONG,
    "user_id": INTEGER,
    "status": STRING,
    "name": STRING,
    "amount": decimal(12, 2),
    "price": DOUBLE,
    "created_at": TIMESTAMP,
    "is_paid": INTEGER,
    "note": STRING,
}
_FILE_MS: Final = 10_000
_BYTES_PER_CHANGE: Final = 300
_TYPES: Final = ("INSERT", "UPDATE-INSERT", "DELETE")
_SOME: Final = b"\x02"  # the second branch of a union with null


@dataclass(frozen=True)
class BulkPlan:
    """events: of all tables together. keys: per table, in use in turn; fewer keys, more updates.
    deletes: share of the events, up to a half. file_events: events per file.
    """

    root: Path
    events: int = 1_000_000
    tables: int = 20
    keys: int = 10_000
    deletes: float = 0.05
    file_events: int = 25_000
    seed: int = 0
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True)
class BulkTable:
    """events: written. alive: id -> revision of the rows that exist in the end (two arrays, ordered by id)."""

    table: Table
    events: int
    files: int
    bytes: int
    alive: tuple[Ints, Ints]


def write_bulk(plan: BulkPlan) -> dict[str, BulkTable]:
    """Write all files, file after file over all tables, as a stream would. Route -> what was written."""
    tables = [_table(number) for number in range(plan.tables)]
    written = [(0, 0)] * plan.tables
    share = [plan.events * (n + 1) // plan.tables - plan.events * n // plan.tables for n in range(plan.tables)]
    histories = [_History.of(plan, number, events) for number, events in enumerate(share)]
    schemas = [event_schema(table, Layout.Y2025, STREAM) for table in tables]
    for place in range(-(-max(share) // plan.file_events)):
        for number, (schema, history) in enumerate(zip(schemas, histories, strict=True)):
            rows = range(place * plan.file_events, min(share[number], (place + 1) * plan.file_events))
            if rows:
                size = _write_file(plan, schema, history, rows, place, number)
                written[number] = (written[number][0] + 1, written[number][1] + size)
    return {
        table.route: BulkTable(table, events, *files, history.alive())
        for table, events, files, history in zip(tables, share, written, histories, strict=True)
    }


@dataclass(frozen=True)
class _History:
    """Per event of one table, in true order: its key, its change type (an index of `_TYPES`)."""

    ids: Ints
    types: Ints

    @classmethod
    def of(cls, plan: BulkPlan, number: int, events: int) -> _History:
        choose = np.random.default_rng([plan.seed, number])
        ids = choose.integers(0, plan.keys, events)
        order = np.argsort(ids, kind="stable")
        first = np.concatenate([[True], np.diff(ids[order]) != 0]) if events else np.zeros(0, bool)
        starts = np.maximum.accumulate(np.where(first, np.arange(events), 0))
        turn = np.arange(events) - starts
        # A key's events with odd numbers may delete it, so none deletes a row that is gone already.
        is_delete = (turn % 2 == 1) & (choose.random(events) < 2 * plan.deletes)
        after_delete = np.concatenate([[False], is_delete[:-1]]) & ~first
        kind = np.where(is_delete, 2, np.where(first | after_delete, 0, 1))
        types = np.empty(events, np.int64)
        types[order] = kind
        return cls(ids, types)

    def alive(self) -> tuple[Ints, Ints]:
        ids, last = np.unique(self.ids[::-1], return_index=True)
        revisions = len(self.ids) - 1 - last
        rows = self.types[revisions] != 2
        return ids[rows], revisions[rows]


def _table(number: int) -> Table:
    columns = tuple(Column(name, kind) for name, kind in COLUMNS.items())
    return Table(Kind.MYSQL, "bulk", "", f"orders_{number:02d}", columns, ("id",))


def _write_file(plan: BulkPlan, schema: EventSchema, history: _History, rows: range, place: int, number: int) -> int:
    revisions = np.arange(rows.start, rows.stop, dtype=np.int64)
    ids, types = history.ids[rows.start : rows.stop], history.types[rows.start : rows.stop]
    source_ms = START_MS + place * _FILE_MS + (revisions - rows.start) * _FILE_MS // len(rows) // 1000 * 1000
    fields = [*_head(schema, revisions, source_ms, place, number), *_metadata(schema, types, revisions, place, number)]
    fields += _payload(ids, revisions)
    name = f"{schema.key}_{CDC_METHOD[Kind.MYSQL]}_{1_000_000_000 + number}_{number % 10}_{place}.avro"
    sync = hashlib.sha256(name.encode()).digest()[:SYNC_BYTES]
    body = file_of(schema.text, fields, len(rows), sync, plan.block_bytes)
    folder = plan.root / minute_folder(schema.table.object, int(source_ms[0]))
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).write_bytes(body)


def _head(schema: EventSchema, revisions: Ints, source_ms: Ints, place: int, number: int) -> Iterator[Field]:
    """uuid to sort_keys."""
    batches = revisions // BATCH_EVENTS
    yield constant(varint(36) + f"5bd3a1c0-{number:04x}-4d07-".encode())
    yield digits(batches // 10_000, 4)
    yield constant(b"-")
    yield digits(batches, 4)
    yield digits(revisions % BATCH_EVENTS, 8, base=2)
    yield longs(source_ms + 3_000 + batches % 1_000)
    yield longs(source_ms)
    names = (schema.table.object, CDC_METHOD[Kind.MYSQL], schema.stream_name, schema.key)
    yield constant(b"".join(map(text, names)) + varint(3) + b"\x02")
    yield longs(source_ms)
    yield constant(b"\x00" + text(_log_file(place)))
    yield longs(_log_position(revisions, number), b"\x02")
    yield constant(b"\x00")


def _metadata(schema: EventSchema, types: Ints, revisions: Ints, place: int, number: int) -> Iterator[Field]:
    table = schema.table
    yield constant(text(table.name) + text(table.database) + varint(1) + text("id") + b"\x00")
    yield constant(_SOME + text(_log_file(place)))
    yield longs(_log_position(revisions, number), _SOME)
    yield choices([_SOME + text(name) + _SOME + bytes([name == "DELETE"]) for name in _TYPES], types)


def _payload(ids: Ints, revisions: Ints) -> Iterator[Field]:
    mixed = (revisions * 2_654_435_761 + ids) % 2**31
    yield longs(ids, _SOME)
    yield longs(revisions, _SOME)
    yield longs(mixed % 1_000_000, _SOME)
    yield choices([_SOME + text(name) for name in ("new", "paid", "packed", "sent", "returned")], mixed % 5)
    yield choices([_SOME + text(f"Customer {name} of Springfield") for name in range(500)], mixed % 500)
    yield big_endian(mixed % 8_000_000, 3, _SOME + varint(3))
    yield doubles((mixed % 100_000) / 100.0, _SOME)
    yield longs(1_700_000_000_000_000 + mixed * 1_000, _SOME)
    yield choices([b"\x00", _SOME + varint(0), _SOME + varint(1)], mixed % 3)
    notes = [_SOME + text(f"leave it at door {n}, " + "ring twice " * (n % 6)) for n in range(97)]
    yield choices([b"\x00", *notes], mixed % 98)


def _log_file(place: int) -> str:
    return f"mysql-bin.{place + 1:06d}"


def _log_position(revisions: Ints, number: int) -> Any:
    return 4 + revisions * _BYTES_PER_CHANGE + number
