"""JSON change files: one event a line, its values kept as they stand in the file.

A JSON parser that makes numbers of numbers loses digits (2.50, 12345678901234567890.123) and inference over a mixed
list loses values. So a line is only cut into its tokens, and each payload column is converted from the tokens by the
schema file where there is one, else by what all tokens of the column have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro import schema as avro_schema
from distributary.avro.schema import NULL, Node, Record, solid
from distributary.changes.json_values import EventTokens, by_node, by_tokens, metadata_array, token_array
from distributary.changes.metadata import Rows, is_constant, places_by
from distributary.changes.model import BadEvent, Reading
from distributary.errors import FileBroken, Reason

Fields = dict[str, msgspec.Raw]

BODY = ("source_metadata", "payload")
CELLS = 10_000_000
"""Cells of a file's table that cost nothing; more than these must have some bytes in the file."""
LINES_AT_ONCE = 2_048  # no more of the parser's small objects live at a time: a great many slow Python down
NOTHING = msgspec.Raw(b"null")
_LONE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)
_PERHAPS: msgspec.json.Decoder[Fields | None] = msgspec.json.Decoder(Fields | None)
_EVENTS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


def read_json(body: bytes, path: str, reading: Reading, schema_text: str | None, bad: list[BadEvent]) -> Iterator[Rows]:
    """The events of a file, in groups of one schema and one table; what is no event is added to `bad`.

    Raises:
        FileBroken: the schema file is none, or no line of several is an object.
    """
    nodes = _payload_nodes(schema_text, path)
    lines = _lines(body)
    room = _Room(path, len(lines), 4 * len(body) + CELLS)
    starts = range(0, len(lines), LINES_AT_ONCE)
    batches = [_cut(lines[start : start + LINES_AT_ONCE], start, bad, room) for start in starts]
    batches = [batch for batch in batches if batch.rows]
    if not batches:
        if len(bad) > 1:
            raise FileBroken(path=path, detail=f"none of its {len(bad)} lines is a JSON object: {bad[0].detail}")
        return
    top = {
        name: metadata_array(EventTokens(array)) for name, array in _joined(batches, "top").items() if name not in BODY
    }
    source = {name: metadata_array(EventTokens(array)) for name, array in _joined(batches, "source").items()}
    payload = _joined(batches, "payload")
    numbers = np.array([row for batch in batches for row in batch.rows], np.int64)
    every = Rows(numbers, top, source, [])
    for places in _groups(top, source, len(numbers)):
        if len(places) == len(numbers):
            yield _with_payload(every, payload, nodes, reading)
        else:
            mine = {name: array.take(pa.array(places)) for name, array in payload.items()}
            yield _with_payload(every.take(places), mine, nodes, reading)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some lines that are events, cut into tokens: by name an array over the lines, null where there is nothing."""

    rows: list[int]
    top: dict[str, pa.Array]
    source: dict[str, pa.Array]
    payload: dict[str, pa.Array]


class _Room:
    """Bounds the table that a file's events make: every name is a column of it, and every event a row."""

    def __init__(self, path: str, rows: int, cells: int) -> None:
        self._path, self._rows, self._cells = path, rows, cells
        self._names: set[str] = set()

    def take(self, names: Iterable[str]) -> None:
        """Raises FileBroken: together with those that were taken before, there are too many names for so many rows."""
        self._names.update(names)
        if len(self._names) * self._rows > self._cells:
            detail = f"its {self._rows:,} events have more than {len(self._names) - 1:,} different fields"
            raise FileBroken(path=self._path, detail=detail)


def _cut(lines: Sequence[bytes], first: int, bad: list[BadEvent], room: _Room) -> _Batch:
    """Cuts lines, of which the first is event `first` of the file; those that are no events are added to `bad`."""
    rows: list[int] = []
    tops: list[Fields] = []
    sources: list[Fields] = []
    payloads: list[Fields] = []
    for row, line in enumerate(lines, first):
        try:
            if not line.isascii():
                line.decode()
            event = _FIELDS.decode(_with_whole_characters(line))
        except UNDECODABLE as exc:
            bad.append(BadEvent(row, Reason.CORRUPT_EVENT, f"it is no JSON object: {_in_words(exc)}", line))
            continue
        try:
            source = _PERHAPS.decode(event.get("source_metadata", NOTHING))
            payload = _PERHAPS.decode(event.get("payload", NOTHING))
        except UNDECODABLE as exc:
            bad.append(BadEvent(row, Reason.CORRUPT_EVENT, f"payload or source_metadata: {_in_words(exc)}", line))
            continue
        rows.append(row)
        tops.append(event)
        sources.append(source or {})
        payloads.append(payload or {})
    return _Batch(rows, *(_columns(records, room) for records in (tops, sources, payloads)))


