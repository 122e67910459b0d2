"""Decoding: public bug reports with their exact bytes; each case holds for both engines."""

from __future__ import annotations

import base64
import datetime
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.struct_pb2 import Struct

from distributary.audit.judge.protobuf_rows import differs, message_class
from distributary.errors import Reason
from distributary.schemas.protobuf import ptars_decoder
from distributary.schemas.protobuf.protobuf import BadIndex, MessageDecoder, Split, decoder_for
from distributary.schemas.protobuf.ptars_decoder import LONG_BYTES
from distributary.schemas.registry.compile import ProtobufSchema, compile_text
from distributary.schemas.registry.lenient import is_made_up

P3 = 'syntax = "proto3";'
P2 = 'syntax = "proto2";'
WELL_KNOWN = "".join(
    f'import "google/protobuf/{name}.proto"; '
    for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty")
)


def schema(body: str, syntax: str = P3) -> ProtobufSchema:
    return compile_text(f"{syntax} {WELL_KNOWN} {body}")


def fresh(body: str, syntax: str = P3, message: str = "0", **more: bool) -> MessageDecoder:
    """A decoder outside the cache, so that a test may take its fast half away."""
    return decoder_for.__wrapped__(schema(body, syntax), message, **more)


def decode(decoder: MessageDecoder, payloads: Sequence[str | bytes]) -> Split:
    values = [bytes.fromhex(payload) if isinstance(payload, str) else payload for payload in payloads]
    return decoder.decode(pa.array(values, pa.binary()))


def both(body: str, payloads: Sequence[str | bytes], syntax: str = P3, **more: bool) -> Split:
    """Decode with the chosen engine and with the official library alone; the results are the same."""
    split = decode(fresh(body, syntax, "0", **more), payloads)
    official = fresh(body, syntax, "0", **more)
    official._ptars = None
    other = decode(official, payloads)
    assert split.rows.equals(other.rows)
    assert (split.positions, split.rejected) == (other.positions, other.rejected)
    return split


def values(body: str, *payloads: str | bytes, syntax: str = P3) -> list[Any]:
    """The first column of each payload; all of them must be good."""
    split = both(body, payloads, syntax)
    assert split.rejected == []
    column: list[Any] = split.rows.column(0).to_pylist()
    return column


def reasons(body: str, *payloads: str | bytes, syntax: str = P3) -> list[Reason]:
    split = both(body, payloads, syntax)
    assert split.rows.num_rows == 0
    return [rejected.reason for rejected in split.rejected]


# -- maps ---------------------------------------------------------------------------------------------------


def test_the_last_of_two_equal_map_keys_wins() -> None:
    twice = "0a050a016b1001 0a050a016b1002"
    assert values("message M { map<string, int32> m = 1; }", twice) == [[("k", 2)]]


def test_a_map_entry_may_leave_out_its_key_or_its_value() -> None:
    assert values("message M { map<string, int32> m = 1; }", "0a021001", "0a030a016b", "0a00") == [
        [("", 1)],
        [("k", 0)],
        [("", 0)],
    ]
    assert values("message M { map<string, N> m = 1; } message N { int32 x = 1; }", "0a030a016b") == [[("k", {"x": 0})]]


def test_a_map_entry_of_another_type_is_a_mismatch_although_parsers_of_maps_hide_it() -> None:
    assert reasons("message M { map<string, int32> m = 1; }", "0a060a016b120161") == [Reason.SCHEMA_MISMATCH]


# -- enums --------------------------------------------------------------------------------------------------

KINDS = "enum Kind { ZERO = 0; ONE = 1; } message N { Kind k = 1; }"


@pytest.mark.parametrize(
    ("field", "payload", "value"),
    [
        ("Kind k = 1;", "0807", "7"),
        ("Kind k = 1;", "0801", "ONE"),
        ("Kind k = 1;", "", "ZERO"),
        ("Kind k = 1;", "08ffffffffffffffffff01", "-1"),
        ("optional Kind k = 1;", "", None),
        ("repeated Kind k = 1;", "0a03000701", ["ZERO", "7", "ONE"]),
        ("N n = 1;", "0a020807", {"k": "7"}),
        ("map<string, Kind> m = 1;", "0a050a016b1007", [("k", "7")]),
    ],
)
def test_an_unknown_enum_number_becomes_its_text(field: str, payload: str, value: Any) -> None:
    assert values(f"message M {{ {field} }} {KINDS}", payload) == [value]


