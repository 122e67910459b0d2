"""A change as Debezium 3.6 sends it: the topic, the key, the value and the headers of a record of Kafka.

The histories are those of change files; positions become the fields that each connector has for them. JSON, each
message with its schema or without.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from distributary.changes.model import Kind
from distributary_simulate.changes.model import Change, Row, Table
from distributary_simulate.changes.unified import Unified, instant_text

PREFIX: Final = "srv"
UNAVAILABLE: Final = "__debezium_unavailable_value"
_CONNECTORS: Final = {kind: kind.value for kind in Kind}
_PLAIN: Final = {
    "BOOLEAN": "boolean", "INTEGER": "int32", "LONG": "int64", "FLOAT": "float", "DOUBLE": "double", "STRING": "string",
    "VARCHAR": "string", "BYTES": "bytes",
}  # fmt: skip
_NAMED: Final = {
    "JSON": ("string", "io.debezium.data.Json"),
    "DATE": ("int32", "io.debezium.time.Date"),
    "TIME": ("int64", "io.debezium.time.MicroTime"),
    "TIME_INTERVAL": ("int64", "io.debezium.time.MicroTime"),
    "TIMESTAMP": ("int64", "io.debezium.time.MicroTimestamp"),
    "TIMESTAMP_TZ": ("string", "io.debezium.time.ZonedTimestamp"),
}


@dataclass(frozen=True, slots=True)
class ChangeMessage:
    """`value` None: a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class DebeziumTopics:
    """Turns changes, in the order of the log, into messages. `schemas`: each message brings its own."""

    schemas: bool = True
    tombstones: bool = True
    _place: tuple[Any, ...] = ()
    _row: int = -1
    _left: Change | None = None
    _inserted: dict[str, Row] = field(default_factory=dict)

    def messages(self, change: Change) -> list[ChangeMessage]:
        """The messages of one change: one, or with its tombstone two."""
        change = self._whole(change)
        op, headers = self._op(change)
        self._count(change)
        table, row = change.table, change.row
        key = {name: row[name] for name in table.keys} if table.keys else None
        value = {
            "before": self._values(change) if op == "d" else None,
            "after": None if op == "d" else self._values(change),
            "source": self._source(change),
            "transaction": None,
            "op": op,
            "ts_ms": change.seen_ms,
        }
        if table.kind is Kind.MONGODB:
            value["after"] = None if op == "d" or row["data"] is None else row["data"]
            value.pop("before")
            key = {"id": json.dumps(row["_id"], ensure_ascii=False)}
        topic = ".".join(word for word in (PREFIX, table.database, table.schema, table.name) if word)
        message = ChangeMessage(topic, self._key(table, key), _text(self._enveloped(table, value)), headers)
        has_tombstone = op == "d" and key is not None and self.tombstones
        return [message, ChangeMessage(topic, message.key, None)] if has_tombstone else [message]

    # -- what a connector makes of it ------------------------------------------------------------------------------

    def _whole(self, change: Change) -> Change:
        """Oracle's undoing of an insert names the row only: Debezium would not send either of the two."""
        row_id = change.position.metadata.get("row_id")
        if row_id is None:
            return change
        if all(value is None for value in change.row.values()):
            return replace(change, row=self._inserted.get(row_id, change.row))
        self._inserted = {row_id: change.row}
        return change

    def _op(self, change: Change) -> tuple[str, tuple[tuple[str, bytes], ...]]:
        key_before, self._left = self._left, None
        if change.is_backfill:
            return "r", ()
        match change.change_type:
            case "INSERT":
                return "c", ()
            case "DELETE":
                return "d", ()
            case "UPDATE-DELETE":
                self._left = change
                return "d", (("__debezium.newkey", b"{}"),)
            case _:
                return ("c", (("__debezium.oldkey", b"{}"),)) if key_before is not None else ("u", ())

    def _count(self, change: Change) -> None:
        """Rows of one binlog event are counted; both halves of a key change are one row."""
        place = (change.table.kind, change.table.database, *change.position.metadata.items())
        if place != self._place:
            self._place, self._row = place, 0
        elif change.change_type != "UPDATE-INSERT" or self._left is not None:
            self._row += 1

    def _source(self, change: Change) -> dict[str, Any]:
        table, metadata = change.table, change.position.metadata
        snapshot = "incremental" if change.is_backfill else "false"
        source: dict[str, Any] = {"version": "3.6.1.Final", "connector": _CONNECTORS[table.kind], "name": PREFIX}
        source |= {"ts_ms": change.position.source_ms, "snapshot": snapshot, "db": table.database or "app"}
        source |= {"schema": table.schema} if table.schema else {}
        source |= {"collection" if table.kind is Kind.MONGODB else "table": table.name}
        match table.kind:
            case Kind.MYSQL:
                source |= {
                    "file": metadata["log_file"],
                    "pos": metadata["log_position"],
                    "row": self._row,
                    "gtid": None,
                }
            case Kind.POSTGRESQL:
                high, _, low = (metadata["lsn"] or "").partition("/")
                source |= {"lsn": (int(high, 16) << 32) + int(low, 16) if low else None, "txId": metadata["tx_id"]}
            case Kind.ORACLE:
                source |= {
                    "scn": str(metadata["scn"]),
                    "commit_scn": str(metadata["scn"]),
                    "rs_id": metadata["rs_id"].strip(),
                }
                source |= {"ssn": metadata["ssn"], "row_id": metadata["row_id"], "txId": metadata["tx_id"]}
            case Kind.SQLSERVER:
                source |= {"commit_lsn": metadata["lsn"], "change_lsn": None, "event_serial_no": self._row}
                if metadata["lsn"]:
                    source["change_lsn"] = f"{metadata['lsn'][:18]}{self._row:04x}"
            case Kind.MONGODB:
                seconds, ordinal = change.position.sort_keys
                source |= {"ts_ms": int(seconds) * 1000, "ord": ordinal}
        return source

    # -- values and schemas ------------------------------------------------------------------------------------------

    def _values(self, change: Change) -> dict[str, Any]:
        table, row = change.table, change.row
        hidden = table.toast if change.change_type == "UPDATE" else ()
        return {
            column.name: UNAVAILABLE if column.name in hidden and row.get(column.name) is None
            else _value(column.type, row.get(column.name))
            for column in table.columns
        }  # fmt: skip

    def _key(self, table: Table, key: Mapping[str, Any] | None) -> bytes | None:
        if key is None:
            return None
        if table.kind is Kind.MONGODB:
            schema = _struct("Key", {"id": {"type": "string"}})
            return _text({"schema": schema, "payload": key} if self.schemas else key)
        kinds = {name: table.column(name).type for name in key}
        values = {name: _value(kinds[name], value) for name, value in key.items()}
        if not self.schemas:
            return _text(values)
        return _text({"schema": _struct("Key", {n: _kind(k) for n, k in kinds.items()}), "payload": values})

    def _enveloped(self, table: Table, value: dict[str, Any]) -> dict[str, Any]:
        if not self.schemas:
            return value
        row = _struct("Value", {column.name: _kind(column.type) for column in table.columns})
        text = {"type": "string", "optional": True, "name": "io.debezium.data.Json"}
        document = text if table.kind is Kind.MONGODB else row
        fields = [{**document, "field": name} for name in ("before", "after") if name in value]
        fields.append({"type": "string", "optional": False, "field": "op"})
        return {"schema": {"type": "struct", "fields": fields, "name": "Envelope"}, "payload": value}


