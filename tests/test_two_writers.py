"""Two clusters that append to one table while its columns grow: real processes, one of them killed, and two shares."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.audit.verify import verify
from distributary.engine.messages.task_spec import ORIGIN
from distributary.running.hops import run
from distributary.shares import Division
from distributary.state.divisions import claim, current_parts
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.wide import KEY, about, grown, packed, partition, seen_by, within
from distributary_simulate.games.records import Faults, Plan
from tests.scenarios import Scenario

STORE = Store()
BATCHES, ROWS = 25, 4
GROWS_EVERY = 5
"""A writer has a new column of its own, and one that both have, so often."""


def columns_of(writer: str, batch: int) -> list[str]:
    return [name for n in range(batch // GROWS_EVERY + 1) for name in (f"{writer}_{n}", f"both_{n}")]


def rows_of(writer: str, batch: int) -> pa.Table:
    names = columns_of(writer, batch)
    rows = [{"writer": writer, "batch": batch, **dict.fromkeys(names, n)} for n in range(ROWS)]
    kinds = [("writer", pa.string()), ("batch", pa.int32()), *((name, pa.int32()) for name in names)]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))


def write(folder: str, writer: str) -> None:
    """One cluster, from wherever it was: each batch until it is in the table, as a task does it."""
    for batch in range(BATCHES):
        while not taken(folder, writer, batch):
            time.sleep(random.uniform(0, 0.01))


def taken(folder: str, writer: str, batch: int) -> bool:
    table = Table(folder, STORE).open()
    if table is not None and table.newest(writer) >= batch:
        return True
    rows = rows_of(writer, batch)
    evolution = evolve(None if table is None else table.schema, [rows.schema], Policy())
    whole = {f.name: rows[f.name] if f.name in rows.column_names else pa.nulls(ROWS, f.type) for f in evolution.schema}
    files = [write_data_file(folder, pa.table(whole, schema=evolution.schema), STORE)]
    try:
        Table(folder, STORE, Owner("games", "ann_game")).commit(table, evolution, files, Txn(writer, batch))
    except CommitConflict:
        return False
    return True


def test_two_processes_grow_one_table_and_lose_nothing_though_one_is_killed(tmp_path: Path) -> None:
    """Case S4, across processes: marks, not locks, keep each batch single."""
    folder, context = str(tmp_path / "ann_game"), multiprocessing.get_context("spawn")
    one, other = (context.Process(target=write, args=(folder, name)) for name in ("c1", "c2"))
    one.start()
    other.start()
    wait_for(lambda: committed(folder, "c1") >= BATCHES // 3)
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    one.join(180)
    again = context.Process(target=write, args=(folder, "c1"))
    again.start()
    for process in (other, again):
        process.join(500)
        assert process.exitcode == 0
    table = DeltaTable(folder)
    rows = table.to_pyarrow_table().to_pylist()
    assert Counter((r["writer"], r["batch"]) for r in rows) == {
        (w, b): ROWS for w in ("c1", "c2") for b in range(BATCHES)
    }
    wanted = {name for w in ("c1", "c2") for name in columns_of(w, BATCHES - 1)}
    assert set(table.to_pyarrow_table().column_names) == {"writer", "batch", *wanted}
    for row in rows:
        full = {name for name, value in row.items() if value is not None}
        assert full == {"writer", "batch", *columns_of(row["writer"], row["batch"])}


def committed(folder: str, writer: str) -> int:
    table = Table(folder, STORE).open()
    return -1 if table is None else table.newest(writer)


def wait_for(condition: Any, timeout_sec: float = 240) -> None:
    end = time.monotonic() + timeout_sec
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# -- one wide table ---------------------------------------------------------------------------------------------------

WIDE_BATCHES = 12
WIDENS_AT = {3: pa.int32(), 7: pa.int64()}
"""From these batches on a writer's value has this type; for the other one three batches later."""


