"""Ends of the process between any two steps of a batch of change files, and at random moments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributary.engine.changes import attempt, merges
from distributary.engine.changes.retries import EventQuarantine
from distributary.engine.changes.writer import ChangeWriter
from distributary.running.maintain import maintain
from distributary.state.ledger import Ledger
from tests.scenarios import dying
from tests.shop import Shop, change, mysql_table
from tests.sparkless import Sparkless

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

ORDERS, USERS = mysql_table(), mysql_table("users")


@pytest.mark.parametrize(
    ("pipeline", "target", "name", "after"),
    [
        (Sparkless, attempt, "run_deliver", False),
        (Shop, attempt, "run_deliver", True),
        (Sparkless, Ledger, "record", False),
        (Shop, Ledger, "record", True),
        (Sparkless, EventQuarantine, "release", False),
        (Shop, ChangeWriter, "_complete", True),
    ],
    ids=["before anything", "after the tables", "before the ledger", "after it", "before the release", "after it all"],
)
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    lake: Path, pipeline: type[Shop], target: Any, name: str, after: bool
) -> None:
    """On Spark after each step that leaves something behind; without it any number of ends at any step are tried, too
    (`test_cdc_property`)."""
    shop = pipeline(lake)
    broken = shop.garbage()
    shop.send(change(ORDERS, "INSERT", {"id": 1, "status": "new"}, 100))
    shop.run()
    shop.send(
        change(ORDERS, "UPDATE-INSERT", {"id": 1, "status": "paid"}, 200, sec=5),
        change(ORDERS, "DELETE", {"id": 2, "status": "new"}, 300, sec=6),
        change(USERS, "INSERT", {"id": 1, "status": "on"}, 400, sec=7),
    )
    [whole] = shop.send(change(USERS, "INSERT", {"id": 2, "status": "on"}, 500, sec=70))
    broken.write_bytes(whole.read_bytes())
    with dying(target, name, after=after):
        shop.run()
    shop.run()
    assert shop.living("shop_orders") == [(1, "paid")]
    assert shop.living("shop_users") == [(1, "on"), (2, "on")]
    assert len(shop.log("shop_users_log")) == 3
    assert shop.quarantined() == []
    shop.check()


@pytest.mark.parametrize("after", [False, True], ids=["before the merge", "after it"])
def test_a_crash_around_a_merge_between_batches_merges_once(lake: Path, after: bool) -> None:
    shop = Sparkless(lake, tables={"merge_every": "1 hour"})
    shop.send(change(ORDERS, "INSERT", {"id": 1, "status": "new"}, 100))
    with dying(merges, "run_merges", after=after):
        shop.run()
    assert len(shop.log("shop_orders_log")) == 1
    shop.run()
    assert shop.living("shop_orders") == [(1, "new")]
    shop.check()


@pytest.mark.parametrize("engine", ["task", "spark"])
def test_what_could_not_be_merged_is_kept_aside_also_when_the_batch_is_done_again(lake: Path, engine: str) -> None:
    """The merge was committed, but nobody had said yet what it had to leave."""
    day = 86_400
    pipeline = Shop if engine == "spark" else Sparkless
    shop = pipeline(lake, tables={"tombstone_retention": "3 days", "engine": engine})
    shop.send(change(ORDERS, "DELETE", {"id": 2, "status": "x"}, 100))
    shop.send(change(ORDERS, "INSERT", {"id": 1, "status": "new"}, 700, sec=6 * day))
    shop.run()
    assert sum(done.purged for done in maintain(shop.config)) == 1
    shop.send(change(ORDERS, "UPDATE-INSERT", {"id": 2, "status": "late"}, 50, sec=1))
    with dying(Ledger, "record"):
        shop.run()
    shop.run()
    assert shop.living("shop_orders") == [(1, "new")]
    assert shop.reasons() == {"LATE_EVENT": 1}
    shop.check()
