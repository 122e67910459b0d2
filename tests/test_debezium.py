"""Debezium's messages to events: tables, keys, kinds of change, types, and what is set aside."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from distributary.audit.judge.likeness import same
from distributary.changes.debezium.heads import PLAIN, Form, Message, Record
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.source_table import routes_of
from distributary.changes.digits import unchanged_columns
from distributary.changes.key_text import key_texts
from distributary.changes.model import METADATA, Events, FileEvents, Kind, Reading
from distributary.errors import Reason
from distributary.tables.evolve import Policy, evolve
from tests.debezium_messages import base64_of, change, flattened, key_of, named, schema_of, text, tombstone

KINDS = {"id": "int32", "name": "string"}
PLACEHOLDER = "__debezium_unavailable_value"


def read(*messages: Message, form: Form = PLAIN, **reading: Any) -> FileEvents:
    return read_messages(messages, Reading(**reading), form)


def only(found: FileEvents) -> Events:
    assert found.bad == []
    (events,) = found.events
    return events


def rows(found: FileEvents) -> list[dict[str, Any]]:
    """The rows of all events, in the order of the messages, without metadata."""
    placed = [
        (number, {name: value for name, value in row.items() if name != METADATA})
        for events in found.events
        for number, row in zip(events.numbers.to_pylist(), events.rows.to_pylist(), strict=True)
    ]
    return [row for _, row in sorted(placed, key=lambda one: one[0])]


def metadata(found: FileEvents) -> dict[str, Any]:
    (one,) = only(found).rows.column(METADATA).to_pylist()
    return dict(one)


def value_of(kind: Any, value: Any) -> Any:
    """A value of a column whose type the schema gives."""
    (row,) = rows(read(change("c", {"id": 1, "v": value}, kinds={"id": "int32", "v": kind})))
    return row["v"]


# -- tables, keys and kinds of change ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector", "kind", "route"),
    [
        ("mysql", Kind.MYSQL, "shop.orders"),
        ("mariadb", Kind.MYSQL, "shop.orders"),
        ("postgresql", Kind.POSTGRESQL, "shop.public.orders"),
        ("sqlserver", Kind.SQLSERVER, "shop.dbo.orders"),
        ("oracle", Kind.ORACLE, "XE.HR.orders"),
        ("vitess", Kind.GENERIC, "shop.orders"),
    ],
)
def test_a_change_names_its_table_and_its_key(connector: str, kind: Kind, route: str) -> None:
    events = only(read(change("c", {"id": 7, "name": "a"}, connector=connector, kinds=KINDS)))
    assert (events.table.kind, events.table.route, events.keys) == (kind, route, ("id",))
    assert events.rows.select(["id", "name"]).schema == pa.schema([("id", pa.int32()), ("name", pa.string())])


@pytest.mark.parametrize(
    ("op", "change_type", "deleted", "backfill"),
    [
        ("c", "INSERT", False, False),
        ("u", "UPDATE", False, False),
        ("d", "DELETE", True, False),
        ("r", "READ", False, True),
    ],
)
def test_each_op_has_its_kind_of_change(op: str, change_type: str, deleted: bool, backfill: bool) -> None:
    found = metadata(read(change(op, {"id": 1, "name": "a"}, kinds=KINDS)))
    assert (found["change_type"], found["is_deleted"], found["is_backfill"]) == (change_type, deleted, backfill)


@pytest.mark.parametrize("snapshot", ["true", "first", "last", "first_in_data_collection", "incremental"])
def test_a_row_of_a_snapshot_is_backfilled_whatever_its_mark(snapshot: str) -> None:
    assert metadata(read(change("r", {"id": 1, "name": "a"}, snapshot=snapshot)))["is_backfill"]


def test_both_halves_of_a_key_change_are_known_by_their_headers() -> None:
    left = change("d", {"id": 1, "name": "a"}, headers=["__debezium.newkey"])
    taken = change("c", {"id": 2, "name": "a"}, headers=["__debezium.oldkey"], offset=1)
    kinds = [row["change_type"] for row in only(read(left, taken)).rows.column(METADATA).to_pylist()]
    assert kinds == ["UPDATE-DELETE", "UPDATE-INSERT"]


def test_a_tombstone_behind_its_delete_says_nothing_more() -> None:
    delete = change("d", {"id": 1, "name": None}, kinds=KINDS)
    found = read(delete, tombstone(delete))
    assert (len(rows(found)), found.skipped, found.bad) == (1, 1, [])


def test_a_delete_without_the_row_before_it_is_known_by_its_key() -> None:
    whole = change("d", {"id": 1, "name": "a"}, kinds=KINDS)
    body = json.loads(whole.value or b"")
    body["payload"]["before"] = None
    assert rows(read(whole._replace(value=text(body)))) == [{"id": 1, "name": None}]


def test_a_table_without_a_key_has_events_without_one() -> None:
    assert only(read(change("c", {"id": 1, "name": "a"}, keys=()))).keys == ()


def test_messages_of_two_tables_and_two_schemas_are_told_apart() -> None:
    found = read(
        change("c", {"id": 1, "name": "a"}, kinds=KINDS),
        change("c", {"id": 2, "name": "a", "more": 5}, kinds={**KINDS, "more": "int64"}, offset=1),
        change("c", {"id": 3, "name": "a"}, kinds=KINDS, table="users", offset=2),
    )
    assert [(e.table.table, e.rows.num_rows) for e in found.events] == [("orders", 1), ("orders", 1), ("users", 1)]
    assert len({e.schema_key for e in found.events[:2]}) == 2


def test_a_document_of_mongodb_is_its_id_and_its_text() -> None:
    document = '{"_id": {"$oid": "64"}, "n": 1}'
    key = text({"id": '{"$oid": "64"}'})
    made = change("c", None, connector="mongodb", keys=())
    body = json.loads(made.value or b"")
    insert = made._replace(key=key, value=text({**body, "after": document}))
    delete = made._replace(key=key, value=text({**body, "op": "d"}), record=made.record._replace(offset=2))
    assert rows(read(insert, delete)) == [
        {"_id": '{"$oid": "64"}', "data": document},
        {"_id": '{"$oid": "64"}', "data": None},
    ]
    update = read(made._replace(key=key, value=text({**body, "op": "u", "updateDescription": {}})))
    assert [bad.reason for bad in update.bad] == [Reason.NO_ROW_IMAGE]


# -- values that were not logged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", PLACEHOLDER),
        (named("string", "io.debezium.data.Json"), PLACEHOLDER),
        ("bytes", base64.b64encode(PLACEHOLDER.encode()).decode()),
        ({"type": "array", "items": {"type": "string"}}, [PLACEHOLDER]),
        ({"type": "array", "items": {"type": "int32"}}, list(PLACEHOLDER.encode())),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {PLACEHOLDER: PLACEHOLDER}),
    ],
)
def test_a_value_that_was_not_logged_is_null_and_named_by_the_schema_key(kind: Any, value: Any) -> None:
    kinds = {"id": "int32", "big": kind, "name": "string"}
    events = only(read(change("u", {"id": 1, "big": value, "name": "b"}, connector="postgresql", kinds=kinds)))
    assert events.rows.column("big").null_count == 1
    assert unchanged_columns(events.schema_key) == ["big"]


def test_a_text_that_only_holds_the_placeholder_is_a_value() -> None:
    said = f"see {PLACEHOLDER}"
    assert rows(read(change("u", {"id": 1, "name": said}, kinds=KINDS))) == [{"id": 1, "name": said}]


# -- types -------------------------------------------------------------------------------------------------------------

_T, _C = "io.debezium.time.", "org.apache.kafka.connect.data."
UUID = "0b8f8f0e-52c2-4b55-8dd0-27a1f2a4a1a1"
NOON = datetime(2024, 2, 3, 12, 0, 0, 123456, UTC)
NOON_US = 1_706_961_600_123_456


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return named("bytes", f"{_C}Decimal", scale=str(scale), **{"connect.decimal.precision": str(precision)})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("boolean", True, True),
        ("int8", -5, -5),
        ("int16", 300, 300),
        ("int64", 2**40, 2**40),
        ("double", 2.5, 2.5),
        ("float", 0.5, 0.5),
        ("string", 'a"\\ü', 'a"\\ü'),
        ("bytes", "Af8=", b"\x01\xff"),
        (decimal(12, 3), base64_of(-1500), Decimal("-1.500")),
        (named("bytes", f"{_C}Decimal", scale="2"), base64_of(1234), Decimal("12.34")),
        (decimal(60, 5), base64_of(10**45), "1" + 40 * "0" + ".00000"),
        (named("int32", f"{_T}Date"), 19_756, date(2024, 2, 3)),
        (named("int32", f"{_C}Date"), 19_756, date(2024, 2, 3)),
        (named("string", f"{_T}IsoDate"), "2024-02-03Z", date(2024, 2, 3)),
        (named("int32", f"{_T}Time"), 14_706_500, "04:05:06.5"),
        (named("int32", f"{_C}Time"), 14_706_500, "04:05:06.5"),
        (named("int64", f"{_T}MicroTime"), -3_020_399_500_000, "-838:59:59.5"),
        (named("int64", f"{_T}NanoTime"), 14_706_500_000_000, "04:05:06.5"),
        (named("string", f"{_T}IsoTime"), "04:05:06.5Z", "04:05:06.5Z"),
        (named("string", f"{_T}ZonedTime"), "04:05:06.5Z", "04:05:06.5Z"),
        (named("int64", f"{_T}Timestamp"), NOON_US // 1000, NOON.replace(microsecond=123000)),
        (named("int64", f"{_C}Timestamp"), NOON_US // 1000, NOON.replace(microsecond=123000)),
        (named("int64", f"{_T}MicroTimestamp"), NOON_US, NOON),
        (named("int64", f"{_T}NanoTimestamp"), NOON_US * 1000 + 7, NOON),
        (named("int64", f"{_T}MicroTimestamp"), 9_223_372_036_825_200_000, None),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T12:00:00.123456Z", NOON),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T14:00:00.123456+02:00", NOON),
        (named("string", f"{_T}IsoTimestamp"), "2024-02-03T12:00:00.123456Z", NOON),
        (named("int32", f"{_T}Year"), 2024, 2024),
        (named("int64", f"{_T}MicroDuration"), 37_091_106_700_000, 37_091_106_700_000),
        (named("string", f"{_T}Interval"), "P1Y2M3DT4H5M6.7S", "P1Y2M3DT4H5M6.7S"),
        (named("string", "io.debezium.data.Enum", allowed="a,b"), "b", "b"),
        (named("string", "io.debezium.data.EnumSet", allowed="x,y"), "x,y", "x,y"),
        (named("string", "io.debezium.data.Json"), '{"a": 1.50}', '{"a": 1.50}'),
        (named("string", "io.debezium.data.Xml"), "<a/>", "<a/>"),
        (named("string", "io.debezium.data.Uuid"), UUID, UUID),
        (named("string", "io.debezium.data.Ltree"), "a.b", "a.b"),
        (named("bytes", "io.debezium.data.Bits", length="10"), "/wE=", b"\x01\xff"),
        (named("bytes", "io.debezium.data.Bits", length="10"), "VA==", b"\0T"),
        (named("bytes", "io.debezium.data.Bits", length="2147483647"), "BQ==", b"\x05"),
        ({"type": "array", "items": {"type": "int32"}}, [1, None, 3], [1, None, 3]),
        ({"type": "array", "items": named("int32", f"{_T}Date")}, [19_756, None], [date(2024, 2, 3), None]),
        ({"type": "array", "items": named("bytes", f"{_C}Decimal", scale="1")}, [base64_of(15)], [Decimal("1.5")]),
        ({"type": "array", "name": "io.debezium.data.FloatVector", "items": {"type": "float"}}, [0.5], [0.5]),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {"a": "b"}, '{"a": "b"}'),
    ],
)  # fmt: skip
def test_a_value_of_each_type_comes_as_the_source_has_it(kind: Any, value: Any, expected: Any) -> None:
    assert value_of(kind, value) == expected
    assert value_of(kind, None) is None


_VARIABLE = schema_of({"scale": "int32", "value": "bytes"}, "io.debezium.data.VariableScaleDecimal")


def test_a_decimal_of_variable_scale_keeps_its_digits() -> None:
    assert value_of(_VARIABLE, {"scale": 6, "value": base64_of(12_345_678_901)}) == "12345.678901"


def test_a_decimal_of_variable_scale_may_have_zeros_before_its_point() -> None:
    assert value_of(_VARIABLE, {"scale": -3, "value": base64_of(5)}) == "5000"
    assert value_of(_VARIABLE, {"scale": -2, "value": base64_of(-5)}) == "-500"


@pytest.mark.parametrize("scale", [200_000_000, -200_000_000])
def test_a_scale_that_no_database_has_sets_its_message_aside_before_it_takes_memory(scale: int) -> None:
    kinds = {"id": "int32", "value": _VARIABLE}
    found = read(change("c", {"id": 1, "value": {"scale": scale, "value": base64_of(5)}}, kinds=kinds))
    assert [bad.reason for bad in found.bad] == [Reason.VALUE_OUT_OF_RANGE]


@pytest.mark.parametrize(
    ("precision", "scale", "text_of_5"), [(25, -2, "500"), (38, -2, "500"), (5, 10, "0.0000000005")]
)
def test_a_decimal_that_delta_has_no_type_for_is_its_text(precision: int, scale: int, text_of_5: str) -> None:
    assert value_of(decimal(precision, scale), base64_of(5)) == text_of_5


def test_a_point_is_a_struct_of_its_parts() -> None:
    kind = schema_of({"x": "double", "y": "double", "wkb": "bytes", "srid": "int32"}, "io.debezium.data.geometry.Point")
    assert value_of(kind, {"x": 1.0, "y": 2.0, "wkb": "AQE=", "srid": None}) == {
        "x": 1.0,
        "y": 2.0,
        "wkb": b"\1\1",
        "srid": None,
    }


def test_without_a_schema_values_are_what_they_look_like_and_a_setting_makes_dates_of_days() -> None:
    row = {"id": 1, "born": 19_756, "paid": "EjQ=", "on": True, "deep": {"a": 1}}
    found = rows(read(change("c", row), columns={"shop.orders.born": "date"}))
    assert found == [{"id": 1, "born": date(2024, 2, 3), "paid": "EjQ=", "on": True, "deep": '{"a":1}'}]


BIGGEST = 2**64 - 1
"""Of MySQL's BIGINT UNSIGNED."""


