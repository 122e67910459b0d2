"""Spark's sink without Spark: what its tasks write, what its end commits, and what is left after each fault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.engine.appending import commit_files
from distributary.errors import BadInput, StoreDown
from distributary.sink import committing
from distributary.sink.by_routes import RouteRows, split
from distributary.sink.committing import BatchEnding
from distributary.sink.plain_columns import plain_schema
from distributary.sink.sink_options import SinkOptions
from distributary.tables.quarantine import update_rows
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store

Rows = list[dict[str, Any]]
TWO: Rows = [{"game": "chess", "n": 1}, {"game": "go", "n": 2}, {"game": "chess", "n": 3}]


class Killed(SystemExit):
    """The process ends here."""


def options(lake: Path, **more: str) -> SinkOptions:
    return SinkOptions.read({"path": str(lake), "route": "game", **more})


def batch(lake: Path, rows: Rows | pa.Table, number: int = 0, *, tasks: int = 1, **more: str) -> None:
    """One batch from rows to tables, by so many tasks."""
    found = options(lake, **more)
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    size = -(-table.num_rows // tasks)
    parts = [table.slice(n * size, size).to_batches() for n in range(tasks)]
    taken = [RouteRows(found).take(part, "query", number, str(n)) for n, part in enumerate(parts)]
    BatchEnding(found, Txn("query", number)).commit(taken)


def held(lake: Path, route: str, *columns: str) -> list[Any]:
    rows = DeltaTable(lake / route).to_pyarrow_table().to_pylist()
    return sorted((tuple(row[c] for c in columns) if len(columns) > 1 else row[columns[0]]) for row in rows)


def aside(lake: Path) -> list[tuple[str | None, str, Any]]:
    rows = DeltaTable(lake / "_distributary/sink/quarantine").to_pyarrow_table().to_pylist()
    return sorted(((r["route"], r["reason"], json.loads(r["value"])) for r in rows), key=str)


def files(lake: Path) -> set[str]:
    """Data files of all tables, whether a commit has taken them in or not."""
    return {path.name for path in lake.glob("*/part-*.parquet")}


def live(lake: Path) -> set[str]:
    return {Path(uri).name for log in lake.glob("*/_delta_log") for uri in DeltaTable(log.parent).file_uris()}


def test_each_route_gets_its_rows_in_a_table_of_its_own(lake: Path) -> None:
    batch(lake, TWO, tasks=2)
    assert held(lake, "chess", "n") == [1, 3]
    assert held(lake, "go", "n", "game") == [(2, "go")]


def test_a_route_that_several_tasks_hold_gets_one_commit(lake: Path) -> None:
    batch(lake, TWO, tasks=3)
    assert DeltaTable(lake / "chess").version() == 0
    assert held(lake, "chess", "n") == [1, 3]


def test_rows_without_a_route_are_kept_aside_as_json(lake: Path) -> None:
    batch(lake, [*TWO, {"game": None, "n": 4}, {"game": "", "n": 5}])
    assert aside(lake) == [
        (None, "NO_ROUTE", {"game": "", "n": 5}),
        (None, "NO_ROUTE", {"game": None, "n": 4}),
    ]


def test_a_batch_that_comes_again_adds_nothing_and_leaves_no_files(lake: Path) -> None:
    batch(lake, [*TWO, {"game": None, "n": 4}])
    batch(lake, [*TWO, {"game": None, "n": 4}])
    assert (held(lake, "chess", "n"), held(lake, "go", "n"), len(aside(lake))) == ([1, 3], [2], 1)
    assert files(lake) == live(lake)


def test_the_next_batch_adds_its_rows_and_columns(lake: Path) -> None:
    batch(lake, TWO)
    batch(lake, [{"game": "chess", "n": 5, "won": True}], 1)
    assert held(lake, "chess", "n", "won") == [(1, None), (3, None), (5, True)]


def test_a_type_that_changes_is_widened_or_gets_a_second_column(lake: Path) -> None:
    batch(lake, pa.table({"game": ["go"], "n": pa.array([1], pa.int32())}))
    batch(lake, pa.table({"game": ["go"], "n": pa.array([2**40], pa.int64())}), 1)
    assert held(lake, "go", "n") == [1, 2**40]
    batch(lake, [{"game": "go", "n": "many"}], 2)
    assert {r["n__string"] for r in DeltaTable(lake / "go").to_pyarrow_table().to_pylist()} == {None, "many"}


def test_rows_that_the_policy_keeps_out_are_set_aside_and_the_others_enter(lake: Path) -> None:
    batch(lake, TWO)
    batch(
        lake, [{"game": "chess", "n": 7, "extra": None}, {"game": "chess", "n": 8, "extra": "x"}], 1, newColumn="freeze"
    )
    assert held(lake, "chess", "n") == [1, 3, 7]
    assert aside(lake) == [("chess", "FROZEN_COLUMN", {"game": "chess", "n": 8, "extra": "x"})]


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_kill_between_two_commits_loses_and_doubles_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    rows = [*TWO, {"game": None, "n": 4}]
    kill_after(monkeypatch, commits)
    with pytest.raises(Killed):
        batch(lake, rows)
    monkeypatch.undo()
    batch(lake, rows)
    assert (held(lake, "chess", "n"), held(lake, "go", "n"), len(aside(lake))) == ([1, 3], [2], 1)
    assert files(lake) == live(lake)


def kill_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """End the process before the table that comes after so many."""
    done: list[Any] = []

    def some(*given: Any) -> Any:
        if len(done) == commits:
            raise Killed
        done.append(given)
        return commit_files(*given)

    monkeypatch.setattr(committing, "AT_A_TIME", 1)
    monkeypatch.setattr(committing, "commit_files", some)
    if commits == 2:
        monkeypatch.setattr(committing, "commit_quarantine", lambda *_: (_ for _ in ()).throw(Killed))


def test_a_replay_keeps_to_what_the_first_attempt_has_written_down(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_after(monkeypatch, 1)
    with pytest.raises(Killed):
        batch(lake, TWO)
    monkeypatch.undo()
    # By now the rows would be told apart in another way: every row lands where the first attempt has put it.
    batch(lake, [{"game": "chess", "n": 1}, {"game": None, "n": 2}, {"game": "go", "n": 3}])
    assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 3], [2])
    assert not (lake / "_distributary/sink/quarantine/_delta_log").exists()


def test_an_attempt_that_fails_removes_what_its_tasks_wrote(lake: Path) -> None:
    found = options(lake)
    taken = RouteRows(found).take(pa.Table.from_pylist(TWO).to_batches(), "query", 0, "0")
    assert len(files(lake)) == 2
    BatchEnding(found, Txn("query", 0)).abort([taken])
    assert not files(lake)


def test_a_task_that_fails_removes_what_it_wrote(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.sink.by_routes.HELD_BYTES", 1)

    def rows() -> Any:
        yield from pa.Table.from_pylist(TWO).to_batches()
        assert files(lake)
        raise OSError("the executor goes away")

    with pytest.raises(OSError, match="goes away"):
        RouteRows(options(lake)).take(rows(), "query", 0, "0")
    assert not files(lake)


def test_an_abort_after_the_decision_removes_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(lake)
    taken = [RouteRows(found).take(pa.Table.from_pylist(TWO).to_batches(), "query", 0, "0")]
    kill_after(monkeypatch, 1)
    with pytest.raises(Killed):
        BatchEnding(found, Txn("query", 0)).commit(taken)
    monkeypatch.undo()
    BatchEnding(found, Txn("query", 0)).abort(taken)
    batch(lake, TWO)
    assert (held(lake, "chess", "n"), held(lake, "go", "n")) == ([1, 3], [2])


def test_a_table_that_cannot_be_read_is_set_aside_alone_and_comes_back_by_itself(lake: Path) -> None:
    batch(lake, TWO)
    log = lake / "go/_delta_log/00000000000000000000.json"
    body = log.read_bytes()
    log.write_bytes(b"{not a log\n")
    batch(lake, TWO, 1)
    assert held(lake, "chess", "n") == [1, 1, 3, 3]
    assert [(route, reason) for route, reason, _ in aside(lake)] == [("go", "TABLE_PARKED")]
    log.write_bytes(body)
    batch(lake, TWO, 1)
    batch(lake, TWO, 2)
    assert held(lake, "go", "n") == [2, 2]
    assert len(aside(lake)) == 1


def test_a_table_that_breaks_after_the_decision_gives_its_rows_to_the_quarantine_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(target: Any, *given: Any) -> Any:
        if target.uri.endswith("/go"):
            raise ValueError("no such thing")
        return commit_files(target, *given)

    monkeypatch.setattr(committing, "commit_files", broken)
    batch(lake, TWO)
    monkeypatch.undo()
    batch(lake, TWO)
    assert held(lake, "chess", "n") == [1, 3]
    assert aside(lake) == [("go", "TABLE_PARKED", {"game": "go", "n": 2})]
    assert not (lake / "go/_delta_log").exists()


def test_rows_of_routes_that_park_in_one_batch_are_told_apart(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(committing, "commit_files", broken)
    batch(lake, [{"game": "chess", "n": 1}, {"game": "checkers", "n": 2}])
    quarantine = options(lake).quarantine
    ids = {row["route"]: row["id"] for row in DeltaTable(quarantine).to_pyarrow_table().to_pylist()}
    update_rows(quarantine, Store(), [ids["chess"]], {"state": "'replayed'"})
    rows = DeltaTable(quarantine).to_pyarrow_table().to_pylist()
    assert {row["route"]: row["state"] for row in rows} == {"chess": "replayed", "checkers": "open"}


def test_two_routes_of_one_table_name_do_not_mix(lake: Path) -> None:
    batch(lake, [{"game": "OrderPlaced", "n": 1}, {"game": "order_placed", "n": 2}], table="{route|snake}")
    assert len(held(lake, "order_placed", "n")) == 1
    assert [reason for _, reason, _ in aside(lake)] == ["TABLE_PARKED"]


def test_columns_that_somebody_changes_meanwhile_are_met(lake: Path) -> None:
    found = options(lake)
    batch(lake, TWO)
    rows = pa.table({"game": ["go"], "n": pa.array([7], pa.int64()), "note": ["x"]})
    taken = RouteRows(found).take(rows.to_batches(), "query", 1, "0")
    other = pa.table({"game": ["go"], "n": pa.array([9], pa.int64()), "note": pa.array([1.5])})
    write_deltalake(lake / "go", other, mode="append", schema_mode="merge")
    BatchEnding(found, Txn("query", 1)).commit([taken])
    rows_now = DeltaTable(lake / "go").to_pyarrow_table().to_pylist()
    assert sorted((r["n"], r["note"], r["note__string"]) for r in rows_now if r["n"] > 2) == [
        (7, None, "x"),
        (9, 1.5, None),
    ]


def test_rows_that_lack_what_a_table_has_come_to_ask_for_are_set_aside(lake: Path) -> None:
    found = options(lake)
    batch(lake, TWO)
    rows = pa.table({"game": ["go"], "n": pa.array([7], pa.int64()), "note": ["x"]})
    taken = RouteRows(found).take(rows.to_batches(), "query", 1, "0")
    asked = pa.schema([pa.field("game", pa.string()), pa.field("n", pa.int64()), pa.field("must", pa.string(), False)])
    other = pa.table({"game": ["go"], "n": [9], "must": ["is"]}, schema=asked)
    write_deltalake(lake / "go", other, mode="overwrite", schema_mode="overwrite")
    BatchEnding(found, Txn("query", 1)).commit([taken])
    assert held(lake, "go", "n", "must") == [(9, "is")]
    assert aside(lake) == [("go", "TABLE_PARKED", {"game": "go", "n": 7, "note": "x"})]


def test_new_tables_beyond_the_limit_are_set_aside(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(lake)
    few = found.tables.model_copy(update={"max_new_tables": 1})
    monkeypatch.setattr(SinkOptions, "read", classmethod(lambda cls, _: cls("game", "sink", few, found.state)))
    batch(lake, TWO)
    assert held(lake, "chess", "n") == [1, 3]
    assert aside(lake) == [("go", "TOO_MANY_ROUTES", {"game": "go", "n": 2})]
    batch(lake, TWO, 1)
    assert held(lake, "go", "n") == [2]


def test_a_store_that_fails_fails_the_batch_and_sets_nothing_aside(lake: Path) -> None:
    found = options(lake)
    taken = RouteRows(found).take(pa.Table.from_pylist(TWO).to_batches(), "query", 0, "0")
    (lake / "_distributary").write_text("no folder")
    with pytest.raises(StoreDown):
        BatchEnding(found, Txn("query", 0)).commit([taken])
    (lake / "_distributary").unlink()
    shutil.rmtree(lake / "chess")  # as vacuum would: the next attempt writes anew
    batch(lake, TWO)
    assert held(lake, "chess", "n") == [1, 3]


def test_rows_are_split_by_route_in_their_order() -> None:
    rows = pa.table({"r": ["b", "a", None, "b", ""], "n": [1, 2, 3, 4, 5]})
    found = {route: part.column("n").to_pylist() for route, part in split(rows, "r")}
    assert found.keys() == {"a", "b", None}
    assert (found["b"], found["a"], found[None]) == ([1, 4], [2], [3, 5])
    assert [route for route, _ in split(pa.table({"r": [7, 7]}), "r")] == ["7"]


def test_columns_are_those_of_a_delta_table() -> None:
    inner = pa.struct([pa.field("at", pa.timestamp("us", "Europe/Berlin"), nullable=False)])
    given = pa.schema([pa.field("x", pa.large_list(inner), nullable=False), pa.field("m", pa.map_("string", inner))])
    plain_inner = pa.struct([pa.field("at", pa.timestamp("us", "UTC"))])
    found = plain_schema(given)
    assert found == pa.schema([("x", pa.list_(plain_inner)), ("m", pa.map_("string", plain_inner))])
    with pytest.raises(BadInput, match="column 'd'"):
        plain_schema(pa.schema([("d", pa.duration("us"))]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"route": "game"}, "needs the option 'path'"),
        ({"path": "/lake"}, "needs the option 'route'"),
        ({"path": "/lake", "route": "game", "roote": "x"}, "no option 'roote'"),
        ({"path": "/lake", "route": "game", "newColumn": "perhaps"}, "option 'newcolumn'"),
        ({"path": "/lake", "route": "game", "table": "all"}, "option 'table'"),
        ({"path": "/lake", "route": "game", "delta.enableRowTracking": "true"}, "no table with"),
    ],
)
def test_an_option_that_will_not_do_is_refused_in_words(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        SinkOptions.read(given)


def test_names_of_options_are_as_spark_gives_them() -> None:
    found = SinkOptions.read(
        {"path": "/lake/", "route": "Game", "txnappid": "a", "txnversion": "4", "delta.appendonly": "true"}
    )
    assert (found.tables.root, found.route) == ("/lake", "Game")
    assert found.tables.properties == {"delta.appendOnly": "true"}


def test_tasks_that_have_one_column_with_two_types_are_brought_together(lake: Path) -> None:
    found = options(lake)
    each = [[{"game": "go", "n": 1, "x": 1.5}], [{"game": "go", "n": "two"}], [{"game": "go", "n": 3}]]
    taken = [RouteRows(found).take(pa.Table.from_pylist(rows).to_batches(), "query", 0, "0") for rows in each]
    for _ in range(2):
        BatchEnding(found, Txn("query", 0)).commit(taken)
    rows = DeltaTable(lake / "go").to_pyarrow_table().to_pylist()
    assert sorted((str(r["n"]), r["n__string"], r["x"]) for r in rows) == [
        ("1", None, 1.5), ("3", None, None), ("None", "two", None),
    ]  # fmt: skip