@pytest.mark.parametrize(
    ("field", "payload", "value"),
    [
        ("optional Kind k = 1;", "0807", "7"),
        ("optional Kind k = 1;", "", None),
        ("optional Kind k = 1 [default = ONE];", "", "ONE"),
        ("repeated Kind k = 1;", "0800 0807 0801", ["ZERO", "7", "ONE"]),
        ("optional N n = 1;", "0a020807", {"k": "7"}),
        ("map<string, Kind> m = 1;", "0a050a016b1007", [("k", "7")]),
    ],
)
def test_a_closed_enum_keeps_its_unknown_number_in_its_place(field: str, payload: str, value: Any) -> None:
    kinds = KINDS.replace("{ Kind", "{ optional Kind")
    assert values(f"message M {{ {field} }} {kinds}", payload, syntax=P2) == [value]


def test_of_two_names_for_one_number_the_first_declared_is_stored() -> None:
    body = "message M { Kind k = 1; } enum Kind { option allow_alias = true; ZERO = 0; ONE = 1; UNO = 1; }"
    assert values(body, "0801") == ["ONE"]


@pytest.mark.parametrize(
    ("values_of", "zero", "one"),
    [("ONE = 1; TWO = 2;", "0", "ONE"), ("ONE = 1; NONE = 0;", "NONE", "ONE"), ("NEG = -1; NONE = 0x0;", "NONE", "1")],
)
def test_an_open_enum_may_begin_with_any_number_and_zero_has_the_name_that_the_schema_gives_it(
    values_of: str, zero: str, one: str
) -> None:
    """protoc refuses it; registries have taken what other compilers let pass."""
    body = f"message M {{ Kind k = 1; repeated Kind ks = 2; map<int32, Kind> m = 3; }} enum Kind {{ {values_of} }}"
    split = both(body, ["", "0801", "0805", "12020001", "1a0408071001"])
    assert split.rejected == []
    assert [tuple(row.values()) for row in split.rows.to_pylist()] == [
        (zero, [], []), (one, [], []), ("5", [], []), (zero, [zero, one], []), (zero, [], [(7, one)]),
    ]  # fmt: skip
    files = FileDescriptorSet.FromString(compile_text(P3 + body).descriptor_set).file
    as_registered = base64.b64encode(without_made_up(files[-1]).SerializeToString()).decode()
    found = message_class(compile_text(as_registered), [0])
    assert differs(found(), {"k": zero, "ks": [], "m": []}) is None
    assert differs(found(k=1), {"k": one, "ks": [], "m": []}) is None


def without_made_up(file: FileDescriptorProto) -> FileDescriptorProto:
    """As the author's own compiler wrote it."""
    kept = [value for value in file.enum_type[0].value if not is_made_up(value.name)]
    del file.enum_type[0].value[:]
    file.enum_type[0].value.extend(kept)
    return file


# -- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "payload", "value"),
    [
        ("uint32", "08ffffffff0f", 4294967295),
        ("fixed32", "0dffffffff", 4294967295),
        ("uint64", "08ffffffffffffffffff01", Decimal(2**64 - 1)),
        ("fixed64", "09ffffffffffffffff", Decimal(2**64 - 1)),
        ("google.protobuf.UInt64Value", "0a0b08ffffffffffffffffff01", Decimal(2**64 - 1)),
        ("int64", "0880e497d012", 5_000_000_000),
        ("int32", "08ffffffffffffffffff01", -1),
        ("int32", "08ffffffff0f", -1),
        ("sint64", "08ffffffffffffffffff01", -(2**63)),
        ("bool", "0880808080808080808001", True),
    ],
)
def test_numbers_keep_their_value(type: str, payload: str, value: Any) -> None:
    assert values(f"message M {{ {type} v = 1; }}", payload) == [value]


