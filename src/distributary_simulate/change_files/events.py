"""A change as one event: its avro schema, its record for avro and parquet, its line of JSON.

Field order, names and nullability follow public sample files of each age of the service.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from distributary.changes.model import Kind
from distributary_simulate.change_files.avro_encoding import Encode, compact, encoder
from distributary_simulate.changes.model import Change, Column, Table
from distributary_simulate.changes.unified import instant_text


class Layout(StrEnum):
    """An age of the service.

    2021-03: sort_keys last and, for Oracle, without scn and rs_id; no keys; a backfill without change type.
    2021-06: no sort_keys; a MySQL backfill without log file and position.
    2024: a MySQL backfill sorts as [time, "", 0]. 2025: as [time, 0, 0].
    gtid: MySQL names its position binlog_file and binlog_position.
    """

    Y2021_03 = "2021-03"
    Y2021_06 = "2021-06"
    Y2024 = "2024"
    Y2025 = "2025"
    GTID = "gtid"


_MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
_TEXTS: Final = {"type": "array", "items": "string"}
_SORT_KEYS: Final = {"name": "sort_keys", "type": {"type": "array", "items": ["string", "long"]}}
# source_metadata, in file order. `?`: a union with null. keys: see `_keys_field`.
_METADATA: Final = {
    Kind.MYSQL: "table database keys log_file:string? log_position:long? change_type:string? is_deleted:boolean?",
    Kind.POSTGRESQL: "schema table is_deleted:boolean? change_type:string? tx_id:long? lsn:string? keys",
    Kind.ORACLE: (
        "schema table database row_id:string? scn:long? is_deleted:boolean? change_type:string? ssn:long? "
        "rs_id:string? tx_id:string? log_file:string? keys"
    ),
    Kind.SQLSERVER: "schema table database lsn:string? tx_id:string? is_deleted:boolean? change_type:string? keys",
    Kind.MONGODB: "database collection change_type:string? is_deleted:boolean? keys",
}
_GTID: Final = {"log_file": "binlog_file", "log_position": "binlog_position"}
_ARROW: Final = {"string": pa.string(), "long": pa.int64(), "boolean": pa.bool_()}
_HEAD: Final = ("uuid", "read_timestamp", "source_timestamp", "object", "read_method", "stream_name", "schema_key")


@dataclass(frozen=True, slots=True)
class Event:
    """A change as a stream hands it on: with the uuid and the time of the read batch that it came in."""

    change: Change
    uuid: str
    read_ms: int


@dataclass(frozen=True)
class EventSchema:
    """How the events of one table with one schema are written.

    schema: the avro schema; text: the same as JSON. key: the schema_key, 40 hex digits, a function of the schema.
    fields: (name, string | long | boolean | keys, nullable) of source_metadata.
    """

    table: Table
    layout: Layout
    stream_name: str
    schema: dict[str, Any]
    text: str
    key: str
    encode: Encode
    fields: tuple[tuple[str, str, bool], ...]

    def record(self, event: Event) -> tuple[Any, ...]:
        """The values in the order of the schema, for the avro encoder."""
        keys = [avro_name(key) for key in self.table.keys]
        head = [*self._head(event), self._metadata(event.change, keys)]
        payload = tuple(column.type.avro_value(event.change.row.get(column.name)) for column in self.table.columns)
        sort_keys = list(self.sort_keys(event.change))
        if self.layout is Layout.Y2021_06:
            return (*head, payload)
        if self.layout is Layout.Y2021_03:
            return (*head, payload, sort_keys)
        return (*head[:-1], sort_keys, head[-1], payload)

    def avro(self, event: Event) -> bytes:
        out = bytearray()
        self.encode(out, self.record(event))
        return bytes(out)

    def line(self, event: Event) -> str:
        """The event as one line of JSON, without a line end."""
        head = dict(zip(_HEAD, self._head(event), strict=True))
        head |= {name: self._instant(name, head[name]) for name in ("read_timestamp", "source_timestamp")}
        names = [name for name, _, _ in self.fields]
        members = {name: json.dumps(value, ensure_ascii=False) for name, value in head.items()}
        if self.layout is not Layout.Y2021_06:
            members["sort_keys"] = json.dumps(self.sort_keys(event.change), separators=(",", ":"))
        metadata = dict(zip(names, self._metadata(event.change, list(self.table.keys)), strict=True))
        members["source_metadata"] = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)
        row = event.change.row
        values = (
            f"{json.dumps(c.name, ensure_ascii=False)}:{c.type.json_text(row.get(c.name))}" for c in self.table.columns
        )
        members["payload"] = "{" + ",".join(values) + "}"
        if self.layout is Layout.Y2021_03:
            members["sort_keys"] = members.pop("sort_keys")
        return "{" + ",".join(f'"{name}":{text}' for name, text in members.items()) + "}"

    def arrow(self, events: list[Event]) -> pa.Table:
        """The events in parquet's form of the avro shape, sort_keys as a struct for each union, as Spark reads it."""
        payload = pa.struct([(avro_name(c.name), c.type.arrow()) for c in self.table.columns])
        metadata = pa.struct([(n, pa.list_(pa.string()) if t == "keys" else _ARROW[t]) for n, t, _ in self.fields])
        rows = [event.change.row for event in events]
        columns = [
            pa.array([c.type.arrow_value(row.get(c.name)) for row in rows], c.type.arrow()) for c in self.table.columns
        ]
        heads = list(zip(*(self._head(event) for event in events), strict=True))
        millis = pa.timestamp("ms", "UTC")
        kinds = [pa.string(), millis, millis, *[pa.string()] * 4]
        table = {name: pa.array(values, kind) for name, values, kind in zip(_HEAD, heads, kinds, strict=True)}
        if self.layout is not Layout.Y2021_06:
            table["sort_keys"] = _sort_key_structs([self.sort_keys(event.change) for event in events])
        keys = [avro_name(key) for key in self.table.keys]
        metadata_rows = [dict(zip(metadata.names, self._metadata(event.change, keys), strict=True)) for event in events]
        table["source_metadata"] = pa.array(metadata_rows, metadata)
        table["payload"] = pa.StructArray.from_arrays(columns, fields=list(payload))
        if self.layout is Layout.Y2021_03:
            table["sort_keys"] = table.pop("sort_keys")
        return pa.table(table)

    def sort_keys(self, change: Change) -> tuple[str | int, ...]:
        """As this age of the service writes them."""
        time, *rest = change.position.sort_keys
        if self.table.kind is Kind.MYSQL and change.is_backfill:
            return (time, "" if self.layout is Layout.Y2024 else 0, 0)
        if self.table.kind is Kind.ORACLE and self.layout is Layout.Y2021_03:
            return (time, 1_663_072_026_000 + int(rest[0]) % 1000, "", 0)
        return change.position.sort_keys

    def _head(self, event: Event) -> tuple[Any, ...]:
        change = event.change
        times = (event.read_ms, change.position.source_ms)
        return (event.uuid, *times, self.table.object, change.read_method, self.stream_name, self.key)

    def _instant(self, name: str, millis: int) -> str:
        """Four spellings are on record; which of them came when is not."""
        text = instant_text(millis * 1000)
        if self.layout is Layout.Y2021_06:
            return text[:-4].replace("T", " " if name == "read_timestamp" else "T")
        return f"{text[:-4]}Z" if self.layout is Layout.Y2021_03 else text

    def _metadata(self, change: Change, keys: list[str]) -> tuple[Any, ...]:
        table, values = self.table, {**change.position.metadata}
        if change.is_backfill and self.layout in (Layout.Y2021_03, Layout.Y2021_06):
            values |= {"log_file": None, "log_position": None} if table.kind is Kind.MYSQL else {"rs_id": None}
        without = self.layout is Layout.Y2021_03 and change.is_backfill
        values |= {"schema": table.schema, "table": table.name, "database": table.database, "collection": table.name}
        values |= {"change_type": None if without else change.change_type, "is_deleted": change.is_deleted}
        values |= {new: values.get(old) for old, new in _GTID.items()}
        return tuple(keys if kind == "keys" else values.get(name) for name, kind, _ in self.fields)


