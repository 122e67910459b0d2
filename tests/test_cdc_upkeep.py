"""Rebuilds, reconciliation, upkeep, status and clean-up of pipelines of change files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.audit.plan import plan_changes
from distributary.audit.status import status
from distributary.changes.model import Kind
from distributary.errors import BadInput
from distributary.repair.clean import apply, clean, forget_names
from distributary.repair.reconcile import Reconcile
from distributary.repair.resync_changes import known_route, rebuild
from distributary.running import maintain as upkeep
from distributary.running.maintain import maintain
from distributary.running.stream import Run, session_of
from distributary.tables.faults import CommitConflict
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Table
from distributary_simulate.changes.unified import INTEGER, STRING
from tests.shop import START_MS, Shop, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless, on_spark

ORDERS = mysql_table()
DAY = 86_400


def resync(shop: Shop, route: str) -> None:
    rebuild(shop.config, route, known_route(shop.config, route))


# -- resync --------------------------------------------------------------------------------------------------


@on_spark
def test_a_rebuild_puts_a_damaged_merged_table_right(lake: Path) -> None:
    shop = Shop(lake)
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n) for n in range(1, 6)))
    shop.send(change(ORDERS, "DELETE", order(3, "new"), 900, sec=9))
    shop.run()
    table = DeltaTable(str(lake / "lake" / "shop_orders"))
    table.delete("id < 3")
    table.update(updates={"status": "'wrong'"}, predicate="id = 4")
    resync(shop, "shop.orders")
    assert shop.living("shop_orders") == [(1, "new"), (2, "new"), (4, "new"), (5, "new")]
    shop.check()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 1000, sec=10))
    shop.run()
    assert shop.living("shop_orders")[0] == (1, "paid")
    shop.check()


def test_a_rebuild_in_several_passes_is_the_same(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.engine.changes.key_shares.SHARE_BYTES", 5000)
    monkeypatch.setattr("distributary.engine.changes.key_shares.SMALL_BYTES", 100)
    shop = Sparkless(lake)
    shop.send(*(change(ORDERS, "UPDATE-INSERT", order(n % 40, f"at {n}"), n) for n in range(1, 200)))
    shop.run()
    before = shop.living("shop_orders")
    resync(shop, "shop.orders")
    assert shop.living("shop_orders") == before
    assert len(DeltaTable(str(lake / "lake" / "shop_orders")).file_uris()) > 1
    shop.check()


def test_a_table_whose_key_changed_is_rebuilt_by_its_new_key(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(ORDERS, "INSERT", order(2, "new"), 150))
    shop.run()
    other = mysql_table(keys="status")
    shop.send(change(other, "UPDATE-INSERT", order(2, "paid"), 200, sec=70))
    assert shop.run().parked == ("shop.orders",)
    resync(shop, "shop.orders")
    assert shop.living("shop_orders") == [(2, "new"), (2, "paid")]
    shop.send(change(other, "UPDATE-INSERT", order(9, "paid"), 300, sec=140))
    assert shop.run().parked == ()
    assert shop.living("shop_orders") == [(2, "new"), (9, "paid")]
    shop.check()


def test_a_rebuild_of_an_unknown_table_says_what_is_known(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    with pytest.raises(BadInput, match=r"shop\.orders"):
        known_route(shop.config, "shop.order")


# -- reconcile -----------------------------------------------------------------------------------------------


def test_rows_that_a_backfill_no_longer_shows_are_deleted_and_stay_so(lake: Path) -> None:
    """A TRUNCATE leaves no event."""
    shop = Sparkless(lake)
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n) for n in (1, 2, 3, 4)))
    shop.send(
        backfilled(ORDERS, order(1, "new"), sec=DAY),
        change(ORDERS, "UPDATE-INSERT", order(3, "paid"), 900, sec=DAY + 60),
    )
    shop.run()
    known = known_route(shop.config, "shop.orders")
    one = Reconcile(shop.config, "shop.orders", known.source, known.keys)
    found = one.plan()
    assert (found.shown, found.vanished, found.keys) == (1, 2, [{"id": 2}, {"id": 4}])
    assert len(shop.living("shop_orders")) == 4
    one.apply()
    resync(shop, "shop.orders")
    assert shop.living("shop_orders") == [(1, "new"), (3, "paid")]
    shop.check()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "old"), 150, sec=2))
    shop.send(change(ORDERS, "INSERT", order(4, "again"), 1000, sec=DAY + 120))
    shop.run()
    assert shop.living("shop_orders") == [(1, "new"), (3, "paid"), (4, "again")]
    shop.check()


# -- maintain ------------------------------------------------------------------------------------------------


def test_old_tombstones_go_and_later_events_that_cannot_be_judged_are_kept_aside(lake: Path) -> None:
    shop = Sparkless(lake, tables={"tombstone_retention": "3 days"}, maintenance={"min_files": 2})
    shop.send(change(ORDERS, "DELETE", order(1, "new"), 100), change(ORDERS, "DELETE", order(2, "x"), 700, sec=5 * DAY))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(3, "new"), 800, sec=6 * DAY))
    shop.run()
    done = {d.table.rsplit("/", 1)[-1]: d for d in maintain(shop.config)}
    assert done["shop_orders"].purged == 1
    assert {d.skipped for d in done.values()} <= {None, "there is no such table"}
    assert shop.merged("shop_orders").num_rows == 2
    shop.check()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "late"), 50, sec=1), backfilled(ORDERS, order(9, "old"), sec=2))
    shop.run()
    assert shop.living("shop_orders") == [(3, "new"), (9, "old")]
    assert shop.reasons() == {"LATE_EVENT": 1}
    assert len(shop.log("shop_orders_log")) == 5
    shop.check()


@on_spark
def test_spark_takes_old_tombstones_out_of_tables_that_only_it_may_write_and_joins_their_files(lake: Path) -> None:
    rules = {"tombstone_retention": "3 days", "properties": {"delta.enableRowTracking": "true"}}
    shop = Shop(lake, tables=rules, maintenance={"min_files": 1, "vacuum_after": "0 seconds"})
    shop.send(change(ORDERS, "DELETE", order(1, "new"), 100), change(ORDERS, "DELETE", order(2, "x"), 700, sec=5 * DAY))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(3, "new"), 800, sec=6 * DAY))
    shop.run()
    assert shop.entry("shop.orders").engine == "spark"
    done = {d.table.rsplit("/", 1)[-1]: d for d in maintain(shop.config)}
    for name, purged in (("shop_orders", 1), ("shop_orders_log", 0)):
        assert (done[name].purged, done[name].skipped, done[name].files_after) == (purged, None, 1)
        files = {file.name for file in (lake / "lake" / name).glob("*.parquet")}
        assert len(files & _committed(lake / "lake" / name)) == 1, "what was replaced is away"
    assert sorted(shop.merged("shop_orders").column("id").to_pylist()) == [2, 3]
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "late"), 50, sec=1))
    shop.run()
    assert (shop.living("shop_orders"), shop.reasons()) == ([(3, "new")], {"LATE_EVENT": 1})
    shop.check()


def _committed(table: Path) -> set[str]:
    """Files that some commit has added. Spark leaves others too, of writes without rows; they stay for a day."""
    commits = (file.read_text().splitlines() for file in table.glob("_delta_log/*.json"))
    actions = (json.loads(line) for lines in commits for line in lines)
    return {action["add"]["path"] for action in actions if "add" in action}


def test_one_event_of_a_clock_that_is_ahead_purges_nothing_and_makes_nothing_late(lake: Path) -> None:
    shop = Sparkless(lake)
    now = int(time.time()) - START_MS // 1000 - 600
    far = now + 74 * 365 * DAY
    gone = change(ORDERS, "INSERT", order(1, "a"), 1, sec=now), change(ORDERS, "DELETE", order(1, "a"), 2, sec=now + 1)
    shop.send(*gone, change(ORDERS, "INSERT", order(2, "odd"), 3, sec=far))
    shop.run()
    done = {d.table.rsplit("/", 1)[-1]: d for d in maintain(shop.config)}["shop_orders"]
    assert (done.purged, done.held, done.skipped) == (0, None, None)
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), n, sec=now + n) for n in (10, 11)))
    shop.run()
    assert shop.living("shop_orders") == [(2, "odd"), (10, "new"), (11, "new")]
    assert shop.reasons() == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("3.json is gone"), (False, "FileNotFoundError: 3.json is gone")),
        (CommitConflict("another upkeep was first"), (True, None)),
    ],
)
def test_an_error_in_the_upkeep_of_the_file_ledger_stays_with_it(
    lake: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: tuple[bool, str | None]
) -> None:
    def fails(*given: object) -> None:
        raise error

    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "a"), 1))
    shop.run()
    monkeypatch.setattr(upkeep, "version_read", lambda *given: 10)
    monkeypatch.setattr(upkeep, "tidy", fails)
    done = list(maintain(shop.config))[-1]
    assert (done.table, (done.busy, done.skipped)) == (shop.config.state_folder.files, said)


def test_compaction_changes_nothing_and_the_stream_goes_on(lake: Path) -> None:
    shop = Sparkless(lake, maintenance={"min_files": 2}, source={"max_files_per_batch": 1})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), n * 100, sec=70 * n) for n in range(1, 6)))
    shop.run()
    done = {d.table.rsplit("/", 1)[-1]: d for d in maintain(shop.config)}
    assert done["shop_orders_log"].files_before == 5
    assert done["shop_orders_log"].files_after == 1
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 900, sec=700))
    shop.run()
    assert shop.living("shop_orders")[0] == (1, "paid")
    shop.check()
    resync(shop, "shop.orders")
    shop.check()


# -- Oracle --------------------------------------------------------------------------------------------------

EMPLOYEES = Table(Kind.ORACLE, "XE", "HR", "EMP", (Column("ID", INTEGER), Column("NAME", STRING)), ("ID",))


def oracle(kind: str, row: dict[str, object], scn: int, row_id: str, tx: str) -> Change:
    meta = {
        "scn": scn,
        "rs_id": f" 0x{scn:06x}.00000001.0010 ",
        "ssn": 0,
        "row_id": row_id,
        "tx_id": tx,
        "log_file": None,
    }
    at = Position(meta, (START_MS, scn, str(meta["rs_id"]), 0), START_MS)
    return Change(EMPLOYEES, kind, kind == "DELETE", row, at, CDC_METHOD[Kind.ORACLE], START_MS + 5000)


def test_an_insert_that_was_rolled_back_goes_by_its_row_id_in_every_order(lake: Path) -> None:
    """DataflowTemplates#4232: the delete holds nothing but a ROWID."""
    shop = Sparkless(lake)
    nothing: dict[str, object] = {"ID": None, "NAME": None}
    shop.send(oracle("INSERT", {"ID": 1, "NAME": "Ann"}, 10, "AAA", "t1"), oracle("DELETE", nothing, 11, "AAA", "t1"))
    shop.send(oracle("INSERT", {"ID": 2, "NAME": "Bob"}, 12, "BBB", "t2"))
    shop.run()
    assert shop.living("xe_hr_emp") == [(2, "Bob")]
    shop.send(oracle("DELETE", nothing, 13, "BBB", "t2"), oracle("DELETE", nothing, 15, "CCC", "t3"))
    shop.run()
    assert shop.living("xe_hr_emp") == []
    assert shop.reasons() == {"ROW_NOT_FOUND": 1}
    shop.check()
    shop.send(oracle("INSERT", {"ID": 3, "NAME": "Cid"}, 14, "CCC", "t3"))
    shop.run()
    assert shop.living("xe_hr_emp") == []
    assert shop.quarantined() == []
    shop.check()