def _struct(name: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    fields = [{**kind, "optional": True, "field": column} for column, kind in kinds.items()]
    return {"type": "struct", "fields": fields, "optional": True, "name": f"{PREFIX}.{name}"}


def _kind(kind: Unified) -> dict[str, Any]:
    if kind.name in _PLAIN:
        return {"type": _PLAIN[kind.name]}
    if kind.name in _NAMED:
        plain, name = _NAMED[kind.name]
        return {"type": plain, "name": name, "version": 1}
    if kind.name == "DECIMAL":
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": parameters,
        }
    if kind.name == "ARRAY" and kind.item is not None:
        return {"type": "array", "items": {**_kind(kind.item), "optional": True}}
    if kind.name == "NUMBER":
        inner = {"scale": {"type": "int32"}, "value": {"type": "bytes"}}
        return {**_struct("", inner), "name": "io.debezium.data.VariableScaleDecimal"}
    raise ValueError(f"no form of {kind.name} in Debezium's messages")


def _value(kind: Unified, value: Any) -> Any:
    if value is None:
        return None
    match kind.name:
        case "DECIMAL":
            return _unscaled(value, kind.scale)
        case "NUMBER":
            number = Decimal(value)
            scale = max(0, -int(number.as_tuple().exponent))
            return {"scale": scale, "value": _unscaled(number, scale)}
        case "BYTES":
            return base64.b64encode(value).decode()
        case "TIMESTAMP_TZ":
            return instant_text(value[0])
        case "FLOAT" | "DOUBLE" if value != value or abs(value) == float("inf"):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        case "ARRAY":
            assert kind.item is not None
            return [_value(kind.item, item) for item in value]
        case _:
            return value


def _unscaled(value: Decimal, scale: int) -> str:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits))) * 10 ** (scale + int(exponent))
    number = -number if sign else number
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
