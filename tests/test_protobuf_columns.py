"""The column rules: one assertion for each row of the table in `schemas.protobuf.columns`."""

from __future__ import annotations

import re
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor

from distributary.errors import SchemaBroken
from distributary.schemas.protobuf.columns import SCALARS
from distributary.schemas.protobuf.protobuf import MessageDecoder, decoder_for
from distributary.schemas.registry.compile import compile_text

WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto"; '
    for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty", "field_mask")
)
DECIMAL = pa.decimal128(20, 0)


def decoder(body: str, syntax: str = 'syntax = "proto3";', message: str = "0") -> MessageDecoder:
    return decoder_for(compile_text(f"{syntax} {WELL_KNOWN} {body}"), message)


def column(field: str, before: str = "") -> pa.DataType:
    return decoder(f"message M {{ {field} }} {before}").columns.field(0).type


@pytest.mark.parametrize(
    ("proto", "arrow"),
    [
        ("int32", pa.int32()),
        ("sint32", pa.int32()),
        ("sfixed32", pa.int32()),
        ("int64", pa.int64()),
        ("sint64", pa.int64()),
        ("sfixed64", pa.int64()),
        ("uint32", pa.int64()),
        ("fixed32", pa.int64()),
        ("uint64", DECIMAL),
        ("fixed64", DECIMAL),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("bool", pa.bool_()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        ("Kind", pa.string()),
        ("google.protobuf.Timestamp", pa.timestamp("us", "UTC")),
        ("google.protobuf.Duration", pa.int64()),
        ("google.protobuf.StringValue", pa.string()),
        ("google.protobuf.BytesValue", pa.binary()),
        ("google.protobuf.BoolValue", pa.bool_()),
        ("google.protobuf.Int32Value", pa.int32()),
        ("google.protobuf.UInt32Value", pa.int64()),
        ("google.protobuf.Int64Value", pa.int64()),
        ("google.protobuf.UInt64Value", DECIMAL),
        ("google.protobuf.FloatValue", pa.float32()),
        ("google.protobuf.DoubleValue", pa.float64()),
        ("google.protobuf.Struct", pa.string()),
        ("google.protobuf.Value", pa.string()),
        ("google.protobuf.ListValue", pa.string()),
        (
            "google.protobuf.Any",
            pa.struct([("type_url", pa.string()), ("value", pa.binary()), ("json", pa.string())]),
        ),
        ("google.protobuf.Empty", pa.struct([("_empty", pa.bool_())])),
        ("google.protobuf.FieldMask", pa.struct([("paths", pa.list_(pa.string()))])),
        ("Inner", pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.string())]))])),
    ],
)
def test_each_type_has_one_column_type(proto: str, arrow: pa.DataType) -> None:
    types = "enum Kind { ZERO = 0; } message Inner { int32 x = 1; Deep deep = 2; } message Deep { string y = 1; }"
    assert column(f"{proto} v = 1;", types) == arrow
    assert column(f"repeated {proto} v = 1;", types) == pa.list_(arrow)
    assert column(f"map<int32, {proto}> v = 1;", types) == pa.map_(pa.int32(), arrow)
    assert column(f"oneof o {{ {proto} v = 1; }}", types) == arrow


@pytest.mark.parametrize(
    ("proto", "arrow"), [("string", pa.string()), ("bool", pa.bool_()), ("uint64", DECIMAL), ("sint32", pa.int32())]
)
def test_map_keys_follow_the_scalar_rules(proto: str, arrow: pa.DataType) -> None:
    assert column(f"map<{proto}, bytes> v = 1;") == pa.map_(arrow, pa.binary())


def test_columns_come_in_the_order_of_declaration() -> None:
    body = "message M { string z = 9; oneof o { int32 b = 3; int32 a = 2; } map<string, M2> m = 1; } message M2 {}"
    assert decoder(body).columns.names == ["z", "b", "a", "m"]


def test_a_message_inside_itself_becomes_binary_at_the_point_of_recursion() -> None:
    columns = decoder(
        "message Node { int32 v = 1; repeated Node kids = 2; Node next = 3; map<string, Node> by = 4; }"
    ).columns
    assert columns.field("kids").type == pa.list_(pa.binary())
    assert columns.field("next").type == pa.binary()
    assert columns.field("by").type == pa.map_(pa.string(), pa.binary())


def test_mutual_recursion_is_cut_where_the_first_message_returns() -> None:
    columns = decoder("message A { B b = 1; } message B { A a = 1; int32 x = 2; }").columns
    assert columns.field("b").type == pa.struct([("a", pa.binary()), ("x", pa.int32())])


def test_one_type_used_twice_without_recursion_is_not_cut() -> None:
    columns = decoder("message A { B b = 1; B c = 2; } message B { int32 x = 1; }").columns
    assert columns.field("b").type == columns.field("c").type == pa.struct([("x", pa.int32())])


CYCLE = " ".join(f"message M{i} {{ {' '.join(f'M{j} f{j} = {j + 1};' for j in range(12))} }}" for i in range(12))


def test_recursion_among_many_messages_is_cut_at_the_second_message_of_the_cycle() -> None:
    found = decoder(f"message A {{ M3 m = 1; B b = 2; }} message B {{ M7 m = 1; int32 x = 2; }} {CYCLE}")
    inside = pa.struct([(f"f{j}", pa.binary()) for j in range(12)])
    assert found.columns == pa.schema([("m", inside), ("b", pa.struct([("m", inside), ("x", pa.int32())]))])


