"""What the settings of change-file pipelines do, end to end: kinds of source, epochs, repairs, evolution, purging."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.audit.plan import plan_changes
from distributary.audit.status import status
from distributary.changes.model import Kind
from distributary.engine.changes.backlog import oldest_ms
from distributary.engine.changes.file_intake import FileIntake
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.writer import ChangeWriter
from distributary.errors import Exit
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running.maintain import maintain
from distributary.sources.file_ledger import FILES_SCHEMA
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary_simulate.change_files.stream import write_history
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.changes.unified import INTEGER, LONG, STRING
from tests.shop import START_MS, backfilled, change, mysql_table, order
from tests.sparkless import STREAM, Here, Sparkless, _FileBatch

ORDERS = mysql_table()
DAY = 86_400


def test_tables_of_sql_server_and_mongodb_come_out_as_the_source_has_them(lake: Path) -> None:
    """SQL Server: keys in primary_keys or in replication_index (DataflowTemplates#3805). MongoDB: whole documents, and
    updates of documents that are gone (3a2bdfd9ad)."""
    tables = tables_of((Kind.SQLSERVER, Kind.MONGODB))
    assert {table.replication_index for table in tables} == {True, False}
    history = History(HistoryPlan(seed=4, tables=tables, schema_changes=0))
    shop = Sparkless(lake)
    write_history(history, ChangeFiles(FilesPlan(shop.files, seed=4)), 300)
    shop.run()
    shop.compare(history)
    shop.check()
    assert shop.reasons() == {}


def test_a_server_whose_log_counts_anew_and_a_backfill_that_repairs_a_gap(lake: Path) -> None:
    """Datastream cannot tell that a new server's positions are later, nor that changes were missed: the settings do."""
    routes = {
        "shop.orders": {"epochs": ["2026-01-02T00:00:00Z"]},
        "shop.repaired": {"repair_backfills": ["2026-01-03T00:00:00Z"]},
    }
    shop = Sparkless(lake, tables={"routes": routes})
    repaired, plain = mysql_table("repaired"), mysql_table("plain")
    shop.send(
        change(ORDERS, "UPDATE-INSERT", order(1, "old server"), 9000, sec=DAY - 5, file="bin.000900"),
        change(ORDERS, "UPDATE-INSERT", order(1, "new server"), 100, sec=DAY + 5, file="bin.000001"),
        *(change(table, "UPDATE-INSERT", order(1, "before the gap"), 100, sec=5) for table in (repaired, plain)),
        *(change(table, "UPDATE-INSERT", order(2, "after it"), 200, sec=2 * DAY + 60) for table in (repaired, plain)),
        *(backfilled(table, order(n, "read"), sec=2 * DAY) for table in (repaired, plain) for n in (1, 2)),
    )
    shop.run()
    assert shop.living("shop_orders") == [(1, "new server")]
    assert shop.living("shop_repaired") == [(1, "read"), (2, "after it")]
    assert shop.living("shop_plain") == [(1, "before the gap"), (2, "after it")]
    shop.check()


@pytest.mark.parametrize("share_rows", [1, 100_000], ids=["many tasks", "one task"])
def test_wider_types_widen_log_and_merged_table_for_every_reader(
    lake: Path, monkeypatch: pytest.MonkeyPatch, share_rows: int
) -> None:
    """By rewriting both, whoever reads their files: no table feature, and what was there before is there."""
    monkeypatch.setattr("distributary.engine.packing.SHARE_ROWS", share_rows)
    shop = Sparkless(lake)
    narrow = mysql_table(columns={"id": INTEGER, "status": INTEGER})
    wider = mysql_table(columns={"id": LONG, "status": LONG, "note": STRING})
    shop.send(*(change(narrow, "INSERT", {"id": n, "status": n}, 100 + n) for n in range(40)))
    shop.run()
    new = [{"id": 2**40 + n, "status": 2**41, "note": "x"} for n in range(40)]
    shop.send(*(change(wider, "INSERT", row, 200 + n, sec=60) for n, row in enumerate(new)))
    (planned,) = plan_changes(shop.config).tables
    assert (planned.engine, planned.new_columns) == ("task", {"note": "string"})
    assert planned.type_changes == {"id": ["int", "bigint"], "status": ["int", "bigint"]}
    shop.run()
    shop.send(change(narrow, "UPDATE-INSERT", {"id": 1, "status": 7}, 300, sec=61))
    shop.run()
    for name in ("shop_orders", "shop_orders_log"):
        table = DeltaTable(str(lake / "lake" / name))
        assert not table.protocol().reader_features
        kinds = {field.name: field.type.type for field in table.schema().fields if field.name in ("id", "status")}
        assert kinds == {"id": "long", "status": "long"}
    found = {(r["id"], r["status"]) for r in shop.merged("shop_orders").to_pylist()}
    assert found == {(0, 0), (1, 7), *((n, n) for n in range(2, 40)), *((2**40 + n, 2**41) for n in range(40))}
    assert shop.entry("shop.orders").engine == "task"
    shop.check()


def test_each_way_of_schema_evolution_keeps_every_value(lake: Path) -> None:
    ways = {"merge": "merge", "overwrite": "overwrite", "none": "none"}
    evolutions = {
        "merge": {"new_column": "add", "type_change": "widen"},
        "overwrite": {"new_column": "add", "type_change": "new_column"},
        "none": {"new_column": "freeze", "type_change": "freeze"},
    }
    shop = Sparkless(lake, tables={"routes": {f"shop.{way}": {"evolution": evolutions[way]} for way in ways}})
    for way in ways:
        shop.send(change(mysql_table(way), "INSERT", order(1, "new"), 100))
    shop.run()
    text = {"id": INTEGER, "status": INTEGER, "note": STRING}
    for way in ways:
        wider = mysql_table(way, columns=text)
        shop.send(
            change(wider, "INSERT", {"id": 2, "status": 7, "note": "x"}, 200, sec=60),
            change(wider, "INSERT", {"id": 3, "status": 8, "note": None}, 300, sec=61),
        )
    shop.run()
    for way in ("merge", "overwrite"):
        columns = ["id", "status", "status__int", "note"]
        wanted = [(1, "new", None, None), (2, None, 7, "x"), (3, None, 8, None)]
        assert shop.living(f"shop_{way}", columns) == wanted
    assert shop.living("shop_none")[0] == (1, "new")
    assert shop.merged("shop_none").schema.names[:2] == ["id", "status"]
    assert {row["route"] for row in shop.quarantined()} == {"shop.none"}
    shop.check()


def test_a_garbled_block_costs_its_own_events_and_they_come_back_once(lake: Path) -> None:
    """One row of the quarantine may stand for many events: counts must hold all the same."""
    shop = Sparkless(lake)
    [path] = shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n) for n in range(1, 21)))
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * 400 + whole[half + 400 :])
    report = shop.run()
    assert 0 < report.rows_written < 20
    assert report.rows_quarantined >= 1
    shop.check()
    path.write_bytes(whole)
    os.utime(path, (2e9, 2e9))
    shop.run()
    assert len(shop.log("shop_orders_log")) == 20
    assert len(shop.living("shop_orders")) == 20
    assert shop.quarantined() == []
    shop.check()


