"""Does a table's row say what its Avro record says, by fastavro and the table of docs/payloads.md?

fastavro reads what is stored, without logical types; what a value means is said here once more.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import fastavro

from distributary.audit.judge.likeness import may_be_null, names_of, same
from distributary.audit.judge.plain_values import Clock, Day, Moment, nothing
from distributary.audit.judge.read_payload import Simple

_VALUE: Final = "value"
_NAMED: Final = ("record", "error", "enum", "fixed")
_MICROS: Final = {"millis": 1_000, "micros": 1, "nanos": 0}


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(schema id, [0], body) of a record with Confluent's header. Raises ValueError, IndexError."""
    if value[0] != 0 or len(value) < 5:
        raise ValueError("no header")
    return int.from_bytes(value[1:5], "big"), [0], value[5:]


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], AvroPayload]:
    """What reads the records of a schema (`texts`: what it refers to, and itself). Raises ValueError, KeyError."""
    named: dict[str, Any] = {}
    parsed: Any = None
    for text in schema.texts:
        schema_json = json.loads(text, object_hook=_valid) if text.lstrip()[:1] in '{["' else text.strip()
        parsed = fastavro.parse_schema(schema_json, named)
    types = _Types(named)
    stored = fastavro.parse_schema(types.stored(parsed))

    def read_record(body: bytes) -> AvroPayload:
        stream = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, stored, None)
        except Exception as error:  # fastavro lets the errors of struct, its unions and the stream through
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if stream.read(1):
            raise ValueError("more stands behind the record's end")
        return AvroPayload(types, parsed, value)

    return read_record


def _valid(node: dict[str, Any]) -> dict[str, Any]:
    """A decimal that fastavro takes for none is the bytes that it is on."""
    if node.get("logicalType") != "decimal":
        return node
    try:
        fastavro.parse_schema({**node, "name": "a"} if node.get("type") == "fixed" else node, {})
    except Exception:  # of many kinds: its own, and those of numbers that are none
        return {name: value for name, value in node.items() if name != "logicalType"}
    return node


@dataclass(frozen=True)
class AvroPayload:
    """What a record says; what is no record at the top is a record with one field, `value`."""

    types: _Types
    schema: Any
    value: Any

    def _fields(self) -> list[tuple[str, Any, Any]]:
        """(name, type, value)."""
        kind = self.types.of(self.schema)
        if not _is_record(kind):
            return [(_VALUE, self.schema, self.value)]
        return [(f["name"], f["type"], self.value[f["name"]]) for f in kind["fields"]]

    def differs(self, row: Mapping[str, Any]) -> str | None:
        fields = self._fields()
        return self.types.unlike(fields, row) if fields else None

    def simple(self) -> dict[str, Simple]:
        simple_values = {}
        for name, kind, value in self._fields():
            plain = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]
            if len(plain) == 1 and plain[0] in ("int", "long", "string"):
                simple_values[name] = Simple(value, None, plain[0] == "string")
        return simple_values

    def has(self, name: str) -> bool:
        return any(field_name == name for field_name, _, _ in self._fields())

    def value_of(self, name: str) -> Any:
        return next((value for field_name, _, value in self._fields() if field_name == name), None)

    def text_at(self, path: str) -> str | None:
        value = {name: value for name, _, value in self._fields()}
        inner: Any = value
        for step in path.split("."):
            if inner is None:
                return None
            inner = inner[step]
        if inner is None or isinstance(inner, str):
            return inner
        return str(inner).lower() if isinstance(inner, bool) else str(inner)

    @property
    def type_name(self) -> str:
        kind = self.types.of(self.schema)
        return str(kind["name"]) if _is_record(kind) else _VALUE


