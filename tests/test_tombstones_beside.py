"""Tombstones in a table beside the merged one: who reads that by its path finds living rows, and all that looks for
tombstones finds them there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from distributary.audit.judge.changes import verify_changes
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.config import load_document
from distributary.errors import ConfigError
from distributary.repair import resync_changes
from distributary.repair.clean import apply, clean
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.tables import checkpoints, moved_tombstones, spark_known, spark_merge
from distributary.tables import merge as merge_module
from distributary.tables import table as tables
from distributary.tables.commits import put_commit
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict
from distributary.tables.merge import Merged, MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import Incoming, MergeRules
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.spark_engine import SparkEngineError
from distributary.tables.spark_engine import table_of as table_of_spark
from distributary.tables.spark_merge import merge_by_spark
from distributary.tables.store import Store
from distributary_simulate.changes.unified import INTEGER, LONG, STRING
from tests.events import Event, deleted, table_of
from tests.shop import Shop, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless
from tests.sparkless_messages import Players
from tests.test_audit_upserts import TEXTS, verified

ORDERS = mysql_table()
DAY = 86_400
BESIDE = {"tombstones": "beside"}
OWNER = Owner("shop", "shop.orders", ("id",))
COLUMNS = {"id": pa.int64(), "value": pa.string()}


class Died(KeyboardInterrupt):
    """The end of the process."""


def die(*_: Any, **__: Any) -> Any:
    raise Died


def rows(uri: str | Path) -> list[dict[str, Any]]:
    return list(DeltaTable(uri).to_pyarrow_table().to_pylist())


def ids(uri: str | Path) -> list[Any]:
    return sorted(row["id"] for row in rows(uri))


def dead(uri: str | Path) -> list[Any]:
    return ids(Path(uri) / "_tombstones")


def shop_of(lake: Path, kind: type[Shop] = Sparkless, **tables: Any) -> Shop:
    """Orders 1 to 4, of which 2 and 4 have been deleted, and 4 has come again."""
    shop = kind(lake, tables={**BESIDE, **tables})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n, sec=n) for n in range(1, 5)))
    shop.run()
    shop.send(
        change(ORDERS, "DELETE", order(2, "new"), 500, sec=9), change(ORDERS, "DELETE", order(4, "x"), 510, sec=9)
    )
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(4, "again"), 600, sec=10))
    shop.run()
    return shop


def place(shop: Shop) -> Path:
    return shop.root / "lake" / "shop_orders"


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["copy_on_write", "merge_on_read"])
def test_whoever_reads_the_table_by_its_path_counts_living_rows(lake: Path, merge: str) -> None:
    shop = shop_of(lake, merge=merge)
    assert ids(place(shop)) == [1, 3, 4]
    assert DeltaTable(place(shop)).count() == 3
    assert dead(place(shop)) == [2, 4]
    shop.check()


def test_by_default_tombstones_lie_in_the_table(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "a"), 1), change(ORDERS, "DELETE", order(2, "a"), 2))
    shop.run()
    assert ids(place(shop)) == [1, 2]
    assert not (place(shop) / "_tombstones").exists()


# -- between the two commits ------------------------------------------------------------------------------------------


def test_a_process_that_ends_between_the_two_commits_has_shown_nothing_and_is_done_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_of(lake)

    def dies(uri: str, *rest: Any) -> bool:
        return put_commit(uri, *rest) if uri.endswith("_tombstones") else die()

    shop.send(
        change(ORDERS, "DELETE", order(1, "new"), 700, sec=11),
        change(ORDERS, "UPDATE-INSERT", order(3, "paid"), 710, sec=11),
        change(ORDERS, "DELETE", order(8, "x"), 720, sec=11),
    )
    with monkeypatch.context() as patch:
        patch.setattr(merge_module, "put_commit", dies)
        with pytest.raises(Died):
            shop.run()
    assert dead(place(shop)) == [1, 2, 4, 8]
    assert shop.living("shop_orders") == [(1, "new"), (3, "new"), (4, "again")]
    shop.check()
    shop.run()
    assert shop.living("shop_orders") == [(3, "paid"), (4, "again")]
    assert (ids(place(shop)), dead(place(shop))) == ([3, 4], [1, 2, 4, 8])
    shop.check()


class Writers:
    """Writers of one table, each of whom opens it when it likes."""

    def __init__(self, uri: Path) -> None:
        self.uri = str(uri)
        self.batch = 0

    def opened(self) -> MergeTarget:
        target = tables.Table(self.uri, Store(), OWNER)
        return MergeTarget(target, target.open(), Policy(can_widen=False))

    def merge(self, target: MergeTarget, *events: Event, columns: Any = COLUMNS) -> Merged:
        self.batch += 1
        reduced = reduce_rows(table_of(events, columns), ["id"], OrderSettings())
        return merge_rows(target, reduced, ["id"], MergeRules(beside=True), Txn("s", self.batch))


def row(id: int, value: str = "a") -> dict[str, Any]:
    return {"id": id, "value": value}


def test_of_two_writers_the_second_decides_anew_and_a_deleted_row_stays_deleted(tmp_path: Path) -> None:
    writers = Writers(tmp_path / "t")
    writers.merge(writers.opened(), Event(row(1), 1), Event(row(2), 2))
    one, other = writers.opened(), writers.opened()
    writers.merge(other, Event(row(3), 10), Event(row(2, "b"), 11))
    with pytest.raises(CommitConflict):
        writers.merge(one, deleted(row(3), 20), deleted(row(2), 5))
    # Its tombstones are beside already, of which one is older than the row.
    assert dead(writers.uri) == [2, 3] and ids(writers.uri) == [1, 2, 3]
    writers.merge(writers.opened(), deleted(row(3), 20), deleted(row(2), 5))
    assert ids(writers.uri) == [1, 2]
    writers.merge(writers.opened(), Event(row(3, "older"), 15), Event(row(2, "c"), 12))
    assert {found["id"]: found["value"] for found in rows(writers.uri)} == {1: "a", 2: "c"}


def test_an_event_between_a_stale_row_and_its_tombstone_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is still there, for the batch that deletes it has not come to the table yet."""
    writers = Writers(tmp_path / "t")
    writers.merge(writers.opened(), Event(row(1), 1), Event(row(2), 2))

    with monkeypatch.context() as patch:
        patch.setattr(
            merge_module, "put_commit", lambda uri, *rest: put_commit(uri, *rest) if "_tomb" in uri else die()
        )
        with pytest.raises(Died):
            writers.merge(writers.opened(), deleted(row(1), 10))
    merged = writers.merge(writers.opened(), Event(row(1, "between"), 5))
    assert merged.counts.ignored == 1
    merged = writers.merge(writers.opened(), deleted(row(1), 10))
    assert (merged.counts.deleted, ids(writers.uri), dead(writers.uri)) == (1, [2], [1])