def test_tombstones_stay_while_files_wait_that_are_as_old(lake: Path) -> None:
    """A backlog comes in any order: purged too early, all that is older than the limit would be kept aside."""
    shop = Sparkless(lake, tables={"tombstone_retention": "3 days"})
    shop.send(change(ORDERS, "DELETE", order(1, "x"), 100, sec=2 * DAY), change(ORDERS, "DELETE", order(2, "x"), 110))
    shop.send(change(ORDERS, "INSERT", order(3, "new"), 800, sec=9 * DAY))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(4, "late"), 105, sec=DAY))
    found = {done.table.rsplit("/", 1)[-1]: done for done in maintain(shop.config)}["shop_orders"]
    assert (found.purged, found.held) == (1, "files wait that are as old")
    shop.run()
    assert shop.living("shop_orders") == [(3, "new"), (4, "late")]
    assert shop.reasons() == {}
    found = {done.table.rsplit("/", 1)[-1]: done for done in maintain(shop.config)}["shop_orders"]
    assert (found.purged, found.held) == (1, None)
    shop.check()


def test_batches_without_files_are_taken_and_counted(lake: Path) -> None:
    shop = Sparkless(lake, source={"max_files_per_batch": 1})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n, sec=70 * n) for n in (1, 2)))
    ledger = Ledger(shop.config.state_root, "shop", Store())
    changes = Changes(Here(), shop.config, Store())  # type: ignore[arg-type]
    writer = ChangeWriter(shop.config, changes, ledger)
    intake = FileIntake(shop.config, changes, ledger, threading.Lock())
    intake.begin(True, lambda _: None)
    nothing = writer.take(_Nothing(), STREAM, 0)  # type: ignore[arg-type]
    assert nothing is not None and (nothing.rows_in, nothing.tables) == (0, 0)
    assert writer.take(_FileBatch(intake.files.uri, 0), STREAM, 1) is not None  # type: ignore[arg-type]
    assert ledger.details(STREAM, 1)["parcel"] == 0
    shop.check()


