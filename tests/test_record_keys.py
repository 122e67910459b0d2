"""Records' keys as columns: texts and records, of plain tables and of tables with keys, in each format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge import payloads
from distributary.audit.judge.payloads import judge_payloads
from distributary.audit.verify import verify
from distributary.config import RegistryConfig
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.schemas import schemas_of
from distributary.running.bronze.bronze_table import schema_of
from distributary.running.bronze.unwrap import EnvelopeQuestions, unwrap_task
from distributary.schemas import header
from distributary.schemas.protobuf.framing import frame
from distributary.schemas.registry import open_registry
from distributary.tables.store import Store
from tests.scenarios import message
from tests.sparkless_messages import SOURCE, Players
from tests.test_audit_upserts import Topic, verified

PROTO = 'syntax = "proto3"; message key { int64 id = 1; string region = 2; }'
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "int"}, {"name": "region", "type": ["null", "string"]}],
}
COLUMNS = {"id": "bigint", "region": "string"}
JSON = {"format": "json", "framing": "none", "columns": {"level": "bigint"}}


class Keyed(Players):
    """Messages of JSON, whose keys are written in some format."""

    def __init__(self, root: Path, format: str, keys: list[str], **more: Any) -> None:
        tables = {"keys": keys, **more.pop("tables", {})}
        key = {"format": format, "columns": COLUMNS}
        super().__init__(root, {}, source={"key": key}, payload=JSON, tables=tables, **more)
        self.format = format

    def key(self, id: int, region: str | None) -> bytes:
        registry = open_registry(RegistryConfig(path=str(self.root / "registry")))
        if self.format == "json":
            return json.dumps({"id": id, "region": region}).encode()
        if self.format == "avro":
            out = BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": id, "region": region})
            return header.frame(
                registry.register("players-key", json.dumps(AVRO), kind="AVRO").schema.id, out.getvalue()
            )
        body = message(PROTO, "key", id=id, region=region or "")
        return frame(registry.register("players-key", PROTO).schema.id, body)

    def sends(self, key: bytes | None, value: Mapping[str, Any] | None) -> dict[str, Any]:
        one = self.record("", None)
        one |= {"key": key, "value": None if value is None else json.dumps(value).encode()}
        return one

    def rows(self) -> list[dict[str, Any]]:
        found = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        kept = [{n: v for n, v in row.items() if n in ("id", "region", "level", "_deleted")} for row in found]
        return sorted(kept, key=lambda row: (row["id"] or 0, row["level"] or 0))

    def aside(self) -> list[tuple[str, str]]:
        found = DeltaTable(f"{self.config.state_root}/quarantine").to_pyarrow_table().to_pylist()
        return [(row["reason"], row["state"]) for row in found]


FORMATS = ["json", "avro", "protobuf"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_that_is_a_record_is_columns_of_a_plain_table(
    lake: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Keyed(lake, format, [])
    key = players.key(7, "eu")
    sent = [
        players.sends(key, {"level": 1}),
        players.sends(key, {"level": 2, "region": "its own, undeclared"}),
        players.sends(None, {"level": 3}),
        players.sends(b"no key", {"level": 4}),
        players.sends(b"\0\0\0\0\x63no schema", {"level": 5}),
        players.sends(key, {"level": "x"}),
        players.sends(key, None),
    ]
    report = players.take(0, sent)
    assert report.rows_in == 6
    assert players.rows() == [
        {"id": None, "region": None, "level": 3},
        {"id": 7, "region": "eu", "level": 1},
        {"id": 7, "region": "eu", "level": 2},
    ]
    assert sorted(players.aside()) == [("CORRUPT_KEY", "open"), ("CORRUPT_KEY", "open"), ("CORRUPT_PAYLOAD", "open")]
    monkeypatch.setattr(payloads, "KafkaRecords", lambda *_: Topic(players))
    found = judge_payloads(players.config, verify(players.config), deep=True)
    assert (found.ok, found.problems, found.tables[0].rows_compared) == (True, (), 3)
    DeltaTable(players.table).update(predicate="level = 1", new_values={"region": "'us'"})
    assert not judge_payloads(players.config, verify(players.config), deep=True).ok


@pytest.mark.parametrize("format", FORMATS)
def test_a_key_that_is_a_record_tells_the_rows_of_a_table_apart_and_deletes_them(
    lake: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Keyed(lake, format, ["id", "region"])
    first, second = players.key(7, "eu"), players.key(7, "us")
    writer = players.writer()
    players.take(0, [players.sends(first, {"level": 1}), players.sends(second, {"level": 2})], writer)
    players.take(1, [players.sends(first, None), players.sends(second, {"level": 3})], writer)
    players.take(2, [players.sends(b"no key", None), players.sends(first, {"level": "x"})])
    assert [(row["region"], row["level"]) for row in players.rows() if not row["_deleted"]] == [("us", 3)]
    assert sorted(players.aside()) == [("CORRUPT_KEY", "open"), ("CORRUPT_PAYLOAD", "open")]
    found = verified(players, monkeypatch)
    assert (found.ok, found.problems) == (True, ())


def test_what_was_set_aside_comes_back_with_its_key(lake: Path) -> None:
    players = Keyed(lake, "avro", [])
    players.take(0, [players.sends(players.key(7, "eu"), {"level": "high"})])
    assert players.aside() == [("CORRUPT_PAYLOAD", "open")]
    payload = {"format": "json", "framing": "none", "columns": {"level": "string"}}
    players.config = players.config.model_validate({**players.config.model_dump(by_alias=True), "payload": payload})
    players.replay()
    assert players.rows() == [{"id": 7, "region": "eu", "level": "high"}]


def test_a_text_is_a_column_of_a_plain_table_too(lake: Path) -> None:
    players = Players(lake, {}, source={"key": {"column": "id", "type": "bigint"}}, payload=JSON, tables={"keys": []})
    sent = [players.record(key, None) for key in ("7", "x", "8")]
    for one in sent:
        one["value"] = b'{"level":1}'
    sent[2]["key"] = None
    players.take(0, sent)
    rows = DeltaTable(players.table).to_pyarrow_table().to_pylist()
    assert sorted((row["id"] or 0, row["level"]) for row in rows) == [(0, 1), (7, 1)]


def by_way_of_bronze(players: Keyed, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What bronze holds of records, by the task of hop 1."""
    store = Store()
    reader, schema = Envelopes(players.config, schemas_of(players.config)).begin(), schema_of(players.config)
    source = pa.RecordBatch.from_pylist(records, schema=SOURCE)
    asked = EnvelopeQuestions(str(players.root / "asked"), store)
    return [row for rows in unwrap_task(iter([source]), reader, schema, asked) for row in rows.to_pylist()]


