"""Stored values to columns: the two avro readers against each other, and each unified type in each format."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.avro import lanes
from distributary.avro.blocks import open_container
from distributary.avro.schema import parse
from distributary.changes.avro_files import AvroFile, read_avro
from distributary.changes.casts import FIRST_US, LAST_US, decimals, named_type
from distributary.changes.file_events import read_events
from distributary.changes.model import METADATA, FileEvents, Reading
from distributary.errors import FileBroken, Reason
from tests.event_files import MICROS, MILLIS, avro, event, json_lines, parquet, record, schema

OFFSET = {"type": "int", "logicalType": "time-millis"}
TIME = {"type": "long", "logicalType": "time-micros"}
DAY = {"type": "int", "logicalType": "date"}
TIMESTAMP_TZ = record("timestampTz", [("timestamp", MICROS), ("offset", OFFSET)])
TIME_TZ = record("timeTz", [("time", TIME), ("offset", OFFSET)])
DATETIME = record("datetime", [("date", DAY), ("time", TIME)])
INTERVAL = record("interval", [("months", "int"), ("hours", "int"), ("micros", "long")])
GEOMETRY = record("geometry", [("value", "bytes"), ("srid", "int"), ("type", "string")])

INSTANT = "timestamp[us, tz=UTC]"
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def nested(column: str, item: Any) -> dict[str, Any]:
    name = f"multidimensionalArray_{column}"
    return record(name, [("nestedArray", ["null", {"type": "array", "items": name}]), ("elementValue", ["null", item])])


def leaf(value: Any) -> dict[str, Any]:
    """A value of PostgreSQL's arrays as avro has it."""
    if isinstance(value, list):
        return {"nestedArray": [leaf(one) for one in value], "elementValue": None}
    return {"nestedArray": None, "elementValue": value}