@pytest.mark.parametrize(("once", "given"), [(True, 0), (False, 1)])
def test_a_broken_file_is_given_again_only_to_a_run_that_will_read_it(lake: Path, once: bool, given: int) -> None:
    """A run with `--once` reads what was there when it began. It took a minute longer, gave the file to the stream
    again, and left it as one that waits."""
    shop = Sparkless(lake)
    shop.garbage()
    shop.run()
    changes = Changes(Here(), shop.config, Store())  # type: ignore[arg-type]
    now = [1_000.0]
    ledger = Ledger(shop.config.state_root, "shop", Store())
    intake = FileIntake(shop.config, changes, ledger, threading.Lock(), clock=lambda: now[0])
    intake.begin(once, lambda _: None)
    try:
        before = intake.files.newest_file_batch
        now[0] += 3600
        intake.between_batches()
        assert intake.files.newest_file_batch - before == given
    finally:
        intake.end()
    assert status(shop.config).files_waiting == given


class _Nothing:
    def toArrow(self) -> pa.Table:
        return FILES_SCHEMA.empty_table()


def test_folders_say_how_old_what_waits_may_be() -> None:
    hour = 3_600_000
    assert oldest_ms([]) is None
    assert oldest_ms(["shop_orders/2026/01/01/01/30", "t/2026/01/01/00/00"]) == START_MS - hour
    assert oldest_ms(["shop_orders/2026/01/01"]) == START_MS - hour
    assert oldest_ms(["shop_orders/2026/01/01/01/30", "elsewhere"]) == 0


def test_many_shares_of_a_merge_come_to_the_same(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in a log may be more than a task can hold: it is merged by shares of the keys, each once."""
    monkeypatch.setattr("distributary.engine.changes.key_shares.SHARE_BYTES", 5000)
    monkeypatch.setattr("distributary.engine.changes.key_shares.SMALL_BYTES", 100)
    keep = {"merge_every": "1 hour", "dropped_columns": "keep"}
    shop = Sparkless(lake, tables=keep, source={"max_files_per_batch": 1})
    wide = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
    shop.send(*(change(wide, "INSERT", {**order(n, "new"), "note": f"n{n}"}, n) for n in range(60)))
    shop.send(*(change(ORDERS, "UPDATE-INSERT", order(n, "paid"), 100 + n, sec=70) for n in range(30)))
    shop.send(*(change(ORDERS, "DELETE", order(n, "paid"), 300 + n, sec=140) for n in range(10)))
    shop.run()
    wanted = sorted((n, "paid" if n < 30 else "new", f"n{n}") for n in range(10, 60))
    assert shop.living("shop_orders", ["id", "status", "note"]) == wanted
    assert DeltaTable(str(lake / "lake" / "shop_orders")).version() > 3
    shop.check()


@pytest.mark.parametrize("merge_every", ["0 s", "1 hour"])
def test_a_merged_table_that_rests_is_told_by_every_run_and_by_status_until_it_is_put_right(
    lake: Path, merge_every: str
) -> None:
    """The key was made anew at the source, with another column: also where merges wait and a batch only writes the
    log."""
    shop = Sparkless(lake, tables={"merge_every": merge_every, "retry_after": "1 hour"})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    assert shop.run().parked == ()
    anew = mysql_table(keys="id status")
    shop.send(change(anew, "INSERT", order(2, "new"), 200, sec=70))
    assert shop.run().parked == ("shop.orders",)
    assert shop.entry("shop.orders").merge_state == "parked"
    assert status(shop.config).exit_code == Exit.ATTENTION
    entries = len(Ledger(shop.config.state_root, "shop", Store()).entries())
    assert shop.run().parked == ("shop.orders",), "nothing new, and still parked"
    assert len(Ledger(shop.config.state_root, "shop", Store()).entries()) == entries
    shop.send(change(anew, "INSERT", order(3, "new"), 300, sec=140))
    assert shop.run().parked == ("shop.orders",)
    assert len(shop.log("shop_orders_log")) == 3, "the log goes on"
    rebuild(shop.config, "shop.orders", known_route(shop.config, "shop.orders"))
    shop.send(change(anew, "INSERT", order(4, "new"), 400, sec=210))
    shop.run()
    assert shop.run().parked == ()
    assert len(shop.living("shop_orders")) == 4
