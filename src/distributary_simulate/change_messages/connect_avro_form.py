"""Debezium's messages in Avro, as Kafka Connect's converters write them, made of those in JSON with their schemas.

The schema that a JSON message brings becomes an Avro schema by the rules of Connect's converter (`connect.name`,
`connect.parameters`, unions with null), and fastavro writes the message by it; the registry's header stands before it.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from typing import Any

import fastavro

from distributary_simulate.change_messages.connect_form import DECIMAL, ConnectForm, whole

KINDS = {"int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double"}
LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}


class AvroForm(ConnectForm):
    """In Avro."""

    def _written(self, subject: str, body: bytes, name: str) -> bytes:
        document = json.loads(body)
        payload = document["payload"]
        schema = whole(document["schema"], payload)
        text = json.dumps(_Avro("srv.shop").type({**schema, "optional": False, "name": f"srv.shop.{name}"}))
        if text not in self._known:
            self._known[text] = self._register(subject, text), fastavro.parse_schema(_plain(json.loads(text)))
        number, parsed = self._known[text]
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, _value(schema, payload))
        return struct.pack(">bi", 0, number) + out.getvalue()


class _Avro:
    def __init__(self, space: str) -> None:
        self._space, self._done = space, dict[str, str]()

    def type(self, schema: dict[str, Any]) -> Any:
        solid = self._solid(schema)
        return ["null", solid] if schema.get("optional") else solid

    def _solid(self, schema: dict[str, Any]) -> Any:
        kind, name = schema["type"], schema.get("name")
        about: dict[str, Any] = {"connect.name": name} if name else {}
        if schema.get("parameters"):
            about["connect.parameters"] = schema["parameters"]
        if kind == "struct":
            return self._record(schema, name)
        if kind == "array":
            return {"type": "array", "items": self.type(schema["items"]), **about}
        if kind == "map":
            return {"type": "map", "values": self.type({**schema["values"], "optional": True}), **about}
        if kind in ("int8", "int16"):
            about["connect.type"] = kind
        if name == DECIMAL:
            parameters = schema["parameters"]
            precision = int(parameters.get("connect.decimal.precision", 64))
            about |= {"logicalType": "decimal", "scale": int(parameters["scale"]), "precision": precision}
        elif name and name.startswith("org.apache.kafka.connect.data."):
            about["logicalType"] = LOGICAL[name.rpartition(".")[2]]
        plain = KINDS.get(kind, kind)
        return {"type": plain, **about} if about else plain

    def _record(self, schema: dict[str, Any], name: str | None) -> Any:
        text = json.dumps(schema["fields"], sort_keys=True)
        name = name or f"{self._space}.Value"
        if self._done.get(name) == text:
            return name
        full = name if name not in self._done else f"{name}{len(self._done)}"
        self._done[full] = text
        fields = [self._field(field) for field in schema["fields"]]
        return {"type": "record", "name": full, "fields": fields, "connect.name": name}

    def _field(self, schema: dict[str, Any]) -> dict[str, Any]:
        field = {"name": schema["field"], "type": self.type(schema)}
        return {**field, "default": None} if schema.get("optional") else field


def _plain(schema: Any) -> Any:
    """For a writer that gives bytes as they are."""
    if isinstance(schema, list):
        return [_plain(inner) for inner in schema]
    if isinstance(schema, dict):
        return {key: _plain(inner) for key, inner in schema.items() if key != "logicalType"}
    return schema


def _value(schema: dict[str, Any], value: Any) -> Any:
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {inner["field"]: _value(inner, value.get(inner["field"])) for inner in schema["fields"]}
        case "array":
            return [_value(schema["items"], inner) for inner in value]
        case "map":
            return {key: _value(schema["values"], inner) for key, inner in value.items()}
        case "bytes":
            return base64.b64decode(value)
        case "float" | "double":
            return float(value)
    return value
