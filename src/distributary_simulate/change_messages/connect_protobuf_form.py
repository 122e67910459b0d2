"""Debezium's messages in protobuf, as Confluent's ProtobufConverter writes them, made of those in JSON with schemas.

The schema that a JSON message brings becomes the text of a .proto file by the converter's rules, and the official
library writes the message by it; the registry's header stands before it.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from distributary_simulate.change_messages.connect_form import DECIMAL, ConnectForm, Register, whole
from distributary_simulate.games.events import message_class

_DATA = "org.apache.kafka.connect.data."
_MESSAGES = {
    DECIMAL: ("confluent.type.Decimal", "confluent/type/decimal.proto"),
    f"{_DATA}Date": ("google.type.Date", "google/type/date.proto"),
    f"{_DATA}Time": ("google.type.TimeOfDay", "google/type/timeofday.proto"),
    f"{_DATA}Timestamp": ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}
_KINDS = {"int8": "int32", "int16": "int32", "boolean": "bool"}
_WRAPPERS = {
    "int32": "Int32Value", "int64": "Int64Value", "float": "FloatValue", "double": "DoubleValue", "bool": "BoolValue",
    "string": "StringValue", "bytes": "BytesValue",
}  # fmt: skip


class ProtobufForm(ConnectForm):
    """In protobuf. `nullables`: how the converter was told to write fields that may be null:
    `optional`, as `wrapper`s, or not at all (`none`), so that null is 0 or empty. A list has no nulls, which the
    converter would not write."""

    def __init__(self, register: Register, nullables: str = "optional") -> None:
        super().__init__(register)
        self._nullables = nullables

    def _written(self, subject: str, body: bytes, name: str) -> bytes:
        document = json.loads(body)
        schema = whole(document["schema"], document["payload"])
        text = _Proto(self._nullables).file({**schema, "name": name})
        if text not in self._known:
            self._known[text] = self._register(subject, text), message_class(text, f"srv.shop.{name}")
        number, message_type = self._known[text]
        message = message_type()
        _fill(message, schema, document["payload"])
        written: bytes = message.SerializeToString(deterministic=True)
        return struct.pack(">bib", 0, number, 0) + written


class _Proto:
    def __init__(self, nullables: str) -> None:
        self._nullables = nullables
        self._imports = {"google/protobuf/wrappers.proto", "confluent/meta.proto"}
        self._declared = dict[str, str]()

    def file(self, schema: dict[str, Any]) -> str:
        body = self._message(schema["name"], schema)
        imports = "".join(f'import "{name}";' for name in sorted(self._imports))
        return f'syntax = "proto3"; package srv.shop; {imports} {body}'

    def _message(self, name: str, schema: dict[str, Any]) -> str:
        lines = [self._field(field, number) for number, field in enumerate(schema["fields"], start=1)]
        return f"message {name} {{ {' '.join(lines)} }}"

    def _field(self, field: dict[str, Any], number: int) -> str:
        is_list = field["type"] == "array"
        inner = field["items"] if is_list else field
        if field["type"] == "map":
            kind, before = f"map<{self._scalar(field['keys'])}, {self._scalar(field['values'])}>", ""
        elif inner["type"] == "struct":
            kind, before = self._struct(inner, field["field"])
        else:
            kind, before = self._scalar(inner), ""
        label = "repeated " if is_list else ""
        if not is_list and field.get("optional") and kind in _WRAPPERS:
            label = "optional " if self._nullables == "optional" else ""
            kind = f"google.protobuf.{_WRAPPERS[kind]}" if self._nullables == "wrapper" else kind
        return f"{before} {label}{kind} {field['field']} = {number}{_options(inner)};"

    def _struct(self, schema: dict[str, Any], field: str) -> tuple[str, str]:
        """The message's name, and its declaration where it has none yet."""
        name = (schema.get("name") or "Value").rpartition(".")[2]
        name = f"{name}Message" if name == field else name
        text = json.dumps(schema["fields"], sort_keys=True)
        full = name if self._declared.get(name, text) == text else f"{name}{len(self._declared)}"
        if full in self._declared:
            return full, ""
        self._declared[full] = text
        return full, self._message(full, schema)

    def _scalar(self, schema: dict[str, Any]) -> str:
        if schema.get("name") in _MESSAGES:
            kind, file = _MESSAGES[schema["name"]]
            self._imports.add(file)
            return kind
        return _KINDS.get(schema["type"], str(schema["type"]))


def _options(schema: dict[str, Any]) -> str:
    parameters = schema.get("parameters") or {}
    options = {"connect.type": schema["type"]} if schema["type"] in ("int8", "int16") else {}
    if schema.get("name") == DECIMAL:
        options["scale"] = parameters["scale"]
        if "connect.decimal.precision" in parameters:
            options["precision"] = parameters["connect.decimal.precision"]
    params = ", ".join(f'{{key: "{key}", value: "{value}"}}' for key, value in options.items())
    return f" [(confluent.field_meta) = {{params: [{params}]}}]" if options else ""


def _fill(message: Any, schema: dict[str, Any], payload: dict[str, Any]) -> None:
    for field in schema["fields"]:
        name, value = field["field"], payload.get(field["field"])
        if value is None:
            continue
        if field["type"] == "map":
            for key, inner in value.items():
                getattr(message, name)[key] = _plain(field["values"], inner)
        elif field["type"] == "array":
            for item in filter(lambda item: item is not None, value):
                _append(getattr(message, name), field["items"], item)
        else:
            _set(message, name, field, value)


def _set(message: Any, name: str, schema: dict[str, Any], value: Any) -> None:
    declared = message.DESCRIPTOR.fields_by_name[name]
    if declared.message_type is None:
        setattr(message, name, _plain(schema, value))
        return
    inner = getattr(message, name)
    inner.SetInParent()
    _fill_value(inner, schema, value)


def _append(values: Any, schema: dict[str, Any], value: Any) -> None:
    if hasattr(values, "add"):
        _fill_value(values.add(), schema, value)
    else:
        values.append(_plain(schema, value))


def _fill_value(message: Any, schema: dict[str, Any], value: Any) -> None:
    match message.DESCRIPTOR.full_name:
        case "confluent.type.Decimal":
            message.value, message.scale = base64.b64decode(value), int(schema["parameters"]["scale"])
        case "google.type.Date":
            message.year, message.month, message.day = _civil(value)
        case "google.type.TimeOfDay":
            seconds, message.nanos = value // 1000, value % 1000 * 1_000_000
            message.hours, message.minutes, message.seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
        case "google.protobuf.Timestamp":
            message.seconds, message.nanos = value // 1000, value % 1000 * 1_000_000
        case name if name.startswith("google.protobuf."):
            message.value = _plain(schema, value)
        case _:
            _fill(message, schema, value)


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month, day of days since 1970 (Hinnant, "chrono-compatible low-level date algorithms")."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def _plain(schema: dict[str, Any], value: Any) -> Any:
    match schema["type"]:
        case "bytes":
            return base64.b64decode(value)
        case "float" | "double":
            return float(value)
    return value
