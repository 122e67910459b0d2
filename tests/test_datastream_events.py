"""Events in normal form: layouts, sources, keys, change types, and files of which only a part is good."""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from distributary.changes import contents, hashing, json_files
from distributary.changes.file_events import peek, read_events
from distributary.changes.hashing import row_hash
from distributary.changes.metadata import infer_kind
from distributary.changes.model import METADATA, METADATA_TYPE, Events, FileEvents, Kind, Reading, SourceTable
from distributary.errors import FileBroken, Reason
from tests.event_files import MICROS, MYSQL, T0, TOP, avro, event, json_lines, parquet, record, schema, without

ID = schema([("id", "long")])
ORACLE: dict[str, Any] = {
    "schema": "HR", "table": "EMP", "database": "xe", "row_id": "AAA", "scn": 7, "rs_id": " 0x000004.00000705.0010 ",
    "ssn": 0, "change_type": "INSERT", "is_deleted": False, "primary_keys": ["ID"],
}  # fmt: skip
POSTGRESQL: dict[str, Any] = {
    "schema": "public", "table": "t", "lsn": "16/CB002DB0", "tx_id": 5, "change_type": "INSERT", "is_deleted": False,
    "primary_keys": ["id"],
}  # fmt: skip
SQLSERVER: dict[str, Any] = {
    "schema": "dbo", "table": "T", "database": "db", "lsn": "00000025:00000728:0003", "change_type": "INSERT",
    "is_deleted": False, "primary_keys": ["id"],
}  # fmt: skip
MONGO: dict[str, Any] = {
    "database": "shop", "collection": "carts", "change_type": "INSERT", "is_deleted": False, "primary_key": ["_id"],
}  # fmt: skip


def read(*events: dict[str, Any], reading: Reading | None = None) -> FileEvents:
    """As JSON lines, where each event may have metadata of its own."""
    return read_events(json_lines(events), "a.jsonl", reading or Reading())


def of(source: dict[str, Any], payload: dict[str, Any], number: int = 0, **changes: Any) -> dict[str, Any]:
    made = event(number, payload, read_method="cdc")
    made["source_metadata"] = source | changes
    return made


def only(found: FileEvents) -> Events:
    assert not found.bad
    (events,) = found.events
    return events


def metadata(events: Events) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = events.rows.column(METADATA).to_pylist()
    return rows


# -- metadata ------------------------------------------------------------------------------------------------------


def test_metadata_has_one_form() -> None:
    events = only(read_events(avro(ID, [event(3)]), "a.avro", Reading()))
    assert events.rows.schema.field(METADATA).type == METADATA_TYPE
    (found,) = metadata(events)
    assert len(found.pop("change_sequence_number")) > 60
    assert found == {
        "uuid": "00000003-46aa-451b-b315-c2d400000011",
        "source_timestamp": T0 + 3000,
        "read_timestamp": T0 + 3900,
        "change_type": "INSERT",
        "is_deleted": False,
        "is_backfill": False,
        "sort_keys": [str(T0 + 3000), "mysql-bin.000014", "4003"],
        "read_method": "mysql-cdc-binlog",
        "stream_name": "projects/5/locations/us-central1/streams/shop",
        "object": "shop_orders",
        "schema_key": events.schema_key,
        "source": dict.fromkeys(METADATA_TYPE.field("source").type.names)
        | {"database": "shop", "table": "orders", "log_file": "mysql-bin.000014", "log_position": 4003},
    }
    assert events.table == SourceTable(Kind.MYSQL, "shop", "", "orders")
    assert events.table.route == "shop.orders"


def test_json_avro_and_parquet_give_the_same_events() -> None:
    many = [event(at, {"id": at}, change_type="DELETE" if at % 3 else None, is_deleted=None) for at in range(20)]
    from_avro = only(read_events(avro(ID, many), "a.avro", Reading()))
    from_json = only(read_events(json_lines(many), "a.jsonl", Reading()))
    unions = [
        one | {"sort_keys": [{"member0": key if isinstance(key, str) else None,
                              "member1": key if isinstance(key, int) else None} for key in one["sort_keys"]]}
        for one in many
    ]  # fmt: skip
    from_parquet = only(read_events(parquet(pa.Table.from_pylist(unions)), "a.parquet", Reading()))
    assert from_avro.rows.to_pylist() == from_json.rows.to_pylist() == from_parquet.rows.to_pylist()
    assert from_avro.numbers.to_pylist() == list(range(20))