def number(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def read(kind: Any, values: Sequence[Any], reading: Reading | None = None) -> FileEvents:
    events = [event(at, {"id": at, "v": value}) for at, value in enumerate(values)]
    return read_events(avro(schema([("id", "long"), ("v", kind)]), events), "a.avro", reading or Reading())


def column(found: FileEvents) -> list[Any]:
    assert not found.bad
    values: list[Any] = found.events[0].rows.column("v").to_pylist()
    return values


def one(kind: Any, value: Any, reading: Reading | None = None) -> Any:
    return column(read(kind, [value], reading))[0]


GARBLED = avro(
    schema(
        [("id", "long"), ("u", "string"), ("i", "int"), ("b", "boolean"), ("l", {"type": "array", "items": "string"})]
    ),
    [
        event(
            at,
            {"id": at, "u": event(at)["uuid"] if at % 2 else "é" * at, "i": at, "b": at % 2 > 0, "l": ["a"] * (at % 3)},
        )
        for at in range(40)
    ],
    interval=3_000,
)

# -- the fast avro reader against fastavro -----------------------------------------------------------------------

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
TEXT = st.text(max_size=80) | st.sampled_from(["9b810e76-46aa-451b-b315-c2d400000001", "H" * 36])
BYTES = st.binary(max_size=70)
FLOAT = st.floats(width=32)
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", INT),
    ("long", LONG),
    ("float", FLOAT),
    ("double", st.floats()),
    ("string", TEXT),
    ("bytes", BYTES),
    ({"type": "string", "logicalType": "varchar", "length": 20}, TEXT),
    (decimal(38, 9), BYTES),
    (MICROS, LONG),
    (DAY, INT),
    (["null", "string", "long"], TEXT | LONG),
    (["int", "null"], INT),
    ({"type": "array", "items": ["null", "long"]}, st.lists(LONG | st.none(), max_size=4)),
    ({"type": "array", "items": "string"}, st.lists(TEXT, max_size=70)),
    (record("pair{0}", [("a", "string"), ("b", ["null", "long"])]),
     st.fixed_dictionaries({"a": TEXT, "b": LONG | st.none()})),
    (nested("v{0}", "long"), st.recursive(LONG | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=6)
     .map(lambda value: leaf(value if isinstance(value, list) else [value]))),
    (nested("w{0}", "string"), st.lists(TEXT | st.none(), max_size=5).map(lambda value: leaf(value))),
    ({"type": "fixed", "name": "fixed{0}", "size": 5}, st.binary(min_size=5, max_size=5)),
    ({"type": "enum", "name": "enum{0}", "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])),
]  # fmt: skip


@st.composite
def files(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    chosen = draw(st.lists(st.sampled_from(KINDS), max_size=8))
    kinds = [json.loads(json.dumps(kind).replace("{0}", str(place))) for place, (kind, _) in enumerate(chosen)]
    optional = [isinstance(kind, list) or draw(st.booleans()) for kind in kinds]
    values = [
        strategy if kind == ["int"] else (strategy | st.none() if null else strategy)
        for (kind, strategy), null in zip(chosen, optional, strict=True)
    ]
    fields = [
        (f"c{place}", kind if isinstance(kind, list) else (["null", kind] if null else [kind]))
        for place, (kind, null) in enumerate(zip(kinds, optional, strict=True))
    ]
    payloads = draw(st.lists(st.tuples(*values), min_size=1, max_size=12))
    whole = schema(fields)
    for field in whole["fields"][-1]["type"]["fields"]:  # a union of one type alone is no union
        field["type"] = field["type"][0] if len(field["type"]) == 1 else field["type"]
    changes: Any = st.fixed_dictionaries(
        {},
        optional={"log_file": TEXT | st.none(), "read_timestamp": LONG, "sort_keys": st.lists(TEXT | LONG, max_size=4)},
    )
    return whole, [
        event(at, {f"c{place}": value for place, value in enumerate(payload)}, **draw(changes))
        for at, payload in enumerate(payloads)
    ]


def stored(body: bytes, fast: bool) -> list[Any]:
    file = read_avro(pa.py_buffer(body), "a.avro", fast)
    assert not file.bad
    return [row for part in file.stored for row in part.columns.to_pylist()]


@given(files(), st.sampled_from(["null", "deflate", "snappy"]), st.sampled_from([50, 500, 16_000]))
def test_the_fast_avro_reader_gives_what_fastavro_gives(
    file: tuple[dict[str, Any], list[dict[str, Any]]], codec: str, interval: int
) -> None:
    whole, events = file
    body = avro(whole, events, codec="null" if codec == "snappy" else codec, interval=interval)
    if codec == "snappy":
        body = snappy(body)
    fast = stored(body, fast=True)
    assert repr(fast) == repr(stored(body, fast=False))  # by text, since NaN is not equal to NaN
    assert len(fast) == len(events)


def snappy(body: bytes) -> bytes:
    """An uncompressed container packed anew, with its checksums: fastavro needs another library for that."""
    import zlib

    container = open_container(pa.py_buffer(body), "a.avro")
    head = body[: body.index(b"0123456789abcdef") + 16].replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x0csnappy")
    parts = [head]
    for block in container.blocks:
        plain = body[block.start : block.end]
        packed = pa.compress(plain, codec="snappy", asbytes=True) + zlib.crc32(plain).to_bytes(4, "big")
        parts += [zigzag(block.count), zigzag(len(packed)), packed, b"0123456789abcdef"]
    return b"".join(parts)


def zigzag(value: int) -> bytes:
    value, out = value << 1, bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@given(st.integers(0, 2**32))
def test_both_avro_readers_find_the_same_in_a_garbled_file(seed: int) -> None:
    """What the fast one takes as proved is what a plain walk finds; it never falls over what is no row."""
    random = Random(seed)
    body = bytearray(GARBLED)
    head = body.index(b"0123456789abcdef") + 16
    for _ in range(random.choice([1, 1, 3])):
        at, size = random.randrange(head, len(body)), random.randrange(1, 5)
        damage = random.choice(["one", "ones", "less", "more", "cut"])
        if damage == "one":
            body[at] = random.randrange(256)
        elif damage == "ones":
            body[at : at + size] = b"\xff" * size
        elif damage == "less":
            del body[at : at + size]
        elif damage == "more":
            body[at:at] = random.randbytes(size)
        else:
            del body[max(at, head + 1) :]
    fast, slow = (read_avro(pa.py_buffer(bytes(body)), "a.avro", way) for way in (True, False))
    assert repr(by_row(fast)) == repr(by_row(slow))
    assert fast.bad == slow.bad


def by_row(file: AvroFile) -> dict[int, Any]:
    return {part.row + at: row for part in file.stored for at, row in enumerate(part.columns.to_pylist())}


def test_ordinary_files_are_read_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "ROWS_AT_ONCE", 100)
    kinds = [("id", "long"), ("name", "string"), ("at", MICROS), ("zone", TIMESTAMP_TZ), ("also", "timestampTz")]
    kinds.append(("list", nested("list", "long")))
    zone = {"timestamp": 7, "offset": 3_600_000}
    rows: list[dict[str, Any]] = [
        {
            "id": at,
            "name": "ü" * (at % 90),
            "at": -at,
            "zone": None,
            "also": zone,
            "list": [at] * (at % 4) if at % 3 else None,
        }
        for at in range(500)
    ]
    lists = [None if row["list"] is None else leaf(row["list"]) for row in rows]
    events = [event(at, row | {"list": value}) for at, (row, value) in enumerate(zip(rows, lists, strict=True))]
    body = avro(schema(kinds), events, interval=4_000)
    container = open_container(pa.py_buffer(body), "a.avro")
    assert len(container.blocks) > 10
    proved, doubted = lanes.read_lanes(container.data, container.blocks, parse(container.schema))
    assert not doubted
    assert [row["payload"] for part in proved for row in part.columns.to_pylist()] == rows


def test_columns_full_of_uuids_do_not_confuse_the_fast_reader() -> None:
    """Rows are found by the shape of their own uuid; here each row holds two more."""
    kinds = [("id", "string"), ("other", "string")]
    uuids = [f"{at:08x}-46aa-451b-b315-c2d400000001" for at in range(300)]
    events = [event(at, {"id": uuid, "other": uuid}) for at, uuid in enumerate(uuids)]
    whole = schema(kinds)
    for plain in (True, False):
        if not plain:  # without unions and behind a number of several bytes they look exactly as a row's beginning
            whole["fields"][-1]["type"]["fields"] = [
                {"name": "id", "type": "string"}, {"name": "n", "type": "long"}, {"name": "other", "type": "string"}
            ]  # fmt: skip
            events = [event(at, {"id": uuid, "n": 2**40, "other": uuid}) for at, uuid in enumerate(uuids)]
        container = open_container(pa.py_buffer(avro(whole, events)), "a.avro")
        proved, doubted = lanes.read_lanes(container.data, container.blocks, parse(container.schema))
        assert not doubted
        assert [row["payload"]["id"] for part in proved for row in part.columns.to_pylist()] == uuids


def test_rows_that_begin_in_another_way_are_read_all_the_same() -> None:
    events = [event(at, uuid=f"no uuid {at}" if at % 3 else event(at)["uuid"]) for at in range(30)]
    (found,) = read_events(avro(schema([("id", "long")]), events), "a.avro", Reading()).events
    assert found.rows.column("id").to_pylist() == list(range(30))


def test_lists_in_several_blocks_are_read_all_the_same() -> None:
    """Avro allows a list to be cut into blocks, with or without their size."""
    body = avro(schema([("id", "long")]), [event(0)])
    keys = body.index(b"\x02\x04id\x00")  # one block of one text: primary_keys
    longer = body[:keys] + b"\x01\x06\x04id\x02\x04no\x00" + body[keys + 5 :]  # -1 items in 3 bytes, then 1 item
    at = body.index(b"0123456789abcdef") + 16
    size = len(body) - at - 3 - 16
    longer = longer[:at] + zigzag(1) + zigzag(size + 5) + longer[at + 1 + len(zigzag(size)) :]
    (found,) = read_avro(pa.py_buffer(longer), "a.avro").stored
    assert found.columns.to_pylist()[0]["source_metadata"]["primary_keys"] == ["id", "no"]


# -- each unified type ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "type_", "expected"),
    [
        ("boolean", True, "bool", True),
        ("int", -5, "int32", -5),
        ("long", 2**62, "int64", 2**62),
        ("float", 1.5, "float", 1.5),
        ("double", 0.1, "double", 0.1),
        ("string", "ü", "string", "ü"),
        ("bytes", b"\xde\xad", "binary", b"\xde\xad"),
        (decimal(10, 2), number(-12345), "decimal128(10, 2)", Decimal("-123.45")),
        (decimal(38, 0), number(-(10**37)), "decimal128(38, 0)", Decimal(-(10**37))),
        (decimal(65, 30), number(-15 * 10**29), "string", "-1.500000000000000000000000000000"),
        ({"type": "string", "logicalType": "number"}, "12345678901234567890", "string", "12345678901234567890"),
        ({"type": "string", "logicalType": "json"}, '{"a": 1.50}', "string", '{"a": 1.50}'),
        (DAY, -1, "date32[day]", date(1969, 12, 31)),
        (MICROS, -1, INSTANT, BEFORE_1970),
        (MILLIS, 1, INSTANT, datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ({"type": "long", "logicalType": "timestamp-nanos"}, -1, INSTANT, BEFORE_1970),
        (DATETIME, {"date": 1, "time": 1}, INSTANT, datetime(1970, 1, 2, 0, 0, 0, 1, UTC)),
        (TIMESTAMP_TZ, {"timestamp": 0, "offset": 3_600_000}, INSTANT, datetime(1970, 1, 1, tzinfo=UTC)),
        (TIME, 25_500_250_000, "string", "07:05:00.25"),
        ({"type": "long", "logicalType": "time-interval-micros"}, -3_020_399_000_000, "string", "-838:59:59"),
        ({"type": "int", "logicalType": "time-millis"}, 1, "string", "00:00:00.001"),
        (TIME_TZ, {"time": 25_500_000_000, "offset": -5_400_000}, "string", "07:05:00-01:30"),
        (INTERVAL, {"months": 14, "hours": -3, "micros": 1_500_000}, "string", "P14MT-3H1.5S"),
        (GEOMETRY, {"value": b"\x01", "srid": 4326, "type": "POINT"},
         "struct<value: binary, srid: int32, type: string>", {"value": b"\x01", "srid": 4326, "type": "POINT"}),
        (record("varchar", [("value", "string"), ("length", "int")]), {"value": "IT", "length": 2}, "string", "IT"),
    ],
)  # fmt: skip
def test_a_unified_type_in_avro_becomes_a_column(kind: Any, value: Any, type_: str, expected: Any) -> None:
    found = read(kind, [None, value, None])
    assert str(found.events[0].rows.schema.field("v").type) == type_
    assert column(found) == [None, expected, None]


def test_an_unsupported_column_is_left_out() -> None:
    whole = schema([("id", "long"), ("shape", ["null"]), ("range", [{"type": "null", "logicalType": "unsupported"}])])
    (found,) = read_events(avro(whole, [event(0, {"id": 1, "shape": None, "range": None})]), "a", Reading()).events
    assert found.rows.column_names == ["id", METADATA]


def test_a_logical_type_on_the_field_counts_as_one_on_its_type() -> None:
    """Datastream's documentation writes it on the field; so does a real file of 2020."""
    whole = schema([("id", "long"), ("v", "long")])
    whole["fields"][-1]["type"]["fields"][1] |= {"logicalType": "timestamp-micros"}
    (found,) = read_events(avro(whole, [event(0, {"id": 1, "v": 0})]), "a", Reading()).events
    assert found.rows.column("v").to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize(("precision", "size"), [(1, 1), (2, 1), (9, 4), (18, 8), (19, 9), (20, 9), (38, 16)])
def test_decimals_of_every_width_keep_their_value(precision: int, size: int) -> None:
    values = [0, 1, -1, 10**precision - 1, 1 - 10**precision, 7 * 10 ** (precision - 1)]
    texts = pa.array([*map(number, values), b"", number(values[3]).rjust(17, b"\0"), None], pa.binary())
    array, bad = decimals(texts, precision, 0)
    assert bad is None or not bad.any()
    assert array.to_pylist() == [*map(Decimal, values), Decimal(0), Decimal(values[3]), None]
    assert decimals(pa.array([number(10**precision)]), precision, 0)[1].tolist() == [True]  # type: ignore[union-attr]


@pytest.mark.parametrize("precision", [38, 37, 20])
@pytest.mark.parametrize("number", [-(2**127), 2**127 - 1, 10**38, -(10**38)])
def test_a_number_of_39_digits_is_no_decimal(precision: int, number: int) -> None:
    array, bad = decimals(pa.array([number.to_bytes(16, "big", signed=True), b"\x01"]), precision, 0)
    assert bad is not None
    assert (array.to_pylist(), bad.tolist()) == ([None, Decimal(1)], [True, False])


def test_a_decimal_too_large_for_its_type_sets_its_event_aside() -> None:
    found = read(decimal(4, 2), [number(1234), number(123_456)])
    assert found.events[0].rows.column("v").to_pylist() == [Decimal("12.34")]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, Reason.VALUE_OUT_OF_RANGE)]
    assert json.loads(found.bad[0].raw)["payload"]["id"] == 1


