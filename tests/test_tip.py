"""Commits without reading the log: only where nobody came in between, and readable by everybody."""

from __future__ import annotations

import shutil
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.tables.checkpoints import CHECKPOINT_COMMITS, checkpoint_due
from distributary.tables.commits import carries
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.evolve import KEPT_BYTES, Policy, evolve
from distributary.tables.snapshot import Owner, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip, _schema, append_on_tip
from tests.services.stores import S3

STORE = Store()
OWNER = Owner("games", "a")
ROWS = pa.table({"n": pa.array([1, 2], pa.int64())})


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of one commit, none of whose versions is a checkpoint's turn."""
    monkeypatch.setattr("distributary.tables.checkpoints.checkpoint_due", lambda *_: False)
    commit(str(tmp_path / "a"), 0)
    return str(tmp_path / "a")


def file_of(uri: str, rows: pa.Table = ROWS) -> DataFile:
    return write_data_file(uri, rows, STORE)


def commit(uri: str, batch: int) -> int | None:
    table = Table(uri, STORE).open()
    schema = columns_of(table)
    evolution = evolve(schema, [ROWS.schema], Policy())
    return Table(uri, STORE, OWNER).commit(table, evolution, [file_of(uri)], Txn("s", batch))


def tip(version: int) -> Tip:
    """As the commit of batch `version` of the stream has left it."""
    return Tip.of(version, ROWS.schema, Txn("s", version))


def count(uri: str) -> int:
    return int(DeltaTable(uri).to_pyarrow_table().num_rows)


def test_a_commit_on_the_tip_is_an_ordinary_commit_to_every_reader(uri: str) -> None:
    assert append_on_tip(uri, tip(0), [file_of(uri), file_of(uri)], Txn("s", 1), STORE)
    table = Snapshot(uri, STORE)
    assert (table.version, table.dataset().count_rows()) == (1, 6)
    assert table.newest("s") == 1
    assert table.rows_of(Txn("s", 1)) == 4
    assert table.txns() == {("s", 0), ("s", 1)}
    assert table.history(1)[0]["operation"] == "WRITE"


