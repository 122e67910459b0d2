"""Files that no commit took in are removed once nobody can commit them any more; all else stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.vacuum import vacuum

WEEK_SEC = 7 * 86400.0
ROWS = pa.table({"id": [1, 2, 3], "part": ["a", "b c/d", "é%20"]})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Partitioned, some of it removed again, all of it ten days old."""
    folder = tmp_path / "t"
    write_deltalake(folder, ROWS, partition_by=["part"])
    write_deltalake(folder, ROWS, mode="append")
    DeltaTable(folder).delete("id = 1")
    for path in folder.rglob("*.parquet"):
        _age(path, days=10)
    return folder


def _age(path: Path, *, days: float) -> None:
    at = time.time() - days * 86400
    os.utime(path, (at, at))


def _vacuum(table: Path, seconds: float) -> list[str]:
    return vacuum(Snapshot(str(table), Store()), seconds)


def _orphan(folder: Path, *, days: float) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"part-{days}-of-a-killed-task.zstd.parquet"
    path.write_bytes(b"PAR1")
    _age(path, days=days)
    return path


def test_a_file_of_a_killed_task_goes_when_it_is_older_than_the_retention(table: Path) -> None:
    folders = [table, *(path.parent for path in table.rglob("part=*/*.parquet"))]
    old = {_orphan(folder, days=8) for folder in folders}
    young = {_orphan(folder, days=6) for folder in folders}
    before = DeltaTable(table).to_pyarrow_table()
    gone = _vacuum(table, WEEK_SEC)
    assert len(gone) == len(old) == 4
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in young)
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").equals(before.sort_by("id"))


def test_a_file_that_a_task_may_still_commit_stays_however_short_the_retention_is(table: Path) -> None:
    """Only what a commit took out goes at once."""
    written = _orphan(table, days=0.9)
    assert len(_vacuum(table, 0)) == 2, "the two files with the row that was deleted"
    assert written.exists()


def test_a_retention_of_minutes_is_not_none(table: Path) -> None:
    assert _vacuum(table, 600) == []
    assert _vacuum(table, 3600) == []
    assert len(_vacuum(table, 0)) == 2


def test_older_versions_within_the_retention_are_readable_after_it(table: Path) -> None:
    _orphan(table, days=8)
    assert len(_vacuum(table, WEEK_SEC)) == 1
    assert DeltaTable(table, version=1).to_pyarrow_table().num_rows == 6


def test_what_somebody_else_put_there_stays(table: Path) -> None:
    note = table / "README.txt"
    note.write_text("ours")
    _age(note, days=100)
    assert _vacuum(table, WEEK_SEC) == []
    assert note.exists()


def test_the_files_of_a_table_that_lies_below_are_its_own(table: Path) -> None:
    """As where `tables.merged` is `{table}` and `tables.log` is `{table}/log`."""
    below = table / "more" / "log"
    write_deltalake(below, ROWS)
    for path in below.glob("*.parquet"):
        _age(path, days=10)
    orphan = _orphan(table / "more", days=10)
    assert _vacuum(table, WEEK_SEC) == [f"more/{orphan.name}"]
    assert DeltaTable(below).to_pyarrow_table().num_rows == 3