def test_wide_decimals_may_be_decimals_where_they_fit() -> None:
    """MySQL allows 65 digits, Delta 38."""
    found = read(decimal(65, 30), [number(10**30), number(10**50)], Reading(wide_decimals="decimal"))
    assert str(found.events[0].rows.schema.field("v").type) == "decimal128(38, 30)"
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, Reason.VALUE_OUT_OF_RANGE)]


def test_infinity_of_postgresql_is_null_and_the_times_around_it_are_exact() -> None:
    """DataflowTemplates#2203, #2213: sentinels, the year 1, times before 1970."""
    year_1 = -62_135_596_800_000_000
    found = read(MICROS, [LAST_US, FIRST_US, year_1, -1])
    assert column(found) == [
        None,
        None,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    ]


def test_infinity_may_set_its_event_aside_or_be_text() -> None:
    found = read(MICROS, [LAST_US, 0], Reading(out_of_range="reject"))
    assert [(bad.row, bad.reason) for bad in found.bad] == [(0, Reason.VALUE_OUT_OF_RANGE)]
    as_text = Reading(columns={"shop.orders.v": "string"})
    assert column(read(MICROS, [LAST_US, FIRST_US, 0], as_text)) == [
        "infinity", "-infinity", "1970-01-01 00:00:00.000000"
    ]  # fmt: skip


