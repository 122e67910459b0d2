"""What merging events into a table means, whichever engine does it (datastream rules: order, ties, tombstones)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

from distributary.changes.anew import BegunAnew
from distributary.changes.digits import with_unchanged
from distributary.changes.handed_on import HandedOn
from distributary.changes.model import METADATA
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.changes.unfilled import Unfilled
from distributary.tables import merge_on_read
from distributary.tables import table as tables
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import DELETED, DELETED_AT, MergeRules, as_merged
from distributary.tables.merge_tip import MergeTip
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.spark_merge import UNSAID, merge_by_spark, merge_session
from distributary.tables.spark_order import newest_by_spark
from distributary.tables.store import Store
from tests.events import START_MS, Event, backfilled, deleted, table_of
from tests.extent import either

COLUMNS = {"id": pa.int64(), "value": pa.string()}
OWNER = Owner("shop", "shop.orders", ("id",))
POLICY = Policy("add", "widen", can_widen=False)


class Table:
    """A merged table, and the engine that writes it; `tip`: engine `task`, which knows what it left behind; `read`: by
    merges on read, of files however small; `beside`: its tombstones lie beside it."""

    def __init__(self, uri: Path, engine: str, spark: SparkSession | None, beside: bool = False) -> None:
        self.uri = str(uri)
        self.beside = beside
        self.spark = spark if engine == "spark" else None
        self.on_tip = engine == "tip"
        self.on_read = engine == "read"
        self.tip: MergeTip | None = None
        self.batch = -1

    def merge(
        self,
        *events: Event,
        keys: Sequence[str] = ("id",),
        columns: Mapping[str, pa.DataType] = COLUMNS,
        rules: MergeRules | None = None,
        absent: Mapping[str, Sequence[str]] | None = None,
        again: bool = False,
        kind: str = "mysql",
    ) -> Merged:
        rules = replace(rules or MergeRules(), on_read=self.on_read, beside=self.beside)
        self.batch += 0 if again else 1
        table = Snapshot.open(self.uri, Store())
        reduced = reduce_rows(table_of(events, columns, kind), keys, rules.order, rules.gaps(absent or {}))
        target = MergeTarget(tables.Table(self.uri, Store(), OWNER), table, POLICY)
        txn = Txn("stream", self.batch)
        if self.spark is None:
            # Who takes a batch again knows nothing of the table.
            tip = self.tip if self.on_tip and not again else None
            known = None if tip is None else merge_on_tip(target, tip, reduced, keys, rules, txn)
            merged = known or merge_rows(target, reduced, keys, rules, txn)
            assert merged.why_spark is None
            self.tip = merged.tip
            return merged
        rows = reduced.rows
        for column, mask in reduced.unchanged.items():
            rows = rows.append_column(f"{UNSAID}{column}", mask)
        frame = self.spark.createDataFrame(rows)
        return merge_by_spark(self.spark, target, frame, keys, rules, txn)

    def rows(self) -> list[dict[str, Any]]:
        """All rows by id, without metadata; read by delta-rs."""
        return sorted(self.found().drop_columns([METADATA]).to_pylist(), key=lambda row: str(row))

    def metadata(self) -> list[dict[str, Any]]:
        """The metadata of all rows, by id."""
        return [row[METADATA] for row in sorted(self.found().to_pylist(), key=lambda row: int(row["id"]))]

    def found(self) -> pa.Table:
        """The table's rows and, where they lie beside it, the tombstones of keys that it has no row of."""
        rows = read(self.uri)
        if not self.beside or not Path(self.uri, "_tombstones").exists():
            return rows
        assert not any(rows.column(DELETED).to_pylist())
        dead = read(f"{self.uri}/_tombstones")
        keys = [name for name in dead.column_names if name not in (METADATA, DELETED, DELETED_AT)]
        known = {tuple(row.values()) for row in rows.select(keys).to_pylist()}
        alone = [row for row in dead.to_pylist() if tuple(row[key] for key in keys) not in known]
        return pa.Table.from_pylist([*rows.to_pylist(), *alone], rows.schema)

    def living(self) -> list[tuple[Any, ...]]:
        names = (DELETED, DELETED_AT)
        return [tuple(v for k, v in row.items() if k not in names) for row in self.rows() if not row[DELETED]]


