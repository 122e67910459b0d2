"""Payloads to Arrow with the official protobuf library (upb), row by row: the judge of all doubtful rows.

It reads the reduced schema (`wire`), in which an unknown field with a known number, that is a value of another type
than declared, can be seen at every depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary.errors import Reason
from distributary.formats.columns import EMPTY_COLUMN, Field, Message
from distributary.formats.weight import DURATION_MAX, SECONDS_MAX, SECONDS_MIN
from distributary.formats.wire import ROOT

Getter = Callable[[Any], Any]

_WIRE_TYPES = ("varint", "64-bit", "length-delimited", "group", "group", "32-bit")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that could not be decoded: its position in the input, why, and the library's words."""

    position: int
    reason: Reason
    detail: str


class OfficialDecoder:
    """Decodes one message, exactly and slowly (some microseconds a row)."""

    def __init__(self, file: bytes, message: Message, pool: DescriptorPool | None) -> None:
        """`file` is the reduced schema, serialised; `pool` holds the writer schema, to render Any as JSON."""
        own = DescriptorPool()
        own.AddSerializedFile(file)
        self._class = GetMessageClass(own.FindMessageTypeByName(ROOT))
        self._type = message.type
        self._values = _Getters(pool).struct(message)

    def parses(self, payload: bytes) -> bool:
        """Whether the library accepts the bytes at all."""
        try:
            self._class.FromString(payload)
        except DecodeError:
            return False
        return True

    def decode(self, rows: Iterable[tuple[int, bytes]]) -> tuple[pa.StructArray, list[int], list[Rejected]]:
        """Good rows as structs, their positions, and the others."""
        values, positions, rejected = [], [], []
        for position, payload in rows:
            try:
                message = self._class.FromString(payload)
                _refuse_mismatch(message)
                values.append(self._values(message))
                positions.append(position)
            except DecodeError as error:
                detail = str(error).replace(f" with type '{ROOT}'", "")
                rejected.append(Rejected(position, Reason.CORRUPT_PAYLOAD, detail))
            except _Refused as refused:
                rejected.append(Rejected(position, refused.reason, refused.detail))
        return pa.array(values, self._type), positions, rejected


class _Refused(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail


def _refuse_mismatch(message: Any) -> None:
    """An unknown field whose number is known was written by another schema (P11 of NVIDIA/cudf-spark-jni#4107)."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        fields = message.DESCRIPTOR.fields_by_number
        for field in unknown:  # type: ignore[attr-defined]
            if field.field_number in fields:
                name = fields[field.field_number].json_name
                found = _WIRE_TYPES[field.wire_type]
                detail = f"field {field.field_number} ({name}) has wire type {found}, its schema says another"
                raise _Refused(Reason.SCHEMA_MISMATCH, detail)
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in value if descriptor.is_repeated else (value,):
                _refuse_mismatch(inner)


class _Getters:
    """Builds, once per schema, the functions that turn a parsed message into the values of its columns."""

    def __init__(self, pool: DescriptorPool | None) -> None:
        self._pool = pool

    def struct(self, message: Message) -> Getter:
        if not message.fields:
            return lambda _: {EMPTY_COLUMN: True}
        getters = [(field.column, self._column(field)) for field in message.fields]
        return lambda value: {column: getter(value) for column, getter in getters}

    def _column(self, field: Field) -> Getter:
        name = f"f{field.number}"
        get = attrgetter(name)
        if field.entry is not None:
            key, value = (self._column(part) for part in field.entry)
            return lambda m: [(k, value(entry)) for k, entry in {key(entry): entry for entry in get(m)}.items()]
        convert = self._value(field)
        if field.repeated:
            return lambda m: [convert(item) for item in get(m)]
        if field.presence:
            return lambda m: convert(get(m)) if m.HasField(name) else field.default
        return lambda m: convert(get(m))

    def _value(self, field: Field) -> Getter:
        match field.shape:
            case "scalar":
                return _same
            case "wrapper":
                return attrgetter("f1")
            case "enum":
                names = field.names or {}
                return lambda number: names.get(number) or str(number)
            case "timestamp":
                return lambda m: _microseconds(m, SECONDS_MIN, SECONDS_MAX, "Timestamp")
            case "duration":
                return lambda m: _microseconds(m, -DURATION_MAX, DURATION_MAX, "Duration")
            case "json":
                to_json = _JSON[field.full_name]
                return lambda m: json.dumps(to_json(m), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
            case "any":
                return lambda m: {"type_url": m.f1, "value": m.f2, "json": self._any_json(m.f1, m.f2)}
            case "cut":
                return lambda m: m.SerializeToString(deterministic=True)
            case "empty":
                return lambda _: {EMPTY_COLUMN: True}
            case "struct":
                assert field.message is not None
                return self.struct(field.message)

    def _any_json(self, type_url: str, value: bytes) -> str | None:
        """JSON of a packed message whose type is part of the writer schema; None for all others, never an error."""
        if self._pool is None:
            return None
        try:
            descriptor: Descriptor = self._pool.FindMessageTypeByName(type_url.rpartition("/")[2])
            message = GetMessageClass(descriptor).FromString(value)
            return json_format.MessageToJson(
                message, indent=None, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        except (KeyError, DecodeError, json_format.Error, TypeError, ValueError):
            return None


def _same(value: Any) -> Any:
    return value


def _microseconds(message: Any, low: int, high: int, what: str) -> int:
    seconds: int = message.f1
    if not low <= seconds <= high:
        detail = f"{what} of {seconds} seconds is outside of {low} to {high}"
        raise _Refused(Reason.VALUE_OUT_OF_RANGE, detail)
    nanos: int = message.f2
    return seconds * 1_000_000 + nanos // 1_000


def _json_struct(message: Any) -> dict[str, Any]:
    return {entry.f1: _json_value(entry.f2) for entry in message.f1}


def _json_list(message: Any) -> list[Any]:
    return [_json_value(value) for value in message.f1]


def _json_value(message: Any) -> Any:
    """google.protobuf.Value: null_value = 1, number 2, string 3, bool 4, struct 5, list 6; none of them is null."""
    for name, convert in _VALUE_KINDS:
        if message.HasField(name):
            return convert(getattr(message, name))
    return None


def _json_number(value: float) -> Any:
    """As the proto JSON mapping writes doubles: whole numbers without a point, and names for what JSON lacks."""
    if math.isfinite(value):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_VALUE_KINDS: tuple[tuple[str, Getter], ...] = (
    ("f2", _json_number),
    ("f3", _same),
    ("f4", _same),
    ("f5", _json_struct),
    ("f6", _json_list),
)
_JSON: dict[str, Getter] = {
    "google.protobuf.Struct": _json_struct,
    "google.protobuf.Value": _json_value,
    "google.protobuf.ListValue": _json_list,
}
