"""A message of Debezium in protobuf as the one in JSON that says the same: the official library reads it, and what the
messages of Confluent's converter stand for is said once more."""

from __future__ import annotations

import base64
from datetime import date
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from distributary.audit.judge.protobuf_rows import message_class
from distributary.schemas.registry import Registry
from distributary.schemas.registry.compile import compile_schema

_EPOCH: Final = date(1970, 1, 1).toordinal()


class ProtobufMessages:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[tuple[int, tuple[int, ...]], Any] = {}

    def opened(self, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """(schema, payload) as JSON has them. Raises ValueError, KeyError, and what the registry raises."""
        if len(body) < 6 or body[0] != 0:
            raise ValueError("no header")
        number, (path, begin) = int.from_bytes(body[1:5], "big"), _path(body)
        if (number, path) not in self._known:
            compiled = compile_schema(self._registry.get(number), self._registry)
            self._known[number, path] = message_class(compiled, path)
        try:
            message = self._known[number, path].FromString(body[begin:])
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        schema, payload = _struct(message)
        # Of a row that is not there no field's type is known.
        present = [field for field in schema["fields"] if payload[field["field"]] is not None]
        return {**schema, "fields": present}, payload


def _path(body: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of its schema a body is, and where it begins."""
    numbers: list[int] = []
    at = 5
    while not numbers or len(numbers) <= numbers[0]:
        number, shift = 0, 0
        while True:
            byte = body[at]
            at, number, shift = at + 1, number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        numbers.append(number >> 1 ^ -(number & 1))
    return tuple(numbers[1:]) or (0,), at


def _struct(message: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its type in the words of Kafka Connect, as far as a value hangs on it, and what it says."""
    fields, payload = [], {}
    for field in message.DESCRIPTOR.fields:
        is_absent = field.has_presence and not message.HasField(field.name)
        kind, value = _value(field, None if is_absent else getattr(message, field.name))
        fields.append({**kind, "field": field.name})
        payload[field.name] = value
    return {"type": "struct", "fields": fields}, payload


def _value(field: FieldDescriptor, value: Any) -> tuple[dict[str, Any], Any]:
    target = field.message_type
    if target is not None and target.GetOptions().map_entry:
        entries = {} if value is None else {str(key): _plain(item) for key, item in value.items()}
        return {"type": "map"}, entries
    if field.is_repeated:
        read = [_one(field, item) for item in value]
        return {"type": "array", "items": read[0][0] if read else {"type": "string"}}, [item for _, item in read]
    return ({"type": "string"}, None) if value is None else _one(field, value)


def _one(field: FieldDescriptor, value: Any) -> tuple[dict[str, Any], Any]:
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return {"type": "string"}, str(value) if named is None else named.name
    if field.message_type is not None:
        return _message(value)
    return ({"type": "bytes"}, _plain(value)) if isinstance(value, bytes) else ({"type": "int64"}, value)


def _message(value: Any) -> tuple[dict[str, Any], Any]:
    name = value.DESCRIPTOR.full_name
    if name == "confluent.type.Decimal" or name.endswith(".VariableScaleDecimal"):
        unscaled = {"scale": value.scale, "value": base64.b64encode(value.value).decode()}
        return {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}, unscaled
    if name == "google.type.Date":
        return _named("Date"), _days(value)
    if name == "google.type.TimeOfDay":
        seconds = (value.hours * 60 + value.minutes) * 60 + value.seconds
        return _named("MicroTime"), seconds * 1_000_000 + value.nanos // 1000
    if name == "google.protobuf.Timestamp":
        return _named("MicroTimestamp"), value.seconds * 1_000_000 + value.nanos // 1000
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return {"type": "bytes" if isinstance(value.value, bytes) else "int64"}, _plain(value.value)
    return _struct(value)


def _days(value: Any) -> int:
    if 1 <= value.year <= 9999:
        return date(value.year, value.month, value.day).toordinal() - _EPOCH
    date(2000 + value.year % 400, value.month, value.day)  # raises ValueError where it is no day of any year
    return int(value.year - 1970) * 366  # before, or behind, all days that a table can hold


def _named(name: str) -> dict[str, Any]:
    return {"type": "int64", "name": f"io.debezium.time.{name}"}


def _plain(value: Any) -> Any:
    """Bytes as JSON has them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return _struct(value)[1] if hasattr(value, "DESCRIPTOR") else value