def test_a_wider_integer_is_read_with_the_schema_of_its_writer() -> None:
    five_billion = "0880e497d012"
    assert values("message M { int64 score = 1; }", five_billion) == [5_000_000_000]
    assert decode(fresh("message M { int32 score = 1; }"), ["080a"]).rows.schema.types == [pa.int32()]


def test_a_reused_field_number_has_the_type_its_own_writer_gave_it() -> None:
    assert values("message M { int32 lvl = 4; }", "2007") == [7]
    assert values("message M { string lvl = 4; }", "220137") == ["7"]


# -- presence -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "unset", "payload", "set_"),
    [
        ("int32 v = 1;", 0, "0800", 0),
        ("optional int32 v = 1;", None, "0800", 0),
        ("string v = 1;", "", "0a00", ""),
        ("optional string v = 1;", None, "0a00", ""),
        ("N v = 1;", None, "0a00", {"x": 0}),
        ("repeated int32 v = 1;", [], "0a00", []),
        ("repeated N v = 1;", [], "0a00", [{"x": 0}]),
        ("map<int32, int32> v = 1;", [], "0a0408011002", [(1, 2)]),
        ("oneof o { int32 v = 1; string w = 2; }", None, "0800", 0),
        ("oneof o { N v = 1; string w = 2; }", None, "0a00", {"x": 0}),
        ("google.protobuf.Int64Value v = 1;", None, "0a00", 0),
        ("google.protobuf.Int64Value v = 1;", None, "0a020805", 5),
        ("repeated google.protobuf.StringValue v = 1;", [], "0a00 0a030a0161", ["", "a"]),
        ("google.protobuf.Empty v = 1;", None, "0a00", {"_empty": True}),
        ("google.protobuf.Timestamp v = 1;", None, "0a00", datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
        ("google.protobuf.Duration v = 1;", None, "0a00", 0),
    ],
)
def test_presence_follows_one_rule(field: str, unset: Any, payload: str, set_: Any) -> None:
    assert values(f"message M {{ {field} }} message N {{ int32 x = 1; }}", "", payload) == [unset, set_]


@pytest.mark.parametrize(
    ("field", "unset"),
    [
        ("optional int32 v = 1 [default = 42];", 42),
        ("optional string v = 1 [default = 'x'];", "x"),
        ("optional bytes v = 1 [default = '\\001'];", b"\x01"),
        ("optional uint64 v = 1 [default = 18446744073709551615];", Decimal(2**64 - 1)),
        ("optional bool v = 1 [default = true];", True),
        ("optional double v = 1 [default = inf];", float("inf")),
        ("optional int32 v = 1;", None),
        ("required int32 v = 1;", None),
        ("repeated int32 v = 1;", []),
    ],
)
def test_declared_defaults_of_proto2_are_stored(field: str, unset: Any) -> None:
    assert values(f"message M {{ {field} }}", "", syntax=P2) == [unset]


def test_editions_decide_presence_field_by_field() -> None:
    body = "message M { int32 a = 1 [features.field_presence = IMPLICIT]; int32 b = 2;"
    body += " N c = 3 [features.message_encoding = DELIMITED]; } message N { int32 x = 1; }"
    split = both(body, ["", "1b08051c"], syntax='edition = "2023";')
    assert split.rows.to_pylist() == [{"a": 0, "b": None, "c": None}, {"a": 0, "b": None, "c": {"x": 5}}]


def test_the_last_member_of_a_oneof_wins() -> None:
    split = both("message M { oneof o { int32 a = 1; string b = 2; } }", ["0801 120161", "120161 0801"])
    assert split.rows.to_pylist() == [{"a": None, "b": "a"}, {"a": 1, "b": None}]


def test_parts_of_one_message_are_merged() -> None:
    body = "message M { N n = 1; } message N { int32 x = 1; string y = 2; repeated int32 z = 3; }"
    assert values(body, "0a050801 1a0101 0a06120161 1a0102") == [{"x": 1, "y": "a", "z": [1, 2]}]
    assert values("message M { google.protobuf.Int64Value v = 1; }", "0a020805 0a00") == [5]