def test_every_insert_that_was_rolled_back_goes_though_its_merge_waits_in_the_log(lake: Path) -> None:
    """None of these deletes has a key: they are not events of one key."""
    shop = Sparkless(lake, tables={"merge_every": "1 hour"})
    nothing: dict[str, object] = {"ID": None, "NAME": None}
    for n in range(1, 6):
        shop.send(oracle("INSERT", {"ID": n, "NAME": f"at {n}"}, 2 * n, f"A{n}", f"t{n}"))
    shop.send(*(oracle("DELETE", nothing, 2 * n + 1, f"A{n}", f"t{n}") for n in range(1, 5)))
    shop.run()
    assert shop.living("xe_hr_emp", ["ID", "NAME"]) == [(5, "at 5")]
    shop.check()


def test_a_rebuild_in_several_passes_finds_the_rows_that_were_rolled_back(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Sparkless(lake)
    nothing: dict[str, object] = {"ID": None, "NAME": None}
    made = [oracle("INSERT", {"ID": n, "NAME": f"at {n}"}, 2 * n, f"A{n}", f"t{n}") for n in range(1, 61)]
    gone = [oracle("DELETE", nothing, 2 * n + 1, f"A{n}", f"t{n}") for n in range(1, 61, 3)]
    shop.send(*made, *gone, oracle("DELETE", nothing, 500, "ZZZ", "t9"))
    shop.run()
    before = shop.living("xe_hr_emp")
    assert len(before) == 40
    monkeypatch.setattr("distributary.engine.changes.key_shares.SHARE_BYTES", 5000)
    monkeypatch.setattr("distributary.engine.changes.key_shares.SMALL_BYTES", 100)
    done = rebuild(shop.config, "XE.HR.EMP", known_route(shop.config, "XE.HR.EMP"))
    assert done.passes > 3
    assert (done.rows, done.unknown) == (60, 1)
    assert shop.living("xe_hr_emp") == before
    shop.check()


# -- status, clean -------------------------------------------------------------------------------------------


@on_spark
def test_status_says_how_fresh_each_table_is_and_what_waits(lake: Path) -> None:
    shop = Shop(lake)
    visits = mysql_table("visits", keys="")
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(visits, "INSERT", order(1, "x"), 200))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(2, "new"), 300, sec=70))
    intake = Run(shop.config, session_of(shop.config), lambda _: None).intake
    assert intake is not None
    intake.begin(True, lambda _: None)
    found = status(shop.config, now=lambda: START_MS / 1000 + 90)
    tables = {t.route: t for t in found.tables}
    assert tables["shop.orders"].lag_sec == 90
    assert tables["shop.orders"].merged == str(lake / "lake" / "shop_orders")
    assert tables["shop.visits"].merge_state == "append_only"
    assert found.files_waiting == 1
    assert any("no key" in note for note in found.notes)