def test_without_a_schema_whole_numbers_beyond_bigint_round_neither_themselves_nor_their_neighbours() -> None:
    ids = [2**53, 2**53 + 1, BIGGEST]
    found = read(*(change("c", {"id": id}, offset=n) for n, id in enumerate(ids)), json_numbers="double")
    assert [row["id"] for row in rows(found)] == ids
    column = pa.schema([only(found).rows.schema.field("id")])
    assert column.field("id").type == pa.decimal128(20, 0)
    bigint = pa.schema([("id", pa.int64())])
    assert evolve(bigint, [column], Policy()).schema == column
    assert evolve(column, [bigint], Policy()).schema == column
    assert key_texts([pa.array([2**53 + 1])])[0] == key_texts([only(found).rows.column("id")])[1]


def test_without_a_schema_whole_numbers_have_up_to_38_digits() -> None:
    numbers = [10**38 - 1, 10**38, 7]
    found = read(
        *(change("c", {"id": n, "v": value}, offset=n) for n, value in enumerate(numbers)), json_numbers="double"
    )
    assert [(event.row, event.reason) for event in found.bad] == [(1, Reason.VALUE_OUT_OF_RANGE)]
    assert rows(found) == [{"id": 0, "v": 10**38 - 1}, {"id": 2, "v": 7}]