@pytest.mark.parametrize("option", ["true", "false"])
def test_packed_and_unpacked_elements_are_both_read(option: str) -> None:
    body = f"message M {{ repeated int32 v = 1 [packed = {option}]; }}"
    assert values(body, "0801 0802", "0a020102", "0801 0a0102", "0801", "0a0101") == [
        [1, 2],
        [1, 2],
        [1, 2],
        [1],
        [1],
    ]


def test_a_saved_byte_cannot_hide_a_record_of_another_type() -> None:
    # Two lists of one element, unpacked against their declaration, save the two bytes of the last record.
    body = "message M { repeated int32 a = 1; repeated int32 b = 2; string c = 3; }"
    assert reasons(body, "0801 1001 1800") == [Reason.SCHEMA_MISMATCH]
    # A negative int32 in 5 bytes instead of 10.
    assert reasons("message M { int32 a = 1; string c = 3; }", "08ffffffff0f 18 80808000") == [Reason.SCHEMA_MISMATCH]


# -- instants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "microseconds", "types"),
    [
        ("08ffffffffffffffffff01 10ff93ebdc03", -1, ["Timestamp"]),  # -1 s + 999,999,999 ns
        ("0801 10e707", 1_000_000, ["Timestamp", "Duration"]),  # 999 ns are cut off
        ("08ffffffffffffffffff01", -1_000_000, ["Timestamp", "Duration"]),
        ("10ffffffffffffffffff01", -1, ["Duration"]),  # a negative part is rounded down, too
        ("08ffffffffffffffffff01 1081ec94a3fcffffffff01", -2_000_000, ["Duration"]),  # -1 s - 999,999,999 ns
    ],
)
def test_instants_are_rounded_down_to_microseconds(payload: str, microseconds: int, types: list[str]) -> None:
    inner = bytes.fromhex(payload)
    for type_ in types:
        body = f"message M {{ google.protobuf.{type_} v = 1; }}"
        split = both(body, [b"\x0a" + bytes([len(inner)]) + inner])
        assert split.rows.column(0).cast(pa.int64()).to_pylist() == [microseconds]


@pytest.mark.parametrize(
    ("type_", "seconds", "nanos"),
    [
        ("Timestamp", 0, -1),
        ("Timestamp", 5, 1_000_000_000),
        ("Timestamp", 253_402_300_799, 1_000_000_000),  # the year 10000
        ("Timestamp", -62_135_596_800, -1),  # the year 0
        ("Timestamp", 1, -(2**31)),
        ("Duration", 1, -1),
        ("Duration", -1, 1),
        ("Duration", 0, 1_000_000_000),
        ("Duration", -1, -1_000_000_000),
        ("Duration", -(2**63), 0),
    ],
)
def test_nanos_out_of_range_set_the_row_aside(type_: str, seconds: int, nanos: int) -> None:
    inner = b"\x08" + varint(seconds % 2**64) + b"\x10" + varint(nanos % 2**64)
    one = b"\x0a" + varint(len(inner)) + inner
    assert reasons(f"message M {{ google.protobuf.{type_} v = 1; }}", one) == [Reason.VALUE_OUT_OF_RANGE]
    assert reasons(f"message M {{ repeated google.protobuf.{type_} v = 1; }}", one) == [Reason.VALUE_OUT_OF_RANGE]


def test_times_out_of_range_are_null_and_counted_where_that_is_asked_for() -> None:
    body = "message M { google.protobuf.Timestamp v = 1; repeated google.protobuf.Duration w = 2; I i = 3; }"
    body += "message I { google.protobuf.Timestamp at = 1; }"
    far, mixed = "08e8ddfda6bc31", "0801 10ffffffffffffffffff01"
    good, payloads = "0a020801", ["0a07" + far, "0a020801 120d" + mixed + "12020802", "1a090a07" + far, "0801"]
    split = both(body, [good, *payloads], null_out_of_range=True)
    assert [r.position for r in split.rejected] == [4], "other faults are what they were"
    second = split.rows.column("v")[0].as_py()
    assert split.rows.column("v").to_pylist() == [second, None, second, None]
    assert split.rows.column("w").cast(pa.list_(pa.int64())).to_pylist() == [[], [], [None, 2_000_000], []]
    assert split.rows.column("i").to_pylist() == [None, None, None, {"at": None}]
    assert split.warnings == {f"field {name} is out of range, so null": 1 for name in ("v", "w", "at")}
    assert reasons(body, *payloads[:3]) == [Reason.VALUE_OUT_OF_RANGE] * 3


