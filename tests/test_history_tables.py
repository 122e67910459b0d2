"""Whatever order a table's events come in, however often and in whatever batches: its history says from when to when
each version held, as one who reads the sorted events says it by hand."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.reduce import MissingColumns
from distributary.changes.sequence import OrderSettings
from distributary.changes.unfilled import Unfilled
from distributary.tables import history_table
from distributary.tables.evolve import Policy
from distributary.tables.history_rows import IS_CURRENT, OPEN, UNTIL, VALID_FROM, VALID_TO
from distributary.tables.history_table import merge_history
from distributary.tables.merge import MergeTarget
from distributary.tables.merge_files import Reader
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.change_histories import KINDS, Database, delivered
from tests.events import DELETES, START_MS, Event, deleted, table_of
from tests.scenarios import dying

COLUMNS = {"id": pa.int64(), "value": pa.string()}
MYSQL = OrderSettings(kind="mysql")


def take(
    uri: str,
    events: Sequence[Event],
    batch: int,
    order: OrderSettings = MYSQL,
    gaps: MissingColumns | None = None,
    **more: bool,
) -> int:
    target = MergeTarget(Table(uri, Store(), Owner("p", "t", ("id",))), Snapshot.open(uri, Store()), Policy())
    rows = table_of(events, COLUMNS, order.kind)
    return merge_history(target, rows, ["id"], order, gaps or MissingColumns(), Txn("s", batch), **more)


def versions(uri: str) -> list[dict[str, Any]]:
    """Those that held for some time, or hold."""
    names = ["id", "value", VALID_FROM, VALID_TO, IS_CURRENT]
    rows = DeltaTable(uri).to_pyarrow_table(columns=[*names, "_deleted"]).to_pylist()
    rows.sort(key=lambda row: (row["id"], row[VALID_FROM]))
    return [{name: row[name] for name in names} for row in rows if not row["_deleted"]]


def moment(sec: int) -> datetime:
    return datetime.fromtimestamp(START_MS / 1000 + sec, UTC)


def by_hand(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Of events whose `at` is their order: each until the next of its key, which no earlier one outlives."""
    found: list[dict[str, Any]] = []
    for key in sorted({event.row["id"] for event in events}):
        end: int | None = None
        newest = True
        for event in sorted((e for e in events if e.row["id"] == key), key=lambda e: -e.at):
            begin = event.sec if end is None else min(event.sec, end)
            if event.change not in DELETES and begin != end:
                to = None if end is None else moment(end)
                row = {"id": key, "value": event.row["value"], VALID_FROM: moment(begin), VALID_TO: to}
                found.append(row | {IS_CURRENT: newest})
            end, newest = begin, False
    return sorted(found, key=lambda row: (row["id"], row[VALID_FROM]))


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """Distinct events of few keys, in their order; clocks go on, stand still, or back."""
    sec, events = 50, list[Event]()
    for at in range(1, 1 + draw(st.integers(1, 14))):
        sec += draw(st.sampled_from([0, 1, 1, 2, 5, -1, -3]))
        row = {"id": draw(st.integers(0, 2)), "value": f"v{at}"}
        events.append(deleted(row, at, sec) if draw(st.integers(0, 4)) == 0 else Event(row, at, sec=sec))
    return events


@given(logs(), st.integers(0, 2**32))
def test_any_order_any_repetition_and_any_batches_give_the_versions_of_the_sorted_events(
    events: list[Event], seed: int
) -> None:
    random = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        for number, batch in enumerate(b for b in delivered(events, random) if b):
            if number and random.random() < 0.3:  # killed between the files and the commit, or behind the commit
                with dying(history_table, "put_commit", after=random.random() < 0.5):
                    take(uri, batch, number)
            take(uri, batch, number)
        assert versions(uri) == by_hand(events)


@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.integers(1, 20), st.integers(0, 2**32))
def test_the_current_versions_are_the_rows_that_the_database_ends_with(
    kind: str, lived: int, statements: int, seed: int
) -> None:
    database = Database(kind, Random(lived))
    database.live(statements)
    with tempfile.TemporaryDirectory() as folder:
        uri, once = str(Path(folder) / "t"), str(Path(folder) / "once")
        for number, batch in enumerate(b for b in delivered(database.events, Random(seed)) if b):
            take(uri, batch, number, OrderSettings(kind=kind))
        if not database.events:
            return
        take(once, database.events, 0, OrderSettings(kind=kind))
        found = versions(uri)
        assert {row["id"]: row["value"] for row in found if row[IS_CURRENT]} == database.rows
        assert found == versions(once)