@pytest.mark.parametrize("item", ["int", "string", {"type": "string", "logicalType": "json"}, DAY, "bytes"])
def test_arrays_of_postgresql_are_flat_and_keep_empty_ones_and_nulls(item: Any) -> None:
    """DataflowTemplates#2169, #2174: empty arrays and arrays of json and uuid became null."""
    value: Any = {"int": 1, "string": "a", "bytes": b"a"}.get(str(item), 0 if item is DAY else "{}")
    known: Any = date(1970, 1, 1) if item is DAY else value
    flat = [leaf([]), None, leaf([value, None])]
    expected = [[], None, [known, None]]
    assert column(read(nested("v", item), flat)) == expected
    deep = leaf([[value, None], [value, None]])
    assert column(read(nested("v", item), [*flat, deep])) == [*expected, [known, None, known, None]]


def test_bit_strings_and_timetz_and_intervals_are_kept() -> None:
    """DataflowTemplates#4095, #3133: silently null."""
    assert one("bytes", b"0101") == b"0101"
    assert one(TIME_TZ, {"time": 0, "offset": 0}) == "00:00:00+00:00"
    assert one(INTERVAL, {"months": 0, "hours": 0, "micros": 0}) == "PT0S"
    assert one(INTERVAL, {"months": 0, "hours": 0, "micros": -250_000}) == "PT-0.25S"