def test_clean_removes_both_tables_of_each_source_table_and_nothing_else(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    other = lake / "lake" / "mine"
    other.mkdir()
    (other / "x").write_text("x")
    plan = clean(shop.config)
    names = {t.path.rsplit("/", 1)[-1] for t in plan.remove if t.kind == "table"}
    assert names == {"shop_orders", "shop_orders_log"}
    apply(plan)
    assert [p.name for p in (lake / "lake").iterdir()] == ["mine"]
    assert any(shop.files.rglob("*.avro"))


@on_spark
def test_a_view_shows_the_living_rows_by_name(lake: Path) -> None:
    shop = Shop(lake, tables={"database": "shop_views", "view": "{table}_now"})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(ORDERS, "DELETE", order(2, "new"), 200, sec=1))
    shop.run()
    spark = session_of(shop.config)
    try:
        assert [(r.id, r.status) for r in spark.sql("SELECT * FROM shop_views.orders_now").collect()] == [(1, "new")]
        wider = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
        shop.send(change(wider, "INSERT", {**order(3, "new"), "note": "x"}, 300, sec=70))
        shop.run()
        assert "note" in spark.table("shop_views.orders_now").columns
    finally:
        spark.sql("DROP DATABASE IF EXISTS shop_views CASCADE")


@on_spark
def test_clean_takes_the_names_and_the_view_but_none_that_stands_for_something_else(lake: Path) -> None:
    shop = Shop(lake, tables={"database": "shop_names", "view": "{table}_now"}, state_database="shop_state")
    users = mysql_table("users", {"id": INTEGER, "name": STRING})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(users, "INSERT", {"id": 1, "name": "Ann"}, 200))
    shop.run()
    spark = session_of(shop.config)
    try:
        assert {row.tableName for row in spark.sql("SHOW TABLES IN shop_state").collect()} == {
            "shop_ledger",
            "shop_files",
        }
        assert spark.table("shop_state.shop_ledger").where("route = 'shop.users'").count() == 1
        # The neighbour has taken two of the names for something of its own since.
        spark.sql("CREATE OR REPLACE VIEW shop_names.users_now AS SELECT 1 AS mine")
        spark.sql("DROP TABLE shop_names.shop_users_log")
        spark.sql("CREATE VIEW shop_names.shop_users_log AS SELECT 2 AS mine")
        done = apply(forget_names(clean(shop.config)))
        left = {row.tableName for row in spark.sql("SHOW TABLES IN shop_names").collect()}
        assert left == {"users_now", "shop_users_log"}
        assert spark.sql("SHOW TABLES IN shop_state").count() == 0
        assert {entry.name.split(".")[-1] for entry in done.catalog} == {
            *("`shop_ledger`", "`shop_files`"),
            "`orders_now`",
            "`shop_orders`",
            "`shop_orders_log`",
            "`shop_users`",
        }
        reasons = {kept.path.split(".")[-1]: kept.reason for kept in done.kept}
        assert "says something else" in reasons["`users_now`"] and "a view" in reasons["`shop_users_log`"]
        assert not (lake / "lake" / "shop_users_log").exists(), "the table itself is ours, by whatever name"
    finally:
        for database in ("shop_names", "shop_state"):
            spark.sql(f"DROP DATABASE IF EXISTS {database} CASCADE")


def test_a_plan_says_what_a_run_would_do_and_writes_nothing(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.garbage("shop_orders/2026/01/01/00/05/broken.avro")
    found = plan_changes(shop.config)
    assert (found.rows_in, found.rows_written, found.rows_quarantined) == (2, 1, 1)
    [table] = found.tables
    assert (table.route, table.new, table.new_columns["status"]) == ("shop.orders", True, "string")
    assert not (lake / "lake").exists()
    shop.run()
    assert plan_changes(shop.config).rows_in == 0
