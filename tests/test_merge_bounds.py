"""A merge reads no sequence numbers of a file where the bounds in its footer prove that all of them are older."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distributary.changes.anew import BegunAnew
from distributary.changes.keys import KeyIndex
from distributary.changes.model import METADATA
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.tables import merge_files
from distributary.tables.evolve import Policy
from distributary.tables.merge import Merged, MergeTarget, merge_rows
from distributary.tables.merge_bounds import EventBounds, event_bounds
from distributary.tables.merge_rows import Incoming, MergeRules, as_merged
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.change_histories import KINDS, Database
from tests.events import Event, backfilled, table_of
from tests.extent import either

COLUMNS = {"id": pa.int64(), "value": pa.string()}
HOURS = 3600
MYSQL = MergeRules(order=OrderSettings(kind="mysql"))


def held(events: Sequence[Event], rules: MergeRules, kind: str = "mysql") -> pa.Table:
    """The rows of a table to which these events came."""
    return as_merged(reduce_rows(table_of(events, COLUMNS, kind), ["id"], rules.order).rows, ["id"], rules)


def footer(rows: pa.Table, **options: Any) -> pq.FileMetaData:
    file = io.BytesIO()
    pq.write_table(rows, file, **options)
    return pq.ParquetFile(file).metadata


def asks(table: pa.Table, events: Sequence[Event], rules: MergeRules = MYSQL, kind: str = "mysql") -> bool:
    """Does a merge of the events read the numbers of a file of the table's rows?"""
    incoming = Incoming(held(events, rules, kind), ["id"], rules)
    return METADATA in incoming.needs(table.schema, event_bounds(footer(table), METADATA)).names


def row(id: int, value: str = "") -> dict[str, Any]:
    return {"id": id, "value": value}


OLD = [Event(row(n), 100 + n, sec=10 + n) for n in range(5)]


def test_events_that_are_newer_than_all_rows_ask_for_keys_only() -> None:
    table = held(OLD, MYSQL)
    assert not asks(table, [Event(row(2), 200, sec=20), Event(row(9), 201, sec=20)])
    assert not asks(held([backfilled(row(1), sec=99 * HOURS)], MYSQL), [Event(row(1), 1, sec=0)])


@pytest.mark.parametrize(
    "event",
    [
        OLD[-1],
        Event(row(2), 50, sec=99),
        backfilled(row(2), sec=99),
        # Stands behind all rows in the log, and is far older than some of them: another log?
        Event(row(2), 200, sec=10 - 2 * HOURS),
    ],
    ids=["read again", "older", "backfilled", "long ago"],
)
def test_an_event_that_may_be_older_than_some_row_asks_for_the_numbers(event: Event) -> None:
    assert asks(held(OLD, MYSQL), [Event(row(9), 201, sec=99), event])


def test_a_file_of_changes_and_of_backfilled_rows_is_asked() -> None:
    assert asks(held([*OLD, backfilled(row(7))], MYSQL), [Event(row(2), 200, sec=20)])


def test_rules_that_look_at_more_than_numbers_ask_for_them() -> None:
    table, newer = held(OLD, MYSQL), [Event(row(2), 200, sec=20)]
    for rules in (
        replace(MYSQL, has_unchanged=True),
        replace(MYSQL, order=OrderSettings(epochs=((0, 1),), kind="mysql")),
        replace(MYSQL, order=OrderSettings(repair_backfills=(5,), kind="mysql")),
    ):
        assert asks(table, newer, rules)
    oracle = [Event(row(n), 0, source={"scn": 100 + n, "row_id": "A", "tx_id": "1"}) for n in range(3)]
    rules = MergeRules(order=OrderSettings(kind="oracle"))
    later = [Event(row(1), 0, source={"scn": 200, "row_id": "A", "tx_id": "2"})]
    assert asks(held(oracle, rules, "oracle"), later, rules, "oracle")


def test_numbers_of_the_first_layout_and_of_other_tools_are_read() -> None:
    first = [event.with_(number="0" * 6 + "2" + f"{event.at:0101x}") for event in OLD]
    assert asks(held(first, MYSQL), [Event(row(2), 200, sec=20)])
    foreign = [event.with_(number="") for event in OLD]
    assert asks(held(foreign, MYSQL), [Event(row(2), 200, sec=20)])


def test_a_footer_says_nothing_where_it_lacks_a_bound() -> None:
    table = held(OLD, MYSQL)
    found = event_bounds(footer(table, row_group_size=2), METADATA)
    numbers = sorted(n["change_sequence_number"].encode() for n in table[METADATA].to_pylist())
    times = [n["source_timestamp"] for n in table[METADATA].to_pylist()]
    assert found == EventBounds(numbers[0], numbers[-1], max(times))
    assert event_bounds(footer(table, write_statistics=False), METADATA) is None
    assert event_bounds(footer(table.drop_columns([METADATA])), METADATA) is None
    of_numbers = [f"{METADATA}.change_sequence_number"]
    without_times = event_bounds(footer(table, write_statistics=of_numbers), METADATA)
    assert without_times == EventBounds(numbers[0], numbers[-1], None)
    incoming = Incoming(held([Event(row(2), 200, sec=20)], MYSQL), ["id"], MYSQL)
    assert METADATA in incoming.needs(table.schema, without_times).names