def test_not_a_number_and_infinite_numbers_are_kept() -> None:
    values = column(read("double", [math.nan, math.inf, -math.inf]))
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf]
    assert one({"type": "string", "logicalType": "number"}, "NaN") == "NaN"


@pytest.mark.parametrize(
    ("kind", "value", "wanted", "expected"),
    [
        (MICROS, 86_400_000_000, "date", date(1970, 1, 2)),  # MySQL's DATE is a time at midnight
        (MICROS, -1, "date", date(1969, 12, 31)),
        (MICROS, 1, "timestamp_ntz", datetime(1970, 1, 1, 0, 0, 0, 1)),
        (TIME, 1, "long", 1),
        (TIMESTAMP_TZ, {"timestamp": 0, "offset": 3_600_000}, "string", "1970-01-01 01:00:00.000000+01:00"),
        ("float", 1.2000000476837158, "string", "1.2"),  # DataflowTemplates 57fc14b17b
        ("float", 1.2000000476837158, "decimal(10,1)", Decimal("1.2")),
        ({"type": "string", "logicalType": "number"}, "18446744073709551615", "decimal(20, 0)", Decimal(2**64 - 1)),
        ("string", "6269", "binary", b"bi"),  # MySQL's blobs are hex
        (decimal(65, 30), number(10**30), "decimal(38,10)", Decimal("1.0000000000")),
        ("int", 1, "boolean", True),
        ("int", 1, "long", 1),
        (GEOMETRY, {"value": b"\x01", "srid": 1, "type": "P"}, "string", '{"value": "01", "srid": 1, "type": "P"}'),
    ],
)
def test_a_setting_gives_a_column_another_type(kind: Any, value: Any, wanted: str, expected: Any) -> None:
    for key in ("shop.orders.v", "*.v"):
        assert one(kind, value, Reading(columns={key: wanted})) == expected


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("string", "x", "long"),
        ("string", "0", "binary"),
        ("string", "NaN", "decimal(10,2)"),
        ("string", "1.234", "decimal(10,2)"),
        ("long", 2**40, "integer"),
    ],
)
def test_a_value_that_the_wanted_type_can_not_hold_sets_its_event_aside(kind: Any, value: Any, wanted: str) -> None:
    found = read(kind, [None, value], Reading(columns={"*.v": wanted}))
    assert found.events[0].rows.column("v").to_pylist() == [None]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, Reason.VALUE_OUT_OF_RANGE)]


def test_a_type_that_is_none_is_refused_with_the_types_there_are() -> None:
    assert named_type("decimal(39,0)") is None and named_type("decimal(3,4)") is None and named_type("text") is None
    with pytest.raises(ValueError, match=r"a\.b\.c: 'text' is no column type; types are string"):
        Reading(columns={"a.b.c": "text"})
    with pytest.raises(ValueError, match="json_numbers: 'number' is no column type"):
        Reading(json_numbers="number")