@pytest.mark.parametrize("field", ["google.protobuf.Timestamp v = 1;", "repeated google.protobuf.Timestamp v = 1;"])
def test_a_timestamp_beyond_the_year_9999_is_out_of_range(field: str) -> None:
    milliseconds_as_seconds = "0a07 08e8ddfda6bc31"
    assert reasons(f"message M {{ {field} }}", milliseconds_as_seconds) == [Reason.VALUE_OUT_OF_RANGE]


# -- Any, Struct, recursion ---------------------------------------------------------------------------------


def test_any_keeps_its_bytes_and_becomes_json_where_its_type_is_in_the_schema() -> None:
    def packed(url: str, value: bytes) -> bytes:
        inner = b"\x0a" + bytes([len(url)]) + url.encode() + b"\x12" + bytes([len(value)]) + value
        return b"\x0a" + bytes([len(inner)]) + inner

    body = "package g; message M { google.protobuf.Any a = 1; } message N { int32 level_up = 1; }"
    known, unknown, broken = packed("t/g.N", b"\x08\x05"), packed("t/x.Y", b"\x08\x05"), packed("t/g.N", b"\x08")
    assert values(body, known, unknown, broken, "0a00", "") == [
        {"type_url": "t/g.N", "value": b"\x08\x05", "json": '{"level_up": 5}'},
        {"type_url": "t/x.Y", "value": b"\x08\x05", "json": None},
        {"type_url": "t/g.N", "value": b"\x08", "json": None},
        {"type_url": "", "value": b"", "json": None},
        None,
    ]


def test_struct_value_and_list_value_become_json() -> None:
    body = "message M { google.protobuf.Struct s = 1; google.protobuf.Value v = 2; google.protobuf.ListValue l = 3; }"
    message = Struct()
    message.update({"b": [1, 2.5, None], "a": {"x": "é", "y": True}})
    inner = message.SerializeToString()
    split = both(body, [b"\x0a" + bytes([len(inner)]) + inner, "120911000000000000f07f", "1a040a020800", ""])
    assert split.rows.to_pylist() == [
        {"s": '{"a":{"x":"é","y":true},"b":[1,2.5,null]}', "v": None, "l": None},
        {"s": None, "v": '"Infinity"', "l": None},
        {"s": None, "v": None, "l": "[null]"},
        {"s": None, "v": None, "l": None},
    ]


NODE = "message Node { int32 v = 1; repeated Node kids = 2; map<string, Node> by = 3; }"


def test_recursion_keeps_the_rest_as_bytes_that_parse_again() -> None:
    payload = "0801 120408021200 1a070a016b12020803"
    (row,) = both(NODE, [payload]).rows.to_pylist()
    assert row == {"v": 1, "kids": [b"\x08\x02\x12\x00"], "by": [("k", b"\x08\x03")]}
    assert decode(fresh(NODE), row["kids"]).rows.to_pylist() == [{"v": 2, "kids": [b""], "by": []}]


def nested(levels: int) -> bytes:
    payload = b""
    for _ in range(levels):
        length = len(payload)
        payload = b"\x12" + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + payload
    return payload


def test_a_hundred_levels_are_read_and_one_more_is_corrupt() -> None:
    split = both(NODE, [nested(100), nested(101)])
    assert split.positions is not None and split.positions.to_pylist() == [0]
    assert [(r.position, r.reason) for r in split.rejected] == [(1, Reason.CORRUPT_PAYLOAD)]


def test_a_mismatch_below_the_point_of_recursion_is_seen() -> None:
    assert reasons(NODE, "1204 1202 0a00") == [Reason.SCHEMA_MISMATCH]


# -- corrupt bytes ------------------------------------------------------------------------------------------

EVENT = """message Event { string name = 1; int64 score = 2; N n = 3;
  repeated int32 l = 4; int32 five = 5; } message N { string s = 4; }"""