@pytest.mark.parametrize(
    "text",
    ["2021-12-25T05:42:04.408Z", "2021-12-25T05:42:04.408000Z", "2021-12-25T05:42:04.408", "2021-12-25 05:42:04.408",
     "2021-12-25T06:42:04.408+01:00", 1640410924408],
)  # fmt: skip
def test_json_times_are_read_in_every_spelling(text: Any) -> None:
    found = only(read(event(0, source_timestamp=text), event(1)))
    assert metadata(found)[0]["source_timestamp"] == 1_640_410_924_408


def test_a_time_that_is_none_sets_its_event_aside() -> None:
    found = read(event(0, source_timestamp="yesterday"), event(1))
    assert [(bad.row, bad.reason) for bad in found.bad] == [(0, Reason.CORRUPT_EVENT)]
    assert json.loads(found.bad[0].raw)["payload"] == {"id": 0}


def test_the_layout_of_march_2021_is_read() -> None:
    """sort_keys last, no primary_keys."""
    top = [field for field in TOP if field[0] != "sort_keys"]
    whole = schema([("id", "long")], [field for field in MYSQL if field[0] != "primary_keys"], top)
    whole["fields"].append({"name": "sort_keys", "type": {"type": "array", "items": ["string", "long"]}})
    events = only(read_events(avro(whole, [event(0)]), "a.avro", Reading()))
    assert events.keys == () and metadata(events)[0]["sort_keys"] == [str(T0), "mysql-bin.000014", "4000"]


def test_the_layout_of_june_2021_is_read() -> None:
    """No sort_keys at all."""
    whole = schema([("id", "long")], MYSQL, [field for field in TOP if field[0] != "sort_keys"])
    events = only(read_events(avro(whole, [event(0)]), "a.avro", Reading()))
    assert events.keys == ("id",) and metadata(events)[0]["sort_keys"] is None


def test_every_metadata_field_but_the_table_is_optional() -> None:
    bare = {"source_metadata": {"table": "t"}, "payload": {"id": 1}}
    found = read(bare, reading=Reading(kind=Kind.GENERIC))
    assert [bad.reason for bad in found.bad] == [Reason.BAD_POSITION]  # and not for lack of any field
    backfill = read(bare | {"read_method": "backfill"})
    assert only(backfill).table == SourceTable(Kind.GENERIC, "", "", "t")


def test_log_positions_of_gtid_streams_are_found_by_their_names() -> None:
    """DataflowTemplates#3554."""
    made = without(event(0), "log_file", "log_position")
    made["source_metadata"] |= {"binlog_file": "mysql-bin.000007", "binlog_position": 99}
    events = only(read(made))
    assert metadata(events)[0]["source"] | {"log_file": "mysql-bin.000007", "log_position": 99} == (
        metadata(events)[0]["source"])  # fmt: skip
    assert events.table.kind is Kind.MYSQL


def test_unknown_metadata_is_named_once_and_does_no_harm() -> None:
    made = [event(at) | {"colour": "red"} for at in range(3)]
    for one in made:
        one["source_metadata"]["gtid"] = "x"
    found = read(*made)
    assert found.unknown_fields == ("colour", "source_metadata.gtid")
    assert len(only(found).rows) == 3


@pytest.mark.parametrize("name", ["mysql-backfill-fulldump", "postgresql-backfill", "oracle_dump", "backfill"])
def test_backfills_are_told_by_their_read_method(name: str) -> None:
    assert metadata(only(read(event(0, read_method=name))))[0]["is_backfill"] is True


@pytest.mark.parametrize(
    ("source", "method", "kind"),
    [
        ({"log_file": None, "log_position": None}, "cdc", Kind.MYSQL),
        ({"binlog_file": None}, "cdc", Kind.MYSQL),
        ({"log_file": "x.arc", "scn": 1, "rs_id": None}, "cdc", Kind.ORACLE),
        ({"row_id": "A"}, "oracle_dump", Kind.ORACLE),
        ({"lsn": "00000025:00000728:0003"}, "cdc", Kind.SQLSERVER),
        ({"lsn": None, "replication_index": ["id"]}, "cdc", Kind.SQLSERVER),
        ({"lsn": None, "database": "db"}, "backfill", Kind.SQLSERVER),
        ({"lsn": "16/CB002DB0"}, "cdc", Kind.POSTGRESQL),
        ({"lsn": ""}, "postgresql-backfill", Kind.POSTGRESQL),
        ({"lsn": None}, "backfill", Kind.POSTGRESQL),
        ({"collection": "c"}, "cdc", Kind.MONGODB),
        ({}, "sqlserver-cdc-logbased", Kind.SQLSERVER),
        ({}, "salesforce-cdc", Kind.GENERIC),
        ({}, "cdc", Kind.GENERIC),
    ],
)
def test_the_source_is_told_by_its_fields_then_by_its_reader(source: dict[str, Any], method: str, kind: Kind) -> None:
    """A reader of newer sources says no more than `cdc`; the reference connector failed on it."""
    assert infer_kind(source, method) is kind


