"""Change files read plainly, an event at a time: fastavro, json, pyarrow. None of the product's readers.

What cannot be read is left out and said; the numbers of the events count it all the same.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from distributary.audit.judge.plain_values import Clock, Day, Moment, plain
from distributary.errors.border import contained

_LONGEST_NUMBER = 4_000
"""Digits up to which Python reads a whole number from a text."""
_PIECE_ROWS = 1_024
_Meaning: TypeAlias = Callable[[Any], Any]
_MICROS = {"millis": 1_000, "micros": 1}


@dataclass(frozen=True, slots=True)
class RawEvent:
    """An event as its file has it. `row`: its number in the file, from 0."""

    row: int
    top: Mapping[str, Any]
    source: Mapping[str, Any]
    payload: Mapping[str, Any]


def raw_events(body: pa.Buffer, faults: list[str]) -> Iterator[RawEvent]:
    """All events of a file that can be read, one at a time; what cannot goes to `faults`, in words.

    Never raises for what is in it. A JSON file that is one list, or an avro block, is in memory as a whole.
    """
    try:
        data = unzipped(body, faults)
        if data.startswith(b"Obj\x01"):
            events = _avro(data, faults)
        elif data.startswith(b"PAR1"):
            events = parquet_rows(data, faults)
        else:
            events = _json(data, faults)
        for row, event in events:
            record = event if isinstance(event, Mapping) else {"payload": event}
            source, payload = record.get("source_metadata") or {}, record.get("payload") or {}
            if isinstance(source, Mapping) and isinstance(payload, Mapping):
                yield RawEvent(row, record, source, payload)
            else:
                faults.append(f"event {row} is none")
    except GeneratorExit:
        raise
    except BaseException as e:  # whatever a file does to its reader is that file's own fault
        faults.append(contained(e))


def unzipped(body: pa.Buffer, faults: list[str]) -> bytes:
    """A file's content; what is wrong with its gzip data goes to `faults`, in words."""
    data = bytes(body.to_pybytes())
    pieces = []
    while data.startswith(b"\x1f\x8b"):
        member = zlib.decompressobj(wbits=31)
        for begin in range(0, len(data), 1 << 16):
            try:
                pieces.append(member.decompress(data[begin : begin + (1 << 16)]))
            except zlib.error as e:
                faults.append(str(e))
                return b"".join(pieces)
            if member.eof:
                data = member.unused_data + data[begin + (1 << 16) :]
                break
        else:
            faults.append("it is cut")
            data = b""
    return b"".join(pieces) if pieces else data


# -- JSON --------------------------------------------------------------------------------------------------------


def _json(data: bytes, faults: list[str]) -> Iterator[tuple[int, Any]]:
    text = data.removeprefix(b"\xef\xbb\xbf")
    first = next(json_lines(text), None)
    if first is not None and not _is_event(first):
        try:
            document = _loads(text)  # one list, or one object over many lines
            yield from enumerate(document if isinstance(document, list) else [document])
            return
        except (ValueError, RecursionError):
            pass
    for row, line in enumerate(json_lines(text)):
        try:
            yield row, _loads(line)
        except (ValueError, RecursionError) as e:
            faults.append(f"line {row}: {e}")


