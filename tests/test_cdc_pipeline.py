"""Change files to log and merged tables, whole pipelines: what must hold for every kind of trouble."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary_simulate.change_files.faults import Faults
from distributary_simulate.change_files.files import Format
from distributary_simulate.change_files.stream import write_history
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.unified import INTEGER, LONG, STRING, Unified
from tests.shop import Shop, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless, on_spark

ORDERS = mysql_table()


@on_spark
def test_every_event_is_in_the_log_and_the_newest_row_of_each_key_in_the_merged_table(lake: Path) -> None:
    shop = Shop(lake)
    shop.send(
        change(ORDERS, "INSERT", order(1, "new"), 100),
        change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 200, sec=1),
        change(ORDERS, "INSERT", order(2, "new"), 300, sec=2),
        change(ORDERS, "DELETE", order(2, "new"), 400, sec=3),
    )
    report = shop.run()
    assert (report.rows_in, report.rows_written, report.rows_quarantined) == (4, 4, 0)
    assert [row["status"] for row in shop.log("shop_orders_log")] == ["new", "paid", "new", "new"]
    assert shop.living("shop_orders") == [(1, "paid")]
    assert shop.merged("shop_orders").num_rows == 2
    shop.check()


def test_a_late_file_with_an_older_event_changes_the_log_only(lake: Path) -> None:
    """DataflowTemplates#475, #2867: also where its time is newer, the place in the log decides."""
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 7609, sec=17))
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "new"), 7338, sec=19))
    shop.run()
    assert shop.living("shop_orders") == [(1, "paid")]
    assert len(shop.log("shop_orders_log")) == 2
    assert shop.entry("shop.orders").stale == 1
    shop.check()


def test_a_deleted_row_does_not_come_back(lake: Path) -> None:
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "DELETE", order(1, "paid"), 500, sec=5))
    shop.run()
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), backfilled(ORDERS, order(1, "old"), sec=60))
    shop.run()
    assert shop.living("shop_orders") == []
    shop.check()


def test_new_columns_and_tables_are_in_the_batch_that_brings_them(lake: Path) -> None:
    """DataflowTemplates#4231 and the Scala connector's schema of the first file: older rows are null in them."""
    shop = Sparkless(lake)
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    wider = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
    users = mysql_table("users", {"id": INTEGER, "name": STRING})
    shop.send(
        change(wider, "INSERT", {**order(2, "new"), "note": "gift"}, 200, sec=70),
        change(users, "INSERT", {"id": 1, "name": "Ann"}, 300),
    )
    shop.run()
    assert shop.living("shop_orders", ["id", "status", "note"]) == [(1, "new", None), (2, "new", "gift")]
    assert shop.living("shop_users") == [(1, "Ann")]
    shop.check()


def test_one_corrupt_file_stops_nothing_and_comes_back_when_it_is_whole(lake: Path) -> None:
    shop = Sparkless(lake)
    [path] = shop.send(change(ORDERS, "INSERT", order(2, "new"), 200, sec=70))
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    report = shop.run()
    assert (report.rows_written, report.rows_quarantined) == (1, 1)
    [kept] = shop.quarantined()
    assert (kept["reason"], kept["file"]) == ("FILE_BROKEN", str(path))
    shop.check()
    path.write_bytes(whole)
    shop.run()
    assert shop.living("shop_orders") == [(1, "new"), (2, "new")]
    assert shop.quarantined() == []
    shop.check()


def test_a_broken_file_is_tried_again_and_counted_once(lake: Path) -> None:
    shop = Sparkless(lake)
    path = shop.garbage()
    shop.run()
    shop.replay()
    assert [row["file"] for row in shop.quarantined()] == [str(path)]
    shop.check()


@on_spark
def test_a_file_that_went_before_it_was_read_is_noted(lake: Path) -> None:
    shop = Shop(lake)
    paths = shop.send(
        change(ORDERS, "INSERT", order(1, "new"), 100), change(ORDERS, "INSERT", order(2, "new"), 200, sec=70)
    )
    run = __import__("distributary.running.stream", fromlist=["Run"]).Run
    from distributary.running.stream import session_of

    intake = run(shop.config, session_of(shop.config), lambda _: None).intake
    assert intake is not None
    intake.begin(True, lambda _: None)
    paths[0].unlink()
    report = shop.run()
    assert (report.rows_written, report.rows_quarantined) == (1, 1)
    assert shop.reasons() == {"FILE_GONE": 1}
    shop.check()


def test_a_table_without_a_key_is_only_appended(lake: Path) -> None:
    shop = Sparkless(lake)
    visits = mysql_table("visits", {"page": STRING}, keys="")
    shop.send(*(change(visits, "INSERT", {"page": "/"}, n) for n in (100, 200)))
    shop.run()
    assert len(shop.log("shop_visits_log")) == 2
    assert not (lake / "lake" / "shop_visits").exists()
    assert shop.entry("shop.visits").merge_state == "append_only"
    shop.check()