def test_without_a_schema_a_whole_number_that_fractions_beside_it_would_round_is_set_aside() -> None:
    numbers = [0.5, 2**53 + 1, 2**53, 123456789012345680000]
    found = read(
        *(change("c", {"id": n, "v": value}, offset=n) for n, value in enumerate(numbers)), json_numbers="double"
    )
    assert [(event.row, event.reason) for event in found.bad] == [(1, Reason.VALUE_OUT_OF_RANGE)]
    assert [row["v"] for row in rows(found)] == [0.5, 2.0**53, 123456789012345680000.0]


@pytest.mark.parametrize(
    "number", [2**53 + 1, BIGGEST, -(2**53) - 1, 10**400], ids=["odd", "uint64", "negative", "huge"]
)
def test_the_judge_does_not_take_a_rounded_number_for_what_was_said(number: int) -> None:
    rounded = float(number) if number < 10**300 else float("inf")
    assert not same(number, rounded)
    assert same(number, Decimal(number))
    assert same(2**53, 2.0**53)
    assert same(123456789012345680000, 123456789012345680000.0)


def test_a_value_that_is_none_of_its_type_sets_its_message_aside_and_no_other() -> None:
    kinds = {"id": "int32", "paid": named("bytes", f"{_C}Decimal", scale="2")}
    bad, good = ({"id": n, "paid": paid} for n, paid in ((1, "no base64!"), (2, base64_of(5))))
    found = read(change("c", bad, kinds=kinds), change("c", good, kinds=kinds, offset=1))
    assert [(event.row, event.reason) for event in found.bad] == [(0, Reason.VALUE_OUT_OF_RANGE)]
    assert rows(found) == [{"id": 2, "paid": Decimal("0.05")}]