def read(uri: str) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute("select * from t"))


@pytest.fixture(
    params=[
        "task",
        "tip",
        "read",
        "task beside",
        "tip beside",
        "read beside",
        pytest.param("spark", marks=pytest.mark.spark),
        *either((), (pytest.param("spark beside", marks=pytest.mark.spark),)),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    engine, _, beside = request.param.partition(" ")
    if engine == "read":
        monkeypatch.setattr(merge_on_read, "TINY_BYTES", 0)
        monkeypatch.setattr(merge_on_read, "LEAST_SHARE", 1)
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    return Table(tmp_path / "t", engine, spark, bool(beside))


def row(id: int | None, value: str | None = None) -> dict[str, Any]:
    return {"id": id, "value": value}


def test_inserts_updates_and_deletes_leave_the_newest_row_of_each_key_and_tombstones(table: Table) -> None:
    table.merge(Event(row(1, "a"), 100, "INSERT"), Event(row(2, "b"), 200, "INSERT"), deleted(row(3, "c"), 300))
    assert table.living() == [(1, "a"), (2, "b")]
    table.merge(Event(row(1, "aa"), 400), deleted(row(2, "b"), 500, sec=9), Event(row(4, "d"), 600, "INSERT"))
    assert table.living() == [(1, "aa"), (4, "d")]
    gone = {found["id"]: found for found in table.rows() if found[DELETED]}
    assert {key: found["value"] for key, found in gone.items()} == {2: None, 3: None}
    assert gone[2][DELETED_AT].timestamp() * 1000 == START_MS + 9000


def test_a_new_table_says_by_a_comment_that_it_holds_tombstones_until_people_say_something_else(table: Table) -> None:
    table.merge(Event(row(1, "a"), 100, "INSERT"))
    merged = DeltaTable(table.uri)
    (field,) = (field for field in merged.schema().fields if field.name == DELETED)
    assert "WHERE NOT _deleted" in field.metadata["comment"]
    merged.alter.set_column_metadata(DELETED, {"comment": "People say"})
    table.merge(Event(row(2, "b"), 200, "INSERT"), deleted(row(1, "a"), 300))
    (field,) = (field for field in DeltaTable(table.uri).schema().fields if field.name == DELETED)
    assert field.metadata["comment"] == "People say"
    assert table.living() == [(2, "b")]


def test_an_older_event_changes_nothing_whatever_its_time(table: Table) -> None:
    """DataflowTemplates#2867: a statement that began first may be logged last. The place in the log decides."""
    table.merge(Event(row(1, "new"), 7609, sec=17))
    table.merge(Event(row(1, "old"), 7338, sec=19))
    assert table.living() == [(1, "new")]


def test_a_late_event_that_says_what_a_newer_one_does_not_is_asked_for_with_all_of_its_key(table: Table) -> None:
    silent = Event(row(1), 300, "UPDATE", schema=with_unchanged("b" * 40, ["value"]))
    events = [Event(row(1, "first"), 100, "INSERT"), Event(row(1, "second"), 200, "UPDATE"), silent]
    rules = MergeRules(has_unchanged=True)
    table.merge(events[0], rules=rules)
    table.merge(events[2], Event(row(2, "other"), 400, "INSERT"), rules=rules)
    assert table.living() == [(1, "first"), (2, "other")]
    with pytest.raises(Unfilled) as asked:
        table.merge(events[1], Event(row(2, "older"), 350, "UPDATE"), rules=rules)
    assert asked.value.keys.to_pylist() == [{"id": 1}]
    table.merge(*events, Event(row(2, "older"), 350, "UPDATE"), rules=replace(rules, filled=True), again=True)
    assert table.living() == [(1, "second"), (2, "other")]
    table.merge(silent.with_(at=250), rules=rules)  # of which it says nothing: nothing need be asked
    assert table.living() == [(1, "second"), (2, "other")]


def test_a_value_of_an_older_event_of_the_batch_is_asked_for_where_the_row_may_have_a_newer_one(table: Table) -> None:
    if table.spark is not None:
        pytest.skip("docs/debezium.md says it of engine spark")
    rules = MergeRules(has_unchanged=True)
    schema = with_unchanged("b" * 40, ["value"])
    first, newer = Event(row(1, "first"), 100, "INSERT"), Event(row(1, "newer"), 300, "UPDATE")
    table.merge(first, newer, rules=rules)
    last = Event(row(1), 400, "UPDATE", schema=schema)
    with pytest.raises(Unfilled) as asked:
        table.merge(first, last, rules=rules)
    assert asked.value.keys.to_pylist() == [{"id": 1}]
    table.merge(first, newer, last, rules=replace(rules, filled=True), again=True)
    assert table.living() == [(1, "newer")]
    table.merge(Event(row(1, "newest"), 500, "UPDATE"), last.with_(at=600), rules=rules)  # none can be between
    assert table.living() == [(1, "newest")]


@pytest.mark.parametrize("again", [False, True], ids=["before the row's own event", "with the row's own event"])
def test_a_late_event_says_what_a_row_lacks_also_below_one_that_does_not(table: Table, again: bool) -> None:
    if table.spark is not None:
        pytest.skip("docs/debezium.md says it of engine spark")
    rules = MergeRules(has_unchanged=True)
    silent = Event(row(1), 500, "UPDATE", schema=with_unchanged("b" * 40, ["value"]))
    table.merge(silent, rules=rules)
    with pytest.raises(Unfilled):
        table.merge(Event(row(1, "said"), 100, "INSERT"), silent if again else silent.with_(at=200), rules=rules)


def test_places_in_the_log_are_compared_as_numbers(table: Table) -> None:
    """DataflowTemplates, to-SQL: as texts, 999 is after 1000 and bin.999999 after bin.1000000."""
    table.merge(Event(row(1, "position 999"), 999), Event(row(2, "file 999999"), 5, file="mysql-bin.999999"))
    table.merge(Event(row(1, "position 1000"), 1000), Event(row(2, "file 1000000"), 4, file="mysql-bin.1000000"))
    assert table.living() == [(1, "position 1000"), (2, "file 1000000")]


def test_a_backfilled_row_enters_and_loses_to_any_change(table: Table) -> None:
    """DataflowTemplates#417: backfilled rows have no place in the log, and vanished in a null comparison."""
    table.merge(backfilled(row(1, "read"), sec=50), backfilled(row(2, "read"), sec=50))
    table.merge(Event(row(1, "changed"), 100, sec=10))
    table.merge(backfilled(row(1, "read again"), sec=90))
    assert table.living() == [(1, "changed"), (2, "read")]


def test_a_late_older_update_does_not_bring_a_deleted_row_back(table: Table) -> None:
    """DataflowTemplates#475."""
    table.merge(Event(row(1, "a"), 100, "INSERT"))
    table.merge(deleted(row(1, "a"), 300))
    table.merge(Event(row(1, "late"), 200))
    assert table.living() == []
    table.merge(Event(row(1, "again"), 400, "INSERT"))
    assert table.living() == [(1, "again")]


def test_two_events_of_one_key_and_one_place_leave_one_row(table: Table) -> None:
    """DataflowTemplates#127; `UPDATE t SET id = id + 1`: a key is left before it is taken, so the upsert stays."""
    table.merge(Event(row(2, "was 2"), 50, "INSERT"), Event(row(3, "was 3"), 60, "INSERT"))
    table.merge(
        Event(row(3, "was 3"), 100, "UPDATE-DELETE"), Event(row(4, "was 3"), 100),
        Event(row(2, "was 2"), 100, "UPDATE-DELETE"), Event(row(3, "was 2"), 100),
    )  # fmt: skip
    assert table.living() == [(3, "was 2"), (4, "was 3")]


def test_a_batch_that_is_merged_again_changes_nothing(table: Table) -> None:
    events = [Event(row(1, "a"), 100), deleted(row(2), 200)]
    table.merge(*events)
    before = table.rows()
    table.merge(*events)
    table.merge(*events, again=True)
    assert table.rows() == before


def test_each_batch_leaves_its_mark_also_where_it_changes_nothing(table: Table) -> None:
    table.merge(Event(row(1, "a"), 100))
    table.merge(Event(row(1, "older"), 50))
    assert Snapshot(table.uri, Store()).newest("stream") == 1


def test_keys_of_several_columns_with_nulls_and_odd_names_are_told_apart(table: Table) -> None:
    """DataflowTemplates 192e4696c2: keys named `order` or `my key`."""
    columns = {"order": pa.int64(), "my key": pa.string(), "value": pa.string()}

    def odd(order: int, key: str | None, value: str) -> dict[str, Any]:
        return {"order": order, "my key": key, "value": value}

    keys = ("order", "my key")
    table.merge(Event(odd(1, None, "a"), 1), Event(odd(1, "x", "b"), 2), keys=keys, columns=columns)
    table.merge(Event(odd(1, None, "aa"), 3), Event(odd(2, "x", "c"), 4), keys=keys, columns=columns)
    assert table.living() == [(1, "x", "b"), (1, None, "aa"), (2, "x", "c")]


def test_a_new_column_is_added_and_old_rows_have_null_in_it(table: Table) -> None:
    """DataflowTemplates#4231: a column that came later was dropped until a restart."""
    table.merge(Event(row(1, "a"), 1), Event(row(2, "b"), 2))
    more = {**COLUMNS, "extra": pa.int64()}
    table.merge(Event({**row(2, "bb"), "extra": 7}, 3), Event({**row(3, "c"), "extra": 8}, 4), columns=more)
    found = {r["id"]: (r["value"], r["extra"]) for r in table.rows()}
    assert found == {1: ("a", None), 2: ("bb", 7), 3: ("c", 8)}


def test_values_that_an_update_does_not_speak_of_stay_where_the_rules_say_so(table: Table) -> None:
    rules = MergeRules(toast_columns=("value",))
    table.merge(Event(row(1, "long text"), 1, "INSERT"), Event(row(2, "x"), 2, "INSERT"), rules=rules)
    table.merge(Event(row(1, None), 3, "UPDATE"), deleted(row(2), 4), rules=rules)
    assert table.living() == [(1, "long text")]
    table.merge(Event(row(2, None), 5, "UPDATE"), rules=rules)
    assert table.living() == [(1, "long text"), (2, None)]


def test_a_dropped_column_keeps_its_values_where_the_rules_say_so(table: Table) -> None:
    rules = MergeRules(dropped_columns="keep")
    table.merge(Event(row(1, "kept"), 1, "INSERT"), rules=rules)
    table.merge(Event({"id": 1}, 2, schema="b" * 40), rules=rules, absent={"b" * 40: ["value"]})
    assert table.living() == [(1, "kept")]


def test_a_tombstone_keeps_the_values_where_the_rules_say_so(table: Table) -> None:
    rules = MergeRules(keep_deleted_values=True)
    table.beside = False  # there, a tombstone is its key
    table.merge(Event(row(1, "a"), 1, "INSERT"), rules=rules)
    table.merge(deleted({"id": 1}, 2), rules=rules)
    assert [(r["id"], r["value"], r[DELETED]) for r in table.rows()] == [(1, "a", True)]


def test_a_row_that_another_tool_made_is_older_than_any_event(table: Table) -> None:
    table.merge(Event(row(1, "a"), 1))
    by_hand = DeltaTable(table.uri).to_pyarrow_table().slice(0, 0)
    added = pa.table(
        [pa.array([9], pa.int64()), pa.array(["by hand"]), *(pa.nulls(1, f.type) for f in list(by_hand.schema)[2:])],
        schema=by_hand.schema,
    )
    write_deltalake(table.uri, added, mode="append")
    table.merge(backfilled(row(9, "backfilled")))
    assert table.living() == [(1, "a"), (9, "backfilled")]


def test_settings_of_epochs_and_repairs_hold_for_rows_that_are_there(table: Table) -> None:
    """After a failover the log's positions start anew; a backfill that mends a gap beats older changes."""
    table.merge(Event(row(1, "before"), 9000, sec=10), Event(row(2, "before"), 9000, sec=10))
    order = OrderSettings(epochs=((START_MS + 60_000, 1),), repair_backfills=(START_MS + 7200_000,))
    rules = MergeRules(order=order)
    table.merge(Event(row(1, "after"), 5, sec=90), rules=rules)
    table.merge(backfilled(row(2, "repaired"), sec=7300), rules=rules)
    assert table.living() == [(1, "after"), (2, "repaired")]


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "sqlserver"])
def test_rows_whose_numbers_are_of_the_first_layout_keep_their_place(table: Table, kind: str) -> None:
    rules = MergeRules(order=OrderSettings(kind=kind))
    table.merge(*(first_layout(kind, row(n, "before"), 50, sec=500) for n in (1, 2)), kind=kind, rules=rules)
    table.merge(at(kind, row(1, "older"), 49, sec=900), at(kind, row(2, "newer"), 51, sec=100), kind=kind, rules=rules)
    assert table.living() == [(1, "before"), (2, "newer")]
    table.merge(first_layout(kind, row(2, "between"), 50, sec=999), kind=kind, rules=rules)
    table.merge(backfilled(row(1, "read"), sec=9000), kind=kind, rules=rules)
    assert table.living() == [(1, "before"), (2, "newer")]