class _Types:
    """The types of a schema, by name too."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named

    def of(self, schema: Any) -> Any:
        """A type as its JSON object, or the name of a primitive one; a list for a union."""
        while True:
            if isinstance(schema, str) and schema in self._named:
                schema = self._named[schema]
            elif isinstance(schema, dict) and (
                isinstance(schema["type"], dict | list) or schema["type"] in self._named
            ):
                schema = schema["type"]
            else:
                return schema

    def stored(self, schema: Any, defined: set[str] | None = None) -> Any:
        """The schema without logical types, each name defined where it is met first."""
        defined = set() if defined is None else defined
        kind = self.of(schema)
        if isinstance(kind, list):
            return [self.stored(branch, defined) for branch in kind]
        if isinstance(kind, str):
            return kind
        if kind["type"] in _NAMED:
            if kind["name"] in defined:
                return kind["name"]
            defined.add(kind["name"])
        stored = {key: kind[key] for key in ("type", "name", "symbols", "size") if key in kind}
        if _is_record(kind):
            stored["fields"] = [{"name": f["name"], "type": self.stored(f["type"], defined)} for f in kind["fields"]]
        for key in ("items", "values"):
            if key in kind:
                stored[key] = self.stored(kind[key], defined)
        return stored

    def unlike(self, fields: list[tuple[str, Any, Any]], row: Mapping[str, Any]) -> str | None:
        """The first column that does not say what the fields (name, type, value) do."""
        names = names_of(tuple(row))
        explained: set[str] = set()
        for name, kind, value in fields:
            right = [c for c in names.of(name) if self.same(kind, value, row[c])]
            if not right and (names.of(name) or value is not None):
                return name
            explained.update(right)
        return next((c for c in names.columns if c not in explained and not nothing(row[c])), None)

    def same(self, schema: Any, value: Any, cell: Any) -> bool:
        """Does a column's value say what a record's does?"""
        kind = self.of(schema)
        if isinstance(kind, list):
            return self._same_union([branch for branch in kind if branch != "null"], value, cell)
        if value is None:
            return cell is None
        name = kind if isinstance(kind, str) else kind["type"]
        if name in ("record", "error"):
            return self._same_record(kind, value, cell)
        if name == "array":
            is_alike = isinstance(cell, list) and isinstance(value, list) and len(value) == len(cell)
            return is_alike and all(self.same(kind["items"], v, k) for v, k in zip(value, cell, strict=True))
        if name == "map":
            is_alike = isinstance(cell, dict) and isinstance(value, dict) and value.keys() == cell.keys()
            return is_alike and all(self.same(kind["values"], v, cell[key]) for key, v in value.items())
        meant = _said(kind, value) if isinstance(kind, dict) else value
        return may_be_null(meant) if cell is None else same(meant, cell)

    def _same_union(self, branches: list[Any], value: Any, cell: Any) -> bool:
        if value is None or not branches:
            return cell is None
        if len(branches) == 1:
            return self.same(branches[0], value, cell)
        if isinstance(cell, str):  # inside a record that is in itself
            return any(self.same(branch, value, cell) for branch in branches)
        if not isinstance(cell, dict):
            return False
        return any(self._is_branch(branch, value, cell) for branch in branches)

    def _is_branch(self, branch: Any, value: Any, cells: Mapping[str, Any]) -> bool:
        kind = self.of(branch)
        full = kind if isinstance(kind, str) else kind["name"] if kind["type"] in _NAMED else kind["type"]
        columns = [
            c for name in (full.rpartition(".")[2], full.replace(".", "_")) for c in names_of(tuple(cells)).of(name)
        ]
        try:
            return any(
                self.same(branch, value, cells[c]) and all(nothing(v) for o, v in cells.items() if o != c)
                for c in columns
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return False  # the value is of another branch

    def _same_record(self, kind: Any, value: Any, cell: Any) -> bool:
        if isinstance(cell, str):
            return self.is_spelled(kind, value, json.loads(cell))
        if not isinstance(cell, dict) or not isinstance(value, dict):
            return False
        fields = [(f["name"], f["type"], value[f["name"]]) for f in kind["fields"]]
        return self.unlike(fields, cell) is None if fields else True

    def is_spelled(self, schema: Any, value: Any, spelled: Any) -> bool:
        """Does JSON say it, of a record inside itself? Bytes are hex, a union's value is under the name of its type."""
        kind = self.of(schema)
        if isinstance(kind, list) and value is not None:
            branches = [branch for branch in kind if branch != "null"]
            if len(branches) > 1:
                spelled = next(iter(spelled.values())) if isinstance(spelled, dict) and len(spelled) == 1 else None
            return any(self._is_branch_spelled(branch, value, spelled) for branch in branches)
        if value is None or spelled is None:
            return value is None and spelled is None
        if _is_record(kind):
            names = {f["name"]: f["type"] for f in kind["fields"]}
            return spelled.keys() == names.keys() and all(
                self.is_spelled(names[n], value[n], spelled[n]) for n in names
            )
        if isinstance(kind, dict) and "items" in kind:
            pairs = zip(value, spelled, strict=False)
            return len(value) == len(spelled) and all(self.is_spelled(kind["items"], v, f) for v, f in pairs)
        if isinstance(kind, dict) and "values" in kind:
            return value.keys() == spelled.keys() and all(
                self.is_spelled(kind["values"], value[n], spelled[n]) for n in value
            )
        return bool(spelled == value.hex()) if isinstance(value, bytes) else same(value, spelled)

    def _is_branch_spelled(self, branch: Any, value: Any, spelled: Any) -> bool:
        try:
            return self.is_spelled(branch, value, spelled)
        except (KeyError, TypeError, AttributeError):
            return False  # the value is of another branch


def _is_record(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] in ("record", "error")


def _said(kind: Mapping[str, Any], value: Any) -> Any:
    """What a stored value means by its logical type."""
    logical, base = str(kind.get("logicalType", "")), kind["type"]
    scale = kind.get("scale", 0)
    if logical == "decimal" and base in ("bytes", "fixed") and 0 <= scale <= kind.get("precision", -1) > 0:
        return Decimal(f"{int.from_bytes(value, 'big', signed=True)}e-{scale}")
    if logical == "date" and base == "int":
        return Day(value)
    unit = _MICROS.get(logical.rpartition("-")[2])
    if logical.startswith(("timestamp-", "local-timestamp-")) and base == "long" and unit is not None:
        return Moment(value * unit if unit else value // 1_000)
    if logical.startswith("time-") and base in ("int", "long") and unit:
        return Clock(value * unit)
    if logical == "uuid" and base == "fixed" and len(value) == 16:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return value