def test_the_mark_and_the_rows_survive_a_checkpoint(uri: str) -> None:
    assert append_on_tip(uri, tip(0), [file_of(uri)], Txn("s", 1), STORE)
    DeltaTable(uri).create_checkpoint()
    for log in sorted((Path(uri) / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    assert Snapshot(uri, Store()).newest("s") == 1
    assert count(uri) == 4


def test_statistics_of_its_files_are_used_and_right(uri: str) -> None:
    late = pa.table({"n": pa.array([100, 101], pa.int64())})
    assert append_on_tip(uri, tip(0), [file_of(uri, late)], Txn("s", 1), STORE)
    table = DeltaTable(uri)
    assert table.to_pyarrow_table(filters=[("n", ">", 50)]).column("n").to_pylist() == [100, 101]


def test_where_another_writer_came_first_nothing_is_written(uri: str) -> None:
    write_deltalake(uri, ROWS, mode="append")
    assert not append_on_tip(uri, tip(0), [file_of(uri)], Txn("s", 1), STORE)
    assert (count(uri), DeltaTable(uri).version()) == (4, 1)
    assert not list((Path(uri) / "_delta_log").glob(".*.tmp"))


def test_of_many_that_know_the_same_tip_one_wins(uri: str) -> None:
    won: list[bool] = []
    barrier = threading.Barrier(8)

    def write(batch: int) -> None:
        file = file_of(uri)
        barrier.wait()
        won.append(append_on_tip(uri, tip(0), [file], Txn(f"s{batch}", 1), STORE))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won.count(True) == 1
    assert count(uri) == 4


def test_a_table_that_was_removed_or_made_anew_is_not_continued(uri: str) -> None:
    for batch in (1, 2):
        assert append_on_tip(uri, tip(batch - 1), [file_of(uri)], Txn("s", batch), STORE)
    shutil.rmtree(uri)
    assert not append_on_tip(uri, tip(2), [], Txn("s", 3), STORE)
    write_deltalake(uri, ROWS)
    assert not append_on_tip(uri, tip(2), [file_of(uri)], Txn("s", 3), STORE)
    assert (count(uri), DeltaTable(uri).version()) == (2, 0)


def test_a_table_that_another_made_anew_with_as_many_commits_is_not_continued(uri: str) -> None:
    """Ours would land in it, with columns that it does not have."""
    other = pa.table({"name": ["a"]})
    for batch in (1, 2):
        assert append_on_tip(uri, tip(batch - 1), [file_of(uri)], Txn("s", batch), STORE)
    shutil.rmtree(uri)
    for _ in range(3):
        write_deltalake(uri, other, mode="append")
    assert not append_on_tip(uri, tip(2), [file_of(uri)], Txn("s", 3), STORE)
    assert (DeltaTable(uri).version(), DeltaTable(uri).to_pyarrow_table().column_names) == (2, ["name"])


def test_a_table_that_was_made_anew_by_another_batch_or_stream_is_not_continued(uri: str) -> None:
    shutil.rmtree(uri)
    commit(uri, 5)
    for txn in (Txn("s", 0), Txn("s", 50), Txn("t", 5)):
        assert not append_on_tip(uri, Tip.of(0, ROWS.schema, txn), [file_of(uri)], Txn("s", 6), STORE)
    assert append_on_tip(uri, Tip.of(0, ROWS.schema, Txn("s", 5)), [file_of(uri)], Txn("s", 6), STORE)


@pytest.mark.parametrize("text", [b"", b"\xff\x00", b'{"txn"', b'"txn"\n', b'{"txn": null}\n', b'[{"txn": 1}]\n'])
def test_a_commit_that_is_damaged_is_nobodys(text: bytes) -> None:
    assert not carries(text, Txn("s", 0))


@pytest.fixture
def in_s3(s3: S3, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Store]:
    """As `uri`, in an object store."""
    monkeypatch.setattr("distributary.tables.checkpoints.checkpoint_due", lambda *_: False)
    bucket = s3.bucket()
    store = Store(dict(bucket.options))
    uri = f"s3a://{bucket.name}/lake/a b"
    evolution = evolve(None, [ROWS.schema], Policy())
    Table(uri, store, OWNER).commit(None, evolution, [write_data_file(uri, ROWS, store)], Txn("s", 0))
    return uri, store


@pytest.mark.services
def test_an_object_store_takes_commits_on_the_tip(in_s3: tuple[str, Store]) -> None:
    uri, store = in_s3
    for batch in (1, 2):
        assert append_on_tip(uri, tip(batch - 1), [write_data_file(uri, ROWS, store)], Txn("s", batch), store)
    table = Table(uri, store).open()
    assert table is not None
    assert (table.version, table.delta.to_pyarrow_table().num_rows) == (2, 6)
    assert table.txns() == {("s", 0), ("s", 1), ("s", 2)}
    assert not append_on_tip(uri, tip(1), [], Txn("s", 3), store), "version 2 is there"
    assert not append_on_tip(uri, tip(7), [], Txn("s", 3), store), "the log does not end at 7"


@pytest.mark.services
def test_of_two_writers_of_one_tip_in_an_object_store_one_wins_and_the_other_does_it_anew(
    in_s3: tuple[str, Store],
) -> None:
    uri, store = in_s3
    barrier = threading.Barrier(2)
    won: dict[str, bool] = {}

    def write(app: str) -> None:
        file = write_data_file(uri, ROWS, store)
        barrier.wait()
        won[app] = append_on_tip(uri, tip(0), [file], Txn(app, 1), store)
        if not won[app]:
            table = Table(uri, store).open()
            assert table is not None
            evolution = evolve(table.schema, [ROWS.schema], Policy())
            Table(uri, store, OWNER).commit(table, evolution, [file], Txn(app, 1))

    threads = [threading.Thread(target=write, args=(app,)) for app in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won.values()) == [False, True]
    table = Table(uri, store).open()
    assert table is not None
    assert (table.version, table.delta.to_pyarrow_table().num_rows) == (2, 6)
    assert table.txns() == {("s", 0), ("a", 1), ("b", 1)}


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("hdfs://name-node/lake/a", {}),
        ("s3://bucket/a", {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}),
        ("s3://bucket/a", {"aws_s3_allow_unsafe_rename": "true"}),
        ("s3://bucket/a", {"aws_conditional_put": "disabled"}),
    ],
)
def test_a_store_without_conditional_puts_is_left_to_delta_rs(uri: str, options: dict[str, str]) -> None:
    assert not tip(0).leads(uri, Store(options)), "nothing is written for it"
    assert not append_on_tip(uri, tip(0), [], Txn("s", 1), Store(options))