def test_whatever_is_left_unread_would_have_said_the_same() -> None:
    """Histories of all kinds of sources, cut into a table and what comes later, some of it late."""
    unread = 0
    for seed in range(either(150, 3000)):
        dice = Random(seed)
        database = Database(dice.choice(KINDS), dice)
        database.live(dice.randint(4, 30))
        rules = MergeRules(order=OrderSettings(kind=dice.choice((database.kind, ""))))
        events = sorted(database.events, key=lambda event: event.backfill) if dice.random() < 0.2 else database.events
        cut = dice.randint(1, max(1, len(events) - 1))
        before, after = list(events[:cut]), list(events[cut:])
        after += before[: dice.choice((0, 0, 0, 1))]
        if not after:
            continue
        table, rows = held(before, rules, database.kind), held(after, rules, database.kind)
        incoming = Incoming(rows, ["id"], rules)
        needed = incoming.needs(table.schema, event_bounds(footer(table), METADATA))
        if METADATA in needed.names:
            continue
        unread += 1
        places, mine, wins = incoming.meet(table.select(needed.names))
        whole = Incoming(rows, ["id"], rules)
        for one, two in zip((places, mine, wins), whole.meet(table), strict=True):
            np.testing.assert_array_equal(one, two)
        assert incoming.verdict().counts() == whole.verdict().counts()
    assert unread > either(20, 400)


KEY_TYPES = (pa.int64(), pa.string(), pa.timestamp("us", tz="UTC"), pa.date32(), pa.float64(), pa.binary())


@pytest.mark.parametrize("kind", KEY_TYPES, ids=str)
def test_many_keys_are_found_as_few_are(kind: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls, empty texts and NaN too, whether or not the two sides' ends meet."""

    def value(dice: Random) -> Any:
        number = dice.choice((None, dice.randint(0, 30), dice.randint(0, 9)))
        if number is None or pa.types.is_temporal(kind) or pa.types.is_integer(kind):
            return number
        texts = ["", "é", "\U00020000", *map(str, range(28))]
        return number * 0.5 - 1 if pa.types.is_floating(kind) else texts[number].encode()

    def drawn(dice: Random, rows: int, part: int) -> pa.Array:
        values = [dice.choice((float("nan"), -0.0, v)) if part == 1 and kind == pa.float64() else v
                  for v in (value(dice) for _ in range(rows))]  # fmt: skip
        if pa.types.is_string(kind):
            return pa.array(values, pa.binary()).cast(kind)
        days = pa.types.is_date(kind)
        return pa.array(values, pa.int32()).cast(kind) if days else pa.array(values, kind)

    for seed in range(60):
        dice = Random(seed)
        second = pa.array([dice.randint(0, 2) for _ in range(40)])
        known = pa.table({"a": drawn(dice, 40, seed % 2), "b": second})
        rows = pa.table({"a": drawn(dice, 15, seed % 2), "b": second.slice(0, 15)})
        for keys in (["a"], ["a", "b"]):
            index = KeyIndex(known, keys)
            monkeypatch.setattr("distributary.changes.keys.MANY_VALUES", 10**9)
            few = index.find(rows)
            monkeypatch.setattr("distributary.changes.keys.MANY_VALUES", 0)
            np.testing.assert_array_equal(index.find(rows), few)
            assert len(index.find(rows.slice(0, 0))) == 0


class Lake:
    """A merged table of files so large that not all of their columns are read."""

    def __init__(self, uri: Path) -> None:
        self.uri, self.batch = str(uri), 0

    def merge(self, *events: Event, on_read: bool = False) -> Merged:
        self.batch += 1
        rules = replace(MYSQL, on_read=on_read)
        reduced = reduce_rows(table_of(events, COLUMNS), ["id"], rules.order)
        target = MergeTarget(
            Table(self.uri, Store(), Owner("p", "t", ("id",))), Snapshot.open(self.uri, Store()), Policy()
        )
        return merge_rows(target, reduced, ["id"], rules, Txn("stream", self.batch))

    def values(self) -> dict[int, str]:
        rows = DeltaTable(self.uri).to_pyarrow_table(columns=["id", "value"]).to_pylist()
        return {one["id"]: one["value"] for one in rows}


def test_a_merge_of_large_files_is_right_and_sees_a_log_that_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_files, "READ_ROWS", 1)
    read: list[list[str]] = []
    whole = pq.ParquetFile.read

    def noted(file: pq.ParquetFile, columns: Any = None, **more: Any) -> pa.Table:
        read.append(list(columns or ()))
        return whole(file, columns=columns, **more)

    lake = Lake(tmp_path / "t")
    lake.merge(*OLD)
    monkeypatch.setattr(pq.ParquetFile, "read", noted)
    lake.merge(Event(row(1, "new"), 200, sec=20), Event(row(9, "more"), 201, sec=20))
    assert read == [["id"]]
    lake.merge(Event(row(1, "late"), 150, sec=15))
    assert read[1] == ["id", f"{METADATA}.change_sequence_number"]
    assert lake.values() == {0: "", 1: "new", 2: "", 3: "", 4: "", 9: "more"}
    with pytest.raises(BegunAnew):
        lake.merge(Event(row(1, "another log"), 300, sec=-9 * HOURS))