@pytest.mark.parametrize(
    "payload",
    [
        "28 80",
        "0a 05 61",
        "0a 02 ff fe",
        "1a 04 22 02 ff fe",
        "0a 03 ed a0 80",
        "00 0a 01 61",
        "1a 0a 22",
        "0b",
        "0c",
        "0f",
        "12 ff ff ff ff ff ff ff ff ff 7f",
        "0a ff ff ff ff ff ff ff ff ff 01",
        "0b" * 101 + "0c" * 101,
        "7b" * 101 + "7c" * 101,
    ],
)
def test_bytes_that_do_not_parse_are_corrupt(payload: str) -> None:
    assert reasons(EVENT, payload) == [Reason.CORRUPT_PAYLOAD]


@pytest.mark.parametrize("syntax", [P3, P2])
def test_invalid_utf8_is_corrupt_in_every_syntax(syntax: str) -> None:
    assert reasons("message M { optional string s = 4; }", "22 02 ff fe", syntax=syntax) == [Reason.CORRUPT_PAYLOAD]


@pytest.mark.parametrize("group", ["0b", "7b"])
def test_a_million_nested_groups_do_not_end_the_process(group: str) -> None:
    assert reasons(EVENT, bytes.fromhex(group) * 1_000_000) == [Reason.CORRUPT_PAYLOAD]


def test_long_good_payloads_are_read() -> None:
    name = "x" * (3 * LONG_BYTES)
    payload = b"\x0a" + bytes([len(name) & 127 | 128, len(name) >> 7]) + name.encode()
    assert values(EVENT, payload, "0a0161", payload) == [name, "a", name]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("0801", "field 1 (name)"),
        ("120161", "field 2 (score)"),
        ("1801", "field 3 (n)"),
        ("1a022001", "field 4 (s)"),
        ("250000803f", "field 4 (l)"),
        ("0b0c", "field 1 (name)"),
        ("11" + "00" * 8, "field 2 (score)"),
    ],
)
def test_a_known_field_of_another_wire_type_is_a_mismatch_at_every_depth(payload: str, field: str) -> None:
    split = both(EVENT, [payload])
    assert [rejected.reason for rejected in split.rejected] == [Reason.SCHEMA_MISMATCH]
    assert field in split.rejected[0].detail


def test_unknown_fields_are_ignored() -> None:
    assert values(EVENT, "0a0161 f80105 fb01fc01 fa0100") == ["a"]


def test_a_payload_without_bytes_is_a_row_of_defaults() -> None:
    (row,) = both(EVENT, [b""]).rows.to_pylist()
    assert row == {"name": "", "score": 0, "n": None, "l": [], "five": 0}


@pytest.mark.parametrize("chunk_rows", [1, 100, ptars_decoder.CHUNK_ROWS])
def test_bad_rows_do_not_move_or_stop_good_ones(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptars_decoder, "CHUNK_ROWS", chunk_rows)
    rnd = random.Random(7)
    good = [b"\x0a\x04" + f"{i:04}".encode() for i in range(3000)]
    bad = set(rnd.sample(range(3000), 60))
    split = both(EVENT, [b"\x28\x80" if i in bad else row for i, row in enumerate(good)])
    kept = [i for i in range(3000) if i not in bad]
    assert split.positions is not None and split.positions.to_pylist() == kept
    assert split.rows.column("name").to_pylist() == [f"{i:04}" for i in kept]
    assert [rejected.position for rejected in split.rejected] == sorted(bad)


@pytest.mark.parametrize("payloads", [[], [b"\x28\x80"], [b"\x28\x80"] * 3])
def test_a_batch_without_a_good_row_still_has_its_columns(payloads: list[bytes]) -> None:
    decoder = fresh(EVENT)
    split = decode(decoder, payloads)
    assert split.rows.schema == decoder.columns
    assert split.rows.num_rows == 0


def test_a_slice_of_a_larger_array_is_decoded_as_itself() -> None:
    payloads = pa.array([b"\x28\x80", b"\x0a\x01a", b"\x0a\x01b", b"\x08\x01"], pa.binary())
    split = fresh(EVENT).decode(payloads.slice(1, 3))
    assert split.rows.column("name").to_pylist() == ["a", "b"]
    assert [(r.position, r.reason) for r in split.rejected] == [(2, Reason.SCHEMA_MISMATCH)]