def test_messages_that_multiply_without_a_cycle_are_a_broken_schema_and_not_out_of_memory() -> None:
    body = " ".join(f"message M{i} {{ {' '.join(f'M{i + 1} f{j} = {j + 1};' for j in range(12))} }}" for i in range(12))
    with pytest.raises(SchemaBroken, match="10000"):
        decoder(body + " message M12 { int32 x = 1; }")


@pytest.mark.parametrize(("levels", "cut"), [(20, False), (21, True), (400, True)])
def test_a_chain_of_messages_ends_in_bytes_before_readers_of_the_table_do(levels: int, cut: bool) -> None:
    body = " ".join(f"message M{i} {{ map<int32, M{i + 1}> m = 1; }}" for i in range(levels - 1))
    body += f" message M{levels - 1} {{ google.protobuf.Timestamp t = 1; }}"
    found = decoder(body).columns.field("m").type
    while pa.types.is_map(found) and pa.types.is_struct(found.item_type):
        found = found.item_type.field(0).type
    assert found == (pa.map_(pa.int32(), pa.binary()) if cut else pa.timestamp("us", tz="UTC"))


def test_the_later_of_two_names_that_differ_by_case_gets_its_number() -> None:
    body = "message M { int32 Score = 1; int32 score = 2; int32 SCORE = 3; int32 score__2 = 4; In i = 5; }"
    inner = "message In { int32 a = 1; int32 A = 2; }"
    columns = decoder(body + inner).columns
    assert columns.names == ["Score", "score__2", "SCORE__3", "score__2__4", "i"]
    assert [field.name for field in columns.field("i").type] == ["a", "A__2"]


def test_a_message_without_fields_is_a_table_with_one_column() -> None:
    assert decoder("message M {}").columns == pa.schema([("_empty", pa.bool_())])


def test_names_that_are_python_keywords_stay() -> None:
    assert decoder("message M { int32 class = 1; int32 None = 2; int32 DESCRIPTOR = 3; }").columns.names == [
        "class",
        "None",
        "DESCRIPTOR",
    ]


PROTO2 = """enum Kind { ONE = 1; } message Inner { required int32 x = 1; }
message M { required int32 r = 1; optional Kind k = 2; repeated int32 l = 3;
optional group G = 4 { optional int32 y = 1; } extensions 100 to 200; optional Inner i = 5; }"""


def test_proto2_has_the_same_columns() -> None:
    columns = decoder(PROTO2, 'syntax = "proto2";', "M").columns
    assert columns == pa.schema(
        [
            ("r", pa.int32()),
            ("k", pa.string()),
            ("l", pa.list_(pa.int32())),
            ("g", pa.struct([("y", pa.int32())])),
            ("i", pa.struct([("x", pa.int32())])),
        ]
    )


EVERYTHING = """enum Kind { ZERO = 0; } message Inner { int32 x = 1; Nothing n = 2; } message Nothing {}
message M {
  uint32 u = 1; uint64 u6 = 2; Kind k = 3; Inner i = 4; Nothing n = 5; repeated Inner li = 6; repeated Nothing ln = 7;
  map<string, Inner> mi = 8; map<int32, uint64> mu = 9; google.protobuf.Timestamp t = 10;
  google.protobuf.Duration d = 11;
  google.protobuf.Any a = 12; google.protobuf.Struct s = 13;
  repeated google.protobuf.UInt64Value lw = 14; M self = 15;
  repeated M selves = 16; bytes b = 17; float f = 18; google.protobuf.Empty e = 19; repeated Kind lk = 20;
}"""


SET = bytes.fromhex("2a00 3200 3a00 42020a00 7200 7a00 820100 9a0100")


def test_every_column_type_can_be_written_to_delta_and_read_back(tmp_path: Path) -> None:
    every = decoder(EVERYTHING, message="M")
    rows = every.decode(pa.array([b"", SET], pa.binary())).rows
    deltalake.write_deltalake(str(tmp_path / "t"), pa.Table.from_batches([rows]))
    back = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert back.to_pylist() == rows.to_pylist()
    text = str(deltalake.DeltaTable(str(tmp_path / "t")).schema().to_json())
    assert not any(word in text for word in ("void", "null_type", "unsigned", "Ntz", "timestamp_ntz"))


# -- docs/columns.md ---------------------------------------------------------------------------------------

PAGE = Path(__file__).parent.parent / "docs" / "columns.md"
TYPES = """enum Kind { ZERO = 0; } message Inner { int32 a = 1; } message Empty {}
    message Node { int32 v = 1; Node next = 2; }"""


def documented() -> list[tuple[str, str]]:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [(field, column.strip(" `")) for fields, column in rows for field in re.findall(r"`([^`]+) x`", fields)]


@pytest.mark.parametrize(("field", "column"), documented())
def test_the_page_of_columns_says_what_the_code_does(field: str, column: str) -> None:
    found = decoder(f"{TYPES} message M {{ {field} x = 1; }}", message="M").columns.field("x").type
    assert in_words(found) == column


def test_the_page_of_columns_has_every_scalar() -> None:
    fields = {field for field, _ in documented()}
    assert {kind.removeprefix("TYPE_").lower() for kind in SCALAR_NAMES} <= fields


SCALAR_NAMES = [
    name for name, number in vars(FieldDescriptor).items() if name.startswith("TYPE_") and number in SCALARS
]


def in_words(kind: pa.DataType) -> str:
    """A type as Spark writes it."""
    if pa.types.is_list(kind):
        return f"array<{in_words(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{in_words(kind.key_type)},{in_words(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{in_words(field.type)}' for field in kind)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    words = {"int32": "int", "int64": "bigint", "bool": "boolean"}
    return words.get(str(kind), str(kind))