# -- JSON ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "token", "expected"),
    [
        ("boolean", "false", False),
        ("int", "-5", -5),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", '"NaN"', "nan"),
        ("float", "1.5", 1.5),
        ("string", r'"a\n\u00fc"', "a\nü"),
        ("string", "12", "12"),
        ("bytes", f'"{base64.b64encode(b"bi").decode()}"', b"bi"),
        (decimal(38, 9), "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        (decimal(10, 2), "2.5", Decimal("2.50")),
        (decimal(10, 2), "1e2", Decimal("100.00")),
        (decimal(65, 30), "1.50", "1.50"),
        ({"type": "string", "logicalType": "number"}, "12345678901234567890.50", "12345678901234567890.50"),
        ({"type": "string", "logicalType": "json"}, '{ "a":2.50 }', '{ "a":2.50 }'),
        ({"type": "string", "logicalType": "json"}, '"text"', '"text"'),
        (DAY, '"1969-12-31"', date(1969, 12, 31)),
        (MICROS, '"2021-05-16T01:13:01.000Z"', datetime(2021, 5, 16, 1, 13, 1, tzinfo=UTC)),
        (MICROS, '"2021-12-25 05:42:04.408"', datetime(2021, 12, 25, 5, 42, 4, 408_000, UTC)),
        (MICROS, '"2025-11-05T18:23:46.698001+01:00"', datetime(2025, 11, 5, 17, 23, 46, 698_001, UTC)),
        (MICROS, '"infinity"', None),
        (MILLIS, '"1970-01-01T00:00:00.001Z"', datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (DATETIME, '"1970-01-02T00:00:00.000001"', datetime(1970, 1, 2, 0, 0, 0, 1, UTC)),
        (TIMESTAMP_TZ, '"1970-01-01T01:00:00.000000+01:00"', datetime(1970, 1, 1, tzinfo=UTC)),
        (TIME, '"07:05:00.250000"', "07:05:00.25"),
        ({"type": "long", "logicalType": "time-interval-micros"}, "-3020399000000", "-838:59:59"),
        ({"type": "long", "logicalType": "time-interval-micros"}, '"-838:59:59"', "-838:59:59"),
        (TIME_TZ, '"07:05:00-01:30"', "07:05:00-01:30"),
        (INTERVAL, '"P1Y2M3DT4H5M6.5S"', "P14MT76H306.5S"),
        (GEOMETRY, '{"value":"AQ==","srid":4326,"type":"POINT"}', {"value": b"\x01", "srid": 4326, "type": "POINT"}),
        (nested("v", "int"), "[[1,null],[2,3]]", [1, None, 2, 3]),
        (nested("v", {"type": "string", "logicalType": "json"}), '[{"a": 1}, null]', ['{"a": 1}', None]),
        (nested("v", "string"), "[]", []),
        (nested("v", decimal(12, 3)), "[1234, 5678]", [Decimal(1234), Decimal(5678)]),
        (nested("v", decimal(9, 3)), '[[12.5], [-0.001, null], ["1e2"]]', [12.5, Decimal("-0.001"), None, 100]),
        (nested("v", decimal(40, 1)), f"[{'1' * 39}.5]", [f"{'1' * 39}.5"]),
        (record("r", [("d", decimal(12, 3)), ("t", DAY)]), '{"d": 1234, "t": 0}', {"d": 1234, "t": date(1970, 1, 1)}),
        (MILLIS, "1000", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (DAY, '"20211225"', date(2021, 12, 25)),
        (MICROS, '"20211225"', datetime(2021, 12, 25, tzinfo=UTC)),
        (DAY, "18000", date(2019, 4, 14)),
        (TIMESTAMP_TZ, "3600000000", datetime(1970, 1, 1, 1, tzinfo=UTC)),
        (DATETIME, "-3600000000", datetime(1969, 12, 31, 23, tzinfo=UTC)),
        (DAY, '"0001-01-01"', date(1, 1, 1)),
        (DAY, '"9999-12-31"', date(9999, 12, 31)),
    ],
)  # fmt: skip
def test_a_unified_type_in_json_is_read_by_the_schema_file(kind: Any, token: str, expected: Any) -> None:
    whole = json.dumps(schema([("id", "long"), ("v", kind)]))
    lines = json_lines([event(0, {"id": 0, "v": "@"}), event(1, {"id": 1, "v": None}), event(2, {"id": 2})])
    found = read_events(lines.replace(b'"@"', token.encode()), "a.jsonl", Reading(), whole)
    value, *rest = column(found)
    assert str(value) == expected if expected == "nan" else value == expected
    assert rest == [None, None]


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        (DAY, '"today"'),
        (MICROS, '"now"'),
        (MICROS, '"NaT"'),
        (DAY, '"5874897-13-31"'),
        (nested("v", decimal(12, 3)), "[1.0005]"),
        (nested("v", decimal(12, 3)), '["NaN"]'),
        (nested("v", decimal(12, 3)), "[1e999999999]"),
        ("long", '"x"'),
        ("long", "1.5"),
        ("int", "3000000000"),
        (MICROS, '"soon"'),
        (DAY, '"2021-02-30"'),
        ("boolean", '"maybe"'),
        (INTERVAL, '"3 days"'),
        (TIME, '"7"x'),
        ("bytes", '"*"'),
        (nested("v", "int"), "3"),
        (decimal(4, 2), "1.005"),
        (decimal(4, 2), "1000"),
    ],
)
def test_a_json_value_that_its_type_does_not_allow_sets_its_event_aside(kind: Any, token: str) -> None:
    whole = json.dumps(schema([("id", "long"), ("v", kind)]))
    lines = json_lines([event(0, {"id": 0, "v": None}), event(1, {"id": 1, "v": "@"})])
    found = read_events(lines.replace(b'"@"', token.encode()), "a.jsonl", Reading(), whole)
    assert [len(one.rows) for one in found.events] == [1]
    assert [bad.row for bad in found.bad] == [1]