@pytest.mark.parametrize("type_", [pa.large_binary(), pa.binary_view()])
def test_other_binary_layouts_are_read(type_: pa.DataType) -> None:
    assert fresh(EVENT).decode(pa.array([b"\x0a\x01a"], type_)).rows.column("name").to_pylist() == ["a"]


# -- parts that only the official library makes -------------------------------------------------------------


OPAQUE = """
message M { int32 n = 1; M one = 2; repeated M many = 3; map<string, M> by = 4; oneof c { M left = 5; string s = 6; }
  Inner inner = 7; google.protobuf.Any any = 8; repeated google.protobuf.Value values = 9;
  google.protobuf.Struct st = 10; }
message Inner { repeated M again = 1; map<int32, google.protobuf.Any> anys = 2; google.protobuf.ListValue list = 3; }
"""


def test_parts_that_only_the_official_library_makes_leave_the_row_to_ptars() -> None:
    rows = [
        "0801",
        "0801 12020805 1a00 1a020807 2206 0a0161 1201 00".replace("1201 00", "1201 08"),  # a cut-off map value
        "0801 12020805 1a00 1a020807 22070a016112020805 2a00",
        "3a04 0a020803 4a02 1a00 4a05 1a03616263 5200",
        "42 05 0a03 782f79 4202 1200",  # an Any that comes twice is merged
        "42 07 0a03 782f79 1200",
        "1204 1202 0801",
        "1202 0a00",  # a known field of another type, in a part
        "1203 f80701",  # an unknown field in a part
        "1204 fb07 fc07",  # an unknown group
    ]
    split = both(OPAQUE, rows)
    assert [(r.position, r.reason) for r in split.rejected] == [
        (1, Reason.CORRUPT_PAYLOAD),
        (7, Reason.SCHEMA_MISMATCH),
    ]
    decoder = fresh(OPAQUE)
    assert decoder._ptars is not None
    read = decoder._ptars.decode(pa.array([bytes.fromhex(row) for row in rows]))[1]
    assert read.tolist() == [0, 2, 3, 5, 6, 8]


def test_a_part_may_be_as_deep_as_the_whole_row_allows() -> None:
    body = "message M { Outer o = 1; } message Outer { map<string, Node> by = 1; } " + NODE
    levels = [deep(level) for level in range(80, 110)]
    split = both(body, levels)
    assert [len(r) > 0 for r in split.rows.column(0).to_pylist()] == [True] * (len(levels) - len(split.rejected))
    assert 0 < len(split.rejected) < len(levels)
    assert {r.reason for r in split.rejected} == {Reason.CORRUPT_PAYLOAD}


def deep(levels: int) -> bytes:
    payload = b""
    for _ in range(levels - 3):
        payload = b"\x12" + varint(len(payload)) + payload
    payload = b"\x12" + varint(len(payload)) + payload
    for _ in range(2):
        payload = b"\x0a" + varint(len(payload)) + payload
    return payload


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_an_any_in_an_any_three_hundred_times_is_kept_as_its_bytes() -> None:
    url = b"type.googleapis.com/google.protobuf.Any"
    payload = b""
    for _ in range(300):
        payload = b"\x0a" + varint(len(url)) + url + b"\x12" + varint(len(payload)) + payload
    (value,) = values("message M { google.protobuf.Any a = 1; }", b"\x0a" + varint(len(payload)) + payload)
    assert value["type_url"] == url.decode()
    assert len(value["value"]) > 10_000
    assert value["json"] is None


def test_rows_with_extensions_are_counted_by_extension() -> None:
    body = """message M { optional int32 a = 1; extensions 100 to 200; optional I i = 2; }
    message I { extensions 7; } extend M { optional string more = 100; } extend I { optional int32 x = 7; }"""
    split = both(body, ["0801 a2060161", "0801", "a20600 a80601", "1202 3805", "c83e01"], P2)
    assert split.rows.column("a").to_pylist() == [1, 1, None, None, None]
    assert split.warnings == {f"extension {name} has no column": n for name, n in [("more", 2), ("M.101", 1), ("x", 1)]}


