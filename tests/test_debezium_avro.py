"""Debezium's messages in Avro: what the same messages in JSON say, by position and by offset, whole and flattened."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from distributary.changes.debezium.column_changes import StoredMessages, events_of
from distributary.changes.debezium.heads import PLAIN, Form, Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.model import METADATA, FileEvents, Kind, Reading
from distributary.config import Pipeline, RegistryConfig
from distributary.engine.messages.chunks import KEY
from distributary.engine.messages.killers import find_killers
from distributary.errors import Reason
from distributary.schemas.avro.payload import AvroSchema
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.registry import open_registry
from distributary_simulate.change_messages.connect_avro_form import AvroForm
from distributary_simulate.changes.history import History, HistoryPlan
from tests.debezium_columns import history_of, origins_of, read_columns, says_what_json_says, written
from tests.debezium_messages import base64_of, change, flattened, named, schema_of
from tests.test_debezium import KINDS, PLACEHOLDER, UUID, decimal
from tests.test_debezium_histories import messages_of
from tests.test_debezium_topics import Shop, judged, spoil

_T, _C = "io.debezium.time.", "org.apache.kafka.connect.data."
SCHEMAS: dict[str, int] = {}


def register(subject: str, text: str) -> int:
    return SCHEMAS.setdefault(text, len(SCHEMAS) + 1)


def read(messages: Sequence[Message], form: Form = PLAIN) -> FileEvents:
    avro = AvroForm(register)
    sent = [written(avro, message) for message in messages]
    return read_columns(sent, {number: AvroSchema(number, (text,)) for text, number in SCHEMAS.items()}, "avro", form)


def same(messages: Sequence[Message], form: Form = PLAIN) -> list[Any]:
    return says_what_json_says(read(messages, form), messages, form)


@pytest.mark.parametrize("kind", [Kind.MYSQL, Kind.POSTGRESQL, Kind.SQLSERVER, Kind.ORACLE])
@pytest.mark.parametrize("form", [Form(), Form(by_offset=True)], ids=["by position", "by offset"])
def test_a_history_says_in_avro_what_it_says_in_json(kind: Kind, form: Form) -> None:
    assert len(same(history_of(kind, 12, 150), form)) > 100


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
        (named("bytes", f"{_C}Decimal", scale="-2"), base64_of(1234)),
        (decimal(60, 5), base64_of(10**45)),
        (named("int32", f"{_T}Date"), 19_756),
        (named("int32", f"{_C}Date"), 19_756),
        (named("string", f"{_T}IsoDate"), "2024-02-03Z"),
        (named("int32", f"{_T}Time"), 14_706_500),
        (named("int32", f"{_C}Time"), 14_706_500),
        (named("int64", f"{_T}MicroTime"), -3_020_399_500_000),
        (named("int64", f"{_T}NanoTime"), -1),
        (named("int64", f"{_T}Timestamp"), 1_706_961_600_123),
        (named("int64", f"{_C}Timestamp"), 1_706_961_600_123),
        (named("int64", f"{_T}MicroTimestamp"), 9_223_372_036_825_200_000),
        (named("int64", f"{_T}NanoTimestamp"), 1_706_961_600_123_456_007),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T12:00:00.123456Z"),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T14:00:00.123456+02:00"),
        (named("string", f"{_T}ZonedTimestamp"), "no time"),
        (named("string", f"{_T}ZonedTimestamp"), "2024-02-03T12:00:00.123456ZZ"),
        (named("string", "io.debezium.data.Uuid"), UUID),
        (named("bytes", "io.debezium.data.Bits", length="10"), "VA=="),
        ({"type": "array", "items": {"type": "int32", "optional": True}}, [1, None, 3]),
        ({"type": "array", "items": {**named("int32", f"{_T}Date")}}, [19_756, None]),
        ({"type": "array", "items": named("bytes", f"{_C}Decimal", scale="1")}, [base64_of(15)]),
        ({"type": "array", "items": named("int64", f"{_T}NanoTime")}, [14_706_500_000_000, -1, None]),
        ({"type": "array", "items": named("bytes", "io.debezium.data.Bits", length="10")}, ["VA==", "/wE=", None]),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}, {"a": "b"}),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "bytes"}}, {"a": "/w=="}),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "double"}}, {"a": "NaN", "b": "-Infinity"}),
        (schema_of({"scale": "int32", "value": "bytes"}, "io.debezium.data.VariableScaleDecimal"),
         {"scale": 6, "value": base64_of(12_345_678_901)}),
        (schema_of({"x": "double", "wkb": "bytes"}, "io.debezium.data.geometry.Point"), {"x": 1.0, "wkb": "AQE="}),
    ],
)  # fmt: skip
def test_a_value_of_each_type_is_what_it_is_in_json(kind: Any, value: Any) -> None:
    kind = kind if isinstance(kind, str) else {**kind, "optional": True}
    rows = [
        change("c", {"id": n, "v": one}, kinds={"id": "int32", "v": kind}, offset=n)
        for n, one in ((1, value), (2, None))
    ]
    same(rows)


def test_values_that_were_not_logged_and_messages_that_cannot_be_used_are_told_apart() -> None:
    texts = {"type": "array", "optional": True, "items": {"type": "string"}}
    kinds = {"id": "int32", "big": "string", "raw": "bytes", "list": texts}
    encoded = base64.b64encode(PLACEHOLDER.encode()).decode()
    big = {"id": 1, "big": PLACEHOLDER, "raw": encoded, "list": [PLACEHOLDER]}
    moved = [change("d", {"id": 1, "name": "a"}, kinds=KINDS, headers=["__debezium.newkey"], offset=8)]
    messages = [
        change("u", big, connector="postgresql", kinds=kinds),
        change("u", {**big, "big": "said", "raw": "AQ==", "list": None}, connector="postgresql", kinds=kinds, offset=1),
        change("d", {"id": 2, "name": "a"}, kinds=KINDS, offset=2),
        change("t", {"id": 2, "name": "a"}, kinds=KINDS, offset=3),
        change("c", {"id": 2, "name": "a"}, kinds=KINDS, offset=4, file=None),
        change("c", {"id": 2, "name": "a"}, kinds=KINDS, keys=(), offset=5),
        *moved,
    ]
    found = same(messages)
    assert [row[3][METADATA]["schema_key"] for row in found[:2]] == ["big,list,raw", ""]
    assert [bad.reason for bad in read(messages).bad] == [Reason.BAD_POSITION]


def test_flattened_rows_and_tombstones_are_read_by_offset() -> None:
    kinds = {**KINDS, "__deleted": "string"}
    rows = [
        flattened({"id": n, "name": "a", "__deleted": str(n == 2).lower()}, key={"id": n}, offset=n, kinds=kinds)
        for n in (1, 2)
    ]
    same(rows, Form(flattened=True, by_offset=True))
    places = {**kinds, "__lsn": "int64", "__source_ts_ms": "int64", "__op": "string"}
    row = {"id": 1, "name": "a", "__deleted": "false", "__lsn": 77, "__source_ts_ms": 5, "__op": "c"}
    same([flattened(row, key={"id": 1}, kinds=places)], Form(flattened=True))


def events_in_columns(values: list[dict[str, Any]], keys: pa.Array, schema: pa.Schema | None = None) -> FileEvents:
    key = pa.RecordBatch.from_arrays([keys], ["id"])
    value = pa.RecordBatch.from_pylist(values, schema)
    found = origins_of([change("c", {"id": 1}, offset=offset) for offset in range(len(values))])
    return events_of(StoredMessages(value, None, key, None), found, Reading(), PLAIN)


def in_columns(**source: Any) -> dict[str, Any]:
    place = {"connector": "mysql", "db": "d", "table": "t", "file": "b.1", "pos": 4, "row": 0, "ts_ms": 5}
    return {"op": "c", "source": {**place, **source}, "before": {"id": None}, "after": {"id": 1}, "ts_ms": 1}


@pytest.mark.parametrize("form", [Form(), Form(by_offset=True)], ids=["by position", "by offset"])
def test_a_document_of_mongodb_has_its_key_in_any_order(form: Form) -> None:
    source = {"connector": "mongodb", "db": "d", "collection": "c", "ts_ms": 5000, "ord": 1}
    value = pa.RecordBatch.from_pylist([{"op": "c", "source": source, "after": '{"_id":1}', "ts_ms": 1}])
    key = pa.RecordBatch.from_pydict({"id": ["1"]})
    found = events_of(StoredMessages(value, None, key, None), origins_of([change("c", {"id": 1})]), Reading(), form)
    assert [events.keys for events in found.events] == [("_id",)]


def test_a_delete_whose_row_before_is_empty_has_its_key_also_in_a_narrower_type() -> None:
    gone = {**in_columns(), "op": "d", "after": {"id": None}}
    schema = pa.RecordBatch.from_pylist([in_columns()]).schema
    found = events_in_columns([gone], pa.array([7], pa.int32()), schema)
    assert [row["id"] for row in found.events[0].rows.to_pylist()] == [7]


@pytest.mark.parametrize("odd", [{"ts_ms": -(2**63)}, {"gtid": "0-1-1234567890123456789"}])
def test_a_place_at_the_end_of_its_type_is_what_it_is_in_json(odd: dict[str, Any]) -> None:
    columns = events_in_columns([in_columns(**odd)], pa.array([1]))
    message = change("c", {"id": 1})
    body = {**in_columns(**odd), "before": None}
    by_json = read_messages([message._replace(key=b'{"id":1}', value=json.dumps(body).encode())], Reading(), PLAIN)
    one, other = (found.events[0].rows.to_pylist()[0][METADATA] for found in (columns, by_json))
    assert (one["change_sequence_number"], one["source_timestamp"]) == (
        other["change_sequence_number"], other["source_timestamp"]
    )  # fmt: skip


def test_a_number_that_no_long_holds_takes_none_of_its_neighbours_with_it() -> None:
    kind = pa.RecordBatch.from_pylist([in_columns()]).schema
    source = kind.field("source").type
    fields = [pa.field(f.name, pa.uint64() if f.name == "row" else f.type) for f in source]
    kind = kind.set(kind.get_field_index("source"), pa.field("source", pa.struct(fields)))
    beside = events_in_columns([in_columns(row=1), in_columns(row=2**63)], pa.array([1, 2]), kind)
    alone = events_in_columns([in_columns(row=1)], pa.array([1]), kind)
    both, one = (found.events[0].rows.to_pylist()[0][METADATA]["change_sequence_number"] for found in (beside, alone))
    assert both == one


@pytest.mark.parametrize(
    "value",
    [
        {"op": ["c"], "source": [{"connector": "mysql", "table": "t"}]},
        {"op": ["c"], "source": [{"connector": "mysql", "table": "t"}], "after": ["no row"]},
        {"op": ["c"], "source": ["no struct"], "after": [{"id": 1}]},
        {"ts_ms": [1]},
    ],
)
def test_columns_that_are_no_change_are_told(value: dict[str, Any]) -> None:
    columns = StoredMessages(pa.RecordBatch.from_pydict(value), None, None, None)
    found = events_of(columns, origins_of([change("c", {"id": 1})]), Reading(), PLAIN)
    assert [bad.reason for bad in found.bad] == [Reason.CORRUPT_EVENT]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"connector": None, "table": None}, Reason.NO_SOURCE_TABLE),
        ({"connector": "mysql", "table": "t", "file": 5, "pos": "x"}, Reason.BAD_POSITION),
        ({"connector": "postgresql", "table": "t", "lsn": -1}, Reason.BAD_POSITION),
        ({"connector": "oracle", "table": "t", "scn": "x"}, Reason.BAD_POSITION),
    ],
)
def test_a_source_in_columns_that_says_no_place_sets_its_message_aside(source: dict[str, Any], reason: Reason) -> None:
    value = {"op": ["c"], "source": [source], "after": [{"id": 1}]}
    columns = StoredMessages(pa.RecordBatch.from_pydict(value), None, None, None)
    found = events_of(columns, origins_of([change("c", {"id": 1})]), Reading(), PLAIN)
    assert (found.events, [bad.reason for bad in found.bad]) == ([], [reason])


def test_the_schema_of_the_key_goes_along_to_where_records_are_tried_apart() -> None:
    sent = written(AvroForm(register), change("c", {"id": 1, "name": "a"}, kinds=KINDS))
    value_id, key_id = (int.from_bytes(body[1:5], "big") for body in (sent.value or b"", sent.key or b""))
    schemas: dict[int, CompiledSchema] = {n: AvroSchema(n, (text,)) for text, n in SCHEMAS.items()}
    records = pa.RecordBatch.from_pydict({"payload": [sent.value], KEY: [sent.key]})
    tried: list[set[int]] = []

    def each(work: Any, items: Any, _: float) -> list[Any]:
        tried.append(set(work.keywords["schemas"]))
        return [None] * len(items)

    apart: Any = SimpleNamespace(cpu_sec=1.0, each=each)
    spec: Any = SimpleNamespace(raw_nested_indexes=False)
    chunks = [([[value_id, f"key {key_id}", 1]], records)]
    assert list(find_killers("shop.orders", chunks, spec, schemas, apart)) == []
    assert tried == [{value_id, key_id}]


class AvroShop(Shop):
    """A pipeline of messages in Avro, with a registry in a folder, or with `registry`, its address."""

    def __init__(
        self, root: Path, tables: dict[str, Any] | None = None, *, registry: str | None = None, **envelope: Any
    ) -> None:
        super().__init__(root, tables, **envelope)
        given = self.config.model_dump(exclude_unset=True)
        place = {"path": str(root / "registry")} if registry is None else {"url": registry}
        given |= {"payload": {"format": "avro"}, "registry": place}
        self.config = Pipeline.model_validate(given)
        writers = open_registry(RegistryConfig.model_validate(place))
        self.form = AvroForm(lambda subject, text: writers.register(subject, text, kind="AVRO").schema.id)

    def put(self, messages: Sequence[Message]) -> Any:
        return self.take([written(self.form, message) for message in messages])


def test_a_pipeline_of_avro_makes_the_tables_that_one_of_json_makes(tmp_path: Path) -> None:
    tables = tuple(table for table in HistoryPlan().tables if table.kind in (Kind.MYSQL, Kind.POSTGRESQL))
    messages = messages_of(History(HistoryPlan(tables=tables, seed=4)), 240, schemas=True)
    avro, by_json = AvroShop(tmp_path / "avro"), Shop(tmp_path / "json")
    for begin in (120, 0):
        some = messages[begin : begin + 120] if begin == 0 else messages[begin:]
        assert avro.put(some).rows_written == by_json.take(some).rows_written > 50
    for folder in sorted(path.name for path in (tmp_path / "json" / "lake").iterdir() if not path.name.startswith("_")):
        assert _rows(avro, folder) == _rows(by_json, folder), folder
    assert avro.quarantined() == []
    sent = [written(avro.form, message) for message in messages]
    found = judged(avro, sent)
    assert (found.problems, found.notes) == ((), ())
    assert sum(table.rows_compared for table in found.tables) == found.rows_written
    spoil(f"{avro.config.tables.root}/shop_orders", "status", "other")
    assert any("do not have the values" in problem for problem in judged(avro, sent).problems)


def _rows(shop: Shop, table: str) -> list[Any]:
    rows = [{k: v for k, v in row.items() if k not in (METADATA, "_origin")} for row in shop.rows(table)]
    return sorted(rows, key=str)
