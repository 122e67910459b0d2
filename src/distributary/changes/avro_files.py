"""Avro change files: bytes in, stored values as Arrow out.

The fast way is `avro.lanes`. What it does not prove, and what it can't walk (PostgreSQL's arrays of several dimensions,
maps, schemas that do not begin with a text), is read by fastavro, a row at a time.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa

from distributary.avro import schema as avro_schema
from distributary.avro.blocks import MOST_UNPACKED, Block, Container, open_beginning, open_container
from distributary.avro.bounds import EventWalk, OutOfBounds, check_schema, smallest
from distributary.avro.lanes import is_laned, read_lanes
from distributary.avro.schema import NULL, Array, Map, Node, Record, Scalar, Union, solid
from distributary.avro.walk_columns import arrow_type, is_nested_list
from distributary.changes.model import BadEvent
from distributary.errors import FileBroken, Reason

ROWS_AT_ONCE = 5_000
"""Events that stand in memory as Python's own values."""
LONGEST_RAW = 1 << 20
"""Bytes of an event that cannot be read that the quarantine gets."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Events from number `row` on, as stored: `columns` has the schema's fields, without logical types."""

    row: int
    columns: pa.StructArray


@dataclass(frozen=True, slots=True)
class AvroFile:
    schema: Record
    stored: list[Stored]
    bad: list[BadEvent]


def read_avro(body: pa.Buffer, path: str, fast: bool = True, most: int = MOST_UNPACKED) -> AvroFile:
    """All events of an avro file. `fast=False` reads with fastavro only. `most`: bytes that its blocks may unpack to.

    Raises:
        FileBroken: the header can't be read. Behind a whole header, faults are bad events.
    """
    container = open_container(body, path, most)
    schema = _schema(container, path)
    stored: list[Stored] = []
    bad: list[BadEvent] = []
    unproved = list(container.blocks)
    if fast and is_laned(schema):
        proved, unproved = read_lanes(container.data, container.blocks, schema)
        stored = [Stored(stored_part.row, stored_part.columns) for stored_part in proved]
    if unproved:
        rows, bad = _Slow(container, schema).read(unproved)
        stored = sorted([*stored, *rows], key=lambda stored_part: stored_part.row)
    if container.fault:
        last = container.blocks[-1] if container.blocks else Block(0, 0, 0, 0)
        bad.append(BadEvent(last.row + last.count, Reason.FILE_BROKEN, container.fault, b""))
    return AvroFile(schema, stored, bad)


def first_avro(body: pa.Buffer, path: str, most: int = MOST_UNPACKED) -> AvroFile:
    """The first event alone, of a file of which `body` need be no more than the beginning."""
    container = open_beginning(body, path, most)
    schema = _schema(container, path)
    stored, bad = _Slow(container, schema).read([Block(0, 1, block.start, block.end) for block in container.blocks])
    return AvroFile(schema, stored, bad)


def _schema(container: Container, path: str) -> Record:
    try:
        schema = avro_schema.parse(container.schema)
        check_schema(schema)
        return schema
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise FileBroken(path=path, detail=f"its avro schema can't be read: {exc}") from exc


class _Slow:
    def __init__(self, container: Container, schema: Record) -> None:
        self._data = memoryview(container.data).cast("B")
        self._schema = schema
        plain = avro_schema.without_logical_types(json.loads(container.schema))
        self._reader_schema = fastavro.parse_schema(plain)
        self._smallest = smallest(schema)

    def read(self, blocks: list[Block]) -> tuple[list[Stored], list[BadEvent]]:
        stored: list[Stored] = []
        bad: list[BadEvent] = []
        for block in blocks:
            first = block.row
            rows: list[Any] = []
            for number, row in enumerate(self._rows(block)):
                if isinstance(row, BadEvent):
                    bad.append(row)
                    self._store(first, rows, stored, bad)
                    first, rows = block.row + number + 1, []
                else:
                    rows.append(row)
                if len(rows) == ROWS_AT_ONCE:
                    self._store(first, rows, stored, bad)
                    first, rows = block.row + number + 1, []
            self._store(first, rows, stored, bad)
        return stored, bad

    def _rows(self, block: Block) -> Any:
        """Each event of a block; a BadEvent for one that can't be read, the last one for all that follow it."""
        data = self._data[block.start : block.end]
        stream = io.BytesIO(data)
        walk = EventWalk(self._schema, data)
        for number in range(min(block.count, len(data) // self._smallest + 1)):
            begin, row = stream.tell(), block.row + number
            try:
                end = walk.end(begin)
            except OutOfBounds as exc:
                lost = block.count - number
                text = f"{lost:,} events from here to the end of their block can't be read: {exc}"
                yield BadEvent(row, Reason.CORRUPT_EVENT, text, bytes(data[begin : begin + LONGEST_RAW]))
                return
            try:
                yield fastavro.schemaless_reader(stream, self._reader_schema, None)
                continue
            except UnicodeDecodeError:
                detail = "a text in it is not UTF-8"
            except Exception as exc:  # fastavro lets the errors of struct, its unions and the stream through
                detail = str(exc) or type(exc).__name__
            try:
                stream.seek(begin)
                event = fastavro.schemaless_reader(
                    stream, self._reader_schema, None, handle_unicode_errors="backslashreplace"
                )
                raw = event_text(event)
            except Exception:
                raw = bytes(data[begin : min(end, begin + LONGEST_RAW)])
            stream.seek(end)
            yield BadEvent(row, Reason.CORRUPT_EVENT, detail, raw)

    def _store(self, row: int, rows: list[Any], stored: list[Stored], bad: list[BadEvent]) -> None:
        """Appends the rows; by halves where one of them does not fit its own schema, as an int of 40 bits."""
        if not rows:
            return
        try:
            plain = [_plain(self._schema, value) for value in rows]
            stored.append(Stored(row, pa.array(plain, arrow_type(self._schema))))
        except (pa.ArrowException, ValueError, OverflowError, TypeError) as exc:
            if len(rows) == 1:
                bad.append(BadEvent(row, Reason.CORRUPT_EVENT, str(exc), event_text(rows[0])))
                return
            middle = len(rows) // 2
            self._store(row, rows[:middle], stored, bad)
            self._store(row + middle, rows[middle:], stored, bad)


def _plain(node: Node, value: Any) -> Any:
    """A value as `arrow_type(node)` takes it: nested lists flattened, what has no Arrow type as JSON text."""
    if value is None:
        return None
    node = solid(node)
    if isinstance(node, Union):
        return value if isinstance(value, str) else event_text(value).decode()
    if isinstance(node, Record):
        if is_nested_list(node):
            element = node.field("elementValue")
            return [None if item is None else _plain(element or NULL, item) for item in _leaves(value)]
        return {field.name: _plain(field.node, value[field.name]) for field in node.fields}
    if isinstance(node, Array):
        return [_plain(node.items, item) for item in value]
    if isinstance(node, Map) or not isinstance(node, Scalar):
        return event_text(value).decode()
    return value


def _leaves(value: dict[str, Any]) -> list[Any]:
    """The elements of a multidimensional array, the last dimension fastest."""
    nested = value["nestedArray"]
    if nested is None:
        return [value["elementValue"]]
    return [leaf for item in nested if item is not None for leaf in _leaves(item)]


def event_text(value: Any) -> bytes:
    """A value read from avro as JSON text, bytes as hex."""
    return json.dumps(value, default=_hex, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _hex(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
