"""What a message of Debezium says: the documented rules, stated once more over what `json` reads (docs/debezium.md)."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from distributary.audit.judge.plain_values import Clock, Day, Moment

_HOUR_MS = int(timedelta(hours=1).total_seconds() * 1000)
_TYPES = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ", "t": "TRUNCATE"}
_MOVED = {"UPDATE-INSERT": "INSERT", "UPDATE-DELETE": "DELETE"}


class JudgedChange(NamedTuple):
    """`values`: by column, None for what is null. `silent`: there are columns of which it does not speak, which are not
    in `values`. `place`: a greater one is newer. `type`: as the table's metadata has it. `transaction`, `row`: Oracle's
    names of both. `event`: equal where one change was sent several times."""

    keys: tuple[str, ...]
    values: Mapping[str, Any]
    place: tuple[Any, ...]
    identity: str
    deleted: bool
    silent: bool
    type: str
    transaction: str = ""
    row: str = ""
    event: tuple[Any, ...] = ()

    @property
    def empties(self) -> bool:
        """Does it delete all rows that are older?"""
        return self.type == "TRUNCATE"

    def is_of_type(self, type_in_row: str | None) -> bool:
        """A key change may be known as one (by the record's headers), or as a delete and an insert."""
        return _MOVED.get(type_in_row or "", type_in_row) == self.type

    def says_the_same(self, other: JudgedChange) -> bool:
        """Of one event."""
        same_event = self.event == other.event and self.type == other.type
        return same_event and self.values == other.values and self.silent == other.silent

    def gives_way(self, before: JudgedChange) -> bool:
        """To the change that stands directly before it in the log of their key. Oracle checks keys at the end of a
        statement: one row may take a key before another one leaves it, and in no other way do two rows have one key."""
        two_rows = bool(self.row and before.row) and self.row != before.row
        return two_rows and self.deleted and before.type == "INSERT" and self.transaction == before.transaction != ""


def opened_json(body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    document = json.loads(body, parse_float=Decimal)
    if document.keys() == {"schema", "payload"}:
        return document["schema"] or {}, document["payload"] or {}
    return {}, document


MessageOpener = Callable[[bytes], tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class MessageRules:
    """How messages are made, and in which order changes are. `epochs`, `repairs`: times in ms, sorted."""

    flattened: bool = False
    by_offset: bool = False
    placeholder: str = "__debezium_unavailable_value"
    epochs: Sequence[int] = ()
    repairs: Sequence[int] = ()
    opened: MessageOpener = opened_json
    """From a message's bytes its schema, in the words of Kafka Connect, and what it says."""

    def change_of(
        self, metadata: Mapping[str, Any], topic: str, partition: int, offset: int, key: bytes | None, value: bytes
    ) -> JudgedChange:
        """The change of a message that stands in a row of a log, whose metadata tells which where a message may be
        several. Raises as `change`."""
        return self.change(topic, partition, offset, key, value)

    def change(self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes) -> JudgedChange:
        """Raises ValueError, TypeError, KeyError, AttributeError for what is no change."""
        schema, body = self.opened(value)
        _, named = ({}, {}) if key is None else self.opened(key)
        identity = f"{topic}-{partition}-{offset}"
        if self.flattened:
            body, kinds = self._envelope(body), _kinds(schema)
        else:
            fields = {field["field"]: field for field in schema.get("fields", ())}
            kinds = _kinds(fields.get("after") or fields.get("before") or {})
        source, op = body["source"], body["op"]
        deleted = op in ("d", "t")
        if source.get("connector") == "mongodb":
            named = {"_id": named.get("id", named.get("_id"))}
            row = {**named, "data": None if deleted else body["after"]}
        else:
            row = {} if op == "t" else dict((body["before"] or named) if deleted else body["after"])
        unknown = [] if deleted else [name for name, field_value in row.items() if self._is_unknown(field_value)]
        values = {name: _read(kinds.get(name), field_value) for name, field_value in row.items() if name not in unknown}
        place = self._place(source, op, offset)
        transaction = str(source.get("txId") or (body.get("transaction") or {}).get("id") or "")
        row_id, event = str(source.get("row_id") or ""), place if self.by_offset else place[:-1]
        at = transaction, row_id, event
        return JudgedChange(tuple(named), values, place, identity, deleted, bool(unknown), _TYPES[op], *at)

    def _envelope(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A flattened row as the change that it was."""
        envelope = {n[2:].removeprefix("source_"): v for n, v in row.items() if n.startswith("__")}
        columns = {n: v for n, v in row.items() if not n.startswith("__")}
        op = "d" if str(envelope.get("deleted")).lower() == "true" else envelope.get("op") or "u"
        return {"source": envelope, "op": op, "before": columns, "after": columns}

    def _is_unknown(self, value: Any) -> bool:
        text = self.placeholder
        encoded = base64.b64encode(text.encode()).decode()
        return value in (text, encoded, [text], [encoded], list(text.encode()), {text: text})

    def _place(self, source: Mapping[str, Any], op: str, offset: int) -> tuple[Any, ...]:
        if self.by_offset:
            number = str(source.get("ssn"))
            return (offset, int(number) if number.isdecimal() else 0)
        time = max(0, int(source.get("ts_ms") or 0))
        snapshot = op == "r" or str(source.get("snapshot")).lower() not in ("none", "false", "")
        generation = bisect_right(self.repairs, time if snapshot else time + _HOUR_MS)
        position = (time,) if snapshot else _position(source, time)
        return (generation, bisect_right(self.epochs, time), not snapshot, *position, offset)


def _position(source: Mapping[str, Any], time: int) -> tuple[Any, ...]:
    match source.get("connector"):
        case "mysql" | "mariadb":
            gtid = re.fullmatch(r"\d+-\d+-(\d+)", source.get("gtid") or "")
            number = gtid or re.search(r"(\d+)$", source["file"])
            assert number is not None
            return int(number[1]), source["pos"], source.get("row") or 0
        case "postgresql":
            return (source["lsn"],)
        case "sqlserver":
            return (_hex(source["commit_lsn"]), _hex(source.get("change_lsn")), source.get("event_serial_no") or 0)
        case "oracle":
            return int(source["scn"]), _hex(source.get("rs_id")), int(source.get("ssn") or 0)
        case "mongodb":
            return time // 1000, source.get("ord") or 0
        case _:
            return (time,)


def _hex(text: str | None) -> list[int]:
    return [int(digits, 16) for digits in re.split("[:.]", (text or "").strip()) if digits]


def _kinds(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {field["field"]: field for field in schema.get("fields", ())}


def _read(kind: Mapping[str, Any] | None, value: Any) -> Any:
    """A value by its type, in words that `likeness` knows."""
    if value is None or kind is None:
        return value
    name = (kind.get("name") or "").rpartition(".")[2]
    text = kind["type"] == "string"
    match name:
        case "Decimal":
            return _scaled(value, int(kind["parameters"]["scale"]))
        case "VariableScaleDecimal":
            return _scaled(value["value"], value["scale"])
        case "Date":
            return Day(value)
        case "Time" | "MicroTime" | "NanoTime":
            return Clock({"Time": value * 1000, "MicroTime": value, "NanoTime": value // 1000}[name])
        case "Timestamp" | "MicroTimestamp" | "NanoTimestamp" if not text:
            return Moment({"Timestamp": value * 1000, "MicroTimestamp": value, "NanoTimestamp": value // 1000}[name])
        case "IsoDate":
            return value.removesuffix("Z")
        case "Bits":
            length = int((kind.get("parameters") or {}).get("length", 0))
            zeros = bytes(max(0, (length + 7) // 8 - len(base64.b64decode(value)))) if length <= 8_192 else b""
            return zeros + base64.b64decode(value)[::-1]
    if kind["type"] == "bytes":
        return base64.b64decode(value)
    if kind["type"] == "array":
        return [_read(kind["items"], item) for item in value]
    if kind["type"] == "struct":
        kinds = _kinds(kind)
        return {field: _read(kinds[field], item) for field, item in value.items()}
    return value


def _scaled(unscaled: str, scale: int) -> Decimal:
    number = int.from_bytes(base64.b64decode(unscaled), "big", signed=True)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -scale))