_DATE = named("int32", f"{_T}Date")
_STRUCT = schema_of({"f": "int8"}, "shop.Part")


def _list(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind, "optional": True}}


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        (_list("string"), '"1.5"', '["1.5"]'), (_list("string"), "[1.7]", '["a"]'), (_list("string"), '{"a":1}', "[]"),
        (_list("int8"), "[1.7]", "[1]"), (_list("int8"), "[true]", "[1]"), (_list("int8"), '"1"', "[1]"),
        (_list("boolean"), "[1]", "[true]"), (_list("double"), "[true]", "[1.5]"),
        (_list("double"), "[1e400]", '["NaN"]'),
        (_list("float"), "[1e39]", '["Infinity"]'), (_DATE, "1.7", "1"), (_DATE, "true", "1"),
        (named("int64", f"{_T}NanoTime"), "1000.7", "1000"), (named("int64", f"{_T}Timestamp"), "true", "5"),
        (_STRUCT, '{"f":1.7}', '{"f":1}'), (_STRUCT, '{"g":1}', "{}"), (_STRUCT, "[]", '{"f":null}'),
        ("double", "1e400", "1e300"), ("double", "-1e400", '"-Infinity"'), ("float", "1e39", "1e38"),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "double"}}, '{"a":1e400}', '{"a":1.5}'),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "double"}}, '"a"', "{}"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_than_its_schema_says_is_set_aside_and_not_bent(kind: Any, bad: str, good: str) -> None:
    messages = [change("c", {"id": n, "v": "TOKEN"}, kinds={"id": "int32", "v": kind}, offset=n) for n in (0, 1)]
    spelled = [
        message._replace(value=(message.value or b"").replace(b'"TOKEN"', token.encode()))
        for message, token in zip(messages, (bad, good), strict=True)
    ]
    found = read(*spelled)
    assert [(event.row, event.reason) for event in found.bad] == [(0, Reason.VALUE_OUT_OF_RANGE)]
    (row,) = rows(found)
    assert row["id"] == 1
    assert row["v"] is not None