def test_a_merge_by_what_it_remembers_opens_neither_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = Writers(tmp_path / "t")
    writers.merge(writers.opened(), Event(row(1), 1), Event(row(2), 2), Event(row(3), 3))
    tip = writers.merge(writers.opened(), deleted(row(1), 10)).tip
    assert tip is not None and tip.beside is not None
    target = MergeTarget(tables.Table(writers.uri, Store(), OWNER), None, Policy(can_widen=False))
    rules = MergeRules(beside=True)
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "__init__", die)
        patch.setattr(checkpoints, "checkpoint_due", lambda uri, version: False)  # which opens a table
        for number, event in enumerate([Event(row(1, "late"), 5), deleted(row(2), 11), Event(row(1, "again"), 12)]):
            reduced = reduce_rows(table_of([event], COLUMNS), ["id"], OrderSettings())
            merged = merge_on_tip(target, tip, reduced, ["id"], rules, Txn("s", 100 + number))
            assert merged is not None and merged.tip is not None
            tip = merged.tip
    assert {found["id"]: found["value"] for found in rows(writers.uri)} == {1: "again", 3: "a"}
    assert dead(writers.uri) == [1, 2]


def test_of_the_tombstones_a_merge_keeps_those_of_its_keys_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be many more than the rows of the table."""
    writers = Writers(tmp_path / "t")
    writers.merge(writers.opened(), Event(row(0), 1))
    writers.merge(writers.opened(), *(deleted(row(n), n) for n in range(1, 200)))
    kept: list[list[int]] = []
    remember = Incoming.remember

    def noted(incoming: Incoming, tombstones: pa.Table) -> None:
        kept.append(tombstones.column("id").to_pylist())
        remember(incoming, tombstones)

    monkeypatch.setattr(Incoming, "remember", noted)
    merged = writers.merge(writers.opened(), Event(row(70, "late"), 60), Event(row(500), 500))
    assert (merged.counts.inserted, merged.counts.ignored, kept) == (1, 1, [[70]])


@pytest.mark.parametrize("what", ["compacted", "removed"])
def test_a_merge_goes_on_behind_another_writer_of_the_tombstones(tmp_path: Path, what: str) -> None:
    writers = Writers(tmp_path / "t")
    writers.merge(writers.opened(), *(Event(row(n), n) for n in range(1, 5)))
    tip = writers.merge(writers.opened(), deleted(row(1), 10)).tip
    assert tip is not None
    if what == "removed":
        shutil.rmtree(Path(writers.uri))
        writers.merge(writers.opened(), *(Event(row(n), n) for n in range(1, 5)))
    else:
        writers.merge(writers.opened(), deleted(row(2), 11))
        DeltaTable(f"{writers.uri}/_tombstones").optimize.compact()
    target = MergeTarget(tables.Table(writers.uri, Store(), OWNER), None, Policy(can_widen=False))
    reduced = reduce_rows(table_of([deleted(row(3), 12)], COLUMNS), ["id"], OrderSettings())
    assert merge_on_tip(target, tip, reduced, ["id"], MergeRules(beside=True), Txn("s", 99)) is None
    writers.merge(writers.opened(), deleted(row(3), 12))
    assert dead(writers.uri) == ([3] if what == "removed" else [1, 2, 3])


def test_a_key_column_that_gets_wider_does_so_in_both_tables(lake: Path) -> None:
    narrow, wide, text = (mysql_table(columns={"id": kind, "status": STRING}) for kind in (INTEGER, LONG, STRING))
    shop = Sparkless(lake, tables=BESIDE)
    shop.send(change(narrow, "INSERT", order(1, "a"), 1), change(narrow, "DELETE", order(2, "a"), 2))
    shop.run()
    shop.send(change(wide, "DELETE", order(2**40, "a"), 3, sec=70))
    shop.send(change(wide, "UPDATE-INSERT", order(2, "old"), 1, sec=1))
    shop.run()
    assert (ids(place(shop)), dead(place(shop))) == ([1], [2, 2**40])
    shop.send(change(text, "UPDATE-INSERT", {"id": "2", "status": "old"}, 1, sec=1))
    shop.send(change(text, "DELETE", {"id": "1", "status": "a"}, 9, sec=140))
    assert shop.run().parked == ()
    assert (ids(place(shop)), dead(place(shop))) == ([], ["1", str(2**40), "2"])
    shop.check()


# -- damage -----------------------------------------------------------------------------------------------------------


def test_tombstones_that_are_gone_park_the_table_with_the_way_out(lake: Path) -> None:
    shop = shop_of(lake)
    shutil.move(place(shop) / "_tombstones", lake / "away")
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 450, sec=8))
    assert shop.run().parked == ("shop.orders",)
    assert "distributary resync" in str(shop.entry("shop.orders").error)
    assert not verify_changes(shop.config).ok
    rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
    assert (ids(place(shop)), dead(place(shop))) == ([1, 3, 4], [2])
    assert shop.run().parked == ()
    shop.check()


def lost(uri: Path) -> None:
    DeltaTable(uri / "_tombstones").delete("id = 2")


def made_up(uri: Path) -> None:
    table = DeltaTable(uri / "_tombstones")
    found = table.to_pyarrow_table()
    first = found.slice(0, 1)
    write_deltalake(table, first.set_column(0, "id", pa.array([77], first.schema.field("id").type)), mode="append")


def brought_back(uri: Path) -> None:
    first = DeltaTable(uri, version=0).to_pyarrow_table()
    write_deltalake(uri, first.filter(pa.compute.equal(first["id"], 2)), mode="append")


@pytest.mark.parametrize("fault", [lost, made_up, brought_back])
def test_verify_finds_what_is_wrong_with_tombstones(lake: Path, fault: Callable[[Path], None]) -> None:
    shop = shop_of(lake)
    shop.check()
    fault(place(shop))
    assert not verify_changes(shop.config).ok


# -- upkeep, ways from one to the other -------------------------------------------------------------------------------


def kept_up(shop: Shop) -> Any:
    (done,) = [done for done in maintain(shop.config) if done.table == str(place(shop))]
    assert done.skipped is None and not done.busy
    return done


def test_old_tombstones_go_from_the_table_beside_and_later_events_are_kept_aside(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(lake, tables={**BESIDE, "tombstone_retention": "3 days"})
    shop.send(change(ORDERS, "DELETE", order(1, "new"), 100), change(ORDERS, "DELETE", order(2, "x"), 700, sec=5 * DAY))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(3, "new"), 800, sec=6 * DAY))
    shop.run()
    opened: list[str] = []

    def noted(uri: str, *others: Any) -> Snapshot | None:
        opened.append(uri)
        return opens(uri, *others)

    with monkeypatch.context() as patch:
        opens = Snapshot.open
        patch.setattr(Snapshot, "open", noted)
        assert kept_up(shop).purged == 1
    assert opened.count(str(place(shop) / "_tombstones")) == 1
    assert (ids(place(shop)), dead(place(shop))) == ([3], [2])
    shop.check()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "late"), 50, sec=1), backfilled(ORDERS, order(9, "old"), sec=2))
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 60, sec=1))
    shop.run()
    assert shop.living("shop_orders") == [(3, "new"), (9, "old")]
    assert shop.reasons() == {"LATE_EVENT": 1}
    shop.check()


def test_upkeep_moves_tombstones_out_of_a_table_that_is_there_whenever_it_dies(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_of(lake, tombstones="in_table")
    assert ids(place(shop)) == [1, 2, 3, 4]
    shop = Sparkless(lake, tables=BESIDE)
    shop.send(change(ORDERS, "DELETE", order(3, "new"), 700, sec=11))
    shop.run()
    assert ids(place(shop)) == [1, 2, 3, 4], "until upkeep has moved them, all of them lie in the table"
    shop.check()
    # It dies before they are copied, then before they are deleted.
    for step in ("_copy", "_moved"):
        with monkeypatch.context() as patch:
            if step == "_copy":
                patch.setattr(moved_tombstones, "_copy", die)
            else:
                patch.setattr(Snapshot, "delete", die)
            with pytest.raises(Died):
                list(maintain(shop.config))
        shop.check()
        shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 450, sec=8))
        shop.run()
        assert shop.living("shop_orders") == [(1, "new"), (4, "again")]
        shop.check()
    # What is merged meanwhile leaves no more of them in the table.
    shop.send(
        change(ORDERS, "DELETE", order(2, "new"), 800, sec=12), change(ORDERS, "DELETE", order(1, "x"), 810, sec=12)
    )
    shop.run()
    assert kept_up(shop).moved == 1
    assert (ids(place(shop)), dead(place(shop))) == ([4], [1, 2, 3])
    assert kept_up(shop).moved == 0
    shop.check()


@pytest.mark.parametrize("start", ["in_table", "beside"])
def test_a_rebuild_puts_tombstones_where_the_settings_say(lake: Path, start: str) -> None:
    shop = shop_of(lake, tombstones=start)
    other = "beside" if start == "in_table" else "in_table"
    for way, found in ((other, [1, 2, 3, 4]), (start, [1, 2, 3, 4]), (other, [1, 2, 3, 4])):
        shop = Sparkless(lake, tables={"tombstones": way})
        done = rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
        assert done.rows == 4
        assert ids(place(shop)) == ([1, 3, 4] if way == "beside" else found)
        if way == "beside":
            assert dead(place(shop)) == [2]
        shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 450, sec=8))
        shop.run()
        assert shop.living("shop_orders") == [(1, "new"), (3, "new"), (4, "again")]
        shop.check()


def test_a_rebuild_that_a_run_overtakes_takes_no_tombstone_away(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, build = shop_of(lake), resync_changes._Rebuild._build

    def overtaken(rebuilding: Any, *args: Any) -> None:
        if rebuilding.report.caught_up:
            die()
        build(rebuilding, *args)
        shop.send(change(ORDERS, "DELETE", order(1, "new"), 700, sec=11))
        shop.run()

    with monkeypatch.context() as patch:
        patch.setattr(resync_changes._Rebuild, "_build", overtaken)
        with pytest.raises(Died):
            rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "late"), 650, sec=10))
    shop.run()
    assert shop.living("shop_orders") == [(3, "new"), (4, "again")]
    shop.check()


def test_clean_removes_tombstones_with_their_table(lake: Path) -> None:
    shop = shop_of(lake)
    apply(clean(shop.config))
    assert list((lake / "lake").iterdir()) == []


# -- merged by Spark --------------------------------------------------------------------------------------------------


class BySpark(Writers):
    """Of whom each merges by Spark."""

    def __init__(self, uri: Path, spark: SparkSession) -> None:
        super().__init__(uri)
        self.spark = spark

    def merge(self, target: MergeTarget, *events: Event, columns: Any = COLUMNS) -> Merged:
        self.batch += 1
        rows = reduce_rows(table_of(events, columns), ["id"], OrderSettings()).rows
        frame, txn = self.spark.createDataFrame(rows), Txn("s", self.batch)
        return merge_by_spark(self.spark, target, frame, ["id"], MergeRules(beside=True), txn)


@pytest.mark.spark
@pytest.mark.parametrize("tables", [{"engine": "spark"}, {"merge_engine_rows": 1}])
def test_spark_merges_tables_whose_tombstones_lie_beside_them(
    lake: Path, tables: dict[str, Any], spark: SparkSession
) -> None:
    assert spark.version
    shop = shop_of(lake, Shop, tombstone_retention="3 days", **tables)
    assert (ids(place(shop)), dead(place(shop))) == ([1, 3, 4], [2, 4])
    shop.check()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 450, sec=8))
    shop.send(change(ORDERS, "DELETE", order(7, "x"), 700, sec=5 * DAY), change(ORDERS, "DELETE", order(1, "x"), 710))
    shop.run()
    assert shop.entry("shop.orders").engine == "spark"
    assert (shop.living("shop_orders"), dead(place(shop))) == ([(3, "new"), (4, "again")], [1, 2, 4, 7])
    assert kept_up(shop).purged == 3
    assert dead(place(shop)) == [7]
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 460, sec=8))
    shop.send(change(ORDERS, "UPDATE-INSERT", order(7, "late"), 690, sec=5 * DAY - 1))
    shop.run()
    assert shop.living("shop_orders") == [(3, "new"), (4, "again")]
    assert shop.reasons() == {"LATE_EVENT": 1}
    shop.check()
    apply(clean(shop.config))
    assert list((lake / "lake").iterdir()) == []


@pytest.mark.spark
@pytest.mark.parametrize("step", ["SparkTombstones", "_merge"])
def test_a_merge_by_spark_that_ends_half_way_is_done_again(
    tmp_path: Path, step: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it has made the table, and once the tombstones are there."""
    writers = BySpark(tmp_path / "t", spark)
    events = (Event(row(1), 1), Event(row(2), 2), deleted(row(3), 3))
    with monkeypatch.context() as patch:
        patch.setattr(spark_merge, step, die)
        with pytest.raises(Died):
            writers.merge(writers.opened(), *events)
    assert ids(writers.uri) == []
    writers.merge(writers.opened(), *events)
    assert (ids(writers.uri), dead(writers.uri)) == ([1, 2], [3])
    with monkeypatch.context() as patch:
        patch.setattr(spark_merge, step, die)
        with pytest.raises(Died):
            writers.merge(writers.opened(), deleted(row(2), 5), Event(row(3, "late"), 2))
    assert ids(writers.uri) == [1, 2], "until the merge is done, the row is there as before"
    writers.merge(writers.opened(), deleted(row(2), 5), Event(row(3, "late"), 2))
    assert (ids(writers.uri), dead(writers.uri)) == ([1], [2, 3])


