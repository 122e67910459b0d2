"""`init`: a first pipeline file that is valid, and reads the records that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from distributary.audit.beginning import Beginning, begin, without_looking
from distributary.audit.inspection import inspect
from distributary.cli.entry import execute
from distributary.cli.init import document_of, put
from distributary.config import RegistryConfig, load, load_document
from distributary.errors import BadInput, Exit
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.sources.kafka_source import KafkaTopics
from tests.scenarios import message
from tests.shop import Shop, change, mysql_table, order

ENVELOPE = 'syntax = "proto3"; message Wrapper { string kind = 1; int32 schema_id = 2; bytes body = 3; }'
EVENT = 'syntax = "proto3"; package shop; message Bought { string event_type = 1; double price = 2; }'


@pytest.fixture
def ids(tmp_path: Path) -> tuple[int, int]:
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    return registry.register("events-value", ENVELOPE).schema.id, registry.register("bought", EVENT).schema.id


def event(ids: tuple[int, int], kind: str = "sale") -> bytes:
    return frame(ids[1], message(EVENT, "shop.Bought", event_type=kind, price=2.5))


def wrapped(ids: tuple[int, int], kind: str) -> bytes:
    return frame(ids[0], message(ENVELOPE, "Wrapper", kind=kind, schema_id=ids[1], body=event(ids)))


def document(root: Path, rows: dict[str, Any], registry: bool = True) -> dict[str, Any]:
    write_deltalake(str(root / "source"), pa.table(rows))
    found: dict[str, Any] = {"pipeline": "games", "source": {"type": "delta", "path": str(root / "source")}}
    if registry:
        found["registry"] = {"path": str(root / "registry")}
    return {**found, "tables": {"root": str(root / "lake")}}


def of_text(found: Beginning) -> dict[str, Any]:
    """The file's keys, which a pipeline takes."""
    keys: dict[str, Any] = yaml.safe_load(found.text())
    load_document(keys)
    return keys


# -- what the records say -----------------------------------------------------------------------------------


def test_an_envelope_of_other_names_is_found_and_reads_all_records(tmp_path: Path, ids: tuple[int, int]) -> None:
    given = document(tmp_path, {"value": [wrapped(ids, kind) for kind in ("chess", "go", "chess")]})
    found = begin(given)
    keys = of_text(found)
    assert keys["envelope"] == {"route": "kind", "schema_id": "schema_id", "payload": "body"}
    assert "3 of the 3 newest records" in found.notes[0] and "chess, go" in found.notes[1]
    assert {one.route for one in inspect(load_document(keys), 9).records} == {"chess", "go"}


def test_plain_messages_are_read_and_the_other_ways_are_named(tmp_path: Path, ids: tuple[int, int]) -> None:
    found = begin(document(tmp_path, {"value": [event(ids, "sale"), event(ids, "gift")]}))
    keys = of_text(found)
    assert keys["envelope"] in ({"format": "none", "route": "event_type"}, {"route": {"from": "message_type"}})
    assert "# or: envelope: " in found.text()
    assert all(one.route for one in inspect(load_document(keys), 9).records)


def test_a_way_that_lacks_a_line_of_the_first_says_so() -> None:
    given = {"pipeline": "a", "source": {"type": "kafka"}, "tables": {"root": "lake"}}
    first = {"envelope": "none", "payload": {"format": "avro"}}
    text = Beginning(given, first, ({"envelope": {"route": "kind"}}, {"envelope": "none"})).text()
    assert "# or: envelope: {route: kind}\n#     # without payload\n# or: # without payload\n" in text


def test_texts_and_bytes_need_no_registry(tmp_path: Path) -> None:
    texts = begin(document(tmp_path / "a", {"value": [b'{"a": 1}', b"plain"]}, registry=False))
    assert of_text(texts)["payload"] == {"format": "text"}
    blobs = begin(document(tmp_path / "b", {"value": [b"\xff\xfe\x00"]}, registry=False))
    assert "payload" in of_text(blobs)


def test_json_without_a_registry_is_read_by_its_fields(tmp_path: Path) -> None:
    values = [b'{"kind": "sale", "n": 1}', None, b'{"kind": "gift", "n": 2.5}']
    found = begin(document(tmp_path, {"value": pa.array(values, pa.binary())}, registry=False))
    keys = of_text(found)
    columns = {"kind": "string", "n": "double"}
    assert keys["payload"] == {"format": "json", "framing": "none", "columns": columns}
    assert keys["envelope"] == {"format": "none", "route": {"constant": "games"}}
    assert "# or: envelope: {format: none, route: kind}\n" in found.text(), "the other way is named, its own line alone"


def test_each_other_way_is_lines_that_a_pipeline_takes_when_they_replace_the_first(tmp_path: Path) -> None:
    values = [b'{"kind": "sale", "n": 1}', b'{"kind": "gift", "n": 2}']
    found = begin(document(tmp_path, {"value": pa.array(values, pa.binary())}, registry=False))
    ways = re.findall(r"^# or: (.*(?:\n#     .*)*)", found.text(), re.MULTILINE)
    assert len(ways) == len(found.others) > 1
    for way, lines in zip(ways, found.others, strict=True):
        replaced = {**yaml.safe_load(found.text()), **yaml.safe_load(way.replace("\n#     ", "\n"))}
        load_document(replaced)
        assert {key: replaced[key] for key in lines} == lines