def test_a_setting_beats_what_the_source_looks_like() -> None:
    """DataflowTemplates#2715."""
    found = only(read(of({"table": "t", "change_type": "INSERT"}, {"id": 1}), reading=Reading(kind=Kind.GENERIC)))
    assert found.table.kind is Kind.GENERIC


# -- change types --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change_type", "is_deleted", "delete"),
    [
        ("INSERT", False, False), ("UPDATE", None, False), ("UPDATE-INSERT", False, False), ("READ", None, False),
        ("", None, False), (None, None, False), ("DELETE", None, True), ("DELETE", False, True),
        ("UPDATE-DELETE", False, True), (None, True, True), ("INSERT", True, True),
    ],
)  # fmt: skip
def test_what_is_a_delete(change_type: str | None, is_deleted: bool | None, delete: bool) -> None:
    """Either field may be null or absent; in real Oracle files is_deleted is false for UPDATE-DELETE."""
    (found,) = metadata(only(read(event(0, change_type=change_type, is_deleted=is_deleted))))
    assert found["is_deleted"] is delete
    assert found["change_type"] == change_type


def test_a_delete_without_is_deleted_is_one() -> None:
    assert metadata(only(read(without(event(0, change_type="DELETE"), "is_deleted"))))[0]["is_deleted"] is True


def test_an_unknown_change_type_sets_its_event_aside_and_no_other() -> None:
    found = read(event(0), event(1, change_type="MERGE"), event(2))
    assert found.events[0].rows.column("id").to_pylist() == [0, 2]
    (bad,) = found.bad
    assert (bad.row, bad.reason) == (1, Reason.UNKNOWN_CHANGE_TYPE)
    assert "'MERGE'" in bad.detail and json.loads(bad.raw)["payload"] == {"id": 1}


def test_a_bad_log_position_sets_its_event_aside() -> None:
    found = read(event(0), event(1, log_position="x"), event(2, log_file=None, sort_keys=None))
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, Reason.BAD_POSITION), (2, Reason.BAD_POSITION)]


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({"primary_keys": ["id"]}, ("id",)),
        ({"primary_keys": '["id"]'}, ("id",)),  # DataflowTemplates#1835
        ({"primary_keys": "id, n"}, ("id", "n")),
        ({"primary_keys": [], "replication_index": ["id"]}, ("id",)),
        ({"replication_index": ["ID"]}, ("id",)),  # DataflowTemplates#3805; the payload's spelling is taken
        ({"primary_keys": ["n"], "replication_index": ["id"]}, ("n",)),
        ({"primary_key": ["id"]}, ("id",)),
        ({"primary_keys": ["ID", "n"]}, ("id", "n")),
        ({"primary_keys": []}, ()),
        ({"primary_keys": None}, ()),
        ({}, ()),
    ],
)
def test_keys_are_found_in_each_of_their_forms(fields: dict[str, Any], keys: tuple[str, ...]) -> None:
    made = of({name: value for name, value in SQLSERVER.items() if name != "primary_keys"} | fields, {"id": 1, "n": 2})
    assert only(read(made)).keys == keys


def test_a_key_is_matched_exactly_before_it_is_matched_without_case() -> None:
    assert only(read(of(POSTGRESQL, {"ID": 1, "id": 2}))).keys == ("id",)


@pytest.mark.parametrize("name", ["order", "my key", "a.b", "`"])
def test_keys_may_have_any_name(name: str) -> None:
    """DataflowTemplates 192e4696c2."""
    assert only(read(of(POSTGRESQL, {name: 1}, primary_keys=[name]))).keys == (name,)


def test_keys_are_each_events_own() -> None:
    """The reference connector takes them from a batch's first row."""
    found = read(
        event(0, {"id": 0, "n": 1}), event(1, {"id": 1, "n": 1}, primary_keys=["id", "n"]), event(2, {"id": 2})
    )
    assert {events.keys: events.rows.column("id").to_pylist() for events in found.events} == {
        ("id",): [0, 2], ("id", "n"): [1]
    }  # fmt: skip


def test_an_event_without_its_key_column_is_set_aside() -> None:
    found = read(event(0, {"n": 1}))
    assert [(bad.row, bad.reason) for bad in found.bad] == [(0, Reason.NO_KEY_VALUE)]
    assert "id" in found.bad[0].detail and not found.events


