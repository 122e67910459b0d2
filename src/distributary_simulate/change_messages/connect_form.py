"""What Kafka Connect's converters to Avro and protobuf have in common, made of Debezium's messages in JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from distributary_simulate.change_messages.debezium import ChangeMessage

DECIMAL = "org.apache.kafka.connect.data.Decimal"
_NUMBERS = {"lsn", "pos", "row", "ssn", "event_serial_no", "ord", "ts_ms"}
"""Fields of `source` that are numbers where they are there at all."""
Register = Callable[[str, str], int]
"""Registers a schema's text under a subject, and gives its id."""


class ConnectForm(ABC):
    """Writes messages of JSON as a converter does, and registers their schemas."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._known: dict[str, tuple[int, Any]] = {}

    def message(self, message: ChangeMessage) -> ChangeMessage:
        key, value = self.both(message.topic, message.key, message.value)
        return ChangeMessage(message.topic, key, value, message.headers)

    def both(self, topic: str, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        """Key and value."""
        return (
            None if key is None else self._written(f"{topic}-key", key, "Key"),
            None if value is None else self._written(f"{topic}-value", value, "Envelope"),
        )

    @abstractmethod
    def _written(self, subject: str, body: bytes, name: str) -> bytes:
        """A key or a value with the registry's header. `name`: of its record."""


def whole(schema: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
    """With the fields of an envelope that the messages' schemas in JSON leave out here."""
    declared = {field["field"] for field in schema["fields"]}
    more = [_looks(name, value) for name, value in payload.items() if name not in declared]
    return {**schema, "fields": [*schema["fields"], *more]}


def _looks(name: str, value: Any) -> dict[str, Any]:
    if name == "transaction" and value is None:
        value = {"id": "", "total_order": 1}
    if isinstance(value, dict):
        numbers = _NUMBERS | ({"txId"} if value.get("connector") == "postgresql" else set())
        absent = {inner: 0 for inner, member in value.items() if member is None and inner in numbers}
        fields = [_looks(inner, member) for inner, member in {**value, **absent}.items()]
        return {"type": "struct", "optional": True, "name": f"srv.{name.title()}", "fields": fields, "field": name}
    kind = "boolean" if isinstance(value, bool) else "int64" if isinstance(value, int) else "string"
    return {"type": kind, "optional": True, "field": name}