def test_whole_numbers_fit_into_a_decimal_that_has_room_for_them() -> None:
    asked = Reading(columns={"*.v": "decimal(5,2)"})
    found = read("long", [5, -999, None, 1000], asked)
    assert found.events[0].rows.column("v").to_pylist() == [Decimal(5), Decimal(-999), None]
    assert [bad.row for bad in found.bad] == [3]


NO_DATES = [
    *("infinity", "-infinity", "", "0000-00-00", "2024-00-10", "5874897-12-31", "10000-01-01", "-0044-03-15"),
    *("0044-03-15 BC", "0001-12-31 BC", "0000-12-31", "294276-12-31"),
]
NO_TIMES = [
    *NO_DATES,
    "0000-00-00 00:00:00",
    "0044-03-15T00:00:00 BC",
    "294276-12-31T23:59:59.999999Z",
    "10000-01-02 00:00:00+01",
]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [(DAY, NO_DATES), (MICROS, NO_TIMES), (MILLIS, NO_TIMES), (TIMESTAMP_TZ, NO_TIMES), (DATETIME, NO_TIMES),
     ({"type": "long", "logicalType": "timestamp-nanos"}, NO_TIMES)],
)  # fmt: skip
def test_a_json_date_of_no_calendar_is_null_and_counted_or_sets_its_event_aside(kind: Any, texts: list[str]) -> None:
    whole = json.dumps(schema([("id", "long"), ("v", kind)]))
    lines = json_lines([event(at, {"id": at, "v": text}) for at, text in enumerate(texts)])
    found = read_events(lines, "a.jsonl", Reading(), whole)
    assert column(found) == [None] * len(texts)
    assert found.beyond == {"shop.orders.v": len(texts)}
    rejected = read_events(lines, "a.jsonl", Reading(out_of_range="reject"), whole)
    assert [(bad.row, bad.reason) for bad in rejected.bad] == [
        (n, Reason.VALUE_OUT_OF_RANGE) for n in range(len(texts))
    ]


DAY_10000, DAY_0 = 2_932_897, -719_163


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (DAY, [2**31 - 1, -(2**31), DAY_10000, DAY_0]),
        (MICROS, [2**63 - 1, -(2**63), DAY_10000 * 86_400_000_000, DAY_0 * 86_400_000_000]),
        (MILLIS, [2**63 - 1, -(2**63), DAY_10000 * 86_400_000, DAY_0 * 86_400_000]),
        (DATETIME, [{"date": n, "time": t} for n in (2**31 - 1, -(2**31), DAY_10000) for t in (0, 2**63 - 1)]),
        (TIMESTAMP_TZ, [{"timestamp": n, "offset": 3_600_000} for n in (2**63 - 1, -(2**63))]),
    ],
)
def test_a_time_that_readers_in_python_can_not_hold_is_never_written(kind: Any, values: list[Any]) -> None:
    """The years 1 to 9999: beyond them nobody can collect a table any more."""
    assert column(read(kind, values)) == [None] * len(values)
    assert len(read(kind, values, Reading(out_of_range="reject")).bad) == len(values)
    assert column(read(nested("v", kind), [leaf(values)])) == [[None] * len(values)]


def test_parquet_times_that_readers_in_python_can_not_hold_are_null() -> None:
    far = [2**31 - 1, -(2**31), DAY_10000]
    values = {
        "d": pa.array(far, pa.int32()).cast(pa.date32()),
        **{unit: pa.array([2**62, -(2**62), 2**62], pa.timestamp(unit, "UTC")) for unit in ("ms", "us")},
    }
    source = pa.array(
        [{"table": "orders", "database": "shop", "primary_keys": [], "log_file": "b.1", "log_position": 1}] * 3
    )
    payload = pa.StructArray.from_arrays(list(values.values()), names=list(values))
    table = pa.table({"source_metadata": source, "payload": payload, "read_method": ["mysql-cdc-binlog"] * 3})
    found = read_events(parquet(table), "a.parquet", Reading())
    assert not found.bad
    assert [found.events[0].rows.column(name).to_pylist() for name in values] == [[None] * 3] * 3
    assert found.beyond == {f"shop.orders.{name}": 3 for name in values}


@pytest.mark.parametrize("wanted", ["date", "timestamp", "timestamp_ntz"])
def test_a_text_of_no_calendar_is_null_in_a_column_that_is_asked_to_be_a_time(wanted: str) -> None:
    asked = Reading(columns={"*.v": wanted})
    zone = "T00:00:00Z" if wanted == "timestamp" else ""
    values = column(read("string", [f"0000-01-01{zone}", f"2021-12-25{zone}"], asked))
    assert values[0] is None and values[1] is not None