@pytest.mark.parametrize("name", ["@type", "a: kind}", "yes", "kind\u2028trigger", "kind\x85", "\x80kind", "😀", '"#'])
def test_a_field_of_any_name_makes_a_valid_file(tmp_path: Path, name: str) -> None:
    values = [json.dumps({name: "sale", "n": 1}, ensure_ascii=False).encode()]
    found = begin(document(tmp_path, {"value": pa.array(values, pa.binary())}, registry=False))
    keys = of_text(found)
    assert keys["payload"]["columns"] == {name: "string", "n": "bigint"}
    assert keys.keys() == {"pipeline", "source", "envelope", "payload", "tables", "trigger"}
    (other,) = (one for one in found.others if one["envelope"] != keys["envelope"] and "columns" in one["payload"])
    assert other["envelope"]["route"] == name


def test_a_table_with_a_column_each_is_read_by_its_columns(tmp_path: Path, ids: tuple[int, int]) -> None:
    rows = {"game": ["chess", "go"], "sid": pa.array([ids[1]] * 2, pa.int32()), "body": [event(ids)] * 2}
    keys = of_text(begin(document(tmp_path, rows)))
    assert keys["envelope"] == {"format": "columns", "payload": "body", "route": "game", "schema_id": "sid"}


def test_a_table_without_a_column_of_bytes_is_refused_with_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as e:
        begin(document(tmp_path, {"a": ["x"]}, registry=False))
    assert "binary column" in e.value.parameters["detail"]


def test_an_empty_source_makes_a_valid_file_that_says_so(tmp_path: Path, ids: tuple[int, int]) -> None:
    found = begin(document(tmp_path, {"value": pa.array([], pa.binary())}))
    of_text(found)
    assert "no record yet" in found.text()


def test_change_files_say_their_tables(lake: Path) -> None:
    shop = Shop(lake)
    shop.send(change(mysql_table(), "INSERT", order(1, "new"), 100))
    source = {"type": "datastream", "path": str(shop.files)}
    found = begin({"pipeline": "shop", "source": source, "tables": {"root": str(lake / "lake")}})
    assert of_text(found)["source"]["path"] == str(shop.files)
    assert "1 files were found" in found.notes[0] and "shop_orders" in found.notes[0]


def test_values_that_yaml_would_read_otherwise_stay_texts(tmp_path: Path) -> None:
    given = {
        "pipeline": "games", "source": {"type": "kafka", "bootstrap_servers": "h:9092", "topic": "no"},
        "registry": {"url": "http://r:8081", "username": "007", "password": "${env:PATH}"},
        "tables": {"root": "/data/it's: a # lake"},
    }  # fmt: skip
    keys = of_text(without_looking(given))
    assert keys["source"]["topic"] == "no" and keys["registry"]["username"] == "007"
    assert keys["tables"]["root"] == "/data/it's: a # lake" and keys["registry"]["password"] == "${env:PATH}"


# -- flags and questions ------------------------------------------------------------------------------------

NOTHING: dict[str, Any] = dict.fromkeys(["kafka", "topic", "delta", "files", "registry", "registry_path", "tables"])