@pytest.mark.parametrize("keys", [[], ["id", "region"]])
@pytest.mark.parametrize("format", FORMATS)
def test_a_key_that_is_a_record_comes_by_way_of_bronze_too(lake: Path, format: str, keys: list[str]) -> None:
    players = Keyed(lake, format, keys, layout="two_hop")
    first, second = players.key(7, "eu"), players.key(8, "us")
    sent = [
        players.sends(first, {"level": 1}),
        players.sends(second, {"level": 2}),
        players.sends(first, None),
        players.sends(b"no key", {"level": 4}),
        players.sends(second, {"level": 3}),
    ]
    schema = schema_of(players.config)
    players.take(0, by_way_of_bronze(players, sent), schema=schema)
    living = [row for row in players.rows() if not row.get("_deleted")]
    assert [(row["id"], row["level"]) for row in living] == ([(8, 3)] if keys else [(7, 1), (8, 2), (8, 3)])
    assert players.aside() == [("CORRUPT_KEY", "open")]
    players.replay()
    assert players.aside() == [("CORRUPT_KEY", "open")]


def test_the_judge_reads_keys_out_of_bronze(lake: Path) -> None:
    players = Keyed(lake, "json", [], layout="two_hop")
    rows = by_way_of_bronze(players, [players.sends(players.key(7, "eu"), {"level": 1})])
    schema = schema_of(players.config)
    write_deltalake(players.config.bronze_path, pa.Table.from_pylist(rows, schema=schema))
    players.take(0, rows, schema=schema)
    assert judge_payloads(players.config, verify(players.config), deep=True).problems == ()
    DeltaTable(players.table).update(new_values={"region": "'us'"})
    assert not judge_payloads(players.config, verify(players.config), deep=True).ok


def test_bronze_has_a_column_of_keys_only_where_the_pipeline_file_asks_for_them(lake: Path) -> None:
    with_keys = Keyed(lake / "a", "json", [], layout="two_hop").config
    without = Players(lake / "b", {}, payload=JSON, tables={"keys": []}, layout="two_hop").config
    assert "record_key" in schema_of(with_keys).names
    assert "record_key" not in schema_of(without).names
