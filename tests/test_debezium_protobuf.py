"""Debezium's messages in protobuf: what the same messages in JSON say, as far as a converter to protobuf keeps it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.debezium.heads import PLAIN, Form, Message, Record
from distributary.changes.model import FileEvents, Kind
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.messages.protobuf_kinds import kind_of
from distributary.engine.messages.stored_changes import key_writers, value_message
from distributary.errors import Reason
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.schemas.registry.compile import ProtobufSchema, compile_text
from distributary_simulate.change_messages.connect_protobuf_form import ProtobufForm
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.games.events import message_class
from tests import extent
from tests.debezium_columns import history_of, read_columns, said, says_what_json_says, written
from tests.debezium_messages import base64_of, change, flattened, named, schema_of
from tests.test_debezium import KINDS, PLACEHOLDER, decimal
from tests.test_debezium_histories import messages_of
from tests.test_debezium_order import CONNECTORS, STEPS, Step, living, told
from tests.test_debezium_topics import Shop, judged, spoil

_T, _C = "io.debezium.time.", "org.apache.kafka.connect.data."
KEPT = (f"{_C}Decimal", f"{_C}Date", f"{_C}Time", f"{_C}Timestamp", "io.debezium.data.VariableScaleDecimal")
SCHEMAS: dict[str, int] = {}
COMPILED: dict[int, ProtobufSchema] = {}


def register(subject: str, text: str) -> int:
    number = SCHEMAS.setdefault(text, len(SCHEMAS) + 1)
    if number not in COMPILED:
        COMPILED[number] = compile_text(text, id=number)
    return number


def read(messages: Sequence[Message], form: Form = PLAIN) -> FileEvents:
    """The messages are in protobuf."""
    return read_columns(messages, COMPILED, "protobuf", form)


def kept(schema: Any) -> Any:
    """A schema of Connect without the names that a converter to protobuf loses."""
    if isinstance(schema, list):
        return [kept(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: kept(value) for key, value in schema.items()}
    if inner.get("type") != "struct" and inner.get("name") not in KEPT:
        inner.pop("name", None)
    return inner


def poorer(message: Message) -> Message:
    """In JSON, with what a converter to protobuf keeps of the types."""

    def lost(body: bytes | None) -> bytes | None:
        document = None if body is None else json.loads(body)
        if document is None:
            return None
        for image in filter(None, (document["payload"].get(name) for name in ("before", "after"))):
            lists = [field["field"] for field in row_fields(document["schema"]) if field["type"] == "array"]
            image |= {name: [item for item in image[name] or [] if item is not None] for name in lists}
        return json.dumps({**document, "schema": kept(document["schema"])}).encode()

    return message._replace(key=lost(message.key), value=lost(message.value))


def row_fields(schema: Any) -> list[Any]:
    found: list[Any] = next(field["fields"] for field in schema["fields"] if field["field"] in ("before", "after"))
    return found


def same(messages: Sequence[Message], form: Form = PLAIN, nullables: str = "optional") -> list[Any]:
    """Both ways say the same, and this."""
    writer = ProtobufForm(register, nullables)
    by_columns = read([written(writer, message) for message in messages], form)
    return says_what_json_says(by_columns, [poorer(message) for message in messages], form)


@pytest.mark.parametrize("kind", [Kind.MYSQL, Kind.POSTGRESQL, Kind.SQLSERVER, Kind.ORACLE])
@pytest.mark.parametrize("nullables", ["optional", "wrapper"])
def test_a_history_says_in_protobuf_what_it_says_in_json(kind: Kind, nullables: str) -> None:
    assert len(same(history_of(kind, 12, 150), nullables=nullables)) > 100


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", True),
        ("int8", -5),
        ("int16", 300),
        ("int64", 2**40),
        ("float", 0.5),
        ("double", 2.5),
        ("string", 'a"\\ü'),
        ("bytes", "Af8="),
        (decimal(12, 3), base64_of(-1500)),
        (named("bytes", f"{_C}Decimal", scale="2"), base64_of(1234)),
        (decimal(60, 5), base64_of(10**45)),
        (named("int32", f"{_C}Date"), 19_756),
        (named("int32", f"{_C}Date"), -719_162),
        (named("int32", f"{_C}Time"), 14_706_500),
        (named("int64", f"{_C}Timestamp"), 1_706_961_600_123),
        (named("int64", f"{_C}Timestamp"), -1),
        (named("int64", f"{_T}MicroTimestamp"), 1_706_961_600_123_456),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T12:00:00.123456Z"),
        ({"type": "array", "items": {"type": "int32"}}, [1, 3]),
        ({"type": "array", "items": named("int32", f"{_C}Date")}, [19_756, 0]),
        ({"type": "array", "items": decimal(9, 1)}, [base64_of(15), base64_of(-1)]),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {"a": "b"}),
        (schema_of({"scale": "int32", "value": "bytes"}, "io.debezium.data.VariableScaleDecimal"),
         {"scale": 6, "value": base64_of(12_345_678_901)}),
        (schema_of({"x": "double", "wkb": "bytes"}, "io.debezium.data.geometry.Point"), {"x": 1.0, "wkb": "AQE="}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nullables", ["optional", "wrapper"])
def test_a_value_of_each_type_is_what_it_is_in_json(kind: Any, value: Any, nullables: str) -> None:
    kind = kind if isinstance(kind, str) else {**kind, "optional": True}
    rows = [change("c", {"id": 1, "v": value}, kinds={"id": "int32", "v": kind})]
    if not isinstance(kind, dict) or kind["type"] not in ("array", "map"):  # protobuf has no list that is null
        rows.append(change("c", {"id": 2, "v": None}, kinds={"id": "int32", "v": kind}, offset=1))
    same(rows, nullables=nullables)


def test_without_a_word_for_null_it_is_nothing_of_its_type() -> None:
    writer = ProtobufForm(register, "none")
    rows = [
        change("c", {"id": 1, "name": None}, kinds=KINDS),
        change("d", {"id": 2, "name": "x"}, kinds=KINDS, offset=1),
    ]
    found = said(read([written(writer, row) for row in rows]))
    assert [(row["id"], row["name"]) for *_, row in found] == [(1, ""), (2, "x")]


def test_values_that_were_not_logged_and_messages_that_cannot_be_used_are_told_apart() -> None:
    texts = {"type": "array", "items": {"type": "string"}}
    kinds = {"id": "int32", "big": "string", "list": texts}
    big = {"id": 1, "big": PLACEHOLDER, "list": [PLACEHOLDER]}
    messages = [
        change("u", big, connector="postgresql", kinds=kinds),
        change("u", {**big, "big": "said", "list": ["a"]}, connector="postgresql", kinds=kinds, offset=1),
        change("d", {"id": 2, "name": "a"}, kinds=KINDS, offset=2),
        change("t", {"id": 2, "name": "a"}, kinds=KINDS, offset=3),
        change("c", {"id": 2, "name": "a"}, kinds=KINDS, offset=4, file=None),
        change("c", {"id": 2, "name": "a"}, kinds=KINDS, keys=(), offset=5),
        change("d", {"id": 1, "name": "a"}, kinds=KINDS, headers=["__debezium.newkey"], offset=8),
    ]
    found = same(messages)
    assert len(found) == 6


def test_flattened_rows_and_tombstones_are_read_by_offset() -> None:
    kinds = {**KINDS, "__deleted": "string"}
    rows = [
        flattened({"id": n, "name": "a", "__deleted": str(n == 2).lower()}, key={"id": n}, offset=n, kinds=kinds)
        for n in (1, 2)
    ]
    same(rows, Form(flattened=True, by_offset=True))


TWO = """syntax = "proto3"; package shop;
import "confluent/type/decimal.proto"; import "google/type/date.proto"; import "google/type/timeofday.proto";
message Other { int32 x = 1; message Key { int64 id = 1; } }
message Envelope { Row before = 1; Row after = 2; Source source = 3; string op = 4; int64 ts_ms = 5; }
message Source {
  string connector = 1; string db = 2; string table = 3; string file = 4; int64 pos = 5; int64 ts_ms = 6;
}
message Row { int64 id = 1; confluent.type.Decimal sum = 2; google.type.Date day = 3; google.type.TimeOfDay at = 4; }
"""


def two_messages(row: Any) -> FileEvents:
    """A change that is the second message of its schema, and a key that is inside of the first one."""
    schema = compile_text(TWO, id=900)
    COMPILED[900] = schema
    envelope = message_class(TWO, "shop.Envelope")(op="c", ts_ms=5)
    source = {"connector": "mysql", "db": "d", "table": "t", "file": "b.1", "pos": 4, "ts_ms": 5}
    for name, value in source.items():
        setattr(envelope.source, name, value)
    row(envelope.after)
    key = message_class(TWO, "shop.Other.Key")(id=7).SerializeToString()
    message = change("c", {"id": 7})
    value = frame(900, envelope.SerializeToString(), (1,))
    return read([message._replace(key=frame(900, key, (0, 0)), value=value)])


def test_a_message_that_is_not_the_first_of_its_schema_is_read_and_its_decimals_without_a_scale_are_texts() -> None:
    def row(after: Any) -> None:
        after.id = 7
        after.sum.value, after.sum.scale = b"\x0f", 1
        after.day.year, after.day.month, after.day.day = 2024, 2, 29
        after.at.hours, after.at.minutes, after.at.seconds, after.at.nanos = 7, 5, 0, 250_000_000

    found = two_messages(row)
    ((_, table, keys, values),) = said(found)
    assert (table.route, keys) == ("d.t", ("id",))
    day = values["day"].isoformat()
    assert (values["id"], values["sum"], day, values["at"]) == (7, "1.5", "2024-02-29", "07:05:00.25")


@pytest.mark.parametrize("year", [0, -4, 10_000, 2**31 - 1, -(2**31)])
def test_a_day_of_a_year_that_no_table_can_hold_is_null(year: int) -> None:
    def row(after: Any) -> None:
        after.id, after.day.year, after.day.month, after.day.day = 7, year, 2, 28

    found = two_messages(row)
    ((*_, values),) = said(found)
    assert (values["id"], values["day"], found.bad) == (7, None, [])


def test_what_is_no_day_and_no_clock_sets_its_message_aside() -> None:
    def no_day(after: Any) -> None:
        after.id, after.day.year, after.day.month, after.day.day = 7, 2023, 2, 29

    def no_clock(after: Any) -> None:
        after.id, after.at.hours = 7, 25

    for row in (no_day, no_clock):
        assert [bad.reason for bad in two_messages(row).bad] == [Reason.VALUE_OUT_OF_RANGE]


def test_a_decimal_of_another_scale_than_its_schema_says_is_the_same_number_or_set_aside() -> None:
    kinds = {"id": "int32", "v": {**decimal(9, 2), "optional": True}}
    message = written(ProtobufForm(register), change("c", {"id": 1, "v": base64_of(1500)}, kinds=kinds))
    body = message.value or b""
    number = int.from_bytes(body[1:5], "big")
    assert kind_of(COMPILED[number], "0").field("after").field("v").scale == 2  # type: ignore[union-attr]
    for scale, value in ((2, "15.00"), (1, "150.00"), (3, "1.50")):
        moved = message._replace(value=body.replace(b"\x18\x02", bytes([0x18, scale])))
        ((*_, row),) = said(read([moved]))
        assert str(row["v"]) == value
    odd = written(ProtobufForm(register), change("c", {"id": 1, "v": base64_of(1501)}, kinds=kinds))
    odd = odd._replace(value=(odd.value or b"").replace(b"\x18\x02", b"\x18\x03"))
    assert [bad.reason for bad in read([odd]).bad] == [Reason.VALUE_OUT_OF_RANGE]


def test_a_writer_says_which_message_of_its_schema_it_is() -> None:
    keys = pa.array([frame(3, b"x"), frame(3, b"x", (0, 1)), None, b"?"], pa.binary())
    writers = key_writers(keys, "protobuf", pa.array(["0", "2", "1", "0"])).to_pylist()
    assert writers == ["key 3", "key 3 0.1 2", "key  0 1", "key ?"]
    assert [value_message(writer) for writer in [*writers, "0.1"]] == ["0", "2", "1", "0", "0.1"]


class ProtobufShop(Shop):
    """A pipeline of messages in protobuf, with a registry in a folder."""

    def __init__(self, root: Path, tables: dict[str, Any] | None = None, **payload: Any) -> None:
        super().__init__(root, tables)
        given = self.config.model_dump(exclude_unset=True)
        given |= {"payload": {"format": "protobuf", **payload}, "registry": {"path": str(root / "registry")}}
        self.config = Pipeline.model_validate(given)
        self._registry = open_registry(RegistryConfig(path=str(root / "registry")))
        self.form = ProtobufForm(self._register)

    def _register(self, subject: str, text: str) -> int:
        self._registry.set_compatibility(subject, "NONE")
        return self._registry.register(subject, text).schema.id


def test_a_pipeline_of_protobuf_makes_the_tables_of_one_of_json_and_the_judge_finds_what_is_wrong(
    tmp_path: Path,
) -> None:
    tables = tuple(table for table in HistoryPlan().tables if table.kind in (Kind.MYSQL, Kind.POSTGRESQL))
    messages = messages_of(History(HistoryPlan(tables=tables, seed=4)), 240, schemas=True)
    shop, by_json = ProtobufShop(tmp_path / "protobuf"), Shop(tmp_path / "json")
    sent = [written(shop.form, message) for message in messages]
    for begin in (120, 0):
        end = 120 if begin == 0 else len(sent)
        rows_written = shop.take(sent[begin:end]).rows_written
        assert rows_written == by_json.take([poorer(message) for message in messages[begin:end]]).rows_written > 50
    for folder in sorted(path.name for path in (tmp_path / "json" / "lake").iterdir() if not path.name.startswith("_")):
        assert rows_of(shop, folder) == rows_of(by_json, folder), folder
    assert shop.quarantined() == []
    found = judged(shop, sent)
    assert (found.problems, found.notes) == ((), ())
    assert sum(table.rows_compared for table in found.tables) == found.rows_written
    spoil(f"{shop.config.tables.root}/shop_orders", "status", "other")
    assert any("do not have the values" in problem for problem in judged(shop, sent).problems)


def rows_of(shop: Shop, table: str) -> list[Any]:
    rows = [{k: v for k, v in row.items() if k not in ("datastream_metadata", "_origin")} for row in shop.rows(table)]
    return sorted(rows, key=str)


def test_what_is_set_aside_comes_back_by_replay_with_its_header(tmp_path: Path) -> None:
    shop = ProtobufShop(tmp_path, {"max_new_tables": 1})
    first = change("c", {"id": 1, "name": "a"}, kinds=KINDS)
    other = change("c", {"id": 1, "name": "b"}, kinds=KINDS, table="users")
    shop.take([written(shop.form, first), written(shop.form, other)])
    assert [reason for reason, _ in shop.quarantined()] == ["TOO_MANY_ROUTES"]
    assert shop.replay().rows == {"shop.users": 1}
    assert [row["name"] for row in shop.living("shop_users")] == ["b"]


@pytest.mark.parametrize("out_of_range", ["null", "reject"])
def test_a_time_that_no_reader_can_hold_is_null_where_the_pipeline_file_says_so(
    tmp_path: Path, out_of_range: str
) -> None:
    shop = ProtobufShop(tmp_path, out_of_range=out_of_range)
    kinds = {"id": "int32", "at": {"type": "int64", "name": f"{_C}Timestamp", "optional": True}}
    message = change("c", {"id": 1, "at": 2**40 * 1000}, kinds=kinds)
    sent = [written(shop.form, message)]
    shop.take(sent)
    assert judged(shop, sent).problems == ()
    if out_of_range == "null":
        assert shop.quarantined() == []
        assert [(row["id"], row["at"]) for row in shop.living("shop_orders")] == [(1, None)]
    else:
        assert [reason for reason, _ in shop.quarantined()] == ["VALUE_OUT_OF_RANGE"]


@settings(max_examples=extent.either(15, 300))
@given(
    connector=st.sampled_from([c for c in CONNECTORS if c != "mongodb"]),
    steps=STEPS,
    random=st.randoms(use_true_random=False),
)
def test_any_history_in_protobuf_leaves_the_rows_of_the_source(
    connector: str, steps: list[Step], random: Random
) -> None:
    table, form = told(connector, steps), ProtobufForm(register)
    messages = [written(form, message) for message in table.messages]
    random.shuffle(messages)
    found = read(messages)
    assert found.bad == []
    parts = [events.rows for events in found.events]
    rows = reduce_rows(pa.concat_tables(parts), ["id"], OrderSettings()).rows if parts else None
    assert living(rows) == table.rows


ENVELOPE = """syntax = "proto3"; package acme.changes; import "google/protobuf/timestamp.proto";
message Key { int32 id = 1; }
message Envelope {
  message Row { int32 id = 1; optional string value = 2; optional string big = 3; google.protobuf.Timestamp at = 4; }
  message Source {
    string connector = 1; string db = 2; string table = 3; int64 lsn = 4; int64 ts_ms = 5; string snapshot = 6;
  }
  Row before = 1; Row after = 2; Source source = 3; string op = 4; optional int64 ts_ms = 5;
}
"""


def test_messages_of_confluents_serializer_and_protocs_classes_are_read(tmp_path: Path) -> None:
    """Neither the classes nor the headers are made by anything of ours."""
    (tmp_path / "acme_changes.proto").write_text(ENVELOPE)
    folders = [f"-I{tmp_path}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    assert protoc.main(["protoc", *folders, f"--python_out={tmp_path}", "acme_changes.proto"]) == 0
    spec = importlib.util.spec_from_file_location("acme_changes_pb2", tmp_path / "acme_changes_pb2.py")
    assert spec is not None and spec.loader is not None
    classes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(classes)
    client = SchemaRegistryClient.new_client({"url": "mock://"})
    settings = {"use.deprecated.format": False}
    serializers = {
        MessageField.KEY: ProtobufSerializer(classes.Key, client, settings),
        MessageField.VALUE: ProtobufSerializer(classes.Envelope, client, settings),
    }

    def sent(op: str, key: int, at: int, **row: Any) -> Message:
        value = classes.Envelope(op=op, ts_ms=at)
        source = {"connector": "postgresql", "db": "shop", "table": "orders", "lsn": at, "ts_ms": at}
        value.source.CopyFrom(classes.Envelope.Source(**source))
        image = classes.Envelope.Row(id=key, **row)
        image.at.FromMilliseconds(1_700_000_000_000 + at)
        (value.before if op == "d" else value.after).CopyFrom(image)
        written = [
            write(body, SerializationContext("srv.shop.orders", field))
            for (field, write), body in zip(serializers.items(), (classes.Key(id=key), value), strict=True)
        ]
        return Message(Record("srv.shop.orders", 0, at), *written)

    messages = [sent("c", 1, 1, value="a"), sent("c", 2, 2), sent("u", 1, 3, value="b", big="x"), sent("d", 2, 4)]
    for body in (messages[0].key or b"", messages[0].value or b""):
        number = int.from_bytes(body[1:5], "big")
        COMPILED[number] = compile_text(client.get_schema(number).schema_str, id=number)
    found = read(messages[::-1])
    assert found.bad == []
    rows = [row for *_, row in said(found)]
    assert [(row["id"], row["value"], row["big"]) for row in rows] == [
        (2, None, None), (1, "b", "x"), (2, None, None), (1, "a", None),
    ]  # fmt: skip
    assert rows[1]["at"].isoformat() == "2023-11-14T22:13:20.003000+00:00"
    assert living(reduce_rows(pa.concat_tables([e.rows for e in found.events]), ["id"], OrderSettings()).rows) == {
        1: ("b", "x")
    }