def wide_rows_of(writer: str, batch: int) -> pa.Table:
    late = 3 if writer == "two" else 0
    kind = next((kind for since, kind in reversed(WIDENS_AT.items()) if batch >= since + late), pa.int16())
    names = [f"c{n}" for n in range(batch // GROWS_EVERY + 1)]
    columns = {"value": pa.array(range(ROWS), kind), **{name: pa.array([batch] * ROWS, pa.int32()) for name in names}}
    return pa.table({**columns, ORIGIN: pa.array([{"batch": batch}] * ROWS)})


def write_wide(folder: str, writer: str) -> None:
    """One share, which has a route of its own: each batch until it is in the one table."""
    for batch in range(WIDE_BATCHES):
        while not taken_in(folder, writer, batch):
            time.sleep(random.uniform(0, 0.01))


def taken_in(folder: str, writer: str, batch: int) -> bool:
    table = Table(folder, STORE).open()
    if table is not None and table.newest(writer) >= batch:
        return True
    rows = wide_rows_of(writer, batch)
    before = None if table is None else table.schema
    seen = evolve(seen_by(writer, before, ORIGIN), [rows.schema], Policy()).schema
    whole = {f.name: rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(ROWS, f.type) for f in seen}
    file = write_data_file(folder, packed(writer, pa.table(whole, schema=seen), ORIGIN), STORE)
    files = [replace(file, partition=partition(writer))]
    place = Table(folder, STORE, Owner("games", ""), partitioned_by=(KEY,))
    evolution = grown(before, {writer: seen}, ORIGIN)
    try:
        place.commit(table, evolution, files, Txn(writer, batch), about=about({writer: ROWS}), within=within(writer))
    except CommitConflict:
        return False
    return True


def test_two_processes_widen_the_one_wide_table_at_the_same_time_and_lose_nothing(tmp_path: Path) -> None:
    """New columns, and columns whose type grows, of routes that lie in one table; one process is killed and goes on."""
    folder, context = str(tmp_path / "wide"), multiprocessing.get_context("spawn")
    one, two = (context.Process(target=write_wide, args=(folder, name)) for name in ("one", "two"))
    one.start()
    two.start()
    wait_for(lambda: committed(folder, "one") >= WIDE_BATCHES // 3, timeout_sec=500)
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    one.join(180)
    again = context.Process(target=write_wide, args=(folder, "one"))
    again.start()
    for process in (two, again):
        process.join(500)
        assert process.exitcode == 0
    table = DeltaTable(folder)
    found = table.to_pyarrow_table()
    rows = found.to_pylist()
    for writer in ("one", "two"):
        own = [(row[ORIGIN]["batch"], row[writer]["value"]) for row in rows if row["_route"] == writer]
        assert sorted(own) == [(batch, n) for batch in range(WIDE_BATCHES) for n in range(ROWS)]
        assert found.schema.field(writer).type.field("value").type == pa.int64()
        assert all(row[writer][f"c{row[ORIGIN]['batch'] // GROWS_EVERY}"] == row[ORIGIN]["batch"] for row in rows
                   if row["_route"] == writer)  # fmt: skip


@pytest.mark.spark
def test_two_shares_of_a_wide_table_append_to_it_at_once_while_it_grows(spark: object, tmp_path: Path) -> None:
    """The one table that all shares of a pipeline write: each brings columns that the other has not seen."""
    scenario = Scenario(tmp_path, layout="wide", source={"max_files_per_batch": 1})
    games = scenario.games(Plan(games=4, records=10, versions=3, faults=Faults(corrupt=3, empty_name=2)))
    for version in (1, 2, 3):
        scenario.send_games(games, version)
    claim(scenario.config, Division.even(2), STORE)
    errors: list[BaseException] = []

    def work(part: Any) -> None:
        try:
            run(part, once=True)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(part,)) for part in current_parts(scenario.config, STORE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert not errors, errors
    table = DeltaTable(scenario.config.wide_path)
    writers = {commit["distributary.app"] for commit in table.history() if "distributary.app" in commit}
    assert len(writers) == 2
    said = verify(scenario.config)
    assert said.ok and said.rows_in == len(scenario.sent), said.problems
    places = [(row["_origin"]["partition"], row["_origin"]["offset"]) for row in table.to_pyarrow_table().to_pylist()]
    assert len(set(places)) == len(places) == said.rows_written