def test_keys_can_be_given(lake: Path) -> None:
    shop = Sparkless(lake, tables={"routes": {"shop.visits": {"keys": ["page"]}}})
    visits = mysql_table("visits", {"page": STRING, "n": INTEGER}, keys="")
    shop.send(*(change(visits, "INSERT", {"page": "/", "n": n}, n * 100) for n in (1, 2)))
    shop.run()
    assert shop.living("shop_visits") == [("/", 2)]
    shop.check()


def test_a_table_whose_key_changed_is_parked_and_its_log_goes_on(lake: Path) -> None:
    shop = Sparkless(lake)
    users = mysql_table("users", {"id": INTEGER, "name": STRING})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100), change(users, "INSERT", {"id": 1, "name": "Ann"}, 150))
    shop.run()
    other = mysql_table(keys="status")
    shop.send(
        change(other, "INSERT", order(2, "new"), 200, sec=70),
        change(users, "INSERT", {"id": 2, "name": "Bob"}, 250, sec=70),
    )
    report = shop.run()
    assert report.parked == ("shop.orders",)
    entry = shop.entry("shop.orders")
    assert entry.error is not None and "KeysChanged" in entry.error and "resync" in entry.error
    assert len(shop.log("shop_orders_log")) == 2
    assert shop.living("shop_users") == [(1, "Ann"), (2, "Bob")]
    shop.check()


def test_tables_in_one_folder_are_told_apart(lake: Path) -> None:
    """The Scala connector takes the table of a batch from its first row. These share folder, schema and names of files,
    so a task first finds events that are another one's."""
    shop = Sparkless(lake, tables={"merged": "m_{database}__{table}", "log": "l_{database}__{table}"})
    one = mysql_table("b_c", database="a")
    two = mysql_table("c", database="a_b")
    shop.send(change(one, "INSERT", order(1, "one"), 100))
    shop.send(change(two, "INSERT", order(1, "two"), 200))
    shop.run()
    shop.send(change(one, "UPDATE-INSERT", order(2, "one"), 300, sec=5))
    shop.send(change(two, "UPDATE-INSERT", order(2, "two"), 400, sec=5))
    shop.run()
    assert shop.living("m_a__b_c") == [(1, "one"), (2, "one")]
    assert shop.living("m_a_b__c") == [(1, "two"), (2, "two")]
    shop.check()


def test_two_source_tables_never_share_a_table(lake: Path) -> None:
    shop = Sparkless(lake)
    one, two = mysql_table("b_c", database="a"), mysql_table("c", database="a_b")
    shop.send(change(one, "INSERT", order(1, "one"), 100))
    shop.run()
    shop.send(change(two, "INSERT", order(1, "two"), 200))
    report = shop.run()
    assert report.parked == ("a_b.c",)
    assert shop.reasons() == {"TABLE_PARKED": 1}
    assert shop.living("a_b_c") == [(1, "one")]
    shop.check()


def test_without_a_log_table_the_merged_table_is_right_all_the_same(lake: Path) -> None:
    shop = Sparkless(lake, tables={"log": None})
    shop.send(
        change(ORDERS, "INSERT", order(1, "new"), 100), change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 200, sec=1)
    )
    report = shop.run()
    assert (report.rows_in, report.rows_written) == (2, 2)
    assert shop.living("shop_orders") == [(1, "paid")]
    assert sorted(p.name for p in (lake / "lake").iterdir()) == ["_distributary", "shop_orders"]
    shop.check()


def test_what_is_not_merged_yet_is_merged_later_once(lake: Path) -> None:
    shop = Sparkless(lake, tables={"merge_every": "1 hour"}, source={"max_files_per_batch": 1})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), n * 100, sec=n * 70) for n in (1, 2, 3)))
    shop.run()
    assert len(shop.batches) == 3
    assert len(shop.log("shop_orders_log")) == 3
    assert len(shop.living("shop_orders")) == 3
    assert shop.entry("shop.orders").merge_state == "merged"
    shop.check()


def test_the_columns_of_the_scala_connector_can_be_had_too(lake: Path) -> None:
    shop = Sparkless(lake, tables={"metadata_columns": True})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100, sec=5))
    shop.run()
    [row] = shop.merged("shop_orders").to_pylist()
    assert row["datastream_metadata_source_metadata_log_file"] == "bin.000001"
    assert row["datastream_metadata_source_metadata_log_position"] == 100
    assert row["datastream_metadata_source_timestamp"].isoformat() == "2026-01-01T00:00:05+00:00"
    assert row["datastream_metadata"]["source_timestamp"] == 1767225605000


