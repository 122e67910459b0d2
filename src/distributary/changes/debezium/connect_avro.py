"""Types of Kafka Connect in an Avro schema, as Connect's converters write them: `connect.name`, `connect.parameters`.

A union of null and one type is that type, as a field may always be missing. Of the types that Avro itself names, those
that Connect has become its own: `decimal`, `date`, `time-millis`, `timestamp-millis`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from distributary.changes.debezium.connect import BITS, DECIMAL, Connect

_DATA, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
_KINDS = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "enum": "string",
    "bytes": "bytes",
    "fixed": "bytes",
}
_LOGICAL = {
    "decimal": DECIMAL,
    "date": f"{_DATA}Date",
    "time-millis": f"{_DATA}Time",
    "time-micros": f"{_TIME}MicroTime",
    "timestamp-millis": f"{_DATA}Timestamp",
    "timestamp-micros": f"{_TIME}MicroTimestamp",
}
DEEPEST = 64
UNSAID_PRECISION = 64
"""What Confluent's converter writes where nothing says how many digits a decimal has."""


@lru_cache(512)
def parse_avro(texts: Sequence[str]) -> Connect:
    """The type of the last of these schemas, which may use the types that those before it define.

    Raises ValueError: it is none of Connect's.
    """
    reader, kind = _Reader(), None
    try:
        for text in texts:
            kind = reader.type(json.loads(text), "", 0)
    except (TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError(f"the message's schema is none of Kafka Connect: {exc!r}") from exc
    if kind is None:
        raise ValueError("the message has no schema")
    return kind


class _Reader:
    def __init__(self) -> None:
        self._named: dict[str, Connect] = {}

    def type(self, schema: Any, space: str, depth: int) -> Connect:
        if depth > DEEPEST:
            raise ValueError(f"the message's schema is nested more than {DEEPEST} deep")
        if isinstance(schema, str):
            return Connect(_KINDS[schema]) if schema in _KINDS else self._known(schema, space)
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            if len(branches) != 1:
                raise ValueError("the message's schema has a union of several types, which Kafka Connect has not")
            return self.type(branches[0], space, depth)
        kind, name = schema["type"], str(schema.get("connect.name") or "")
        if isinstance(kind, dict | list):
            return self.type(kind, space, depth + 1)
        if kind == "record":
            return self._record(schema, space, name, depth)
        if kind == "array":
            return Connect("array", name, item=self.type(schema["items"], space, depth + 1))
        if kind == "map":
            return Connect("map", name)
        if kind not in _KINDS:
            return self._known(kind, space)
        scalar = _scalar(_KINDS[kind], name, schema)
        if kind in ("enum", "fixed"):
            self._learn(schema, space, scalar)
        return scalar

    def _record(self, schema: Mapping[str, Any], space: str, name: str, depth: int) -> Connect:
        inner = _space(schema, space)
        fields = [(str(field["name"]), self.type(field["type"], inner, depth + 1)) for field in schema["fields"]]
        struct = Connect("struct", name or _full(schema, space), fields=tuple(fields))
        self._learn(schema, space, struct)
        return struct

    def _learn(self, schema: Mapping[str, Any], space: str, kind: Connect) -> None:
        self._named[_full(schema, space)] = kind

    def _known(self, name: str, space: str) -> Connect:
        for full in (name, f"{space}.{name}") if "." in name else (f"{space}.{name}", name):
            if full in self._named:
                return self._named[full]
        raise ValueError(f"the message's schema has the type {name[:80]!r}, which it does not define")


def _space(schema: Mapping[str, Any], space: str) -> str:
    name = str(schema["name"])
    return name.rpartition(".")[0] or str(schema.get("namespace") or space)


def _full(schema: Mapping[str, Any], space: str) -> str:
    name, inner = str(schema["name"]), _space(schema, space)
    return name if "." in name or not inner else f"{inner}.{name}"


def _scalar(kind: str, name: str, schema: Mapping[str, Any]) -> Connect:
    logical = schema.get("logicalType")
    name = name or _LOGICAL.get(logical if isinstance(logical, str) else "", "")
    parameters = schema.get("connect.parameters") or {}
    if name == DECIMAL:
        declared = int(schema.get("precision", 0))
        precision = int(parameters.get("connect.decimal.precision", 0 if declared == UNSAID_PRECISION else declared))
        return Connect(kind, name, precision, int(parameters.get("scale", schema.get("scale", 0))))
    return Connect(kind, name, int(parameters.get("length", 0)) if name == BITS else 0)