# -- flattened ---------------------------------------------------------------------------------------------------------


def test_a_flattened_row_says_its_change_in_the_fields_that_were_added() -> None:
    row = {"id": 1, "name": "a", "__deleted": "false", "__op": "c", "__lsn": 77, "__source_ts_ms": 5, "__ts_ms": 9}
    found = read(flattened(row, key={"id": 1}, topic="srv.public.orders"), form=Form(flattened=True))
    assert only(found).table.route == "public.orders"
    assert rows(found) == [{"id": 1, "name": "a"}]
    said = metadata(found)
    assert (said["source"]["lsn"], said["source_timestamp"], said["read_timestamp"]) == ("0/4D", 5, 9)


def test_a_flattened_delete_is_rewritten_or_a_tombstone() -> None:
    rewritten = flattened(
        {"id": 1, "name": "a", "__deleted": "true"}, key={"id": 1}, kinds={**KINDS, "__deleted": "string"}
    )
    gone = flattened(None, key={"id": 2}, offset=1, kinds=KINDS)
    found = read(rewritten, gone, form=Form(flattened=True, by_offset=True))
    assert [row["id"] for row in rows(found)] == [1, 2]
    every = [one["is_deleted"] for events in found.events for one in events.rows.column(METADATA).to_pylist()]
    assert every == [True, True]
    assert {events.table.route for events in found.events} == {"shop.orders"}


def test_a_flattened_row_without_a_position_needs_the_order_of_offsets() -> None:
    row = flattened({"id": 1, "name": "a"}, key={"id": 1})
    assert [bad.reason for bad in read(row, form=Form(flattened=True)).bad] == [Reason.BAD_POSITION]
    assert rows(read(row, form=Form(flattened=True, by_offset=True))) == [{"id": 1, "name": "a"}]


# -- what is no change -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {"ts_ms": 1},
        {"status": "BEGIN", "id": "571", "event_count": None, "data_collections": None, "ts_ms": 1},
        {"source": {}, "ts_ms": 1, "databaseName": "shop", "ddl": "CREATE TABLE t (id int)", "tableChanges": []},
        None,
        {"schema": None, "payload": None},
        {"op": "m", "ts_ms": 1, "source": {"connector": "postgresql"}, "message": {"prefix": "p"}, "before": None},
    ],
)
def test_heartbeats_transactions_ddl_and_no_value_are_passed_over(value: dict[str, Any] | None) -> None:
    found = read(Message(Record("srv.x", 0, 0), None, text(value)))
    assert routes_of([text(value)]).passed == 1
    assert (found.events, found.bad, found.skipped) == ([], [], 1)


