"""Logs of tables of which a part is missing: nothing is added on top of what no reader sees."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.errors import StoreDown, StoreUnreadable
from distributary.errors.border import TableFault
from distributary.state.ledger import Entry, Ledger
from distributary.state.lock import only_run
from distributary.tables.log_folder import empty_commit
from distributary.tables.outage import is_store_fault
from distributary.tables.store import Store
from distributary.tables.table import Table


def made(folder: Path, commits: int = 4) -> Path:
    for number in range(commits):
        write_deltalake(str(folder), pa.table({"x": [number]}), mode="append")
    return folder / "_delta_log"


def commit(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


@pytest.mark.parametrize("version", [1, 3])
def test_a_table_with_an_empty_commit_is_not_opened(tmp_path: Path, version: int) -> None:
    log = made(tmp_path)
    commit(log, version).write_bytes(b"")
    with pytest.raises(TableFault) as caught:
        Table(str(tmp_path), Store()).open()
    assert commit(log, version).name in str(caught.value)
    assert not is_store_fault(caught.value)


def test_an_empty_commit_before_a_checkpoint_is_of_no_account(tmp_path: Path) -> None:
    log = made(tmp_path)
    DeltaTable(tmp_path).create_checkpoint()
    commit(log, 2).write_bytes(b"")
    assert empty_commit(str(tmp_path)) is None
    found = Table(str(tmp_path), Store()).open()
    assert found is not None and found.delta.count() == 4
    made(tmp_path, 1)
    commit(log, 4).write_bytes(b"")
    assert empty_commit(f"file://{tmp_path}") == commit(log, 4).name


def test_an_object_store_has_no_half_objects_to_look_for() -> None:
    assert empty_commit("s3://bucket/lake/t") is None


@pytest.mark.parametrize("body", [b"", b'{"add": {"pa'])
def test_a_ledger_with_a_damaged_commit_is_refused_by_its_path(tmp_path: Path, body: bytes) -> None:
    ledger = Ledger(str(tmp_path), "games", Store())
    for batch in range(3):
        ledger.record("s", batch, [Entry("s", batch, None)], {})
    log = tmp_path / "ledger" / "_delta_log"
    # By its path, it may be this log's turn to be checkpointed just now: readers would begin there.
    for checkpoint in log.glob("*checkpoint*"):
        checkpoint.unlink()
    file = commit(log, 2)
    whole = file.read_bytes()
    file.write_bytes(body)
    with pytest.raises(StoreUnreadable) as caught:
        Ledger(str(tmp_path), "games", Store())
    assert caught.value.parameters["path"] == ledger.uri
    assert "<unknown>" not in str(caught.value)
    file.write_bytes(whole)
    assert Ledger(str(tmp_path), "games", Store()).is_finished("s", 2)


def test_a_state_folder_that_cannot_be_written_is_said_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(StoreDown) as caught, only_run(str(tmp_path / "state"), "games"):
        pass
    assert caught.value.parameters["path"] == str(tmp_path / "state")