def test_a_store_that_is_away_or_refuses_is_left_to_delta_rs_to_say() -> None:
    nobody = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "true", "aws_region": "us-east-1"}
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    assert not append_on_tip("s3://bucket/a", tip(0), [], Txn("s", 1), Store(nobody | keys))
    nonsense = Store({"google_service_account_key": "no JSON"})
    assert not append_on_tip("gs://bucket/a", tip(0), [], Txn("s", 1), nonsense)


def test_a_tip_keeps_the_whole_schema() -> None:
    schema = pa.schema(
        [
            ("t", pa.timestamp("us", tz="UTC")),
            ("d", pa.decimal128(20, 0)),
            ("s", pa.struct([("l", pa.list_(pa.struct([("k", pa.string())])))])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    assert Tip.of(7, schema, Txn("s", 7)).arrow_schema() == schema


def test_a_process_does_not_keep_the_schemas_of_very_wide_tables() -> None:
    known, schema = _schema.cache_info().currsize, pa.schema([(f"column_{n}", pa.int64()) for n in range(2_000)])
    wide = Tip.of(0, schema, Txn("s", 0))
    assert len(wide.schema) > KEPT_BYTES and wide.arrow_schema() == schema
    assert _schema.cache_info().currsize == known


def test_however_long_a_stream_runs_readers_replay_few_commits(tmp_path: Path) -> None:
    """A checkpoint every `CHECKPOINT_COMMITS`, for which no batch has to open the table first."""
    uri = str(tmp_path / "a")
    commit(uri, 0)
    for batch in range(1, 3 * CHECKPOINT_COMMITS):
        assert append_on_tip(uri, tip(batch - 1), [file_of(uri)], Txn("s", batch), STORE)
    checkpoints = sorted(int(p.name.split(".")[0]) for p in (tmp_path / "a/_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) in (2, 3)  # whose turn it is depends on the folder's name
    assert {b - a for a, b in pairwise(checkpoints)} == {CHECKPOINT_COMMITS}
    assert (count(uri), DeltaTable(uri).version()) == (2 * 3 * CHECKPOINT_COMMITS, 3 * CHECKPOINT_COMMITS - 1)


def test_a_commit_that_has_become_empty_is_not_made_to_last_by_a_checkpoint(tmp_path: Path) -> None:
    """The table is opened in its turn, and whoever opens it says what is wrong."""
    uri = str(tmp_path / "a")
    commit(uri, 0)
    assert append_on_tip(uri, tip(0), [file_of(uri)], Txn("s", 1), STORE)
    (tmp_path / "a/_delta_log" / f"{0:020d}.json").write_bytes(b"")
    taken = [batch for batch in range(2, CHECKPOINT_COMMITS + 2) if _taken(uri, batch)]
    assert len(taken) < CHECKPOINT_COMMITS
    assert not list((tmp_path / "a/_delta_log").glob("*.checkpoint.parquet"))


def _taken(uri: str, batch: int) -> bool:
    return append_on_tip(uri, tip(batch - 1), [file_of(uri)], Txn("s", batch), STORE)


def test_a_table_that_is_gone_in_its_turn_is_not_continued(tmp_path: Path) -> None:
    turn = [b for b in range(CHECKPOINT_COMMITS) if not tip(b).leads(str(tmp_path / "a"), STORE)]
    assert len(turn) == 1
    assert not append_on_tip(str(tmp_path / "a"), tip(turn[0]), [], Txn("s", turn[0] + 1), STORE)


def test_tables_take_turns_at_their_checkpoints() -> None:
    turns = [sum(checkpoint_due(f"/lake/game_{n}", version) for n in range(1000)) for version in range(20)]
    assert sum(turns) == 1000
    assert max(turns) < 100