@pytest.mark.parametrize("kind", ["mysql", "postgresql", "sqlserver"])
def test_a_change_that_cannot_be_of_the_same_log_as_its_row_ends_the_merge_unless_an_epoch_answers(
    table: Table, kind: str
) -> None:
    table.merge(at(kind, row(1, "old"), 900, 0), kind=kind)
    new = at(kind, row(1, "new"), 1, 86400)
    for order in (OrderSettings(kind=kind), OrderSettings(((START_MS - 1, 1),), kind=kind)):
        with pytest.raises(BegunAnew) as seen:
            table.merge(new, kind=kind, rules=MergeRules(order=order))
        assert seen.value.since == "2026-01-02T00:00:00Z"
    assert table.living() == [(1, "old")]
    table.merge(new, kind=kind, rules=MergeRules(order=OrderSettings(((START_MS + 1, 1),), kind=kind)))
    assert table.living() == [(1, "new")]


LSN = {"postgresql": "1/{:X}", "sqlserver": "1:{:x}:1"}


def at(kind: str, row: dict[str, Any], place: int, sec: int) -> Event:
    return Event(row, place, sec=sec, source={"lsn": LSN.get(kind, "").format(place)})


def first_layout(kind: str, row: dict[str, Any], place: int, sec: int) -> Event:
    """An event whose number is what the code before gave it."""
    ms = START_MS + sec * 1000
    position = {"mysql": (1, place, 1, ms), "postgresql": (ms, 1, place, 0), "sqlserver": (ms, 1, place, 1)}[kind]
    number = "0000002" + "".join(f"{part:016x}" for part in position) + f"{ms:012x}{0:08x}1{7:016x}"
    return at(kind, row, place, sec).with_(number=number)