def test_an_event_that_comes_late_is_put_between_its_neighbours(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    take(uri, [Event({"id": 1, "value": "a"}, 10, sec=10)], 0)
    take(uri, [Event({"id": 1, "value": "c"}, 30, sec=30)], 1)
    take(uri, [Event({"id": 1, "value": "b"}, 20, sec=20)], 2)
    assert [(row["value"], row[VALID_FROM], row[VALID_TO], row[IS_CURRENT]) for row in versions(uri)] == [
        ("a", moment(10), moment(20), False),
        ("b", moment(20), moment(30), False),
        ("c", moment(30), None, True),
    ]


def test_a_deleted_row_has_no_current_version_and_an_older_event_does_not_bring_it_back(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    take(uri, [Event({"id": 1, "value": "a"}, 10, sec=10), deleted({"id": 1, "value": "a"}, 30, 30)], 0)
    take(uri, [Event({"id": 1, "value": "b"}, 20, sec=20)], 1)
    assert [(row["value"], row[VALID_TO], row[IS_CURRENT]) for row in versions(uri)] == [
        ("a", moment(20), False),
        ("b", moment(30), False),
    ]


def test_a_batch_in_order_opens_no_file_of_versions_that_ended_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = str(tmp_path / "t")
    for number in range(5):
        events = [Event({"id": k, "value": f"{k} {number}"}, 10 * number + k, sec=10 * number) for k in (1, 2)]
        take(uri, events, number)
    adds = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    files = {add["path"] for add in adds if add[f"max.{UNTIL}"] != OPEN}
    assert len(files) == 4
    opened: list[str] = []
    part = Reader.part

    def seen(self: Reader, file: Any, wanted: pa.Schema) -> pa.Table:
        opened.append(file.path)
        return part(self, file, wanted)

    monkeypatch.setattr(Reader, "part", seen)
    take(uri, [Event({"id": 1, "value": "new"}, 90, sec=90)], 5)
    assert opened and not files & set(opened)
    opened.clear()
    take(uri, [Event({"id": 1, "value": "late"}, 15, sec=15)], 6)
    assert files & set(opened)


def test_what_was_not_said_is_as_it_was_before(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    gaps = MissingColumns(toast=("value",))
    take(uri, [Event({"id": 1, "value": "long"}, 10, "INSERT", sec=10)], 0, gaps=gaps)
    take(uri, [Event({"id": 1}, 20, sec=20), Event({"id": 1}, 30, sec=30)], 1, gaps=gaps)
    assert [row["value"] for row in versions(uri)] == ["long"] * 3


def silent_ones(events: Sequence[Event], random: Random, *, marked: bool) -> list[Event]:
    """Events of which some do not speak of their value."""
    schema = "a" * 40 + ("!value" if marked else "")
    return [
        e.with_(row={"id": e.row["id"]}, schema=schema) if e.change not in DELETES and random.random() < 0.5 else e
        for e in events
    ]


def spoken(events: Sequence[Event]) -> list[Event]:
    """The events in order, each with the value that its key had then."""
    values: dict[int, Any] = {}
    whole = []
    for event in sorted(events, key=lambda e: e.at):
        key = event.row["id"]
        values[key] = None if event.change in DELETES else event.row.get("value", values.get(key))
        whole.append(event if event.change in DELETES else event.with_(row={"id": key, "value": values[key]}))
    return whole


@pytest.mark.parametrize("marked", [True, False], ids=["the event says so", "null in an update"])
@given(logs(), st.integers(0, 2**32))
def test_values_that_were_not_logged_are_those_of_the_sorted_events_whatever_comes_late(
    marked: bool, events: list[Event], seed: int
) -> None:
    random = Random(seed)
    events = silent_ones(events, random, marked=marked)
    gaps = MissingColumns() if marked else MissingColumns(toast=("value",))
    log: list[Event] = []
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        for number, batch in enumerate(b for b in delivered(events, random) if b):
            log += batch
            try:
                take(uri, batch, number, gaps=gaps, partial=not marked)
            except Unfilled as e:
                asked = set(e.keys.column("id").to_pylist())
                more = [event for event in log if event.row["id"] in asked]
                take(uri, batch + more, number, gaps=gaps, partial=not marked, filled=True)
        assert versions(uri) == by_hand(spoken(events))


def test_a_late_event_that_is_silent_asks_for_all_events_as_the_one_before_it_may_have_no_version(
    tmp_path: Path,
) -> None:
    uri, silent = str(tmp_path / "t"), "a" * 40 + "!value"
    first, tied = Event({"id": 1, "value": "a"}, 10, sec=10), Event({"id": 1, "value": "b"}, 20, sec=30)
    late, last = Event({"id": 1}, 30, sec=20, schema=silent), Event({"id": 1, "value": "c"}, 40, sec=30)
    take(uri, [first, tied, last], 0)
    with pytest.raises(Unfilled):
        take(uri, [late], 1)
    take(uri, [first, tied, last, late], 1, filled=True)
    assert [row["value"] for row in versions(uri)] == ["a", "b", "c"]


def test_a_silent_event_that_comes_again_beside_a_late_one_of_another_key_keeps_its_value(tmp_path: Path) -> None:
    """The event that had its value may have no version, as another of the same moment came after it."""
    uri, silent = str(tmp_path / "t"), "a" * 40 + "!value"
    log = [
        Event({"id": 1, "value": "a"}, 10, sec=10),
        Event({"id": 1}, 11, sec=10, schema=silent),
        Event({"id": 1, "value": "z"}, 5, "DELETE", sec=5),
        Event({"id": 2, "value": "b"}, 12, sec=10),
        Event({"id": 2}, 20, sec=20, schema=silent),
    ]
    take(uri, log, 0)
    again = [log[1], Event({"id": 2, "value": "c"}, 15, sec=15)]
    with pytest.raises(Unfilled) as asked:
        take(uri, again, 1)
    keys = set(asked.value.keys.column("id").to_pylist())
    take(uri, again + [event for event in log if event.row["id"] in keys], 1, filled=True)
    assert [(row["id"], row["value"]) for row in versions(uri)] == [(1, "a"), (2, "b"), (2, "c"), (2, "c")]


def test_a_batch_that_comes_again_commits_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    events = [Event({"id": 1, "value": "a"}, 10, sec=10), Event({"id": 1, "value": "b"}, 20, sec=20)]
    assert take(uri, events, 0) == 2
    version = DeltaTable(uri).version()
    assert take(uri, events, 0) == 0
    assert DeltaTable(uri).version() == version


def test_a_new_epoch_puts_the_versions_of_its_keys_in_their_new_order(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    before, after = Event({"id": 1, "value": "old"}, 900, sec=10), Event({"id": 1, "value": "new"}, 5, sec=100)
    take(uri, [before, after], 0)
    assert [row["value"] for row in versions(uri) if row[IS_CURRENT]] == ["old"]
    anew = OrderSettings(((START_MS + 50_000, 1),), kind="mysql")
    take(uri, [before, after], 0, anew)
    assert [(row["value"], row[VALID_TO]) for row in versions(uri)] == [("old", moment(100)), ("new", None)]


def test_columns_come_in_addition_and_the_source_may_have_columns_of_our_names(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    take(uri, [Event({"id": 1, "value": "a"}, 10, sec=10)], 0)
    target = MergeTarget(Table(uri, Store(), Owner("p", "t", ("id",))), Snapshot.open(uri, Store()), Policy())
    event = Event({"id": 1, "value": "b", "valid_from": "theirs"}, 20, sec=20)
    rows = table_of([event], {**COLUMNS, "valid_from": pa.string()})
    merge_history(target, rows, ["id"], MYSQL, MissingColumns(), Txn("s", 1))
    found = DeltaTable(uri).to_pyarrow_table().sort_by(VALID_FROM).to_pylist()
    assert [(row["value"], row["valid_from__field"], row[VALID_FROM]) for row in found] == [
        ("a", None, moment(10)),
        ("b", "theirs", moment(20)),
    ]


def test_many_batches_leave_few_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    events = [Event({"id": n % 7, "value": f"v{n}"}, n, sec=n) for n in range(1, 61)]
    for number, event in enumerate(events):
        take(uri, [event], number)
    assert len(DeltaTable(uri).file_uris()) <= 16
    assert versions(uri) == by_hand(events)
