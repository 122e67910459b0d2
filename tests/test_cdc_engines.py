"""Which engine merges a table of change files, and that both come to the same, whatever the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from distributary.changes.model import Kind
from distributary.running.maintain import maintain
from distributary.tables.merge import Merged, MergeTarget
from distributary.tables.spark_merge import merge_by_spark
from distributary_simulate.changes.model import Change, Column, Position, Table
from distributary_simulate.changes.unified import INTEGER, STRING
from tests.shop import START_MS, Shop, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ORDERS = mysql_table()
DAY = 86_400


def test_a_table_that_grows_over_the_bound_is_merged_by_spark_from_then_on(
    lake: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive, really = [], merge_by_spark

    def noted(session: SparkSession, target: MergeTarget, rows: DataFrame, *args: Any, **more: Any) -> Merged:
        adaptive.append([s.conf.get("spark.sql.adaptive.enabled") for s in (session, rows.sparkSession, spark)])
        return really(session, target, rows, *args, **more)

    monkeypatch.setattr("distributary.engine.changes.by_spark.merge_by_spark", noted)
    shop = Shop(lake, tables={"merge_engine_rows": 3})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 * n) for n in (1, 2, 3)))
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "paid"), 500, sec=70))
    shop.send(change(ORDERS, "INSERT", order(9, "new"), 600, sec=71))
    shop.run()
    assert shop.entry("shop.orders").engine == "task"
    shop.send(change(ORDERS, "UPDATE-INSERT", order(3, "paid"), 700, sec=140))
    shop.send(change(ORDERS, "DELETE", order(1, "new"), 800, sec=141))
    shop.run()
    assert shop.entry("shop.orders").engine == "spark"
    assert adaptive == [["true", "true", "false"]]
    assert shop.living("shop_orders") == [(2, "paid"), (3, "paid"), (9, "new")]
    assert len(shop.log("shop_orders_log")) == 7
    assert not list(Path(shop.config.state_root, "parts").glob("*.parquet"))
    shop.check()
    shop.send(change(ORDERS, "INSERT", order(20, "new"), 900, sec=210))
    shop.run()
    assert shop.entry("shop.orders").engine == "task", "no file can hold its key: nothing is rewritten"
    shop.check()


@pytest.mark.parametrize("engine", ["task", "spark"])
def test_events_that_cannot_be_judged_are_kept_aside_by_both_engines(lake: Path, engine: str) -> None:
    pipeline = Shop if engine == "spark" else Sparkless
    shop = pipeline(lake, tables={"tombstone_retention": "3 days", "engine": engine})
    shop.send(change(ORDERS, "DELETE", order(2, "x"), 100), change(ORDERS, "INSERT", order(1, "new"), 700, sec=5 * DAY))
    shop.send(change(ORDERS, "INSERT", order(3, "new"), 800, sec=6 * DAY))
    shop.run()
    assert sum(done.purged for done in maintain(shop.config)) == 1
    shop.send(change(ORDERS, "UPDATE-INSERT", order(2, "late"), 50, sec=1), backfilled(ORDERS, order(9, "old"), sec=2))
    shop.run()
    assert shop.entry("shop.orders").engine == engine
    assert shop.living("shop_orders") == [(1, "new"), (3, "new"), (9, "old")]
    assert shop.reasons() == {"LATE_EVENT": 1}
    [kept] = shop.quarantined()
    assert (kept["route"], kept["level"]) == ("shop.orders", "merge")
    assert "shop_orders" in kept["file"]
    shop.check()


@pytest.mark.parametrize("tables", [{}, {"merge_every": "1 hour"}, {"merge_every": "1 hour", "engine": "spark"}])
def test_a_dropped_column_keeps_its_old_values_where_that_is_asked_for(lake: Path, tables: dict[str, str]) -> None:
    """Also where events wait for their merge in the log: which columns a schema has, the log does not say."""
    pipeline = Shop if "engine" in tables else Sparkless
    shop = pipeline(lake, tables={"dropped_columns": "keep", **tables}, source={"max_files_per_batch": 1})
    wide = mysql_table(columns={"id": INTEGER, "status": STRING, "note": STRING})
    full = [{**order(n, "new"), "note": "gift"} for n in (1, 2, 3)]
    shop.send(*(change(wide, "INSERT", row, 100 * n) for n, row in enumerate(full, 1)))
    shop.send(change(wide, "UPDATE-INSERT", {**order(2, "paid"), "note": None}, 500, sec=60))
    shop.send(change(ORDERS, "UPDATE-INSERT", order(1, "paid"), 600, sec=120))
    shop.run()
    shop.send(change(ORDERS, "UPDATE-INSERT", order(3, "sent"), 700, sec=180))
    shop.run()
    wanted = [(1, "paid", "gift"), (2, "paid", None), (3, "sent", "gift")]
    assert shop.living("shop_orders", ["id", "status", "note"]) == wanted
    shop.check()


@pytest.mark.parametrize("engine", ["task", "spark"])
def test_a_key_that_an_oracle_transaction_hands_on_twice_is_decided_by_all_its_events_in_whatever_batches(
    lake: Path, engine: str
) -> None:
    """A takes key 1 from B, then C takes it from A, then C leaves it: each time the taker is logged first."""
    table = Table(Kind.ORACLE, "shop", "s", "orders", (Column("id", INTEGER), Column("status", STRING)), ("id",))

    def event(at: int, kind: str, key: int, row_id: str, tx: str = "tx") -> Change:
        place = {"scn": 100 + at, "rs_id": f"0x000001.{at:08x}.0010", "ssn": 0, "row_id": row_id, "tx_id": tx}
        ms = START_MS + at // 10 * 60_000
        return Change(
            table, kind, False, order(key, f"{row_id}{at}"), Position(place, (ms,), ms), "oracle-cdc-logminer", 0
        )

    pipeline = Shop if engine == "spark" else Sparkless
    shop = pipeline(lake, tables={"engine": engine})
    shop.send(
        *(event(at, "INSERT", key, row, "before") for at, (key, row) in enumerate(((5, "A"), (1, "B"), (6, "C"))))
    )
    shop.send(event(10, "UPDATE-INSERT", 1, "A"), event(10, "UPDATE-DELETE", 5, "A"))
    shop.run()
    later = [
        [event(50, "UPDATE-DELETE", 1, "C"), event(51, "UPDATE-INSERT", 8, "C")],
        [event(30, "UPDATE-INSERT", 1, "C"), event(30, "UPDATE-DELETE", 6, "C")],
        [event(40, "UPDATE-DELETE", 1, "A"), event(41, "UPDATE-INSERT", 7, "A")],
        [event(20, "UPDATE-DELETE", 1, "B"), event(21, "UPDATE-INSERT", 9, "B")],
        [event(10, "UPDATE-INSERT", 1, "A")],
    ]
    for events in later:
        shop.send(*events)
        shop.run()
    assert shop.entry("shop.s.orders").engine == engine
    assert shop.living("shop_s_orders") == [(7, "A41"), (8, "C51"), (9, "B21")]
    shop.check()