def test_a_delete_with_an_empty_payload_is_set_aside_and_not_lost() -> None:
    """DataflowTemplates 4693984a84."""
    found = read(event(0), event(1, {}, change_type="DELETE"), event(2) | {"payload": None})
    assert [(bad.row, bad.reason) for bad in found.bad] == [(1, Reason.NO_KEY_VALUE), (2, Reason.NO_KEY_VALUE)]
    assert len(found.events[0].rows) == 1


def test_a_delete_that_holds_only_its_key_is_kept() -> None:
    """PostgreSQL's log has no more of a deleted row."""
    events = only(read(of(POSTGRESQL, {"id": 1, "n": None}, change_type="DELETE"), of(POSTGRESQL, {"id": 2, "n": 3})))
    assert events.rows.drop_columns([METADATA]).to_pylist() == [{"id": 1, "n": None}, {"id": 2, "n": 3}]


def test_a_key_of_which_a_part_is_null_is_kept() -> None:
    made = of(POSTGRESQL, {"id": None, "n": 3}, primary_keys=["id", "n"])
    assert only(read(made, of(POSTGRESQL, {"id": 1, "n": 1}, primary_keys=["id", "n"]))).keys == ("id", "n")


def test_a_rolled_back_insert_of_oracle_is_kept_for_its_row_id() -> None:
    """DataflowTemplates#4232: the delete has null keys; the row_id finds the row."""
    events = only(read(of(ORACLE, {"ID": 1}), of(ORACLE, {"ID": None}, change_type="DELETE")))
    assert [row["source"]["row_id"] for row in metadata(events)] == ["AAA", "AAA"]
    assert events.rows.column("ID").to_pylist() == [1, None]
    bad = read(
        of(ORACLE, {"ID": 1}), of(ORACLE, {"ID": None}), of(ORACLE, {"ID": None}, change_type="DELETE", row_id=None)
    )
    assert [one.row for one in bad.bad] == [1, 2]


# -- payloads ------------------------------------------------------------------------------------------------------


def test_columns_named_as_metadata_are_kept_beside_it() -> None:
    """DataflowTemplates#3035."""
    payload = {
        "id": 1,
        "timestamp": 2,
        "uuid": "mine",
        "payload": "p",
        "source_metadata": "s",
        "Datastream_Metadata": 3,
    }
    events = only(read(event(0, payload)))
    (row,) = events.rows.to_pylist()
    assert row.pop(METADATA)["uuid"] == event(0)["uuid"]
    assert row.pop("Datastream_Metadata__field") == payload.pop("Datastream_Metadata")
    assert row == payload


def test_a_mongodb_update_without_a_document_is_counted_and_left_out() -> None:
    """DataflowTemplates 3a2bdfd9ad: it was deleted before Datastream looked it up."""
    key = '{"$oid": "6811235eaf8583310cb9d2e9"}'
    found = read(
        of(MONGO, {"_id": key, "data": "{}"}),
        of(MONGO, {"_id": key, "data": None}, change_type="UPDATE"),
        of(MONGO, {"_id": key, "data": None}, change_type="DELETE"),
    )
    events = only(found)
    assert (found.skipped, events.keys, events.table.route) == (1, ("_id",), "shop.carts")
    assert [row["change_type"] for row in metadata(events)] == ["INSERT", "DELETE"]


def test_backfilled_rows_with_one_uuid_are_all_kept() -> None:
    """stackoverflow.com/questions/76719475."""
    uuid = event(0)["uuid"]
    many = [event(at, uuid=uuid, read_method="mysql-backfill-fulldump") for at in range(5)]
    assert len(only(read(*many)).rows) == 5


def test_the_payloads_hash_tells_payloads_apart_and_does_not_depend_on_the_cut() -> None:
    columns = {
        "a": pa.array([0, None, 1, 0], pa.int32()),
        "b": pa.array(["", "12345678", None, "123456789"]),
        "c": pa.array([Decimal("1.5"), None, Decimal("-1.5"), Decimal("1.5")]),
        "d": pa.array([[1], None, [], [1, None]]),
        "e": pa.array([True, None, False, True]),
    }
    whole = row_hash(columns, 4)
    assert len(set(whole.to_pylist())) == 4 and whole.null_count == 0
    assert row_hash({name: array.slice(1, 2) for name, array in columns.items()}, 2) == whole.slice(1, 2)
    for name, array in columns.items():
        moved = columns | {name: array.take(pa.array([1, 2, 0, 1]))}
        assert not set(row_hash(moved, 4).to_pylist()) & set(whole.to_pylist()), name
    swapped = {"b": columns["b"], "a": columns["a"]}
    assert row_hash(swapped, 4) != row_hash({"a": columns["a"], "b": columns["b"]}, 4)


