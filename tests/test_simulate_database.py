"""`simulate database` and `simulate datastream`, with real servers and without: files fold to what the tables hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from distributary.changes.model import Kind
from distributary.cli.entry import execute
from distributary.cli.signals import stop_on_signal
from distributary.errors import Exit, SourceDown
from distributary_simulate.change_files.stream import Pace, open_source, read_truth, write_server
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.model import Table
from distributary_simulate.changes.truth import TableTruth, load_truth
from distributary_simulate.databases.servers import Server, server
from distributary_simulate.databases.workload import Workload, run_workload
from distributary_simulate.errors import SimulationInvalid
from tests.change_order import assert_equal, fold_files
from tests.living_database import now_ms
from tests.processes import command


@pytest.fixture(params=["mariadb", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    running = request.getfixturevalue(request.param)
    database: Callable[[], AbstractContextManager[str]] = running.database
    with database() as name:
        yield running.url(name)


def files_of(root: Path) -> list[Path]:
    return sorted(root.rglob("*.avro"))


def tables_of(truth: dict[str, TableTruth]) -> dict[str, list[Table]]:
    """One schema per table: for files of a time without schema changes."""
    return {route: [found.table] for route, found in truth.items()}


QUICK = Workload(rows=20, seconds=None, rate=0, transactions=60, schema_changes=0)


# -- a real database --------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_the_same_seed_gives_the_same_rows_and_another_one_others(url: str) -> None:
    place = server(url)
    other = [("users", 20), ("orders", 20)]
    run_workload(place, QUICK)
    first = read_truth(place)
    assert {route.rsplit(".", 1)[1]: len(found.rows) > 5 for route, found in first.items()} == dict.fromkeys(
        dict(other), True
    )
    before = run_workload(place, Workload(rows=20, seconds=None, rate=0, transactions=20, schema_changes=0, seed=1))
    assert before.transactions == 20
    assert read_truth(place) != first  # it went on with the rows that were there


@pytest.mark.services
def test_every_kind_of_change_is_made_and_counted(url: str) -> None:
    work = Workload(rows=20, seconds=None, rate=0, transactions=400, schema_changes=30, seed=3)
    done = run_workload(server(url), work)
    assert done.transactions == 400
    assert done.statements.keys() == {"insert", "update", "delete", "move", "swap", "shift", "again", "rollback"}
    assert len(done.schema_changes) == 13
    changes = " ".join(done.schema_changes)
    assert "ADD COLUMN" in changes and "DROP COLUMN" in changes and ("MODIFY" in changes or "ALTER COLUMN" in changes)


@pytest.mark.services
def test_the_rate_is_kept_and_the_time_is_up(url: str) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    work = Workload(rows=5, seconds=3.0, rate=10, transactions=None)
    assert run_workload(server(url), work, clock=lambda: now[0], sleep=sleep).transactions in (30, 31)
    assert run_workload(server(url), work, is_stopped=lambda: True).transactions == 0


@pytest.mark.services
def test_a_stream_backfills_follows_and_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    place, root, state = server(url), tmp_path / "bucket", tmp_path / "state.json"
    run_workload(place, QUICK)
    writer = threading.Thread(target=run_workload, args=(place, Workload(0, None, 0, 200, 0, 7)))
    source = open_source(place, state)
    writer.start()

    def has_backfilled() -> bool:
        return state.exists() and bool(json.loads(state.read_text()).get("backfilled"))

    pace = Pace(60, is_stopped=has_backfilled, sleep=lambda _: time.sleep(0.02))
    write_server(source, ChangeFiles(FilesPlan(root)), state, pace, now_ms)
    first = len(files_of(root))
    writer.join()
    run_workload(place, Workload(0, None, 0, 50, 0, 8))
    again = open_source(place, state)
    files = ChangeFiles(FilesPlan(root))
    write_server(again, files, state, Pace(), now_ms)
    assert first and len(files_of(root)) > first
    assert not any("backfill" in file.path for file in files.written)
    truth = again.truth()
    assert_equal(fold_files(files_of(root), tables_of(truth)), truth)


@pytest.mark.services
def test_a_stream_that_died_before_it_noted_its_place_reads_again_and_loses_nothing(url: str, tmp_path: Path) -> None:
    place, root, state = server(url), tmp_path / "bucket", tmp_path / "state.json"
    run_workload(place, QUICK)
    source = open_source(place, state)
    run_workload(place, Workload(0, None, 0, 30, 0, 9))
    files = ChangeFiles(FilesPlan(root))
    for change in source.read():
        files.add(change)
    files.flush()  # and here it died: nothing was noted
    write_server(open_source(place, state), ChangeFiles(FilesPlan(root)), state, Pace(), now_ms)
    truth = read_truth(place)
    assert_equal(fold_files(files_of(root), tables_of(truth)), truth)


@pytest.mark.services
def test_the_commands_write_a_database_its_files_and_what_it_holds(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", url)
    reference = ["--url", "${env:SHOP_URL}", "--once"]
    small = ["--rows", "10", "--transactions", "30", "--schema-changes", "10"]
    tables, later = tmp_path / "tables.json", tmp_path / "later.json"
    assert execute(["simulate", "database", *reference, *small, "--truth", str(tables)]) == Exit.OK
    place = ["--dir", str(tmp_path / "bucket"), "--format", "jsonl.gz", "--schema-files"]
    assert execute(["simulate", "datastream", *reference, *place, "--truth", str(later)]) == Exit.OK
    said = capsys.readouterr().out
    assert "30 transactions" in said and "events in" in said and "cdc:cdc" not in said
    assert load_truth(tables) == load_truth(later)
    rows = sum(len(found.rows) for found in load_truth(tables).values())
    names = [path.name for path in (tmp_path / "bucket").rglob("*.jsonl.gz")]
    assert rows and all("backfill" in name for name in names)


@pytest.mark.services
def test_sigterm_ends_a_stream_with_whole_files(mariadb: Any, tmp_path: Path) -> None:
    with mariadb.database() as name:
        run_workload(server(mariadb.url(name)), QUICK)
        words = ["simulate", "datastream", "--url", mariadb.url(name), "--dir", tmp_path / "bucket"]
        words += ["--seconds", "60", "--truth", tmp_path / "tables.json"]
        stream = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 240
        while not files_of(tmp_path / "bucket") and stream.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        stream.send_signal(signal.SIGTERM)
        said, wrong = stream.communicate(timeout=300)
        assert (stream.returncode, wrong) == (0, "")
        assert "events in" in said
        truth = load_truth(tmp_path / "tables.json")
        assert_equal(fold_files(files_of(tmp_path / "bucket"), tables_of(truth)), truth)


# -- no database ------------------------------------------------------------------------------------------------------


def history(tmp_path: Path, *more: str) -> list[str]:
    place = ["--dir", str(tmp_path / "bucket"), "--truth", str(tmp_path / "tables.json")]
    return ["simulate", "datastream", *place, "--events", "300", "--schema-changes", "0", *more]


def test_without_a_server_a_history_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(history(tmp_path, "--faults", "late,duplicates", "--kinds", "mysql,oracle")) == Exit.OK
    assert "of them are faults" in capsys.readouterr().out
    truth = load_truth(tmp_path / "tables.json")
    assert {found.table.kind for found in truth.values()} == {Kind.MYSQL, Kind.ORACLE}
    assert_equal(fold_files(files_of(tmp_path / "bucket"), tables_of(truth)), truth)


def test_a_database_without_a_server_writes_the_truth_of_a_history(tmp_path: Path) -> None:
    arguments = ["--seed", "5", "--rows", "7", "--transactions", "100", "--kinds", "mongodb"]
    for name in ("one", "two"):
        assert execute(["simulate", "database", *arguments, "--truth", str(tmp_path / name)]) == Exit.OK
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()
    assert load_truth(tmp_path / "one").keys() == {"crm.profiles", "crm.visits"}


def test_both_commands_mean_the_same_history(tmp_path: Path) -> None:
    same = ["--seed", "2", "--rows", "5", "--schema-changes", "9", "--per-kind", "4"]
    assert (
        execute(["simulate", "database", *same, "--transactions", "300", "--truth", str(tmp_path / "one")]) == Exit.OK
    )
    assert execute(history(tmp_path, *same)) == Exit.OK
    assert load_truth(tmp_path / "one") == load_truth(tmp_path / "tables.json")


@pytest.mark.parametrize("format_", ["jsonl", "jsonl.gz", "parquet"])
def test_every_format_is_written(tmp_path: Path, format_: str) -> None:
    more = ["--format", format_, "--schema-files", "--placeholders", "--layout", "2024", "--rotate-size", "10 KB"]
    assert execute(history(tmp_path, *more)) == Exit.OK
    assert {"".join(path.suffixes) for path in (tmp_path / "bucket").rglob("*_*.*") if path.is_file()} == {
        f".{format_}",
        ".schema",
    }


def test_a_live_history_goes_on_for_its_time(tmp_path: Path) -> None:
    assert execute(history(tmp_path, "--seconds", "0.2", "--rate", "50")) == Exit.OK
    truth = load_truth(tmp_path / "tables.json")
    assert_equal(fold_files(files_of(tmp_path / "bucket"), tables_of(truth)), truth)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--format", "orc"], "avro, jsonl"),
        (["--faults", "fire"], "duplicates"),
        (["--kinds", "db2"], "mysql,postgresql"),
        (["--layout", "1999"], "2021-03"),
        (["--rotate-size", "big"], "allowed: a size"),
        (["--url", "sqlite:///x"], "mysql://user:password@host"),
        (["--url", "mysql://cdc:secret@127.0.0.1:1/shop"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_what_is_allowed(
    tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(history(tmp_path, *more)) in (Exit.BAD_INPUT, Exit.ENVIRONMENT)
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1 and "secret" not in error


def test_a_history_is_not_mixed_into_a_folder_that_holds_something(tmp_path: Path) -> None:
    assert execute(history(tmp_path)) == Exit.OK
    assert execute(history(tmp_path, "--seed", "1")) == Exit.BAD_INPUT


@pytest.mark.parametrize(
    ("address", "want"),
    [
        (
            "mysql://ann:p%40ss@db.example.org:3307/shop",
            Server(Kind.MYSQL, "db.example.org", 3307, "ann", "p@ss", "shop"),
        ),
        ("mariadb://ann@h/shop", Server(Kind.MYSQL, "h", 3306, "ann", "", "shop")),
        ("postgresql://h/shop", Server(Kind.POSTGRESQL, "h", 5432, "", "", "shop")),
    ],
)
def test_addresses_are_understood(address: str, want: Server) -> None:
    assert server(address) == want
    assert "p@ss" not in str(want) + repr(want)


@pytest.mark.parametrize("address", ["mysql://h", "h/shop", "mysql:///shop", "mysql://ann:secret@h:port/shop"])
def test_addresses_that_say_too_little_are_refused_without_showing_them(address: str) -> None:
    with pytest.raises(SimulationInvalid) as caught:
        server(address)
    assert "secret" not in str(caught.value)


def test_a_database_that_is_away_is_an_outage() -> None:
    for address in ("mysql://a@127.0.0.1:1/x", "postgresql://a@127.0.0.1:1/x"):
        with pytest.raises(SourceDown):
            run_workload(server(address), QUICK)


def test_the_first_signal_asks_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_on_signal() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_stopped()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_without_the_drivers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributary_simulate.databases.binlog", None)
    assert execute(history(tmp_path, "--url", "mysql://a@h/x")) == Exit.BAD_INPUT
    assert "distributary[simulate]" in capsys.readouterr().err


def test_a_truth_file_is_plain_json(tmp_path: Path) -> None:
    assert execute(history(tmp_path)) == Exit.OK
    found = json.loads((tmp_path / "tables.json").read_text())
    assert found["tables"]["shop.users"]["keys"] == ["id"]