@pytest.mark.parametrize(
    ("left", "taken", "method"), [("UPDATE-DELETE", "UPDATE-INSERT", None), ("DELETE", "INSERT", "debezium")]
)
def test_oracle_a_row_that_took_a_key_in_the_same_transaction_stays(
    table: Table, left: str, taken: str, method: str | None
) -> None:
    """1 -> 2 and 2 -> 3 in one statement: the one that takes key 2 may be logged before the one that leaves it."""

    def event(key: int, value: str, change: str, at: int, row_id: str) -> Event:
        place = {"scn": 100, "rs_id": f" 0x000001.{at:08x}.0010 ", "ssn": 0}
        return Event(row(key, value), at, change, tx="tx1", row_id=row_id, source=place, method=method)

    table.merge(event(1, "one", "INSERT", 1, "AAA"), event(2, "two", "INSERT", 2, "BBB"), kind="oracle")
    table.merge(event(1, "one", left, 3, "AAA"), event(2, "one", taken, 4, "AAA"), kind="oracle")
    table.merge(event(2, "two", left, 5, "BBB"), event(3, "two", taken, 6, "BBB"), kind="oracle")
    assert table.living() == [(2, "one"), (3, "two")]


@pytest.mark.parametrize(
    ("left", "taken", "method"), [("UPDATE-DELETE", "UPDATE-INSERT", None), ("DELETE", "INSERT", "debezium")]
)
def test_oracle_the_other_events_of_a_transaction_that_hands_a_key_on_are_asked_for(
    table: Table, left: str, taken: str, method: str | None
) -> None:
    def event(change: str, at: int, row_id: str) -> Event:
        place = {"scn": 100, "rs_id": f" 0x000001.{at:08x}.0010 ", "ssn": 0}
        return Event(row(1, row_id), at, change, tx="tx1", row_id=row_id, source=place, method=method)

    rules = MergeRules(settled=frozenset())
    table.merge(event(taken, 1, "AAA"), kind="oracle", rules=rules)
    with pytest.raises(HandedOn) as asked:
        table.merge(event(left, 2, "BBB"), kind="oracle", rules=rules)
    assert asked.value.transactions == {"tx1"}


