"""Change files for tests, small and exact: events as dicts, to avro, JSON lines or Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
TOP = [
    ("uuid", "string"),
    ("read_timestamp", MILLIS),
    ("source_timestamp", MILLIS),
    ("object", "string"),
    ("read_method", "string"),
    ("stream_name", "string"),
    ("schema_key", "string"),
    ("sort_keys", {"type": "array", "items": ["string", "long"]}),
]
MYSQL = [
    ("table", "string"),
    ("database", "string"),
    ("primary_keys", {"type": "array", "items": "string"}),
    ("log_file", ["null", "string"]),
    ("log_position", ["null", "long"]),
    ("change_type", ["null", "string"]),
    ("is_deleted", ["null", "boolean"]),
]
NEW = "9f27b298cbb12fabad44da8a6d139b8fb5cdb43c"
T0 = 1_762_367_011_000

Fields = Sequence[tuple[str, Any]]


def record(name: str, fields: Fields) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields]}


def schema(payload: Fields, source: Fields = MYSQL, top: Fields = TOP) -> dict[str, Any]:
    """The avro schema of one table's events; payload types are given without their union with null."""
    body = record("payload", [(name, kind if isinstance(kind, list) else ["null", kind]) for name, kind in payload])
    return record("shop_orders", [*top, ("source_metadata", record("source_metadata", source)), ("payload", body)])


def event(number: int = 0, payload: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A MySQL event. Each number has its own uuid, time and position; `changes` go where the field belongs."""
    at = T0 + number * 1000
    made: dict[str, Any] = {
        "uuid": f"{number:08x}-46aa-451b-b315-c2d4{number % 256:08b}",
        "read_timestamp": at + 900,
        "source_timestamp": at,
        "object": "shop_orders",
        "read_method": "mysql-cdc-binlog",
        "stream_name": "projects/5/locations/us-central1/streams/shop",
        "schema_key": NEW,
        "sort_keys": [at, "mysql-bin.000014", 4000 + number],
        "source_metadata": {
            "table": "orders",
            "database": "shop",
            "primary_keys": ["id"],
            "log_file": "mysql-bin.000014",
            "log_position": 4000 + number,
            "change_type": "INSERT",
            "is_deleted": False,
        },
        "payload": payload if payload is not None else {"id": number},
    }
    for name, value in changes.items():
        (made if name in made else made["source_metadata"])[name] = value
    return made


def avro(
    schema: dict[str, Any], events: Sequence[dict[str, Any]], codec: str = "null", interval: int = 16_000
) -> bytes:
    """A container; logical types may be given as stored (ints, bytes)."""
    out = io.BytesIO()
    fastavro.writer(out, schema, events, codec=codec, sync_interval=interval, sync_marker=b"0123456789abcdef")
    return out.getvalue()


def json_lines(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in events)


def without(event: dict[str, Any], *names: str) -> dict[str, Any]:
    """An event whose metadata lacks some fields, as older layouts do."""
    made = {key: value for key, value in event.items() if key not in names}
    made["source_metadata"] = {key: value for key, value in event["source_metadata"].items() if key not in names}
    return made


def parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()