def test_hashes_of_rows_without_long_texts_are_what_tables_have() -> None:
    columns = {"a": pa.array(["", "short", "x" * 256, None]), "n": pa.array([1, 2, 3, 4])}
    assert row_hash(columns, 4).to_pylist() == [
        14579557865278059387, 10642410576789290492, 14634665995438079239, 11412315222706473818,
    ]  # fmt: skip


def test_a_long_text_costs_no_other_row_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of 1 MB made 2,000 rows wait for 131,072 rounds."""
    rounds: list[int] = []
    mix = hashing._mix

    def counted(words: Any) -> Any:
        rounds.append(len(words))
        return mix(words)

    monkeypatch.setattr(hashing, "_mix", counted)
    texts = pa.array(["a", "x" * 1_000_000, "x" * 999_999 + "y", "b" * 300, None])
    whole = row_hash({"a": texts}, 5)
    assert len(rounds) < 50
    assert len(set(whole.to_pylist())) == 5
    assert row_hash({"a": texts.slice(1, 3)}, 3) == whole.slice(1, 3)
    assert row_hash({"a": texts.cast(pa.binary())}, 5) == whole


# -- mixed files ---------------------------------------------------------------------------------------------------


def test_a_json_file_of_several_tables_and_schemas_is_taken_apart() -> None:
    """By event and not by folder: schema a + table b_c, and schema a_b + table c, share the folder a_b_c."""
    one = of(POSTGRESQL, {"id": 1, "x": 1}, schema="a", table="b_c")
    other = of(POSTGRESQL, {"id": 1, "y": "1"}, schema="a_b", table="c")
    later = of(POSTGRESQL, {"id": 2, "x": 1, "new": True}, schema="a", table="b_c") | {"schema_key": "later"}
    found = read(one, other, later, one)
    assert [(events.table.route, events.schema_key == "later", events.rows.column_names[:-1], len(events.rows))
            for events in found.events] == [
        ("a.b_c", False, ["id", "x"], 2), ("a_b.c", False, ["id", "y"], 1), ("a.b_c", True, ["id", "x", "new"], 1)
    ]  # fmt: skip
    assert found.events[0].numbers.to_pylist() == [0, 3]


def test_a_long_json_file_has_one_type_for_each_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "LINES_AT_ONCE", 3)
    payloads: list[dict[str, Any]] = [{"id": at} | ({"late": at / 2} if at > 5 else {}) for at in range(10)]
    events = only(read(*(event(at, payload) for at, payload in enumerate(payloads))))
    assert events.rows.column("late").to_pylist() == [None] * 6 + ["3.0", "3.5", "4.0", "4.5"]
    assert events.rows.column("id").to_pylist() == events.numbers.to_pylist() == list(range(10))


def test_events_of_one_table_whose_columns_differ_are_kept_apart() -> None:
    found = read(event(0, {"id": 0}, object="a"), event(1, {"id": "x"}, object="b"))
    assert [events.rows.column("id").to_pylist() for events in found.events] == [[0], ["x"]]


def test_an_avro_file_of_several_tables_is_taken_apart() -> None:
    found = read_events(avro(ID, [event(at, table=f"t{at % 2}") for at in range(10)]), "a.avro", Reading())
    assert {events.table.table: events.rows.column("id").to_pylist() for events in found.events} == {
        "t0": [0, 2, 4, 6, 8], "t1": [1, 3, 5, 7, 9]
    }  # fmt: skip


def test_an_event_that_names_no_table_is_set_aside() -> None:
    nameless = without(event(0), "table", "object")
    found = read(nameless, event(1), without(event(2), "table"))
    assert [(bad.row, bad.reason) for bad in found.bad] == [(0, Reason.NO_SOURCE_TABLE)]
    assert [events.table.table for events in found.events] == ["orders", "shop_orders"]  # as newer sources have it


# -- broken files --------------------------------------------------------------------------------------------------

MANY = [event(at) for at in range(200)]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_the_whole_blocks_of_a_cut_avro_file_are_kept_and_the_rest_is_reported(codec: str) -> None:
    body = avro(ID, MANY, codec, interval=2_000)
    found = read_events(body[: len(body) * 2 // 3], "a.avro", Reading())
    rows = found.events[0].rows.column("id").to_pylist()
    assert rows == list(range(len(rows))) and 100 < len(rows) < 150
    (bad,) = found.bad
    assert (bad.row, bad.reason) == (len(rows), Reason.FILE_BROKEN)


def test_a_garbled_tail_of_an_avro_file_is_reported() -> None:
    found = read_events(avro(ID, MANY) + b"garbage" * 9, "a.avro", Reading())
    assert len(found.events[0].rows) == 200
    assert [(bad.row, bad.reason) for bad in found.bad] == [(200, Reason.FILE_BROKEN)]


def test_a_garbled_block_of_a_packed_file_is_reported() -> None:
    body = bytearray(avro(ID, MANY, "deflate", interval=2_000))
    body[-100:-90] = b"x" * 10
    found = read_events(bytes(body), "a.avro", Reading())
    assert len(found.events[0].rows) > 150 and found.bad[-1].reason is Reason.FILE_BROKEN


def test_events_before_a_garbled_one_are_kept() -> None:
    body = bytearray(avro(ID, MANY, interval=2_000))
    at = body.index(event(50)["uuid"].encode()) + 36
    body[at : at + 30] = b"\xff" * 30  # a number that never ends
    found = read_events(bytes(body), "a.avro", Reading())
    ids = found.events[0].rows.column("id").to_pylist()
    (bad,) = found.bad
    assert bad.row == 50 and bad.reason is Reason.CORRUPT_EVENT and "events from here to the end" in bad.detail
    lost = int(bad.detail.split()[0])
    assert ids == [at for at in range(200) if not 50 <= at < 50 + lost]


def test_a_text_that_is_not_utf_8_costs_its_own_event_only() -> None:
    whole = schema([("id", "long"), ("v", "string")])
    body = avro(whole, [event(at, {"id": at, "v": f"good{at:04d}"}) for at in range(50)])
    found = read_events(body.replace(b"good0007", b"go\xffd0007"), "a.avro", Reading())
    assert found.events[0].rows.column("id").to_pylist() == [at for at in range(50) if at != 7]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(7, Reason.CORRUPT_EVENT)]
    assert json.loads(found.bad[0].raw)["payload"] == {"id": 7, "v": "go\\xffd0007"}


def test_garbled_lines_of_a_json_file_cost_themselves_only() -> None:
    lines = json_lines([event(0), event(1), event(2)]).split(b"\n")
    body = b"\n".join([b"\xef\xbb\xbf" + lines[0], b"", b"{]", lines[1] + b"\r", b"7", lines[2][:-9]])
    found = read_events(body, "a.jsonl", Reading())
    assert found.events[0].rows.column("id").to_pylist() == [0, 1]
    assert [(bad.row, bad.reason) for bad in found.bad] == [(at, Reason.CORRUPT_EVENT) for at in (1, 3, 4)]
    assert found.bad[2].raw == lines[2][:-9]


def test_a_payload_that_is_no_object_sets_its_event_aside() -> None:
    found = read(event(0) | {"payload": "text"}, event(1), event(2) | {"source_metadata": 5})
    assert [bad.row for bad in found.bad] == [0, 2]
    assert json.loads(found.bad[0].raw)["payload"] == "text"


def test_zipped_json_is_read_in_one_part_or_several() -> None:
    body = gzip.compress(json_lines(MANY[:100])) + gzip.compress(json_lines(MANY[100:]))
    assert only(read_events(body, "a.jsonl.gz", Reading())).rows.column("id").to_pylist() == list(range(200))


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_what_comes_before_the_fault_of_a_zipped_file_is_kept(damage: str) -> None:
    import random

    source = random.Random(1)
    many = [event(at, {"id": at, "v": source.randbytes(300).hex()}) for at in range(200)]
    body = bytearray(gzip.compress(json_lines(many)))
    if damage == "cut":
        del body[len(body) * 2 // 3 :]
    else:
        body[len(body) * 2 // 3 :] = b"\xff" * (len(body) // 3)
    found = read_events(bytes(body), "a.jsonl.gz", Reading())
    ids = found.events[0].rows.column("id").to_pylist()
    assert ids == list(range(len(ids))) and 80 < len(ids) < 150
    assert found.bad[-1].reason is Reason.FILE_BROKEN and "gzip" in found.bad[-1].detail


class Counting:
    """zlib, with the bytes that it was given."""

    def __init__(self) -> None:
        self.given = 0

    def decompressobj(self, wbits: int) -> Any:
        return _Member(self, wbits)


class _Member:
    def __init__(self, counting: Counting, wbits: int) -> None:
        self._counting, self._member = counting, zlib.decompressobj(wbits=wbits)

    def decompress(self, data: Any, room: int) -> bytes:
        self._counting.given += len(data)
        return self._member.decompress(data, room)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)


@pytest.mark.parametrize("end", [b"", b"\0" * 70_000, b"\x1f\x8b\x08garbled", b"x"])
@pytest.mark.parametrize("count", [1, 2_000, 20_000])
def test_members_of_a_zipped_file_are_each_read_once_however_many(
    count: int, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting()
    monkeypatch.setattr(contents, "zlib", SimpleNamespace(decompressobj=counting.decompressobj, error=zlib.error))
    one = gzip.compress(b"a line\n", mtime=0)
    body, fault = contents.unzipped(pa.py_buffer(one * count + end), 1 << 30)
    assert body.to_pybytes() == b"a line\n" * count
    assert bool(fault) is bool(end.strip(b"\0"))
    assert counting.given <= 4 * (len(one) * count + len(end)) + contents.MEMBER_BYTES


@pytest.mark.parametrize("size", [100, contents.MEMBER_BYTES, 3 * contents.MEMBER_BYTES + 7])
def test_members_of_any_size_are_unpacked_up_to_the_most_that_may_be(size: int) -> None:
    noise = Random(1).randbytes(size)
    body = pa.py_buffer(gzip.compress(noise, mtime=0) * 5)
    assert contents.unzipped(body, 5 * size) == (pa.py_buffer(noise * 5), "")
    for most in (1, size - 1, size, 3 * size + 5):
        content, _ = contents.unzipped(body, most)
        assert content.to_pybytes() == (noise * 5)[: most + 1]
    cut, fault = contents.unzipped(body.slice(0, body.size - 9), 5 * size)
    assert (fault, (noise * 5).startswith(cut.to_pybytes())) == ("is cut", True)


@pytest.mark.parametrize("body", [b"", b"\n\n", avro(ID, []), gzip.compress(b"", mtime=0)])
def test_a_file_without_events_is_no_fault(body: bytes) -> None:
    assert read_events(body, "a.jsonl", Reading()) == FileEvents([], [])
    assert peek(body, "a.jsonl", Reading()) is None


@pytest.mark.parametrize(
    "body",
    [b"Obj\x01", avro(ID, [])[:100], avro(ID, [], "deflate").replace(b"deflate", b"defl8te"), b"PAR1", b"\x00\x01",
     b"%PDF-1.4", avro(ID, [event(0)]).replace(b'"long"', b'"lung"')],
)  # fmt: skip
def test_a_file_of_which_nothing_can_be_read_is_named(body: bytes) -> None:
    with pytest.raises(FileBroken) as caught:
        read_events(body, "a/b.avro", Reading())
    assert caught.value.parameters["path"] == "a/b.avro"


def test_an_unknown_codec_is_told_with_the_known_ones() -> None:
    body = avro(ID, [event(0)], "deflate").replace(b"deflate", b"defl8te")
    with pytest.raises(FileBroken, match="null, bzip2, deflate, snappy, xz, zstandard"):
        read_events(body, "a.avro", Reading())


def test_the_content_says_what_a_file_is_unless_the_setting_does() -> None:
    assert len(only(read_events(avro(ID, MANY), "a.json", Reading())).rows) == 200
    with pytest.raises(FileBroken):
        read_events(json_lines(MANY), "a.json", Reading(format="avro"))


# -- peek ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "enough"),
    [(avro(ID, MANY), 3_000), (json_lines(MANY), 1_000), (gzip.compress(json_lines(MANY), mtime=0), 600),
     (avro(schema([("id", "long"), ("at", MICROS)]), [event(0, {"id": 1, "at": 1})]), 10_000)],
)  # fmt: skip
def test_the_beginning_of_a_file_says_whose_it_is(body: bytes, enough: int) -> None:
    assert peek(body[:enough], "a", Reading()) == SourceTable(Kind.MYSQL, "shop", "", "orders")
    assert peek(body, "a", Reading(kind=Kind.GENERIC)) == SourceTable(Kind.GENERIC, "shop", "", "orders")


# -- what a value may do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "kept"),
    [
        (r'"a\ud83db"', "a\ufffdb"),
        (r'"\udc00"', "\ufffd"),
        (r'"\ud83d\ude00 and \ud83d"', "\U0001f600 and \ufffd"),
        (r'"\\ud83d"', r"\ud83d"),
        (r'"\\\ud83d"', "\\\ufffd"),
        (r'{"x": "\ud83d"}', r'{"x": "\ufffd"}'),
    ],
)
def test_half_of_a_surrogate_pair_becomes_the_replacement_character_in_its_text_alone(token: str, kept: str) -> None:
    body = json_lines([event(0, {"id": 0, "v": "@"}), event(1, {"id": 1, "v": "whole"})]).replace(
        b'"@"', token.encode()
    )
    for part in (body, b"[" + b",".join(body.splitlines()) + b"]"):
        found = read_events(part, "a.jsonl", Reading())
        assert not found.bad
        assert found.events[0].rows.column("v").to_pylist() == [kept, "whole"]


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("where", ["payload", "source_metadata", None])
def test_a_line_that_is_nested_too_deep_costs_itself_only(number: int, where: str | None) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    lines = json_lines([event(at, {"id": at}) for at in range(3)]).splitlines()
    odd = json.loads(lines[number])
    (odd if where is None else odd[where])["deep"] = "@"
    lines[number] = json.dumps(odd).replace('"@"', deep).encode()
    found = read_events(b"\n".join(lines), "a.jsonl", Reading())
    assert [(bad.row, bad.reason) for bad in found.bad] == [(number, Reason.CORRUPT_EVENT)]
    assert only(FileEvents(found.events, [])).rows.column("id").to_pylist() == [at for at in range(3) if at != number]


def test_a_value_that_is_nested_too_deep_for_its_type_costs_its_own_event_only() -> None:
    array = {"type": "record", "name": "multidimensionalArray_v", "fields": [
        {"name": "nestedArray", "type": ["null", {"type": "array", "items": "multidimensionalArray_v"}]},
        {"name": "elementValue", "type": ["null", "int"]},
    ]}  # fmt: skip
    lines = [json.dumps(event(at, {"id": at, "v": "@"})).encode() for at in range(2)]
    body = b"\n".join([lines[0].replace(b'"@"', b"[" * 700 + b"]" * 700), lines[1].replace(b'"@"', b"[[1],[2]]")])
    found = read_events(body, "a.jsonl", Reading(), json.dumps(schema([("id", "long"), ("v", array)])))
    assert found.events[0].rows.column("v").to_pylist()[-1] == [1, 2]
    assert sum(len(one.rows) for one in found.events) + len(found.bad) == 2


FOREIGN = [{"name": f"n{at}", "born": at} for at in range(300)]


@pytest.mark.parametrize(
    "body",
    [
        json_lines(FOREIGN),
        avro(record("person", [("name", "string"), ("born", "int")]), FOREIGN),
        parquet(pa.table({"name": ["a"] * 300, "born": pa.array([2**31 - 1] * 300, pa.int32()).cast(pa.date32())})),
        b"name,born\n" * 300,
    ],
    ids=["json", "avro", "parquet", "text"],
)
def test_a_file_that_holds_no_change_events_is_one_fault_and_not_one_a_row(body: bytes) -> None:
    with pytest.raises(FileBroken) as caught:
        read_events(body, "people.json", Reading())
    assert caught.value.parameters["path"] == "people.json"


def test_an_event_that_python_has_no_values_for_can_be_set_aside() -> None:
    """A Parquet file of somebody else, with dates outside of Python's calendar."""
    far = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    wild = pa.array([2**62, 5], pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([far, wild], names=["day", "at"])
    source = pa.array([{"table": "orders", "primary_keys": ["id"]}] * 2)
    table = pa.table({"source_metadata": source, "read_timestamp": wild, "extra": far, "change_type": ["x", "y"],
                      "payload": pa.StructArray.from_arrays([far, nested], names=["id", "n"])})  # fmt: skip
    found = read_events(parquet(table), "a.parquet", Reading(out_of_range="reject"))
    assert [bad.row for bad in found.bad] == [0, 1] and not found.events
    assert "2147483647" in found.bad[0].raw.decode()


ODD: list[Any] = [
    "", "x", "\ud800", 0, -1, 2**70, 1.5, True, None, [], [1], ["a", None], [["a"]], {}, {"a": 1}, "9" * 30, "1e9",
    "0000-00-00", "infinity", "99999-01-01", 10**16, "\x1f", "a\x00b",
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, _ in (*TOP, *MYSQL)])
def test_one_odd_metadata_value_costs_its_own_event_at_most(name: str) -> None:
    for odd in ODD:
        events = [event(at) for at in range(5)]
        (events[2] if name in events[2] else events[2]["source_metadata"])[name] = odd
        body = json_lines(events) if odd != "\ud800" else b"\n".join(json.dumps(one).encode() for one in events)
        found = read_events(body, "a.jsonl", Reading())
        whole = [events for events in found.events if events.table.route == "shop.orders"]
        rows = [n for one in whole for n in one.numbers.to_pylist()]
        assert {0, 1, 3, 4} <= set(rows), (name, odd)
        metadata = pa.concat_tables([one.rows.select([METADATA]) for one in whole]).column(METADATA).to_pylist()
        normal = {row["uuid"]: row for row in metadata}
        for at in (0, 1, 3, 4):
            expected = only(read(event(at))).rows.column(METADATA).to_pylist()[0]
            assert normal[events[at]["uuid"]] == expected, (name, odd)
        assert sum(len(one.rows) for one in found.events) + len(found.bad) == 5
