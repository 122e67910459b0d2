"""What docs/generate.py makes of the decoders: docs/types.md, which type a field becomes, format by format.

Every line is a small schema and a value in it, compiled and decoded by the product itself: so the page says what the
code does, or the check of the generated pages fails.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from distributary.schemas.avro.decoder import AvroDecoder
from distributary.schemas.avro.tree import tree_of as avro_tree
from distributary.schemas.decoding import Decoder
from distributary.schemas.json.bare import declared_record
from distributary.schemas.json.decoder import JsonDecoder
from distributary.schemas.json.nodes import Tree
from distributary.schemas.json.tree import tree_of as json_tree
from distributary.schemas.protobuf.protobuf import decoder_for, descriptor_of
from distributary.schemas.registry.compile import compile_text

_INTRO = """\
# Types, format by format

<!-- Made by docs/generate.py from docs/type_pages.py; edit that. -->

Each line was compiled and decoded by the product when this page was made: a field of a schema, a value in a record, the
column it becomes, and the value in the table. The rules behind them, and what makes a record a bad one:
[protobuf](columns.md), [Avro and JSON](payloads.md), [change files](datastream-types.md), [Debezium](debezium.md).
"""
_HEAD = "| {} | in a record | column | in the table |\n|---|---|---|---|\n"
_MORE = """syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
enum Kind { ZERO = 0; ONE = 1; } message Inner { int32 a = 1; } message Empty {}
message Node { int32 v = 1; Node next = 2; }
"""
_NOON = "2026-01-31T12:00:00.25Z"

_PROTOBUF: Sequence[tuple[str, Any]] = (
    *((f"{kind} x", -7) for kind in ("int32", "sint32", "sfixed32", "int64", "sint64", "sfixed64")),
    *((f"{kind} x", 7) for kind in ("uint32", "fixed32")),
    *((f"{kind} x", 18446744073709551615) for kind in ("uint64", "fixed64")),
    ("float x", 0.5), ("double x", 0.1), ("bool x", True), ("string x", "Lima"), ("bytes x", "AAE="),
    ("Kind x", "ONE"), ("google.protobuf.Int64Value x", 7), ("google.protobuf.Timestamp x", _NOON),
    ("google.protobuf.Duration x", "1.5s"), ("google.protobuf.Struct x", {"a": 1}), ("Inner x", {"a": 1}),
    ("Empty x", {}), ("Node x", {"v": 1, "next": {"v": 2}}), ("repeated int32 x", [1, 2]),
    ("map<string, int64> x", {"a": 1}), ("optional int32 x", None), ("int32 x", None),
)  # fmt: skip
_AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)
_AVRO: Sequence[tuple[Any, Any]] = (
    ("boolean", True), ("int", 7), ("long", 7), ("float", 0.5), ("double", 0.1), ("string", "Lima"),
    ("bytes", b"\0\1"), ({"type": "enum", "name": "E", "symbols": ["ONE"]}, "ONE"),
    ({"type": "fixed", "name": "F", "size": 2}, b"\0\1"),
    ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, {"a": 1}),
    ({"type": "array", "items": "int"}, [1, 2]), ({"type": "map", "values": "long"}, {"a": 1}),
    (["null", "int"], None), (["int", "string"], "Lima"), ("null", None),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.50")),
    ({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}, Decimal("1.50")),
    ({"type": "string", "logicalType": "uuid"}, "00000000-0000-0000-0000-000000000001"),
    ({"type": "int", "logicalType": "date"}, _AT.date()),
    ({"type": "int", "logicalType": "time-millis"}, _AT.time()),
    ({"type": "long", "logicalType": "time-micros"}, _AT.time()),
    *(({"type": "long", "logicalType": f"timestamp-{unit}"}, _AT) for unit in ("millis", "micros")),
    *(({"type": "long", "logicalType": f"local-timestamp-{unit}"}, _AT.replace(tzinfo=None))
      for unit in ("millis", "micros")),
)  # fmt: skip
_JSON: Sequence[tuple[Any, str]] = (
    ({"type": "integer"}, "5.0"), ({"type": "number"}, "0.1"), ({"type": "string"}, '"Lima"'),
    ({"type": "string", "format": "date-time"}, f'"{_NOON}"'), ({"type": "boolean"}, "true"),
    ({"type": "array", "items": {"type": "integer"}}, "[1, 2]"), ({"type": "array"}, '[1, "a"]'),
    ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 1}'),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1}'), ({"type": "object"}, '{"a": 1}'),
    ({"type": ["integer", "null"]}, "null"), ({"type": ["integer", "number"]}, "1"),
    ({"type": ["integer", "string"]}, '"a"'), ({}, "1.50"), ({"enum": ["a", "b"]}, '"a"'),
    ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, "7"),
)  # fmt: skip
_BARE: Sequence[tuple[str, str]] = (
    ("bigint", "5"), ("double", "0.1"), ("boolean", "true"), ("string", '"Lima"'), ("decimal(9,2)", "1.5"),
    ("date", '"2026-01-31"'), ("timestamp", '"2026-01-31T13:00:00.25+01:00"'),
    ("timestamp_ntz", '"2026-01-31T12:00:00"'), ("binary", '"AAE="'), ("array<bigint>", "[1, 2]"),
    ("map<string,double>", '{"a": 0.5}'), ("json", '{"a": [1, null]}'),
)  # fmt: skip


def types_page() -> str:
    """docs/types.md."""
    undeclared = "\nA field that neither a schema nor the file declares is kept in the column `_undeclared`, as JSON.\n"
    return "".join(
        (
            _INTRO,
            _section("Protobuf", "field", map(_protobuf, _PROTOBUF)),
            "\nThe last two fields are not set: with presence (`optional`) that is null, without it the default.\n",
            _section("Avro", "type", map(_avro, _AVRO)),
            _section("JSON Schema", "schema", map(_json, _JSON)),
            undeclared,
            _section("JSON without a schema", "`payload.columns`", map(_bare, _BARE)),
        )
    )


def _section(title: str, what: str, rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
    return f"\n## {title}\n{_HEAD.format(what)}" + "".join(lines)


def _protobuf(sample: tuple[str, Any]) -> tuple[str, str, str, str]:
    field, value = sample
    schema = compile_text(f"{_MORE} message M {{ {field} = 1; }}", id=1)
    record = GetMessageClass(descriptor_of(schema, "M"))()
    if value is not None:
        ParseDict({"x": value}, record)
    said = "not set" if value is None else f"`{json.dumps(value)}`"
    return _row(f"`{field}`", said, decoder_for(schema, "M"), record.SerializeToString())


def _avro(sample: tuple[Any, Any]) -> tuple[str, str, str, str]:
    kind, value = sample
    schema = {"type": "record", "name": "M", "fields": [{"name": "x", "type": kind}]}
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), {"x": value})
    decoder = AvroDecoder(avro_tree([json.dumps(schema)], "M"))
    return _row(f"`{json.dumps(kind)}`", f"`{_shown(value)}`", decoder, into.getvalue())


def _json(sample: tuple[Any, str]) -> tuple[str, str, str, str]:
    kind, value = sample
    decoder = JsonDecoder(json_tree({"": json.dumps({"type": "object", "properties": {"x": kind}})}, "M"))
    return _row(f"`{json.dumps(kind)}`", f"`{value}`", decoder, f'{{"x": {value}}}'.encode())


def _bare(sample: tuple[str, str]) -> tuple[str, str, str, str]:
    kind, value = sample
    decoder = JsonDecoder(Tree("M", declared_record((("x", kind),))))
    return _row(f"`x: {kind}`", f"`{value}`", decoder, f'{{"x": {value}}}'.encode())


def _row(said: str, given: str, decoder: Decoder, payload: bytes) -> tuple[str, str, str, str]:
    split = decoder.decode(pa.array([payload], pa.binary()))
    if split.rejected:
        raise ValueError(f"{said}: {split.rejected[0].detail}")
    rows = split.rows
    return said, given, f"`{in_words(rows.schema.field('x').type)}`", f"`{_shown(rows.column('x')[0].as_py())}`"


def in_words(kind: pa.DataType) -> str:
    """A type as Delta and Spark write it."""
    if pa.types.is_list(kind):
        return f"array<{in_words(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{in_words(kind.key_type)},{in_words(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{in_words(field.type)}' for field in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    words = {"int32": "int", "int64": "bigint", "bool": "boolean", "date32[day]": "date"}
    return words.get(str(kind), str(kind))


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bytes):
        return "bytes " + value.hex(" ")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_shown(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        pairs = bool(value) and isinstance(value[0], tuple)
        inner = (f"{one[0]}: {_shown(one[1])}" if pairs else _shown(one) for one in value)
        return ("{%s}" if pairs else "[%s]") % ", ".join(inner)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
