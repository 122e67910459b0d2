"""Upkeep of the tables of a pipeline of messages."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.running.maintain import maintain
from distributary.tables.snapshot import Owner, Snapshot
from tests.lake import Lake


@pytest.fixture
def made(lake: Path) -> Lake:
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 3}})
    return made


def test_the_owner_of_an_older_version_s_table_moves_out_of_its_description(made: Lake, tmp_path: Path) -> None:
    uri, owner = made.table("ann_game"), Owner("games", "ann_game")
    rows = DeltaTable(uri).to_pyarrow_table()
    older = str(tmp_path / "older")
    write_deltalake(older, rows, description=owner.text())
    Path(uri).rename(tmp_path / "newer")
    Path(older).rename(uri)
    assert all(not done.skipped for done in maintain(made.config))
    table = Snapshot(uri, made.store)
    table.delta.alter.set_table_description("What players did")
    assert Snapshot(uri, made.store).owner == owner
    assert DeltaTable(uri).to_pyarrow_table() == rows


def test_upkeep_twice_commits_the_owner_once(made: Lake) -> None:
    before = DeltaTable(made.table("ann_game")).version()
    assert all(not done.skipped for done in maintain(made.config))
    assert DeltaTable(made.table("ann_game")).version() == before, "it is a property from its creation on"


def test_what_another_pipeline_made_is_left_alone(made: Lake) -> None:
    uri = made.table("ann_game")
    Snapshot(uri, made.store).set_properties(Owner("others", "ann_game").properties())
    before = DeltaTable(uri).version()
    assert [done.skipped for done in maintain(made.config) if done.skipped] == ["it was not made by this pipeline"]
    assert DeltaTable(uri).version() == before
    assert pa.table(DeltaTable(uri).to_pyarrow_table()).num_rows == 3
