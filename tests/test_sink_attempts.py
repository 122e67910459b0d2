"""A batch of Spark's sink that comes again, to tables and files that have changed since its first attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.engine.appending import commit_files
from distributary.errors import StoreDown
from distributary.sink import committing
from distributary.sink.by_routes import RouteRows
from distributary.sink.committing import Ending
from distributary.tables.snapshot import Txn
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
            Ending(found, Txn("query", 0)).commit([taken])
    for _ in range(2):
        Ending(found, Txn("query", 0)).commit([taken])
    assert held(lake, "order_placed", "n") == [1]
    assert [(route, reason) for route, reason, _ in aside(lake)] == [("order_placed", "TABLE_PARKED")]
