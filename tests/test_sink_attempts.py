"""A batch of Spark's sink that comes again, to tables and files that have changed since its first attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.config import Envelope
from distributary.engine.appending import commit_files
from distributary.errors import StoreDown
from distributary.sink import committing
from distributary.sink.by_routes import RouteRows
from distributary.sink.committing import BatchEnding
from distributary.sink.message_rows import MessageRows
from distributary.tables.snapshot import Txn
from tests.sparkless_messages import SOURCE, Players
from tests.test_sink import TWO, Killed, Rows, aside, batch, files, held, kill_after, live, options

ASIDE: Rows = [{"game": None, "n": 4}]


def killed_after(monkeypatch: pytest.MonkeyPatch, lake: Path, rows: Rows, number: int, commits: int) -> None:
    """A batch whose driver dies once so many of its tables are committed."""
    with monkeypatch.context() as patch:
        kill_after(patch, commits)
        with pytest.raises(Killed):
            batch(lake, rows, number)


def vacuum(table: Path) -> None:
    """As a full vacuum does after an outage that was longer than its retention."""
    DeltaTable(table).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


@pytest.mark.parametrize("commits", [0, 1])
def test_an_attempt_whose_files_a_vacuum_took_is_completed_with_new_ones(
    lake: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    batch(lake, TWO + ASIDE)
    killed_after(monkeypatch, lake, TWO + ASIDE, 1, commits)
    for table in ("chess", "go", "_distributary/sink/quarantine"):
        vacuum(lake / table)
    for _ in range(2):
        batch(lake, TWO + ASIDE, 1)
        assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 1, 3, 3], [2, 2])
        assert [row["n"] for _, _, row in aside(lake)] == [4, 4]
        assert files(lake) == live(lake)


def test_files_that_a_vacuum_took_and_that_would_be_other_rows_now_fail_the_batch(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(lake, TWO)
    killed_after(monkeypatch, lake, TWO, 1, 0)
    vacuum(lake / "chess")
    with pytest.raises(
        StoreDown, match="files of an earlier attempt at this batch are gone, with 2 rows, and this attempt has 1"
    ):
        batch(lake, TWO[:2], 1)
    assert held(lake, "chess", "n") == [1, 3]


def test_a_table_that_has_the_batch_and_fails_in_the_next_attempt_sets_no_row_aside(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(monkeypatch, lake, TWO, 0, 1)  # chess has its rows by now

    def fails(target: Any, *given: Any) -> Any:
        if target.uri.endswith("/chess"):
            raise ValueError("cannot be read just now")
        return commit_files(target, *given)

    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_files", fails)
        batch(lake, TWO)
    assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 3], [2])
    assert not (lake / "_distributary/sink/quarantine/_delta_log").exists()


def test_a_table_whose_log_breaks_between_two_attempts_has_the_batch_come_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(monkeypatch, lake, TWO, 0, 1)
    log = lake / "chess/_delta_log/00000000000000000000.json"
    body = log.read_bytes()
    log.write_bytes(b"{not a log\n")
    with pytest.raises(StoreDown, match="chess"):
        batch(lake, TWO)
    assert not (lake / "_distributary/sink/quarantine/_delta_log").exists()
    log.write_bytes(body)
    batch(lake, TWO)
    assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 3], [2])


def test_a_table_without_the_batch_is_parked_in_the_next_attempt(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch(lake, TWO)
    killed_after(monkeypatch, lake, TWO, 1, 0)

    def fails(target: Any, *given: Any) -> Any:
        if target.uri.endswith("/go"):
            raise ValueError("no such thing")
        return commit_files(target, *given)

    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_files", fails)
        batch(lake, TWO, 1)
    batch(lake, TWO, 1)
    assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 1, 3, 3], [2])
    assert aside(lake) == [("go", "TABLE_PARKED", {"game": "go", "n": 2})]


def test_two_routes_of_one_table_name_do_not_mix_in_the_next_attempt(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = options(lake, table="{route|snake}")
    rows = pa.Table.from_pylist([{"game": "OrderPlaced", "n": 1}, {"game": "order_placed", "n": 2}])
    taken = RouteRows(found).take(rows.to_batches(), "query", 0, "0")
    with monkeypatch.context() as patch:
        kill_after(patch, 1)
        with pytest.raises(Killed):
            BatchEnding(found, Txn("query", 0)).commit([taken])
    for _ in range(2):
        BatchEnding(found, Txn("query", 0)).commit([taken])
    assert held(lake, "order_placed", "n") == [1]
    assert [(route, reason) for route, reason, _ in aside(lake)] == [("order_placed", "TABLE_PARKED")]


def test_messages_are_not_set_aside_without_their_bytes_where_a_table_fails_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Players(tmp_path, {1: 'syntax = "proto3"; message player { int64 id = 1; }'}, tables={"keys": []})
    rows = MessageRows(players.config)
    taken = [rows.take([pa.RecordBatch.from_pylist([players.record(7)], schema=SOURCE)], "query", 0, "0")]
    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit_files", lambda *_: (_ for _ in ()).throw(ValueError("just now")))
        with pytest.raises(StoreDown, match="just now"):
            BatchEnding(rows.options, Txn("query", 0)).commit(taken)
    BatchEnding(rows.options, Txn("query", 0)).commit(taken)
    assert DeltaTable(players.table).to_pyarrow_table().column("id").to_pylist() == [7]
    assert not Path(f"{players.config.state_root}/quarantine/_delta_log").exists()


def test_messages_of_two_new_routes_with_one_table_name_stop_no_stream(tmp_path: Path) -> None:
    players = Players(
        tmp_path,
        {1: 'syntax = "proto3"; message player { int64 id = 1; }'},
        tables={"keys": [], "name": "{route|snake}"},
    )
    config = players.config.model_copy(update={"envelope": Envelope(format="columns")})
    route, schema_id, payload = config.envelope.columns
    values = [players.record(n)["value"] for n in (1, 2)]
    batch_rows = {route: ["OrderPlaced", "order_placed"], schema_id: pa.nulls(2, pa.int32()), payload: values}
    rows = MessageRows(config)
    taken = [rows.take(pa.table(batch_rows).to_batches(), "query", 0, "0")]
    for _ in range(2):
        BatchEnding(rows.options, Txn("query", 0)).commit(taken)
    (committed,) = DeltaTable(f"{config.tables.root}/order_placed").to_pyarrow_table().column("id").to_pylist()
    (waiting,) = DeltaTable(f"{config.state_root}/quarantine").to_pyarrow_table().to_pylist()
    assert {committed, json.loads(waiting["value"])["id"]} == {1, 2}