def test_oracle_an_old_insert_that_comes_again_does_not_bring_back_a_key_that_others_took_and_left(
    table: Table,
) -> None:
    def event(key: int, change: str, at: int, row_id: str) -> Event:
        place = {"scn": 100, "rs_id": f" 0x000001.{at:08x}.0010 ", "ssn": 0}
        return Event(row(key, row_id), at, change, tx="tx1", row_id=row_id, source=place)

    events = [
        event(2, "INSERT", 1, "B"), event(2, "UPDATE-DELETE", 2, "B"), event(9, "UPDATE-INSERT", 2, "B"),
        event(4, "UPDATE-DELETE", 3, "C"), event(2, "UPDATE-INSERT", 3, "C"),
        event(2, "UPDATE-DELETE", 4, "C"), event(8, "UPDATE-INSERT", 4, "C"),
    ]  # fmt: skip
    table.merge(*events, kind="oracle")
    table.merge(events[0].with_(uuid="f" * 32, read_ms=9), kind="oracle")
    assert table.living() == [(8, "C"), (9, "B")]


def test_hard_deletes_remove_the_row(table: Table) -> None:
    rules = MergeRules(deletes="hard")
    table.beside = False
    table.merge(Event(row(1, "a"), 1), Event(row(2, "b"), 2), rules=rules)
    table.merge(deleted(row(1), 3), deleted(row(5), 4), rules=rules)
    assert [r["id"] for r in table.rows()] == [2]


