"""What Spark's sink has written is known to the operations: `status`, `verify`, `clean`, `maintain`."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config import Pipeline
from distributary.engine.appending import commit_files
from distributary.errors import BadInput
from distributary.kinds import PipelineKind, kind_of
from distributary.repair.clean import apply, clean
from distributary.sink import books, committing
from distributary.sink.by_routes import RouteRows
from distributary.sink.committing import BatchEnding
from distributary.sink.message_rows import MessageRows
from distributary.sink.sink_options import SinkOptions
from distributary.state import ledger
from distributary.state.ledger import read_entries, totals
from distributary.tables.quarantine import commit_quarantine, quarantine_uri
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store
from distributary_simulate.games.records import Faults, Plan
from tests.declarative import World

Rows = list[dict[str, Any]]
TWO: Rows = [{"game": "chess", "n": 1}, {"game": "go", "n": 2}, {"game": "chess", "n": 3}]
NAMELESS: Rows = [{"game": None, "n": 4}]


def pipeline(lake: Path, **tables: Any) -> Pipeline:
    """What a user writes for the operations."""
    document = {"pipeline": "sink", "source": {"type": "dataframe"}, "tables": {"root": str(lake), **tables}}
    return Pipeline.model_validate(document)


def known(lake: Path) -> PipelineKind:
    return kind_of(pipeline(lake), lake / "sink.yaml")


def batch(lake: Path, rows: Rows, number: int = 0) -> None:
    options = SinkOptions.read({"path": str(lake), "route": "game"})
    taken = RouteRows(options).take(pa.Table.from_pylist(rows).to_batches(), "query", number, "0")
    BatchEnding(options, Txn("query", number)).commit([taken])


def test_status_and_verify_know_the_tables_and_the_rows_that_were_set_aside(lake: Path) -> None:
    batch(lake, [*TWO, *NAMELESS])
    batch(lake, [*TWO, {"game": "sudoku", "n": 5}], 1)
    status = known(lake).status()
    assert [(table.route, table.rows, table.state) for table in status.tables] == [
        ("chess", 4, "written"),
        ("go", 2, "written"),
        ("sudoku", 1, "written"),
    ]
    assert (status.last_batch, status.rows, status.quarantined, status.running) == (1, 7, 1, None)
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_in, verification.rows_written) == (True, 8, 7)
    assert verification.problems == ()


def test_the_ledger_of_many_writes_is_folded(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "UPKEEP_BATCHES", 4)
    options = SinkOptions.read({"path": str(lake), "route": "game"})
    for number in range(9):
        taken = RouteRows(options).take(pa.Table.from_pylist(TWO).to_batches(), f"write-{number}", 0, "0")
        BatchEnding(options, Txn(f"write-{number}", 0)).commit([taken])
    assert len(DeltaTable(f"{options.state}/ledger").file_uris()) < 5
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_in) == (True, 27)


def test_verify_sees_rows_that_are_gone_and_rows_that_came_twice(lake: Path) -> None:
    batch(lake, TWO)
    DeltaTable(lake / "chess").delete("n = 1")
    write_deltalake(lake / "go", DeltaTable(lake / "go").to_pyarrow_table(), mode="append")
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_lost, verification.rows_duplicated) == (False, 1, 1)


@pytest.mark.parametrize("done", range(5))
def test_a_batch_that_died_is_in_the_ledger_once_wherever_it_died(
    lake: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """After so many commits: of two tables, of the quarantine, of the ledger."""
    steps = iter(range(done))

    def dying(real: Any) -> Any:
        def run(*args: Any) -> Any:
            if next(steps, None) is None:
                raise SystemExit
            return real(*args)

        return run

    monkeypatch.setattr(committing, "AT_A_TIME", 1)
    monkeypatch.setattr(committing, "commit_files", dying(commit_files))
    monkeypatch.setattr(committing, "commit_quarantine", dying(commit_quarantine))
    monkeypatch.setattr(books, "record", dying(books.record))
    if done < 4:
        with pytest.raises(SystemExit):
            batch(lake, [*TWO, *NAMELESS])
        assert known(lake).verify(deep=False).ok  # what is not finished is pending
    else:
        batch(lake, [*TWO, *NAMELESS])
    monkeypatch.undo()
    batch(lake, [*TWO, *NAMELESS])
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_written, verification.rows_quarantined) == (True, 3, 1)


def test_a_table_that_fails_is_parked_in_status_and_verify_agrees(lake: Path) -> None:
    batch(lake, TWO)
    (lake / "go/_delta_log/00000000000000000000.json").write_text("damaged")
    batch(lake, TWO, 1)
    status = known(lake).status()
    assert {table.route: table.state for table in status.tables} == {"chess": "written", "go": "parked"}
    assert status.quarantined == 1
    go = totals(read_entries(pipeline(lake).state_root, Store()))["go"]
    assert (go.rows_in, go.rows_written, go.rows_quarantined) == (2, 1, 1)


def test_a_table_that_fails_when_the_batch_ends_is_counted_as_parked(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(target: Any, *args: Any) -> Any:
        if target.uri.endswith(("go", "chess")):
            raise ValueError("this table takes nothing")
        return commit_files(target, *args)

    monkeypatch.setattr(committing, "commit_files", fails)
    batch(lake, [*TWO, {"game": "sudoku", "n": 5}])
    monkeypatch.undo()
    batch(lake, [*TWO, {"game": "sudoku", "n": 5}])  # and a batch that comes again changes nothing
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_in, verification.rows_written) == (True, 4, 1)
    quarantine = DeltaTable(quarantine_uri(pipeline(lake).state_root)).to_pyarrow_table().to_pylist()
    assert {(row["route"], row["stream"], row["batch"]) for row in quarantine} == {
        ("chess", "query", 0),
        ("go", "query", 0),
    }
    assert len({row["id"] for row in quarantine}) == 3


def test_the_quarantine_may_be_compacted_before_a_batch_comes_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(lake, NAMELESS)

    def dies(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(books, "record", dies)
    with pytest.raises(SystemExit):
        batch(lake, [*TWO, *NAMELESS], 1)
    monkeypatch.undo()
    quarantine = DeltaTable(quarantine_uri(pipeline(lake).state_root))
    quarantine.optimize.compact()
    quarantine.vacuum(0, dry_run=False, enforce_retention_duration=False)
    batch(lake, [*TWO, *NAMELESS], 1)
    verification = known(lake).verify(deep=False)
    assert (verification.ok, verification.rows_in, verification.rows_quarantined) == (True, 5, 2)


def test_clean_takes_all_that_the_sink_made_and_a_neighbours_table_stays(lake: Path) -> None:
    batch(lake, [*TWO, *NAMELESS])
    write_deltalake(lake / "others", pa.table({"n": [1]}))
    done = apply(clean(pipeline(lake)))
    assert {target.path for target in done.remove} == {
        f"{lake}/chess",
        f"{lake}/go",
        f"{lake}/_distributary/sink",
    }
    assert {path.name for path in lake.iterdir()} == {"others"}


def test_clean_takes_what_a_first_batch_that_died_has_left(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(books, "record", dies)
    with pytest.raises(SystemExit):
        batch(lake, TWO)
    apply(clean(pipeline(lake)))
    assert list(lake.iterdir()) == []


def test_verbs_that_need_a_source_say_that_the_rows_come_from_a_query(lake: Path) -> None:
    kind = known(lake)
    for verb in (kind.plan, kind.check_runs_here, partial(kind.replay, None, None)):
        with pytest.raises(BadInput, match="query"):
            verb()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"layout": "wide"}, "there is one layout"),
        ({"envelope": "none"}, "give payload too"),
        ({"tables": {"root": "/lake", "keys": ["n"]}}, "whose rows are appended"),
    ],
)
def test_keys_that_mean_nothing_for_rows_of_a_dataframe_are_faults(keys: dict[str, Any], why: str) -> None:
    document = {"pipeline": "sink", "source": {"type": "dataframe"}, "tables": {"root": "/lake"}, **keys}
    with pytest.raises(ValueError, match=why):
        Pipeline.model_validate(document)


def test_messages_that_the_sink_takes_are_counted_with_tombstones(tmp_path: Path) -> None:
    faults = Faults(corrupt=3, unknown_id=2, tombstones=2, bad_envelope=2)
    world = World(tmp_path, "none", Plan(games=2, versions=1, records=20, faults=faults), layout="fanout")
    world.send(1)
    rows = DeltaTable(world.source).to_pyarrow_table()
    messages = MessageRows(world.config)
    taken = messages.take(rows.to_batches(), "query", 0, "0")
    BatchEnding(messages.options, Txn("query", 0)).commit([pickle.loads(pickle.dumps(taken))])
    verification = kind_of(world.config, tmp_path / "games.yaml").verify(deep=True)
    assert verification.ok, verification.problems
    tombstones = sum(record.fault == "tombstones" for record in world.sent)
    assert tombstones and verification.tombstones == tombstones
    assert verification.rows_in == len(world.sent) - tombstones
