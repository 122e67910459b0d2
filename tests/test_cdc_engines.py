"""Which engine merges a table of change files, and that both come to the same, whatever the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from distributary.running.maintain import maintain
from distributary.tables.merge import Merged, Target
from distributary.tables.spark_merge import merge_by_spark
from distributary_simulate.changes.unified import INTEGER, STRING
from tests.shop import Shop, backfilled, change, mysql_table, order
from tests.sparkless import Sparkless

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ORDERS = mysql_table()
DAY = 86_400


def test_a_table_that_grows_over_the_bound_is_merged_by_spark_from_then_on(
    lake: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    adaptive, really = [], merge_by_spark

    def noted(session: SparkSession, target: Target, rows: DataFrame, *args: Any, **more: Any) -> Merged:
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
