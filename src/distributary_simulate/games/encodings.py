"""The games' events in other formats than protobuf: schema texts and bytes, of the same values."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

import fastavro

from distributary_simulate.games.schemas import KINDS, ColumnKind, column_kind, column_name, event_text

__all__ = ["COMPATIBILITY", "FORMATS", "KIND", "Format", "encoded", "schema_text"]

Format = Literal["protobuf", "avro", "json"]
FORMATS: Final[tuple[Format, ...]] = ("protobuf", "avro", "json")
KIND: Final[dict[Format, str]] = {"protobuf": "PROTOBUF", "avro": "AVRO", "json": "JSON"}
"""The registry's word for a format."""
COMPATIBILITY: Final[dict[Format, str]] = {"protobuf": "FULL", "avro": "FULL", "json": "NONE"}
"""Of each subject. A registry finds that a property more of a JSON object changes what was valid before."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AVRO: Final[dict[ColumnKind, str]] = {"string": "string", "int64": "long", "double": "double"}
_JSON: Final[dict[ColumnKind, str]] = {"string": "string", "int64": "integer", "double": "number"}


def schema_text(form: Format, game: str, version: int) -> str:
    """Schema text of one game's inner message in this version (from 1): columns 1 to `version`."""
    if form == "protobuf":
        return event_text(game, version)
    return json.dumps(_avro(game, version) if form == "avro" else _json(game, version), indent=1)


def encoded(form: Format, game: str, version: int, event: Any) -> bytes:
    """An event, a protobuf message of `event_text`, in a format."""
    if form == "protobuf":
        serialized: bytes = event.SerializeToString(deterministic=True)
        return serialized
    values = {"game_name": event.game_name, "user_name": event.user_name}
    micros = event.event_timestamp.seconds * 1_000_000 + event.event_timestamp.nanos // 1000
    fields = {**values, "event_timestamp": micros, "is_connection_stable": event.is_connection_stable}
    for c in range(1, version + 1):
        name = column_name(game, c)
        if event.HasField(name):
            fields[name] = _detail(getattr(event, name)) if column_kind(c) == "Detail" else getattr(event, name)
    if form == "json":
        fields["event_timestamp"] = (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed(game, version), fields)
    return out.getvalue()


def _detail(detail: Any) -> dict[str, Any]:
    return {field.name: value for field, value in detail.ListFields()}


@cache
def _parsed(game: str, version: int) -> Any:
    return fastavro.parse_schema(_avro(game, version))


# -- schemas -------------------------------------------------------------------------------------------------


def _avro(game: str, version: int) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"name": "game_name", "type": "string"},
        {"name": "user_name", "type": "string"},
        {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "is_connection_stable", "type": "boolean"},
    ]
    detail: Any = {"type": "record", "name": "Detail", "fields": [_nullable("zone", "string"), *_levels(version)]}
    for c in range(1, version + 1):
        kind = column_kind(c)
        fields.append(_nullable(column_name(game, c), detail if kind == "Detail" else _AVRO[kind]))
        detail = "Detail" if kind == "Detail" else detail
    return {"type": "record", "name": "event", "fields": fields}


def _levels(version: int) -> list[dict[str, Any]]:
    return [_nullable(f"level_{v}", "long") for v in range(1, version + 1)]


def _nullable(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def _json(game: str, version: int) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "game_name": {"type": "string"},
        "user_name": {"type": "string"},
        "event_timestamp": {"type": "string", "format": "date-time"},
        "is_connection_stable": {"type": "boolean"},
    }
    for c in range(1, version + 1):
        kind = column_kind(c)
        properties[column_name(game, c)] = {"$ref": "#/$defs/Detail"} if kind == "Detail" else {"type": _JSON[kind]}
    levels = {f"level_{v}": {"type": "integer"} for v in range(1, version + 1)}
    detail = {"type": "object", "properties": {"zone": {"type": "string"}, **levels}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "event",
        "type": "object",
        "properties": properties,
        **({"$defs": {"Detail": detail}} if version > KINDS.index("Detail") else {}),
    }
