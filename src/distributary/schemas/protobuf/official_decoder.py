"""Payloads to Arrow with the official protobuf library (upb), row by row: the judge of all doubtful rows.

It reads the reduced schema (`wire`), in which an unknown field with a known number, that is a value of another type
than declared, can be seen at every depth.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
from distributary.schemas.decoding import Rejected
from distributary.schemas.protobuf.columns import EMPTY_COLUMN, Field, MessageFields
from distributary.schemas.protobuf.weight import DURATION_MAX, NANOS_MAX, SECONDS_MAX, SECONDS_MIN
from distributary.schemas.protobuf.wire import ROOT, Extensions, WireMessage

Getter = Callable[[Any], Any]

ANY_LEVELS = 100
"""An Any may hold an Any and so on: deeper ones have no JSON, whatever the caller's stack would allow."""
_GROUP = 3
_WIRE_TYPES = ("varint", "64-bit", "length-delimited", "group", "group", "32-bit")


class OfficialDecoder:
    """Decodes one message, exactly and slowly (some microseconds a row)."""

    def __init__(
        self,
        schema: WireMessage,
        message: MessageFields,
        pool: DescriptorPool | None,
        *,
        null_out_of_range: bool = False,
    ) -> None:
        """`pool` holds the writer schema, to render Any as JSON. `null_out_of_range`: a Timestamp or Duration that no
        reader can hold is null, and its row good."""
        self._schema = schema
        self._own = DescriptorPool()
        self._own.AddSerializedFile(schema.file)
        self._class = GetMessageClass(self._own.FindMessageTypeByName(ROOT))
        self._type = message.type
        self._getters = _Getters(pool, null_out_of_range=null_out_of_range)
        self._values = self._getters.struct(message)
        self._opaque: dict[str, Getter] = {}

    def parses(self, payload: bytes) -> bool:
        """Whether the library accepts the bytes at all."""
        try:
            self._class.FromString(payload)
        except DecodeError:
            return False
        return True

    def opaque(self, field: Field, levels: int) -> Getter:
        """What makes the value of an opaque column from the bytes of its field.

        It raises DecodeError or Doubtful where it does not vouch for the value: the whole row has to be decoded.
        `levels`: how many messages may be inside each other below it.
        """
        if field.full_name not in self._opaque:
            self._opaque[field.full_name] = self._part(field, levels)
        return self._opaque[field.full_name]

    def _part(self, field: Field, levels: int) -> Getter:
        class_ = GetMessageClass(self._own.FindMessageTypeByName(self._schema.names[field.full_name]))
        convert = self._getters.value(field)

        def read(payload: bytes) -> Any:
            message = class_.FromString(payload)
            _refuse_doubts(message, levels)
            return convert(message)

        return read

    def decode(
        self, rows: Iterable[tuple[int, bytes]]
    ) -> tuple[pa.StructArray, list[int], list[Rejected], Counter[str]]:
        """Good rows as structs, their positions, the others, and how many of the good ones lack something, in words."""
        values, positions, rejected, warnings = [], [], [], Counter[str]()
        for position, payload in rows:
            extensions: set[str] = set()
            try:
                message = self._class.FromString(payload)
                _refuse_mismatch(message, self._schema.extensions, extensions)
                self._getters.nulls.clear()
                values.append(self._values(message))
                positions.append(position)
                warnings.update(f"extension {name} has no column" for name in extensions)
                warnings.update(f"field {name} is out of range, so null" for name in self._getters.nulls)
            except DecodeError as error:
                detail = str(error).replace(f" with type '{ROOT}'", "")
                rejected.append(Rejected(position, Reason.CORRUPT_PAYLOAD, detail))
            except _Refused as refused:
                rejected.append(Rejected(position, refused.reason, refused.detail))
        return pa.array(values, self._type), positions, rejected, warnings