# -- engines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "syntax", "engine"),
    [
        (EVENT, P3, "ptars"),
        ("message M { google.protobuf.Timestamp t = 1; map<string, int32> m = 2; }", P3, "ptars"),
        ("message M { repeated int32 v = 1; }", P2, "ptars"),
        (NODE, P3, "ptars"),
        ("message M { optional group G = 1 { optional int32 x = 1; } }", P2, "protobuf"),
        ("message M { int32 x = 536870911; }", P3, "protobuf"),
        ("message M { int32 x = 19000; }", P3, "protobuf"),
        ("message M { google.protobuf.Any a = 1; }", P3, "ptars"),
        ("message M { google.protobuf.Struct s = 1; }", P3, "ptars"),
        ("message M {}", P3, "protobuf"),
    ],
)
def test_the_engine_is_chosen_by_what_ptars_reads_right(
    body: str, syntax: str, engine: Literal["ptars", "protobuf"]
) -> None:
    decoder = fresh(body, syntax)
    assert decoder.engine == engine
    assert (decoder.engine_reason is None) == (engine == "ptars")


def test_plain_rows_are_left_to_ptars() -> None:
    decoder = fresh(
        "message M { int32 a = 1; optional string b = 2; N n = 3; repeated int32 l = 4; map<string, int32> m = 5;"
        " google.protobuf.Timestamp t = 6; Kind k = 7; } message N { string s = 1; } enum Kind { ZERO = 0; }"
    )
    rows = [
        "08ffffffffffffffffff01 12016b 1a030a0161 22020102 2a050a016b1005 2a050a01621000 320408011002 3809",
        "220101 2a040a001000 3200 0800 1200 1a020a00 3800",
        "2a00",
        "",
    ]
    assert decoder._ptars is not None
    assert len(decoder._ptars.decode(pa.array([bytes.fromhex(row) for row in rows]))[1]) == len(rows)


# -- finding and keeping decoders ---------------------------------------------------------------------------

OUTER = """package g; message Outer { map<string, string> m = 1; message Inner { string x = 1; }
 Inner i = 2; message Last { message Deep {} } } message Second {}"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("0", "g.Outer"),
        ("1", "g.Second"),
        ("0.0", "g.Outer.Inner"),
        ("0.1", "g.Outer.Last"),
        ("0.1.0", "g.Outer.Last.Deep"),
        ("g.Outer.Inner", "g.Outer.Inner"),
    ],
)
def test_nested_indexes_do_not_count_map_entries(path: str, name: str) -> None:
    assert decoder_for(schema(OUTER), path).full_name == name


def test_raw_nested_indexes_count_map_entries() -> None:
    assert decoder_for(schema(OUTER), "0.1", raw_nested_indexes=True).full_name == "g.Outer.Inner"
    with pytest.raises(BadIndex):
        decoder_for(schema(OUTER), "0.0", raw_nested_indexes=True)


@pytest.mark.parametrize("path", ["2", "8", "0.2", "0.0.0", "-1", "", "g.Outer.MEntry", "g.Nothing", "1.0"])
def test_an_index_path_that_leads_nowhere_is_a_bad_index(path: str) -> None:
    with pytest.raises(BadIndex):
        decoder_for(schema(OUTER), path)


def test_a_message_index_beyond_the_last_says_how_many_there_are() -> None:
    with pytest.raises(BadIndex, match=r"path 0\.8: no message at 0\.8, there are \d+, numbered from 0 on"):
        decoder_for(schema(OUTER), "0.8")


def test_two_schemas_with_the_same_names_do_not_meet() -> None:
    one, two = (
        compile_text(f"{P3} package event; message event {{ {f} }}", file="event.proto")
        for f in ("int32 a = 1;", "string b = 1;")
    )
    assert decode(decoder_for(one), ["0805"]).rows.to_pylist() == [{"a": 5}]
    assert decode(decoder_for(two), ["0a0161"]).rows.to_pylist() == [{"b": "a"}]
    assert decode(decoder_for(one), ["0806"]).rows.to_pylist() == [{"a": 6}]


def test_decoders_are_cached_and_the_cache_is_bounded() -> None:
    assert decoder_for(schema(EVENT)) is decoder_for(schema(EVENT))
    assert decoder_for.cache_info().maxsize
