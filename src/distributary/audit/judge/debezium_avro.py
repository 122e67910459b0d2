"""A message of Debezium in Avro as the one in JSON that says the same: fastavro reads it, and the schema of its writer
is said in the words of Kafka Connect once more."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro

from distributary.schemas.registry import Registry

_KINDS: Final = {"int": "int32", "long": "int64", "enum": "string", "fixed": "bytes"}
_LOGICAL: Final = {
    "decimal": "Decimal",
    "date": "Date",
    "time-millis": "Time",
    "timestamp-millis": "Timestamp",
    "time-micros": "MicroTime",
    "timestamp-micros": "MicroTimestamp",
}


class AvroMessages:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[int, tuple[dict[str, Any], Any]] = {}

    def opened(self, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """(schema, payload) as JSON has them. Raises ValueError, KeyError, and what the registry raises."""
        if len(body) < 5 or body[0] != 0:
            raise ValueError("no header")
        schema, reader = self._schema(int.from_bytes(body[1:5], "big"))
        try:
            value = fastavro.schemaless_reader(io.BytesIO(body[5:]), reader, None)
        except Exception as error:  # fastavro lets the errors of struct, its unions and the stream through
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return schema, _as_json(value)

    def _schema(self, number: int) -> tuple[dict[str, Any], Any]:
        if number not in self._known:
            schema = json.loads(self._registry.get(number).text)
            self._known[number] = _connect(schema, {}, ""), fastavro.parse_schema(_stored(schema))
        return self._known[number]


def _connect(schema: Any, named: dict[str, Any], space: str) -> dict[str, Any]:
    if isinstance(schema, list):
        return _connect(next(item for item in schema if item != "null"), named, space)
    if isinstance(schema, str):
        return dict(named.get(schema) or named.get(f"{space}.{schema}") or {"type": _KINDS.get(schema, schema)})
    kind = schema["type"]
    if isinstance(kind, list | dict) or kind in named:
        return _connect(kind, named, space)
    about = {"name": schema.get("connect.name"), "parameters": dict(schema.get("connect.parameters") or {})}
    if kind == "record":
        space = schema["name"].rpartition(".")[0] or schema.get("namespace") or space
        fields = [{**_connect(item["type"], named, space), "field": item["name"]} for item in schema["fields"]]
        struct = {**about, "type": "struct", "fields": fields}
        named[f"{space}.{schema['name'].rpartition('.')[2]}".lstrip(".")] = struct
        return struct
    if kind == "array":
        return {**about, "type": "array", "items": _connect(schema["items"], named, space)}
    if (logical := _LOGICAL.get(schema.get("logicalType", ""))) is not None:
        about["name"] = about["name"] or logical
        about["parameters"].setdefault("scale", schema.get("scale", 0))
    return {**about, "type": _KINDS.get(kind, kind)}


def _stored(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stored(branch) for branch in schema]
    if isinstance(schema, Mapping):
        return {key: _stored(value) for key, value in schema.items() if key != "logicalType"}
    return schema


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, list) else value