def test_changes_older_than_the_purged_tombstones_of_absent_keys_are_not_judged_and_not_lost(table: Table) -> None:
    """A delete among them changes nothing either way, and a backfilled row is what the source holds."""
    rules = MergeRules(purged_until=START_MS + 100_000)
    table.merge(Event(row(1, "a"), 10, sec=500))
    events = (
        Event(row(2, "late"), 5, sec=50), Event(row(3, "new"), 30, sec=600), backfilled(row(4, "read"), sec=1),
        deleted(row(5), 6, sec=60), Event(row(1, "older"), 4, sec=40),
    )  # fmt: skip
    merged = table.merge(*events, rules=rules)
    late = [events[n].row["id"] for n in merged.late_rows] if merged.late is None else merged.late["id"].to_pylist()
    assert late == [2]
    assert table.living() == [(1, "a"), (3, "new"), (4, "read")]
    assert merged.counts.ignored == 2


def test_metadata_that_an_older_version_wrote_in_another_order_is_kept_by_name(table: Table, tmp_path: Path) -> None:
    """Spark casts structs by position."""
    events = table_of([Event(row(1, "a"), 10, sec=5)], COLUMNS)
    old = as_merged(events, ("id",), MergeRules())
    metadata = old.column(METADATA).combine_chunks()
    names = ["change_type", "uuid", "source_timestamp", "change_sequence_number", "is_deleted", "is_backfill"]
    less = pa.StructArray.from_arrays([pa.compute.struct_field(metadata, n) for n in names], names=names)
    write_deltalake(table.uri, old.set_column(old.column_names.index(METADATA), METADATA, less))
    table.merge(Event(row(1, "b"), 20, "UPDATE-INSERT", sec=7), Event(row(2, "c"), 30, sec=9))
    found = table.metadata()
    assert [m["source_timestamp"] for m in found] == [START_MS + 7000, START_MS + 9000]
    assert [(m["change_type"], m["source"]["log_position"]) for m in found] == [
        ("UPDATE-INSERT", 20), ("UPDATE-INSERT", 30),
    ]  # fmt: skip