@pytest.mark.spark
@pytest.mark.parametrize("module", [spark_known, spark_merge])
def test_a_merge_by_spark_that_another_one_overtakes_brings_no_deleted_row_back(
    tmp_path: Path, module: ModuleType, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one deletes a key that the table has no row of, which changes no file of it: just before this one looks
    at the table, and right before its MERGE, of which all is said by then."""
    writers, other = BySpark(tmp_path / "t", spark), BySpark(tmp_path / "t", spark.newSession())
    writers.merge(writers.opened(), Event(row(1), 1), deleted(row(5), 1))
    other.batch, overtakes = 10, [True]

    def overtaken(session: SparkSession, uri: str) -> Any:
        if overtakes and overtakes.pop():
            other.merge(other.opened(), deleted(row(2), 9), Event(row(3), 9))
        return table_of_spark(session, uri)

    one = writers.opened()
    with monkeypatch.context() as patch:
        patch.setattr(module, "table_of", overtaken)
        with suppress(SparkEngineError):
            writers.merge(one, Event(row(2, "older"), 5), deleted(row(3), 7))
    assert not overtakes
    assert ids(writers.uri) == [1, 3] and {2, 5} <= {*dead(writers.uri)}


# -- messages with keys -----------------------------------------------------------------------------------------------


@pytest.fixture
def players(lake: Path) -> Players:
    players = Players(lake, TEXTS, source={"key": "id"}, tables={"log": "{route}_log", **BESIDE})
    one = players.record
    writer = players.writer()
    players.take(0, [one("a", level=1), one("b", level=2), one("c", level=3), one("nobody", None)], writer)
    players.take(1, [one("b", None), one("c", None), one("d", schema_id=99, level=6)], writer)
    players.take(2, [one("c", level=9)], writer)
    return players


def test_deleted_keys_of_messages_lie_beside_and_are_judged(players: Players, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {found["id"]: found["level"] for found in rows(players.table)} == {"a": 1, "c": 9}
    assert dead(players.table) == ["b", "c", "nobody"]
    found = verified(players, monkeypatch)
    assert (found.ok, found.problems, found.tables[0].rows_living) == (True, (), 2)


def plant(players: Players, table: str, **rest: Any) -> None:
    found = DeltaTable(table).to_pyarrow_table()
    write_deltalake(table, found.filter(pa.compute.equal(found["id"], rest["id"])).slice(0, 1), mode="append")


@pytest.mark.parametrize("key", ["a", "b"])
def test_a_doubled_row_of_either_table_is_found(players: Players, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    plant(players, players.table if key == "a" else f"{players.table}/_tombstones", id=key)
    assert not verified(players, monkeypatch).ok


def test_a_lost_tombstone_of_messages_is_no_loss_of_rows_and_a_living_one_is(
    players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DeltaTable(players.table, version=0).to_pyarrow_table()
    write_deltalake(players.table, first.filter(pa.compute.equal(first["id"], "b")), mode="append", schema_mode="merge")
    assert not verified(players, monkeypatch).ok


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"deleted_values": "keep"}, "only the key of a deleted row is kept"),
        ({"tombstones": "elsewhere"}, "in_table"),
    ],
)
def test_what_cannot_be_is_refused_in_words(lake: Path, tables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sparkless(lake, tables={**BESIDE, **tables})


def test_a_managed_table_has_no_folder_to_put_them_in() -> None:
    document = {
        "pipeline": "games", "source": {"type": "delta", "path": "/lake/in"}, "registry": {"path": "/lake/registry"},
        "tables": {"managed": True, "database": "main.silver", "keys": ["id"], **BESIDE}, "state": "/lake/state",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="no folder of ours"):
        load_document(document)
