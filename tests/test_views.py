"""The views over a wide table: made and renewed by the run itself, or by hand, and always there for a reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from distributary.running.wide_views import kept, read, refresh
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from tests.layouts import WIDE, Laid
from tests.scenarios import message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
NEXT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string boss = 3; }'
DATABASE = "wide_views"


@pytest.fixture
def wide(lake: Path, spark: SparkSession) -> Iterator[Laid]:
    """Two routes, of which `a` has a view in the catalog; gone afterwards."""
    laid = Laid(lake, WIDE, tables={"database": DATABASE, "name": "v_{route}"})
    laid.send(laid.event("a", laid.schema("a-value", EVENT), message(EVENT, "event", user="u", score=1)))
    laid.run()
    yield laid
    spark.sql(f"DROP DATABASE {DATABASE} CASCADE")


def columns(spark: SparkSession, view: str) -> list[str]:
    return list(spark.table(f"{DATABASE}.{view}").columns)


def test_a_route_gets_its_view_with_its_first_rows_and_a_new_one_when_its_struct_grows(
    wide: Laid, spark: SparkSession
) -> None:
    assert columns(spark, "v_a") == ["user", "score", "_origin"]
    new = wide.schema("b-value", NEXT)
    wide.send(*(wide.event(r, new, message(NEXT, "event", user="w", boss="x")) for r in ("a", "Ünï/x=y")))
    wide.run()
    assert columns(spark, "v_a") == ["user", "score", "boss", "_origin"]
    rows = spark.table(f"{DATABASE}.v_a").orderBy("user").collect()
    assert [(r.user, r.boss) for r in rows] == [("u", None), ("w", "x")]
    in_catalog = {table.name for table in spark.catalog.listTables(DATABASE)}
    assert {*kept(wide.config, Store()), "wide"} == in_catalog
    assert read(spark, wide.config, "Ünï/x=y").count() == 1
    wide.check()


def test_a_view_that_somebody_dropped_is_made_again_by_hand_and_by_the_next_run(
    wide: Laid, spark: SparkSession
) -> None:
    ledger = Ledger(wide.config.state_root, wide.config.pipeline, Store())
    assert refresh(spark, wide.config, ledger) == []
    spark.sql(f"DROP VIEW {DATABASE}.v_a")
    assert [view.name for view in refresh(spark, wide.config, ledger)] == ["v_a"]
    assert [view.name for view in refresh(spark, wide.config, ledger, anew=True)] == ["v_a"]
    spark.sql(f"DROP VIEW {DATABASE}.v_a")
    wide.run()
    assert columns(spark, "v_a") == ["user", "score", "_origin"]


def test_a_view_can_be_read_at_any_moment_while_it_is_made_again(wide: Laid, spark: SparkSession) -> None:
    ledger = Ledger(wide.config.state_root, wide.config.pipeline, Store())
    failures: list[BaseException] = []
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        mine = spark.newSession()
        while not over.is_set():
            try:
                seen.append(mine.sql(f"SELECT score FROM {DATABASE}.v_a").collect()[0].score)
            except BaseException as e:
                failures.append(e)
                return

    reader = threading.Thread(target=look)
    reader.start()
    made = 0
    while not failures and (made < 40 or len(seen) < 5):
        refresh(spark, wide.config, ledger, anew=True)
        made += 1
    over.set()
    reader.join(240)
    assert not failures
    assert set(seen) == {1}