# -- engine task alone -------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Table:
    return Table(tmp_path / "t", "task", None)


def test_the_counts_say_what_became_of_each_key(task: Table) -> None:
    task.merge(Event(row(1, "a"), 10), Event(row(2, "b"), 20))
    counts = task.merge(
        Event(row(1, "older"), 5), Event(row(2, "bb"), 30), Event(row(3, "c"), 40), deleted(row(4), 50)
    ).counts
    assert (counts.inserted, counts.updated, counts.deleted, counts.ignored) == (2, 1, 0, 1)


def test_a_commit_in_between_is_a_conflict_and_nothing_of_it_is_lost(task: Table) -> None:
    task.merge(Event(row(1, "a"), 1))
    opened = Snapshot.open(task.uri, Store())
    task.merge(Event(row(2, "other writer"), 2))
    reduced = reduce_rows(table_of([Event(row(3, "c"), 3)], COLUMNS), ["id"], OrderSettings())
    with pytest.raises(CommitConflict):
        merge_rows(
            MergeTarget(tables.Table(task.uri, Store(), OWNER), opened, POLICY),
            reduced,
            ["id"],
            MergeRules(),
            Txn("stream", 9),
        )
    assert task.living() == [(1, "a"), (2, "other writer")]


def test_only_files_that_hold_a_changed_row_are_written_anew(task: Table) -> None:
    task.merge(*(Event(row(n, "a"), n + 1) for n in range(100)))
    task.merge(*(Event(row(n, "b"), n + 1) for n in range(1000, 1100)))
    before = set(DeltaTable(task.uri).file_uris())
    task.merge(Event(row(50, "changed"), 5000))
    after = set(DeltaTable(task.uri).file_uris())
    assert len(before & after) == 1
    assert len(task.living()) == 200


def test_many_small_files_are_written_together(task: Table) -> None:
    for batch in range(30):
        task.merge(*(Event(row(batch * 10 + n, "a"), batch * 10 + n + 1) for n in range(10)))
    assert len(DeltaTable(task.uri).file_uris()) <= 9
    assert len(task.living()) == 300


