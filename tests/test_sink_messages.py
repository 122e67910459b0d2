"""Spark's sink with a pipeline file, without Spark: messages of any schema, held against an independent decode."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.config import RegistryConfig, load_document
from distributary.errors import BadInput
from distributary.sink.committing import BatchEnding
from distributary.sink.data_source import packed, unpacked
from distributary.sink.message_rows import MessageRows
from distributary.sink.payload_column import decoded, readers
from distributary.tables.snapshot import Txn
from distributary_simulate.games.records import Faults, Plan
from tests.declarative import World, _multiset
from tests.sparkless_messages import SOURCE, Players

FAULTS = Faults(corrupt=3, unknown_id=2, tombstones=2, bad_envelope=2)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "none", Plan(games=3, versions=3, records=20, faults=FAULTS), layout="fanout")


def batch(world: World, number: int, since: int = 0, tasks: int = 2) -> int:
    """One batch of what the source has got since, by so many tasks; how many rows it has now."""
    rows = DeltaTable(world.source).to_pyarrow_table()
    new = rows.slice(0, rows.num_rows - since)  # its newest files come first
    found = MessageRows(world.config)
    shipped: Any = unpacked(packed(found))
    size = -(-new.num_rows // tasks)
    parts = [new.slice(n * size, size).to_batches() for n in range(tasks)]
    taken = [shipped.take(part, "query", number, str(n)) for n, part in enumerate(parts)]
    BatchEnding(found.options, Txn("query", number)).commit(pickle.loads(pickle.dumps(taken)))
    return int(rows.num_rows)


def checked(world: World) -> None:
    lake = Path(world.config.tables.root)
    for game in sorted({record.game for record in world.sent}):
        rows = DeltaTable(lake / game).to_pyarrow_table().to_pylist()
        found = [{k: v for k, v in row.items() if k != "_origin"} for row in rows]
        assert _multiset(found) == _multiset(world.expected(game)), game
    bad = [record for record in world.sent if record.fault not in (None, "tombstones")]
    quarantine = f"{world.config.state_root}/quarantine"
    assert bad and DeltaTable(quarantine).to_pyarrow_table().num_rows == len(bad)


def test_messages_go_to_their_tables_each_once_and_bad_ones_aside(world: World) -> None:
    first, second, third = world.games.names
    world.send(1, [first, second, third])
    had = batch(world, 0)
    world.send(3, [first, third])
    world.send(2, [second])
    batch(world, 1, had)
    batch(world, 1, had)
    checked(world)


@pytest.mark.parametrize(
    "keys",
    [
        {"layout": "wide"},
        {"tables": {"keys": ["user_name"]}},
    ],
)
def test_a_pipeline_whose_rows_are_no_appends_is_refused(world: World, keys: dict[str, Any]) -> None:
    config = world.configure(**{"layout": "fanout", **keys})
    with pytest.raises(BadInput, match="not one that a sink can write"):
        MessageRows(config)


def test_rows_without_the_columns_that_are_read_are_refused(world: World) -> None:
    rows = MessageRows(world.config)
    rows.check(["value", "topic"])
    with pytest.raises(BadInput, match="no column 'value'"):
        rows.check(pa.schema([("payload", pa.binary())]).names)


def test_payloads_that_have_no_schema_need_no_schema_id(tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "pipeline": "p",
        "source": {"type": "delta", "table": "dataframe"},
        "envelope": {"format": "columns"},
        "payload": {"format": "json", "framing": "none", "types": "inferred"},
        "tables": {"root": str(tmp_path)},
    }
    rows = MessageRows(load_document(document))
    rows.check(["game_name", "payload"])
    taken = rows.take([pa.RecordBatch.from_pydict({"game_name": ["go"], "payload": [b'{"a":7}']})], "query", 0, "0")
    BatchEnding(rows.options, Txn("query", 0)).commit([taken])
    assert DeltaTable(tmp_path / "go").to_pyarrow_table().column("a__bigint").to_pylist() == [7]


def test_a_column_of_payloads_is_decoded_by_the_id_in_each(world: World) -> None:
    first = world.games.names[0]
    for version in (1, 2, 3):
        world.send(version, [first])
    sent = [record for record in world.sent if record.game == first]
    payloads = [record.envelope.payload if record.value is not None else None for record in sent]
    found = readers(RegistryConfig(path=str(world.root / "registry")), "protobuf", (), f"{first}-value", "0")
    rows = decoded(pa.array(payloads, pa.binary()), found).to_pylist()
    good = [row for row, record in zip(rows, sent, strict=True) if record.fault is None]
    assert _multiset(good) == _multiset(world.expected(first))
    bad = [
        row for row, record in zip(rows, sent, strict=True) if record.fault in ("corrupt", "unknown_id", "tombstones")
    ]
    assert bad and not any(bad)


def test_without_a_schema_there_is_nothing_to_decode_with(world: World) -> None:
    world.send(1)
    with pytest.raises(BadInput, match="give subject"):
        readers(RegistryConfig(path=str(world.root / "registry")), "protobuf", (), None, "0")
    with pytest.raises(BadInput, match="no schema to decode with: 99"):
        readers(RegistryConfig(path=str(world.root / "registry")), "protobuf", (99,), None, "0")


def test_a_column_that_tasks_name_in_another_case_keeps_its_values(tmp_path: Path) -> None:
    texts = {
        1: 'syntax = "proto3"; message player { int64 id = 1; string Note = 2; }',
        2: 'syntax = "proto3"; message player { int64 id = 1; string note = 2; }',
    }
    players = Players(tmp_path, texts, tables={"keys": []})
    records = [players.record(1, 1, Note="one"), players.record(2, 2, note="two")]
    rows = MessageRows(players.config)
    taken = [
        rows.take([pa.RecordBatch.from_pylist([record], schema=SOURCE)], "query", 0, str(n))
        for n, record in enumerate(records)
    ]
    BatchEnding(rows.options, Txn("query", 0)).commit(taken)
    (column,) = [c for c in DeltaTable(players.table).to_pyarrow_table().column_names if c.lower() == "note"]
    assert sorted(DeltaTable(players.table).to_pyarrow_table().column(column).to_pylist()) == ["one", "two"]
