"""`inspect`: records of a source taken apart, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from distributary.audit.inspection import Inspection, inspect
from distributary.cli.entry import execute
from distributary.config import Pipeline, RegistryConfig
from distributary.errors import BadInput, Exit, SourceMissing
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.sources.kafka_source import KafkaTopics
from distributary_simulate.change_messages.connect_avro_form import AvroForm
from distributary_simulate.change_messages.connect_protobuf_form import ProtobufForm
from tests.debezium_messages import change
from tests.scenarios import message

ENVELOPE = 'syntax = "proto3"; message Wrapper { string game_name = 1; int32 schema_id = 2; bytes payload = 3; }'
EVENT = 'syntax = "proto3"; package shop; message Bought { string event_type = 1; double price = 2; string note = 3; }'


class Topic:
    """A Delta table of records, and the pipeline over it."""

    def __init__(self, root: Path, values: list[bytes | None], **keys: Any) -> None:
        self.root = root
        rows = {"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)), pa.int64())}
        write_deltalake(str(root / "source"), pa.table(rows))
        self.document = {
            "pipeline": "games",
            "source": {"type": "delta", "path": str(root / "source")},
            "registry": {"path": str(root / "registry")},
            "tables": {"root": str(root / "lake")},
            **keys,
        }

    def inspect(self, count: int = 5) -> Inspection:
        return inspect(Pipeline.model_validate(self.document), count)


@pytest.fixture
def ids(tmp_path: Path) -> tuple[int, int]:
    """The envelope's and the event's schema ids."""
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    return registry.register("events-value", ENVELOPE).schema.id, registry.register("bought", EVENT).schema.id


def _wrapped(ids: tuple[int, int], route: str = "chess") -> bytes:
    payload = frame(ids[1], message(EVENT, "shop.Bought", event_type="sale", price=2.5))
    return frame(ids[0], message(ENVELOPE, "Wrapper", game_name=route, schema_id=ids[1], payload=payload))


def test_an_envelope_and_its_payload_are_taken_apart_and_routed(tmp_path: Path, ids: tuple[int, int]) -> None:
    (found,) = Topic(tmp_path, [_wrapped(ids)]).inspect().records
    assert (found.route, found.reason) == ("chess", None)
    assert (found.record.message, found.record.fields["game_name"]) == ("Wrapper", ("string", "chess"))
    assert found.payload is not None
    assert found.payload.message == "shop.Bought"
    assert found.payload.fields["price"] == ("double", 2.5)
    assert found.origin["offset"] == 0


def test_the_newest_records_come_last_and_no_more_than_asked_for(tmp_path: Path, ids: tuple[int, int]) -> None:
    found = Topic(tmp_path, [_wrapped(ids, f"game {n}") for n in range(9)]).inspect(3)
    assert [one.route for one in found.records] == ["game 6", "game 7", "game 8"]
    assert found.proposal == ()


@pytest.mark.parametrize("last", [0, 1, 2])
def test_of_a_table_the_file_that_was_written_last_has_the_newest_records(
    tmp_path: Path, ids: tuple[int, int], last: int
) -> None:
    topic = Topic(tmp_path, [_wrapped(ids, "game 0")])
    for n in (1, 2):
        rows = {"value": pa.array([_wrapped(ids, f"game {n}")], pa.binary()), "offset": pa.array([n], pa.int64())}
        write_deltalake(str(tmp_path / "source"), pa.table(rows), mode="append")
    for n in range(3):
        commit = tmp_path / "source" / "_delta_log" / f"{n:020}.json"
        time = f'"modificationTime":{9_000 if n == last else n}'
        commit.write_text(re.sub(r'"modificationTime":\d+', time, commit.read_text()))
    assert [one.route for one in topic.inspect(1).records] == [f"game {last}"]


@pytest.mark.parametrize(
    ("keys", "proposal"),
    [
        ({"envelope": {"route": "nope"}}, "envelope: {route: game_name, schema_id: schema_id, payload: payload}"),
        ({"envelope": {"format": "none", "route": "nope"}}, "route: game_name"),
    ],
)
def test_lines_are_proposed_where_the_file_fits_no_record(
    tmp_path: Path, ids: tuple[int, int], keys: Mapping[str, Any], proposal: str
) -> None:
    found = Topic(tmp_path, [_wrapped(ids)], **keys).inspect()
    assert found.records[0].reason == "CORRUPT_ENVELOPE"
    assert any(proposal in line for line in found.proposal)


def test_a_plain_message_is_proposed_as_the_payload(tmp_path: Path, ids: tuple[int, int]) -> None:
    plain = frame(ids[1], message(EVENT, "shop.Bought", event_type="sale"))
    found = Topic(tmp_path, [plain]).inspect()
    assert any("format: none, route: event_type" in line for line in found.proposal)
    assert any("envelope: none" in line for line in found.proposal)


def test_the_proposed_lines_route_the_record(tmp_path: Path, ids: tuple[int, int]) -> None:
    plain = frame(ids[1], message(EVENT, "shop.Bought", event_type="sale"))
    topic = Topic(tmp_path, [plain])
    topic.document["envelope"] = {"format": "none", "route": "event_type"}
    (found,) = topic.inspect().records
    assert (found.route, found.reason) == ("sale", None)


def test_what_cannot_be_read_says_why(tmp_path: Path, ids: tuple[int, int]) -> None:
    values = [b'{"game": "chess"}', frame(99, b"x"), None, frame(ids[0], b"\xff\xff"), b"\x0a\x05chess"]
    json_text, unknown, tombstone, corrupt, bare = Topic(tmp_path, values).inspect().records
    assert ("JSON" in json_text.record.looks, json_text.reason) == (True, "BAD_MAGIC")
    assert unknown.record.problem is not None and unknown.reason == "UNKNOWN_SCHEMA_ID"
    assert tombstone.route is None and tombstone.reason is None
    assert corrupt.record.problem is not None and corrupt.reason == "CORRUPT_ENVELOPE"
    assert "protobuf message" in bare.record.looks


def test_the_lines_that_are_proposed_for_bare_json_read_it(tmp_path: Path) -> None:
    values: list[bytes | None] = [
        b'{"kind": "shop/sale", "n": 1, "meta": {"at": "2026-01-02T03:04:05Z", "by": null}, "tags": ["a"], "x y": 1}',
        b'{"kind": "shop/sale", "n": 1.5, "meta": {"at": "2026-01-02T03:04:05Z"}, "tags": []}',
    ]
    topic = Topic(tmp_path, values)
    lines = [yaml.safe_load(line) for line in topic.inspect().proposal]
    assert [line["envelope"] for line in lines[:2]] == ["none", {"format": "none", "route": "kind"}]
    columns = {"kind": "string", "n": "double", "meta.at": "timestamp", "tags": "array<string>", "x y": "bigint"}
    assert lines[2]["payload"] == {"format": "json", "framing": "none", "columns": columns}
    topic.document |= {**lines[1], **lines[2]}
    assert [(one.route, one.reason) for one in topic.inspect().records] == [("shop/sale", None)] * 2


@pytest.mark.parametrize("payload", [b'{"n": 1}', b'"{\\"n\\": 1}"'], ids=["an object", "a text"])
def test_the_lines_that_are_proposed_for_an_envelope_of_json_read_it(tmp_path: Path, payload: bytes) -> None:
    topic = Topic(tmp_path, [b'{"type": "sale", "data": ' + payload + b"}"] * 2)
    lines = [yaml.safe_load(line) for line in topic.inspect().proposal]
    assert lines[2] == {
        "envelope": {"format": "json", "route": "type", "payload": "data"},
        "payload": {"format": "json", "framing": "none", "columns": {"n": "bigint"}},
    }
    topic.document |= lines[2]
    assert [(one.route, one.reason) for one in topic.inspect().records] == [("sale", None)] * 2


@pytest.mark.parametrize("kinds", [None, {"id": "int32"}], ids=["without its schema", "with it"])
def test_a_change_of_debezium_is_known(tmp_path: Path, kinds: dict[str, str] | None) -> None:
    found = Topic(tmp_path, [change("c", {"id": 1}, kinds=kinds).value]).inspect()
    assert [yaml.safe_load(line) for line in found.proposal] == [
        {"envelope": "debezium"},
        {"payload": {"format": "json"}},
    ]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_change_of_debezium_by_a_schema_of_the_registry_is_known(tmp_path: Path, form: str) -> None:
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    kinds = {"id": "int32"}
    sent = change("c", {"id": 1}, kinds=kinds)
    forms: dict[str, AvroForm | ProtobufForm] = {
        "avro": AvroForm(lambda subject, text: registry.register(subject, text, kind="AVRO").schema.id),
        "protobuf": ProtobufForm(lambda subject, text: registry.register(subject, text).schema.id),
    }
    _, value = forms[form].both("srv.shop.orders", sent.key, sent.value)
    assert Topic(tmp_path, [value]).inspect().proposal == (
        "envelope: debezium  # a log and a merged table for each source table",
        f"payload: {{format: {form}}}",
    )


def test_a_message_of_maxwell_is_known(tmp_path: Path) -> None:
    value = b'{"database":"shop","table":"a","type":"insert","ts":1790000000,"data":{"id":1}}'
    assert Topic(tmp_path, [value]).inspect().proposal[0].startswith("envelope: maxwell")


def test_a_message_of_openlogreplicator_is_known(tmp_path: Path) -> None:
    value = b'{"scn":1,"c_scn":1,"c_idx":0,"xid":"x","payload":[{"op":"c","schema":{"table":"A"},"after":{"ID":1}}]}'
    assert Topic(tmp_path, [value]).inspect().proposal[0].startswith("envelope: openlogreplicator")


def test_what_says_nothing_of_a_row_is_told_from_a_tombstone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = pa.array([b'{"ts_ms":1}', None], pa.binary())
    rows = pa.table({"value": values, "offset": range(2), "partition": [0] * 2, "topic": ["t"] * 2})
    monkeypatch.setattr(KafkaTopics, "newest", lambda self, count: rows)
    source = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t"}
    given = {"pipeline": "shop", "source": source, "envelope": "debezium", "payload": {"format": "json"}}
    heartbeat, tombstone = inspect(Pipeline.model_validate({**given, "tables": {"root": str(tmp_path)}}), 5).records
    assert "nothing of a row" in str(heartbeat.detail) and "tombstone" in str(tombstone.detail)


def test_an_empty_source_has_no_records_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert Topic(tmp_path, []).inspect().records == ()
    gone = Topic(tmp_path / "other", [])
    gone.document["source"] = {"type": "delta", "path": str(tmp_path / "nothing")}
    with pytest.raises(SourceMissing):
        gone.inspect()


def _of_columns(root: Path, rows: dict[str, Any], **keys: Any) -> Pipeline:
    write_deltalake(str(root / "source"), pa.table(rows))
    source = {"type": "delta", "path": str(root / "source")}
    return Pipeline.model_validate({"pipeline": "p", "source": source, "tables": {"root": str(root / "lake")}, **keys})


BARE = {"format": "json", "framing": "none", "types": "inferred"}


@pytest.mark.parametrize("payload", [BARE, {"format": "bytes"}, {"format": "text"}])
def test_columns_of_payloads_without_a_schema_need_no_schema_id(tmp_path: Path, payload: dict[str, str]) -> None:
    rows = {"kind": ["go"], "body": [b'{"score":7}']}
    envelope = {"format": "columns", "route": "kind", "payload": "body"}
    (found,) = inspect(_of_columns(tmp_path, rows, envelope=envelope, payload=payload), 5).records
    assert (found.route, found.reason) == ("go", None)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (
            {"envelope": {"format": "columns", "schema_id": "id"}, "payload": BARE},
            "column 'id', which envelope.schema_id",
        ),
        ({"envelope": {"format": "columns", "payload": "body"}, "payload": BARE}, "'body', which envelope.payload"),
        ({"envelope": {"format": "columns", "route": "kind"}, "payload": BARE}, "'kind', which envelope.route"),
        (
            {
                "envelope": {"format": "columns"},
                "payload": {"format": "avro", "framing": "none"},
                "registry": {"url": "http://127.0.0.1:1"},
            },
            "column 'schema_id', which envelope.schema_id",
        ),
        ({"envelope": "none", "payload": BARE | {"types": "declared"}}, "column 'value', which source.value"),
    ],
)
def test_a_column_that_is_missing_is_named_with_the_key_that_asks_for_it(
    tmp_path: Path, keys: dict[str, Any], key: str
) -> None:
    config = _of_columns(tmp_path, {"game_name": ["go"], "payload": [b"{}"], "topic": ["t"]}, **keys)
    with pytest.raises(SourceMissing) as missing:
        inspect(config, 5)
    assert f"{key} names; it has: game_name, payload, topic" in str(missing.value)


def test_change_files_are_for_plan(tmp_path: Path) -> None:
    shop = {"pipeline": "shop", "source": {"type": "datastream", "path": "/f"}, "tables": {"root": "/lake"}}
    with pytest.raises(BadInput):
        inspect(Pipeline.model_validate(shop), 1)


def test_the_command_prints_text_and_json(
    tmp_path: Path, ids: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(tmp_path, [_wrapped(ids), b"\x1b[31m[/red]"])
    file = tmp_path / "games.yaml"
    file.write_text(json.dumps(topic.document))
    assert execute(["inspect", str(file)]) == Exit.OK
    shown = capsys.readouterr().out
    assert "route: chess" in shown and "\x1b" not in shown
    assert execute(["inspect", str(file), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["records"][0]["payload"]["message"] == "shop.Bought"