def test_json_without_a_schema_file_loses_nothing() -> None:
    tokens = {
        "n": "12345678901234567890.50",
        "i": "7",
        "t": '"2021-05-16"',
        "o": '{"a": 2.50}',
        "b": "true",
        "l": "[1, 2]",
    }
    line = event(0, {"id": 0} | {name: f"@{name}" for name in tokens})
    body = json_lines([line])
    for name, token in tokens.items():
        body = body.replace(f'"@{name}"'.encode(), token.encode())
    (found,) = read_events(body, "a.jsonl", Reading()).events
    (row,) = found.rows.drop_columns([METADATA]).to_pylist()
    assert row == {"id": 0, "i": 7, "b": True, "t": "2021-05-16", "n": tokens["n"], "o": tokens["o"], "l": tokens["l"]}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [("string", ["1.50", "2"]), ("double", [1.5, 2.0]), ("decimal(10,2)", [Decimal("1.50"), Decimal("2.00")])],
)
def test_json_numbers_with_a_fraction_have_the_type_of_the_setting(numbers: str, expected: list[Any]) -> None:
    body = json_lines([event(0, {"id": 0, "v": 1.25}), event(1, {"id": 1, "v": 2})]).replace(b"1.25", b"1.50")
    assert column(read_events(body, "a.jsonl", Reading(json_numbers=numbers))) == expected


def test_bytes_in_json_may_be_hex_by_setting() -> None:
    whole = json.dumps(schema([("id", "long"), ("v", "bytes")]))
    body = json_lines([event(0, {"id": 0, "v": "6269"})])
    assert column(read_events(body, "a.jsonl", Reading(json_bytes="hex"), whole)) == [b"bi"]


def test_a_broken_schema_file_is_told() -> None:
    with pytest.raises(FileBroken) as caught:
        read_events(json_lines([event(0)]), "a.jsonl", Reading(), "{")
    assert caught.value.parameters["path"] == "a.jsonl"


# -- Parquet -------------------------------------------------------------------------------------------------------


def test_parquet_of_the_avro_shape_gives_the_same_columns() -> None:
    payload = {
        "id": pa.array([1, None], pa.int64()),
        "small": pa.array([1, None], pa.int16()),
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "wide": pa.array([Decimal("1.5"), None], pa.decimal256(65, 30)),
        "at": pa.array([1, None], pa.timestamp("ms", "UTC")),
        "day": pa.array([date(2020, 1, 1), None]),
        "clock": pa.array([25_500_250_000, None], pa.time64("us")),
        "zone": pa.array([{"timestamp": 0, "offset": 1}, None],
                         pa.struct({"timestamp": pa.timestamp("us", "UTC"), "offset": pa.int32()})),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "text": pa.array(["a", None]).dictionary_encode(),
        "gone": pa.nulls(2),
    }  # fmt: skip
    plain = event(0)
    table = pa.table(
        {
            "uuid": [plain["uuid"]] * 2,
            "source_timestamp": pa.array([plain["source_timestamp"]] * 2, pa.timestamp("ms", "UTC")),
            "sort_keys": pa.array(
                [[{"member0": None, "member1": 5}, {"member0": "f", "member1": None}], []],
                pa.list_(pa.struct({"member0": pa.string(), "member1": pa.int64()})),
            ),
            "source_metadata": pa.array([plain["source_metadata"] | {"primary_keys": []}] * 2),
            "payload": pa.StructArray.from_arrays(list(payload.values()), names=list(payload)),
        }
    )
    (found,) = read_events(parquet(table), "a.parquet", Reading()).events
    first, second = found.rows.to_pylist()
    metadata = first.pop(METADATA)
    assert metadata["source_timestamp"] == plain["source_timestamp"]
    assert metadata["sort_keys"] == ["5", "f"]
    assert metadata["source"]["log_position"] == 4000
    assert first == {
        "id": 1, "small": 1, "big": "18446744073709551615", "price": Decimal("1.50"),
        "wide": "1.500000000000000000000000000000", "at": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC),
        "day": date(2020, 1, 1), "clock": "07:05:00.25", "zone": datetime(1970, 1, 1, tzinfo=UTC), "list": [1, None],
        "text": "a",
    }  # fmt: skip
    del second[METADATA]
    assert set(second.values()) == {None}


def test_a_cut_parquet_file_is_broken_as_a_whole() -> None:
    table = pa.table({"uuid": ["a"], "source_metadata": [{"table": "t"}], "payload": [{"id": 1}]})
    with pytest.raises(FileBroken):
        read_events(parquet(table)[:-8], "a.parquet", Reading())