def event_schema(table: Table, layout: Layout, stream_name: str) -> EventSchema:
    """The schema of the events of `table`: the same table and layout give the same schema_key."""
    schema = _avro_schema(table, layout)
    text = compact(schema)
    # usedforsecurity: a name, as the service's own; nothing is trusted because of it.
    key = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    fields = tuple(_metadata_fields(table, layout))
    return EventSchema(table, layout, stream_name, schema, text, key, encoder(schema), fields)


def avro_name(name: str) -> str:
    """A name that avro allows: what is not a letter, a digit or `_` becomes `_`, a leading digit gets one in front."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return clean if clean and not clean[0].isdigit() else f"_{clean}"


def _avro_schema(table: Table, layout: Layout) -> dict[str, Any]:
    head: list[dict[str, Any]] = [
        {"name": name, "type": _MILLIS if name.endswith("timestamp") else "string"} for name in _HEAD
    ]
    metadata = {
        "type": "record",
        "name": "source_metadata",
        "fields": [{"name": n, "type": _field_type(t, nullable)} for n, t, nullable in _metadata_fields(table, layout)],
    }
    defined: set[str] = set()
    has_default = table.kind not in (Kind.POSTGRESQL, Kind.ORACLE) and not layout.startswith("2021")
    payload = [_payload_field(column, defined, has_default) for column in table.columns]
    fields = [
        *head,
        *([] if layout.startswith("2021") else [_SORT_KEYS]),
        {"name": "source_metadata", "type": metadata},
        {"name": "payload", "type": {"type": "record", "name": "payload", "fields": payload}},
        *([_SORT_KEYS] if layout is Layout.Y2021_03 else []),
    ]
    return {"type": "record", "name": avro_name(table.object), "fields": fields}


def _payload_field(column: Column, defined: set[str], has_default: bool) -> dict[str, Any]:
    name = avro_name(column.name)
    kind = column.type.avro(name, defined)
    # A column of no supported type is null and nothing else: a union may not hold null twice.
    union = kind if column.type.name == "UNSUPPORTED" else ["null", kind]
    return {"name": name, "type": union, **({"default": None} if has_default else {})}


def _metadata_fields(table: Table, layout: Layout) -> list[tuple[str, str, bool]]:
    fields: list[tuple[str, str, bool]] = []
    for field in _METADATA[table.kind].split():
        name, _, kind = field.partition(":")
        if name == "keys":
            if layout is not Layout.Y2021_03 or table.kind is Kind.MYSQL:
                fields.append((_keys_field(table), "keys", table.kind is not Kind.MYSQL))
            continue
        name = _GTID.get(name, name) if layout is Layout.GTID and table.kind is Kind.MYSQL else name
        fields.append((name, kind.rstrip("?") or "string", kind.endswith("?")))
    return fields


def _keys_field(table: Table) -> str:
    if table.kind is Kind.MONGODB:
        return "primary_key"
    return "replication_index" if table.replication_index else "primary_keys"


def _field_type(kind: str, nullable: bool) -> Any:
    avro_type: Any = _TEXTS if kind == "keys" else kind
    return ["null", avro_type] if nullable else avro_type


def _sort_key_structs(keys: list[tuple[str | int, ...]]) -> pa.Array:
    branches = pa.struct({"member0": pa.string(), "member1": pa.int64()})
    structs = [
        [
            {"member0": key, "member1": None} if isinstance(key, str) else {"member0": None, "member1": key}
            for key in row
        ]
        for row in keys
    ]
    return pa.array(structs, pa.list_(branches))