class _Refused(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail


class Doubtful(Exception):
    """A part of a row on which alone nothing can be said."""


def _refuse_mismatch(message: Any, extensions: Extensions, seen_extensions: set[str]) -> None:
    """An unknown field whose number is known was written by another schema (P11 of NVIDIA/cudf-spark-jni#4107).

    Names of extensions that the message holds are added to `seen_extensions`: they have no column.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        fields, extension = message.DESCRIPTOR.fields_by_number, extensions.get(message.DESCRIPTOR.name)
        for field in unknown:  # type: ignore[attr-defined]
            number = field.field_number
            if number in fields:
                wire_type = _WIRE_TYPES[field.wire_type]
                detail = (
                    f"field {number} ({fields[number].json_name}) has wire type {wire_type}, its schema says another"
                )
                raise _Refused(Reason.SCHEMA_MISMATCH, detail)
            if extension is not None and (name := extension.name(number)):
                seen_extensions.add(name)
    for inner in _inner(message):
        _refuse_mismatch(inner, extensions, seen_extensions)


def _refuse_doubts(message: Any, levels: int) -> None:
    """As `_refuse_mismatch`, for a part of a row: here the reason does not count, and only so many levels are seen."""
    if levels == 0:
        raise Doubtful
    unknown = UnknownFieldSet(message)
    if len(unknown):
        fields = message.DESCRIPTOR.fields_by_number
        for field in unknown:  # type: ignore[attr-defined]
            if field.field_number in fields or field.wire_type == _GROUP:
                raise Doubtful
    for inner in _inner(message):
        _refuse_doubts(inner, levels - 1)


def _inner(message: Any) -> Iterator[Any]:
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            if descriptor.is_repeated:
                yield from value
            else:
                yield value


class _Getters:
    """Builds, once per schema, the functions that turn a parsed message into the values of its columns."""

    def __init__(self, pool: DescriptorPool | None, *, null_out_of_range: bool) -> None:
        self._pool = pool
        self._null_out_of_range = null_out_of_range
        self.nulls: set[str] = set()
        """Columns that are null in the last row because their values are out of range."""

    def struct(self, message: MessageFields) -> Getter:
        if not message.fields:
            return lambda _: {EMPTY_COLUMN: True}
        getters = [(field.column, self._column(field)) for field in message.fields]
        return lambda value: {column: getter(value) for column, getter in getters}

    def _column(self, field: Field) -> Getter:
        name = f"f{field.number}"
        get = attrgetter(name)
        if field.entry is not None:
            key, value = (self._column(member) for member in field.entry)
            return lambda m: [(k, value(entry)) for k, entry in {key(entry): entry for entry in get(m)}.items()]
        convert = self.value(field)
        if field.repeated:
            return lambda m: [convert(item) for item in get(m)]
        if field.presence:
            return lambda m: convert(get(m)) if m.HasField(name) else field.default
        return lambda m: convert(get(m))

    def value(self, field: Field) -> Getter:
        """From one value as the library parses it to the column's."""
        match field.form:
            case "scalar":
                return _same
            case "wrapper":
                return attrgetter("f1")
            case "enum":
                names = field.names or {}
                return lambda number: names.get(number) or str(number)
            case "timestamp":
                return self._in_range(field, _timestamp)
            case "duration":
                return self._in_range(field, _duration)
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

    def _in_range(self, field: Field, read: Callable[[Any], int]) -> Getter:
        def read_or_null(message: Any) -> int | None:
            try:
                return read(message)
            except _Refused:
                self.nulls.add(field.column)
                return None

        return read_or_null if self._null_out_of_range else read

    def _any_json(self, type_url: str, value: bytes) -> str | None:
        """JSON of a packed message whose type is part of the writer schema; None for all others, never an error."""
        if self._pool is None:
            return None
        try:
            descriptor: Descriptor = self._pool.FindMessageTypeByName(type_url.rpartition("/")[2])
            message = GetMessageClass(descriptor).FromString(value)
            text = json_format.MessageToJson(
                message, indent=None, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
            return text if _levels(text) <= ANY_LEVELS else None
        except Exception:  # what is packed in it may be of any type and depth
            return None


def _levels(text: str) -> int:
    """How deep a JSON text is nested."""
    if text.count("{") + text.count("[") <= ANY_LEVELS:
        return 0
    deepest = level = 0
    for bracket in re.findall(r"[\[\]{}]", re.sub(r'"(?:\\.|[^"\\])*"', "", text)):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def _same(value: Any) -> Any:
    return value


def _timestamp(message: Any) -> int:
    return _microseconds(message, SECONDS_MIN, SECONDS_MAX, 0, NANOS_MAX, "Timestamp")


def _duration(message: Any) -> int:
    low, high = (-NANOS_MAX if message.f1 <= 0 else 0), (NANOS_MAX if message.f1 >= 0 else 0)
    return _microseconds(message, -DURATION_MAX, DURATION_MAX, low, high, "Duration")


def _microseconds(message: Any, low: int, high: int, low_nanos: int, high_nanos: int, kind: str) -> int:
    seconds: int = message.f1
    nanos: int = message.f2
    if not low <= seconds <= high:
        detail = f"{kind} of {seconds} seconds is outside of {low} to {high}"
        raise _Refused(Reason.VALUE_OUT_OF_RANGE, detail)
    if not low_nanos <= nanos <= high_nanos:
        detail = f"{kind} of {seconds} seconds with {nanos} nanos, which may be {low_nanos} to {high_nanos}"
        raise _Refused(Reason.VALUE_OUT_OF_RANGE, detail)
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
    if value == 0:
        return value if math.copysign(1, value) < 0 else 0
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