def spoiled(**parts: Any) -> Message:
    """A change with other parts."""
    made = change("c", {"id": 1, "name": "a"})
    return made._replace(value=text({**json.loads(made.value or b""), **parts}))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(Record("t", 0, 0), None, b"{"), Reason.CORRUPT_EVENT),
        (Message(Record("t", 0, 0), None, b"\xff\xfe"), Reason.CORRUPT_EVENT),
        (Message(Record("t", 0, 0), None, b"[1]"), Reason.CORRUPT_EVENT),
        (Message(Record("t", 0, 0), None, b'{"a":1}'), Reason.CORRUPT_EVENT),
        (Message(Record("t", 0, 0), b"{", b'{"a":1}'), Reason.CORRUPT_EVENT),
        (spoiled(op="x"), Reason.UNKNOWN_CHANGE_TYPE),
        (spoiled(op=7), Reason.UNKNOWN_CHANGE_TYPE),
        (spoiled(after=None), Reason.NO_ROW_IMAGE),
        (spoiled(after={"name": "a"}), Reason.NO_KEY_VALUE),
        (spoiled(source={"connector": "mysql", "file": "b.1", "pos": 1}), Reason.NO_SOURCE_TABLE),
        (spoiled(source={"connector": "mysql", "table": "t"}), Reason.BAD_POSITION),
        (spoiled(source={"connector": "mysql", "table": "t", "file": "b.1", "pos": -1}), Reason.BAD_POSITION),
        (spoiled(source={"connector": "postgresql", "table": "t", "lsn": "x"}), Reason.BAD_POSITION),
        (spoiled(source=None), Reason.NO_SOURCE_TABLE),
        (spoiled(source={"connector": "mysql", "table": "t", "file": "b.1", "pos": True}), Reason.BAD_POSITION),
        (
            spoiled(source={"connector": "mariadb", "table": "t", "gtid": f"0-1-{2**64}", "pos": 1}),
            Reason.BAD_POSITION,
        ),
        (
            spoiled(source={"connector": "oracle", "table": "t", "scn": "7", "rs_id": "0x1.1.ffff", "ssn": 2**62}),
            Reason.BAD_POSITION,
        ),
    ],
)
def test_what_cannot_be_used_is_set_aside_with_its_reason_and_its_bytes(message: Message, reason: Reason) -> None:
    good = change("c", {"id": 1, "name": "a"}, offset=9)
    found = read(message, good)
    assert [(bad.row, bad.reason) for bad in found.bad] == [(0, reason)]
    assert found.bad[0].raw
    assert len(rows(found)) == 1


def test_a_schema_that_is_none_sets_its_own_messages_aside() -> None:
    body = text({"schema": {"type": "struct", "fields": [{"field": "after", "type": "lamp"}]},
                 "payload": json.loads(change("c", {"id": 1, "name": "a"}).value or b"")})  # fmt: skip
    broken = Message(Record("t", 0, 0), key_of({"id": 1}, None), body)
    assert [bad.reason for bad in read(broken).bad] == [Reason.BROKEN_SCHEMA]


@pytest.mark.parametrize("more", [{"ts_ms": True}, {"ts_ms": 2**64 - 1}, {"ts_ms": 2**80}, {"ts_ms": "soon"}])
def test_a_time_that_is_none_is_null(more: dict[str, Any]) -> None:
    flat = flattened({"id": 1, **{f"__{name}": value for name, value in more.items()}}, key={"id": 1})
    for found in (read(spoiled(**more)), read(flat, form=Form(flattened=True, by_offset=True))):
        assert (len(rows(found)), found.bad) == (1, [])


def test_a_change_with_another_in_a_field_of_its_is_of_one_table_alone() -> None:
    body = json.loads(change("c", {"id": 1}, table="a").value or b"")
    inner = json.loads(change("c", {"id": 1}, table="b").value or b"")
    message = Message(Record("t", 0, 0), b'{"id":1}', text({**body, "payload": inner}))
    assert routes_of([message.value or b""]).routes == [read(message).events[0].table.route] == ["shop.a"]