def test_a_table_with_a_change_feed_or_deletion_vectors_is_left_to_spark(task: Table) -> None:
    task.merge(Event(row(1, "a"), 1))
    DeltaTable(task.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    reduced = reduce_rows(table_of([Event(row(2, "b"), 2)], COLUMNS), ["id"], OrderSettings())
    target = MergeTarget(tables.Table(task.uri, Store(), OWNER), Snapshot.open(task.uri, Store()), POLICY)
    assert merge_rows(target, reduced, ["id"], MergeRules(), Txn("stream", 5)).why_spark == "a change data feed"


def test_a_key_column_of_another_type_is_refused_with_the_way_out(task: Table) -> None:
    task.merge(Event(row(1, "a"), 1))
    other = {"id": pa.string(), "value": pa.string()}
    with pytest.raises(ValueError, match=r"key column 'id' has another type.*resync"):
        task.merge(Event({"id": "x", "value": "b"}, 2), columns=other)


@pytest.mark.spark
def test_a_merge_by_spark_plans_itself_and_leaves_the_settings_of_others_as_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    ours = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "7", "fs.s3a.access.key": "later"}
    set_before = spark.conf.getAll
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        own = merge_session(spark)
        assert [own.conf.get(name) for name in ours] == ["true", "7", "later"]
        table = Table(tmp_path / "t", "spark", own)
        table.merge(*(Event(row(n, "a"), n) for n in range(1, 50)))
        table.merge(*(Event(row(n, "b"), 100 + n) for n in range(1, 50)))
        assert len(DeltaTable(table.uri).file_uris()) == 1, "not a file for each of seven partitions"
        assert [spark.conf.get(name) for name in ours] == list(ours.values())
    finally:
        for name in ours:
            if name in set_before:
                spark.conf.set(name, set_before[name])
            else:
                spark.conf.unset(name)


@pytest.mark.spark
def test_rows_that_were_reduced_apart_are_one_per_key_for_spark(spark: SparkSession) -> None:
    events = table_of([Event(row(1, "old"), 5), Event(row(1, "new"), 30), Event(row(2, "b"), 7)], COLUMNS, "mysql")
    found = newest_by_spark(spark.createDataFrame(events), ["id"], OrderSettings())
    assert sorted((r.id, r.value) for r in found.collect()) == [(1, "new"), (2, "b")]
    assert found.columns == events.column_names


@pytest.mark.spark
@pytest.mark.parametrize(
    "rule",
    [
        test_inserts_updates_and_deletes_leave_the_newest_row_of_each_key_and_tombstones,
        test_a_late_older_update_does_not_bring_a_deleted_row_back,
        test_a_batch_that_is_merged_again_changes_nothing,
        test_keys_of_several_columns_with_nulls_and_odd_names_are_told_apart,
        test_values_that_an_update_does_not_speak_of_stay_where_the_rules_say_so,
        test_changes_older_than_the_purged_tombstones_of_absent_keys_are_not_judged_and_not_lost,
    ],
)
def test_a_merge_by_spark_with_tombstones_beside_keeps_the_rules(
    rule: Callable[[Table], None], tmp_path: Path, spark: SparkSession
) -> None:
    """Those that look for tombstones; a long run tries all of them (`table`)."""
    rule(Table(tmp_path / "t", "spark", spark, beside=True))


@pytest.mark.spark
@pytest.mark.parametrize("beside", [False, True])
def test_a_column_of_the_payload_may_be_called_a_tombstone(tmp_path: Path, spark: SparkSession, beside: bool) -> None:
    table, rules = Table(tmp_path / "t", "spark", spark, beside), MergeRules(toast_columns=("value",))
    columns = {**COLUMNS, "_tombstone": pa.string()}
    table.merge(Event({**row(1, "long text"), "_tombstone": "z"}, 1, "INSERT"), columns=columns, rules=rules)
    table.merge(
        Event({**row(1, None), "_tombstone": "zz"}, 3, "UPDATE"), deleted(row(2), 4), columns=columns, rules=rules
    )
    assert table.living() == [(1, "long text", "zz")]