def test_what_was_not_given_is_asked_for() -> None:
    answers = {"source": "kafka", "brokers": "h:9092", "topic": "a, b", "schema": "http://r:8081", "folder": "/lake"}
    asked: list[str] = []

    def ask(question: str, default: str | None) -> str:
        asked.append(question.split()[0])
        return answers[question.split()[0]]

    found = document_of({**NOTHING, "name": "games"}, ask)
    assert found == {
        "pipeline": "games", "source": {"type": "kafka", "bootstrap_servers": "h:9092", "topic": ["a", "b"]},
        "registry": {"url": "http://r:8081"}, "tables": {"root": "/lake"},
    }  # fmt: skip
    assert asked == list(answers)
    given = {**NOTHING, "name": "games", "delta": "/d", "registry": "http://r", "tables": "/lake"}
    assert document_of(given, None)["source"] == {"type": "delta", "path": "/d"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "--kafka, --delta or --files"),
        ({"kafka": "h:1"}, "--topic"),
        ({"delta": "/d"}, "--tables"),
        ({"delta": "/d", "kafka": "h:1"}, "one source"),
        ({"delta": "/d", "topic": ["t"]}, "--topic goes with"),
        ({"delta": "/d", "registry": "u", "registry_path": "p"}, "not both"),
    ],
)
def test_without_a_terminal_it_says_which_flag_is_missing(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as e:
        document_of({**NOTHING, "name": "games", **given}, None)
    assert says in str(e.value)


def test_any_other_key_can_be_set_and_a_reference_stays_one() -> None:
    found: dict[str, Any] = {"registry": {"url": "u"}}
    put(found, "registry.password=${env:SECRET}")
    put(found, "trigger.every=1 minute")
    put(found, "source.headers=true")
    assert found == {
        "registry": {"url": "u", "password": "${env:SECRET}"}, "trigger": {"every": "1 minute"},
        "source": {"headers": True},
    }  # fmt: skip
    for wrong in ("x", ".a=1", "registry.url.x=1"):
        with pytest.raises(BadInput):
            put(found, wrong)


def test_the_command_writes_a_file_once_and_says_what_is_next(
    tmp_path: Path, ids: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    given = document(tmp_path, {"value": [wrapped(ids, "chess")]})
    file = tmp_path / "My games.yaml"
    words = ["init", str(file), "--delta", given["source"]["path"], "--registry-path", given["registry"]["path"]]
    words += ["--tables", given["tables"]["root"], "--set", "trigger.every=1 minute"]
    assert execute(words) == Exit.OK
    said = capsys.readouterr()
    assert f"next: distributary doctor {file}" in said.out and "1 of the 1 newest" in said.err
    config = load(file)
    assert (config.pipeline, config.trigger.every, config.envelope.payload) == ("my-games", 60.0, "body")
    before = file.read_text()
    assert execute(words) == Exit.BAD_INPUT
    assert "--force" in capsys.readouterr().err and file.read_text() == before
    assert execute([*words, "--force", "--no-look"]) == Exit.OK
    assert json.loads(json.dumps(load(file).as_dict_masked()))["envelope"]["route"]


def test_a_source_that_is_away_leaves_no_file_and_says_how_to_do_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "games.yaml"
    words = ["init", str(file), "--kafka", "127.0.0.1:1", "--topic", "e", "--tables", "lake"]
    assert execute(words) == Exit.ENVIRONMENT
    said = capsys.readouterr().err
    assert "--no-look" in said and "Connection refused" in said and "KafkaError{" not in said
    assert not file.exists()
    assert execute([*words, "--registry", "http://127.0.0.1:1", "--no-look"]) == Exit.OK
    assert file.exists()


CHANGES = {
    "debezium": b'{"op":"c","source":{"connector":"mysql","db":"d","table":"t","file":"b.1","pos":1},"after":{"id":1}}',
    "maxwell": b'{"database":"shop","table":"a","type":"insert","ts":1790000000,"data":{"id":1}}',
    "openlogreplicator": b'{"e_scn":1,"c_scn":1,"payload":[{"op":"c","schema":{"table":"A"},"after":{"ID":1}}]}',
}


NOTICES = {
    "debezium": b'{"ts_ms":1790000000000}',
    "maxwell": b'{"database":"shop","table":"a","type":"bootstrap-start","ts":1790000000,"data":{}}',
    "openlogreplicator": b'{"scn":1,"c_scn":1,"payload":[{"op":"begin"}]}',
}
"""What says nothing of a row."""


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_database_are_known_without_a_registry(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pa.table(
        {"value": [CHANGES[name]] * 2 + [NOTICES[name]], "offset": range(3), "partition": [0] * 3, "topic": ["t"] * 3}
    )
    monkeypatch.setattr(KafkaTopics, "newest", lambda self, count: values)
    source = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t"}
    found = begin({"pipeline": "shop", "source": source, "tables": {"root": str(tmp_path / "lake")}})
    keys = of_text(found)
    assert (keys["envelope"], keys["payload"]) == (name, {"format": "json"})
    assert "2 of the 3 newest records" in found.notes[0]


SHOPS = """syntax = "proto3"; package acme; import "google/protobuf/any.proto";
message Order { string user = 1; }
message Gift { string user = 1; }
enum Kind { NONE = 0; ORDER_PLACED = 1; }
message Meta { Kind event_type = 1; }
message Either { string id = 1; oneof event { Order order = 2; Gift gift = 3; } }
message Packed { string id = 1; google.protobuf.Any details = 2; }
message Wrapped { Meta meta = 1; int32 schema_id = 2; bytes payload = 3; }
"""


@pytest.mark.parametrize(
    ("name", "index", "values", "route", "routes"),
    [
        ("Either", 3, {"order": {"user": "ann"}}, {"oneof": "event"}, "order"),
        (
            "Packed",
            4,
            {"details": {"type_url": "t/acme.Order", "value": b"\x0a\x03ann"}},
            {"any": "details"},
            "acme.Order",
        ),
        ("Wrapped", 5, {"meta": {"event_type": 1}, "payload": ...}, "meta.event_type", "ORDER_PLACED"),
    ],
)
def test_a_oneof_an_any_and_a_route_deeper_down_are_tried(
    tmp_path: Path, name: str, index: int, values: dict[str, Any], route: Any, routes: str
) -> None:
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    schema_id = registry.register("shop", SHOPS).schema.id
    if "payload" in values:
        values = {**values, "payload": frame(schema_id, message(SHOPS, "acme.Order", user="ann"), [0])}
    value = frame(schema_id, message(SHOPS, f"acme.{name}", **values), [index])
    found = begin(document(tmp_path, {"value": [value, value]}))
    assert of_text(found)["envelope"]["route"] == route
    assert routes in found.notes[1]