@on_spark
@pytest.mark.parametrize("format", ["avro", "jsonl.gz", "parquet"])
def test_invented_histories_of_five_databases_come_out_as_the_source_has_them(lake: Path, format: Format) -> None:
    """All change types, key swaps, ties, late and doubled files, schema changes, damaged copies, batch cuts."""
    faults = Faults(
        duplicates=0.3, late=0.3, cut=0.2, garbage=0.05, truncated=0.05, shuffled=True, one_backfill_uuid=True
    )
    history = History(HistoryPlan(seed=11))
    pipeline = Shop if format == "avro" else Sparkless
    shop = pipeline(lake, source={"max_files_per_batch": 40}, tables={"evolution": "overwrite"})
    files = ChangeFiles(FilesPlan(shop.files, format=format, seed=5, faults=faults, schema_files=format == "jsonl.gz"))
    write_history(history, files, 1500)
    shop.run()
    shop.compare(history)
    shop.check()
    assert set(shop.reasons()) <= {"FILE_BROKEN", "CORRUPT_EVENT"}


@on_spark
def test_type_widening_moves_both_tables_to_spark_and_nothing_is_lost(lake: Path) -> None:
    """Delta's feature is Spark's: it appends to the log and merges, out of files that the tasks have written."""
    shop = Shop(lake, tables={"evolution": {"type_change": "type_widening"}})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    wider = mysql_table(columns={"id": LONG, "status": STRING})
    other = mysql_table("orders2")
    shop.send(
        change(wider, "INSERT", order(2**40, "new"), 200, sec=70),
        change(wider, "UPDATE-INSERT", order(1, "paid"), 300, sec=71),
        change(other, "INSERT", order(5, "new"), 400, sec=71),
    )
    shop.run()
    assert shop.living("shop_orders") == [(1, "paid"), (2**40, "new")]
    assert shop.entry("shop.orders").engine == "spark"
    assert not list(Path(shop.config.state_root, "parts").glob("*.parquet"))
    shop.send(change(wider, "DELETE", order(1, "paid"), 500, sec=80))
    shop.run()
    assert shop.living("shop_orders") == [(2**40, "new")]
    shop.check()


ODD = ["my col", "a,b;{c}(d)=e\tf"]
"""Names that Spark refuses in a Parquet file."""
TRICKY = ["a.b", "a`b", "", "it's", "order", "Größe"]


@on_spark
def test_spark_widens_and_adds_columns_whatever_their_names_below_a_relative_folder(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one table names of every kind, of the other only such as a Parquet file may have. Engine `task` made both."""
    monkeypatch.chdir(lake)
    shop = Shop(lake, tables={"root": "lake"})
    names = {"odd": [*ODD, *TRICKY], "tricky": TRICKY}

    def send(sec: int, wide: Unified, value: int, new: str = "") -> None:
        for table, columns in names.items():
            kinds = (
                {"id": INTEGER} | dict.fromkeys(columns, wide) | {f"{c} {c}": STRING for c in columns if table == "odd"}
            )
            kinds |= {f"{new}{c}": STRING for c in columns if new}
            made = mysql_table(table, kinds)
            row = {c: value if kind == wide else "x" for c, kind in kinds.items()} | {"id": sec}
            shop.send(change(made, "INSERT", row, 100 + sec, sec=sec), format="jsonl", schema_files=True)

    send(0, INTEGER, 1)
    shop.run()
    shop.configure(tables={"root": "lake", "engine": "spark", "evolution": {"type_change": "type_widening"}})
    send(70, LONG, 2**40, "new")
    assert shop.run().parked == ()
    for table, columns in names.items():
        entry = shop.entry(f"shop.{table}")
        assert (entry.engine, entry.state, entry.merge_state) == ("spark", "written", "merged")
        assert shop.living(f"shop_{table}", ["id", *columns]) == [
            (0, *[1] * len(columns)),
            (70, *[2**40] * len(columns)),
        ]
        new = shop.living(f"shop_{table}", ["id", *(f"new{c}" for c in columns)])
        assert new == [(0, *[None] * len(columns)), (70, *["x"] * len(columns))]
    shop.check()


@on_spark
def test_a_table_that_many_tasks_read_gets_one_commit_and_one_merge(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.engine.packing.SHARE_ROWS", 1)
    shop = Shop(lake)
    wider = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
    for sec in (0, 70):
        shop.send(*(change(ORDERS, "UPDATE-INSERT", order(n, f"at {sec}"), 100 * n + sec, sec=sec) for n in range(50)))
    shop.send(*(change(wider, "INSERT", {**order(n, "late"), "note": "x"}, n, sec=140) for n in range(25, 75)))
    shop.run()
    assert len(shop.living("shop_orders", ["id"])) == 75
    assert shop.living("shop_orders", ["id", "status", "note"])[:1] == [(0, "at 70", None)]
    assert len(shop.log("shop_orders_log")) == 150
    assert DeltaTable(str(lake / "lake" / "shop_orders_log")).version() == 0
    shop.check()
