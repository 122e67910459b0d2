"""Upkeep of the tables of a pipeline of messages."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.audit.verify import verify
from distributary.engine.changes.merging import HORIZON
from distributary.running.maintain import _purge_by_spark, maintain
from distributary.state.ledger import Entry
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, quarantine_uri, write_rejected
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.spark_upkeep import vacuum_by_spark
from distributary.tables.store import Store
from distributary.tables.wide import KEY
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


def test_the_one_table_of_all_routes_is_looked_after_as_one(lake: Path) -> None:
    made = Lake(lake, layout="wide", maintenance={"min_files": 1})
    uri = made.config.shared_table
    assert uri is not None
    for number in range(3):
        rows = pa.table({KEY: ["ann", "bob"], "_route": ["ann", "bob"], "ann": [{"n": number}, None]})
        write_deltalake(uri, rows, mode="append", partition_by=[KEY])
        entries = [Entry(made.stream, number, route, table=uri, rows_written=1) for route in ("ann", "bob")]
        made.ledger.record(made.stream, number, [*entries, Entry(made.stream, number, None)], {})
    Snapshot(uri, made.store).set_properties(Owner("games", "").properties())
    done = {one.table: one for one in maintain(made.config)}
    assert {one.skipped for one in done.values()} == {None}
    assert (done[uri].files_before, done[uri].files_after) == (6, 2)
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 6


def test_a_table_that_has_no_rows_yet_is_no_fault(made: Lake) -> None:
    """Its rows were all set aside."""
    late = Entry(made.stream, 1, "late", table=made.table("late"), rows_in=1, rows_quarantined=1)
    made.ledger.record(made.stream, 1, [late, Entry(made.stream, 1, None)], {})
    assert {done.skipped for done in maintain(made.config)} == {None}
    gone = Entry(made.stream, 2, "gone", table=made.table("gone"), rows_in=1, rows_written=1)
    made.ledger.record(made.stream, 2, [gone, Entry(made.stream, 2, None)], {})
    assert {done.skipped for done in maintain(made.config)} == {None, "there is no such table"}


def test_rows_that_a_killed_batch_has_still_to_set_aside_stay(made: Lake) -> None:
    """It comes again after a week, long after its files were written."""
    uri, files = quarantine_uri(made.config.state_root), []
    for batch in (1, 2):
        rows = pa.Table.from_pylist([{"route": "ann", "reason": "CORRUPT_PAYLOAD"}], REJECTED_SCHEMA)
        files.append(write_rejected(uri, [rows], made.stream, batch, "0", made.store))
        made.ledger.record(made.stream, batch, [Entry(made.stream, batch, None)], {"quarantine": [files[-1].to_json()]})
        if batch == 1:
            commit_quarantine(uri, "games", files, made.stream, batch, made.store)
    lost = write_rejected(uri, [rows], made.stream, 3, "0", made.store)
    at = time.time() - 8 * 86400
    for file in (*files, lost):
        os.utime(Path(uri, file.path), (at, at))
    assert {done.table: done.vacuumed for done in maintain(made.config)}[uri] == 1
    commit_quarantine(uri, "games", files[1:], made.stream, 2, made.store)
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("limit", [500, 900, 1_000])
def test_a_purge_by_spark_never_takes_back_up_to_when_tombstones_are_gone(tmp_path: Path, limit: int) -> None:
    uri, asked = str(tmp_path / "t"), list[str]()
    write_deltalake(uri, pa.table({"id": [1]}))
    table = Snapshot(uri, Store())
    table.set_properties({HORIZON: "900"})

    def sql(text: str) -> Any:
        asked.append(text)
        return SimpleNamespace(collect=list)

    own = SimpleNamespace(sql=sql, conf=None)
    spark: Any = SimpleNamespace(newSession=lambda: own)
    assert _purge_by_spark(lambda: spark, [Snapshot(uri, Store())], limit, HORIZON) == 0
    said = [text for text in asked if text.startswith("ALTER")]
    assert [HORIZON in text and "'1000'" in text for text in said] == ([True] if limit > 900 else [])
    assert f"timestamp_millis({limit})" in asked[-1] and asked[-1].startswith("DELETE")


@pytest.mark.spark
def test_spark_looks_after_a_table_that_only_spark_may_write(lake: Path, spark: SparkSession) -> None:
    made = Lake(lake, maintenance={"min_files": 2, "vacuum_after": "0 seconds"})
    for number in range(4):
        made.batch(number, {"ann_game": {1: 3}})
    uri = made.table("ann_game")
    spark.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    done = next(one for one in maintain(made.config, lambda: spark) if one.route == "ann_game")
    assert (done.skipped, done.files_before, done.files_after) == (None, 4, 1)
    assert len(list(Path(uri).glob("*.parquet"))) == 1, "what was replaced is away"
    assert verify(made.config).ok
    written = Path(uri, "part-of-a-batch-that-runs.parquet")
    written.write_bytes(b"PAR1")
    two_hours_ago = time.time() - 7200
    os.utime(written, (two_hours_ago, two_hours_ago))
    spark.sparkContext.setJobGroup("vacuum", "")
    vacuum_by_spark(spark, uri, 1800, enforce=False)
    assert written.exists()
    told = spark.sparkContext.statusTracker()
    jobs = [told.getJobInfo(job) for job in told.getJobIdsForGroup("vacuum")]
    stages = [told.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    assert stages and max(stage.numTasks for stage in stages if stage is not None) < 300