def _with_whole_characters(line: bytes) -> bytes:
    """The line with U+FFFD in place of each half of a surrogate pair that has no other half: a text that holds one, as
    MySQL's or Oracle's may, is no UTF-8, but the rest of it and of its event is worth keeping."""
    if not _LONE.search(line):
        return line
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], line)


def _in_words(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _joined(batches: Sequence[_Batch], attribute: str) -> dict[str, pa.Array]:
    """The arrays of all batches one behind the other; names in the order in which they are met."""
    batch_columns: list[dict[str, pa.Array]] = [getattr(batch, attribute) for batch in batches]
    if len(batch_columns) == 1:
        return batch_columns[0]
    counts = [len(batch.rows) for batch in batches]
    return {
        name: pa.concat_arrays([
            columns[name] if name in columns else pa.nulls(count, pa.string())
            for columns, count in zip(batch_columns, counts, strict=True)
        ])
        for name in dict.fromkeys(name for columns in batch_columns for name in columns)
    }  # fmt: skip


def _lines(body: bytes) -> Sequence[bytes]:
    """One event each. Whole files of one array, or of one object over many lines, are not Datastream's, but are met."""
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    if not lines:
        return []
    try:
        if lines[0].lstrip()[:1] == b"[":
            return [bytes(event) for event in _EVENTS.decode(_with_whole_characters(body))]
        _FIELDS.decode(_with_whole_characters(lines[0]))
    except UNDECODABLE:
        try:
            _FIELDS.decode(_with_whole_characters(body))
            return [body]
        except UNDECODABLE:
            pass
    return lines


def _payload_nodes(schema_text: str | None, path: str) -> dict[str, Node]:
    if schema_text is None:
        return {}
    try:
        payload = solid(avro_schema.parse(schema_text).field("payload") or NULL)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise FileBroken(path=path, detail=f"its .schema file can't be read: {exc}") from exc
    return {field.name: field.node for field in payload.fields} if isinstance(payload, Record) else {}


def _columns(records: Sequence[Fields], room: _Room) -> dict[str, pa.Array]:
    """The records' tokens by name; names in the order in which they are met."""
    if not records:
        return {}
    names = list(records[0])
    if all(list(record) == names for record in records):
        room.take(names)
        values = zip(*(record.values() for record in records), strict=True)
        return {name: token_array(raw) for name, raw in zip(names, values, strict=True)}
    columns_met = dict.fromkeys(name for record in records for name in record)
    room.take(columns_met)
    return {name: token_array([record.get(name, NOTHING) for record in records]) for name in columns_met}


def _groups(top: dict[str, pa.Array], source: dict[str, pa.Array], count: int) -> Iterator[npt.NDArray[np.int64]]:
    """Events that have columns together: of one schema and one table."""
    number = np.zeros(count, np.int64)
    named = [top.get("schema_key"), top.get("object")]
    named += [source.get(name) for name in ("database", "schema", "table", "collection")]
    for array in named:
        if array is not None and not is_constant(array):
            codes = pc.fill_null(array.cast(pa.string()), "").dictionary_encode()
            number = number * len(codes.dictionary) + codes.indices.to_numpy(zero_copy_only=False)
            _, number = np.unique(number, return_inverse=True)
    yield from places_by(number)


def _with_payload(rows: Rows, payload: dict[str, pa.Array], nodes: dict[str, Node], reading: Reading) -> Rows:
    faults: list[tuple[int, Reason, str]] = []
    columns: list[tuple[str, Node, pa.Array]] = []
    for name, array in payload.items():
        node, tokens = nodes.get(name), EventTokens(array)
        column = by_tokens(tokens, reading) if node is None else by_node(node, tokens, reading)
        columns.append((name, column.node, column.array))
        faults += ((place, Reason.VALUE_OUT_OF_RANGE, f"column {name}: {detail}") for place, detail in column.faults)
    untyped = frozenset(payload.keys() - nodes.keys())
    return Rows(rows.numbers, rows.top, rows.source, columns, tuple(faults), untyped)