def json_lines(text: bytes) -> Iterator[bytes]:
    """The lines of a text that are not blank."""
    return (line for line in io.BytesIO(text) if line.strip())


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(_loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _loads(text: bytes) -> Any:
    return json.loads(text.decode(), parse_float=Decimal, parse_int=_whole)


def _whole(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < _LONGEST_NUMBER else Decimal(digits)


# -- Parquet -----------------------------------------------------------------------------------------------------


def parquet_rows(data: bytes, faults: list[str]) -> Iterator[tuple[int, Any]]:
    file = pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us")
    row = 0
    for number in range(file.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        begin = row
        try:
            for piece in file.iter_batches(_PIECE_ROWS, row_groups=[number]):
                yield from enumerate(plain(piece.to_struct_array()), begin)
                begin += piece.num_rows
        except (pa.ArrowException, OSError) as e:
            faults.append(f"row group {number}: {e}")
        row += count


# -- avro --------------------------------------------------------------------------------------------------------


def _avro(data: bytes, faults: list[str]) -> Iterator[tuple[int, Any]]:
    stream = io.BytesIO(data)
    blocks = fastavro.block_reader(stream)
    schema = json.loads(blocks.metadata["avro.schema"])
    meaning = _Meanings(schema).whole
    reader = fastavro.parse_schema(_without_logical(schema))
    row = 0
    while True:
        try:
            block = next(blocks, None)
        except Exception as e:  # fastavro lets the errors of struct, codecs and the stream through
            faults.append(f"behind event {row}: {e}")
            return
        if block is None:
            return
        body: bytes = block.bytes_.getvalue()  # type: ignore[attr-defined]
        yield from _block(row, min(block.num_records, len(body)), body, reader, meaning, faults)
        row += block.num_records


def _block(
    row: int, count: int, body: bytes, reader: Any, meaning: _Meaning, faults: list[str]
) -> Iterator[tuple[int, Any]]:
    stream = io.BytesIO(body)
    for number in range(row, row + count):
        begin = stream.tell()
        try:
            yield number, meaning(fastavro.schemaless_reader(stream, reader, None))
            continue
        except Exception as e:
            faults.append(f"event {number}: {e}")
        try:
            stream.seek(begin)
            fastavro.schemaless_reader(stream, reader, None, handle_unicode_errors="backslashreplace")
        except Exception:
            return  # where the next one begins, nobody knows


def _without_logical(schema: Any) -> Any:
    """fastavro makes Python's times of logical types, and those end in year 9999."""
    if isinstance(schema, list):
        return [_without_logical(branch) for branch in schema]
    if isinstance(schema, dict):
        return {
            k: v if k in ("default", "symbols") else _without_logical(v)
            for k, v in schema.items()
            if k != "logicalType"
        }
    return schema


class _Meanings:
    """What a schema's logical types make of stored values. fastavro gives records as dicts: they are changed in place.

    `of`: a function for a type; None where its values stay as they are.
    """

    def __init__(self, schema: Any) -> None:
        self._types: dict[str, Any] = {}
        self._made: dict[str, _Meaning | None] = {}
        self._collect(schema)
        self.whole = self.of(schema) or _as_it_is

    def _collect(self, schema: Any) -> None:
        for branch in schema if isinstance(schema, list) else [schema]:
            if isinstance(branch, dict):
                if branch.get("type") in ("record", "enum", "fixed", "error"):
                    self._types[str(branch.get("name"))] = branch
                inner = [branch["type"]] if isinstance(branch.get("type"), dict | list) else []
                for child in (
                    branch.get("items"),
                    branch.get("values"),
                    *(f["type"] for f in branch.get("fields", ())),
                    *inner,
                ):
                    self._collect(child)

    def of(self, schema: Any, logical: str = "", about: Mapping[str, Any] | None = None) -> _Meaning | None:
        """The logical type may stand on the field (`about`)."""
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            return self.of(branches[0], logical, about) if len(branches) == 1 else None
        if isinstance(schema, str):
            return self._named(schema) if schema in self._types else _logical(logical, about or {})
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._named(str(schema.get("name")))
        if kind in ("array", "map"):
            return _each(self.of(schema["items" if kind == "array" else "values"]))
        if "logicalType" in schema:
            logical, about = schema["logicalType"], schema
        if isinstance(kind, dict | list):
            return self.of(kind, logical, about)
        return _logical(logical, about or {})

    def _named(self, name: str) -> _Meaning | None:
        if self._types[name]["type"] not in ("record", "error"):
            return None
        if name not in self._made:
            fields: list[tuple[str, _Meaning]] = []

            def meaning(value: Any) -> Any:
                for field, meaning_of in fields:
                    if value[field] is not None:
                        value[field] = meaning_of(value[field])
                return value

            self._made[name] = meaning  # before its fields: a record may hold itself
            for field in self._types[name]["fields"]:
                meaning_of = self.of(field["type"], field.get("logicalType", ""), field)
                if meaning_of is not None:
                    fields.append((field["name"], meaning_of))
        return self._made[name]


def _each(item: _Meaning | None) -> _Meaning | None:
    if item is None:
        return None

    def meaning(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: None if item_value is None else item(item_value) for name, item_value in value.items()}
        return [None if item_value is None else item(item_value) for item_value in value]

    return meaning


def _as_it_is(value: Any) -> Any:
    return value


def _logical(logical: str, about: Mapping[str, Any]) -> _Meaning | None:
    unit = logical.rpartition("-")[2]
    if logical == "decimal":
        scale = int(about.get("scale", 0))
        return lambda value: _decimal(value, scale) if isinstance(value, bytes) else value
    if logical == "date":
        return Day
    if "timestamp-" in logical:
        return (lambda value: Moment(value // 1000)) if unit == "nanos" else lambda value: Moment(value * _MICROS[unit])
    if logical.startswith("time-"):
        return lambda value: Clock(value * _MICROS[unit])
    return None


def _decimal(value: bytes, scale: int) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    # As text it is exact: a calculation would round to the context's digits.
    return Decimal(f"{number}E{-scale}")
