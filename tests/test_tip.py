"""Commits without reading the log: only where nobody came in between, and readable by everybody."""

from __future__ import annotations

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.tables import append
from distributary.tables.append import CHECKPOINT_COMMITS, Mark, Owner, commit_append
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.store import Store
from distributary.tables.tip import Tip, append_on_tip

STORE = Store()
OWNER = Owner("games", "a")
ROWS = pa.table({"n": pa.array([1, 2], pa.int64())})


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of one commit, none of whose versions is a checkpoint's turn unless a test says so."""
    monkeypatch.setattr("distributary.tables.tip.checkpoint_due", lambda *_: False)
    commit(str(tmp_path / "a"), 0)
    return str(tmp_path / "a")


def file_of(uri: str, rows: pa.Table = ROWS) -> DataFile:
    return write_data_file(uri, rows, STORE)


def commit(uri: str, batch: int) -> int | None:
    table = append.open_table(uri, STORE)
    schema = None if table is None else append.arrow_schema(table)
    evolution = evolve(schema, [ROWS.schema], Policy())
    return commit_append(table, uri, evolution, [file_of(uri)], Mark("s", batch), OWNER, STORE)


def tip(version: int) -> Tip:
    return Tip.of(version, ROWS.schema)


def count(uri: str) -> int:
    return int(DeltaTable(uri).to_pyarrow_table().num_rows)


def test_a_commit_on_the_tip_is_an_ordinary_commit_to_every_reader(uri: str) -> None:
    assert append_on_tip(uri, tip(0), [file_of(uri), file_of(uri)], Mark("s", 1))
    table = DeltaTable(uri)
    assert (table.version(), table.to_pyarrow_table().num_rows) == (1, 6)
    assert append.committed_batch(table, "s") == 1
    assert append.committed_rows(table, Mark("s", 1)) == 4
    assert append.history_marks(table) == {("s", 0), ("s", 1)}
    assert table.history(1)[0]["operation"] == "WRITE"


def test_the_mark_and_the_rows_survive_a_checkpoint(uri: str) -> None:
    assert append_on_tip(uri, tip(0), [file_of(uri)], Mark("s", 1))
    DeltaTable(uri).create_checkpoint()
    for log in sorted((Path(uri) / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    assert append.committed_batch(DeltaTable(uri), "s") == 1
    assert count(uri) == 4


def test_statistics_of_its_files_are_used_and_right(uri: str) -> None:
    late = pa.table({"n": pa.array([100, 101], pa.int64())})
    assert append_on_tip(uri, tip(0), [file_of(uri, late)], Mark("s", 1))
    table = DeltaTable(uri)
    assert table.to_pyarrow_table(filters=[("n", ">", 50)]).column("n").to_pylist() == [100, 101]


def test_where_another_writer_came_first_nothing_is_written(uri: str) -> None:
    write_deltalake(uri, ROWS, mode="append")
    assert not append_on_tip(uri, tip(0), [file_of(uri)], Mark("s", 1))
    assert (count(uri), DeltaTable(uri).version()) == (4, 1)
    assert not list((Path(uri) / "_delta_log").glob(".*.tmp"))


def test_of_many_that_know_the_same_tip_one_wins(uri: str) -> None:
    won: list[bool] = []
    barrier = threading.Barrier(8)

    def write(batch: int) -> None:
        file = file_of(uri)
        barrier.wait()
        won.append(append_on_tip(uri, tip(0), [file], Mark(f"s{batch}", 1)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1
    assert count(uri) == 4


def test_a_table_that_was_removed_or_made_anew_is_not_continued(uri: str) -> None:
    for batch in (1, 2):
        assert append_on_tip(uri, tip(batch - 1), [file_of(uri)], Mark("s", batch))
    shutil.rmtree(uri)
    assert not append_on_tip(uri, tip(2), [], Mark("s", 3))
    write_deltalake(uri, ROWS)
    assert not append_on_tip(uri, tip(2), [file_of(uri)], Mark("s", 3))
    assert (count(uri), DeltaTable(uri).version()) == (2, 0)


def test_an_object_store_is_left_to_delta_rs() -> None:
    assert not append_on_tip("s3://bucket/a", tip(0), [], Mark("s", 1))


def test_a_tip_keeps_the_whole_schema() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.decimal128(20, 0)),
            ("s", pa.struct([("l", pa.list_(pa.struct([("k", pa.string())])))])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    assert Tip.of(7, schema).arrow_schema() == schema


def test_however_long_a_stream_runs_readers_replay_few_commits(tmp_path: Path) -> None:
    """By turns of tip and delta-rs, as a stream's batches go: a checkpoint at least every `CHECKPOINT_COMMITS`."""
    uri = str(tmp_path / "a")
    version, opened = commit(uri, 0), 1
    for batch in range(1, 3 * CHECKPOINT_COMMITS):
        assert version is not None
        if append_on_tip(uri, tip(version), [file_of(uri)], Mark("s", batch)):
            version += 1
        else:
            version, opened = commit(uri, batch), opened + 1
    checkpoints = sorted(int(p.name.split(".")[0]) for p in (tmp_path / "a/_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) in (2, 3)  # whose turn it is depends on the folder's name
    assert {b - a for a, b in pairwise(checkpoints)} == {CHECKPOINT_COMMITS}
    assert opened == 1 + len(checkpoints)
    assert count(uri) == 2 * 3 * CHECKPOINT_COMMITS


def test_tables_take_turns_at_their_checkpoints() -> None:
    turns = [sum(append.checkpoint_due(f"/lake/game_{n}", version) for n in range(1000)) for version in range(20)]
    assert sum(turns) == 1000
    assert max(turns) < 100
