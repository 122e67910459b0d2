"""What a producer can make up without end: a batch takes so much of it, keeps the rest aside, and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.plan import plan
from distributary.audit.plan_report import PlanReport
from distributary.errors import Reason
from tests.scenarios import Scenario, message
from tests.shop import Shop, change, mysql_table

EVENT = 'syntax = "proto3"; message event { string user = 1; }'


@pytest.mark.spark
@pytest.mark.parametrize("layout", ["fanout", "wide"])
def test_a_batch_makes_so_many_tables_and_the_rest_comes_in_once_more_are_allowed(tmp_path: Path, layout: str) -> None:
    bounded: dict[str, Any] = {"layout": layout, "tables": {"max_new_tables": 2}}
    scenario = Scenario(tmp_path, **bounded)
    known = scenario.schema("a-value", EVENT)
    body = message(EVENT, "event", user="x")
    scenario.send(scenario.event("first", known, body))
    scenario.run()
    flood = [f"made_up_{n}" for n in range(9)]
    # What sends most comes first: made-up names do not keep a real new route out.
    scenario.send(*(scenario.event(route, known, body) for route in ("first", *flood, "real", "real")))
    counted: PlanReport = plan(scenario.config)
    scenario.run()
    assert counted.reasons == scenario.reasons() == {Reason.TOO_MANY_ROUTES: 8}
    assert {row["route"] for row in scenario.quarantined()} == set(flood[1:])
    made = {e.route for e in scenario.entries() if e.rows_written}
    assert made == {"first", "real", flood[0]}
    assert not scenario.batches[-1].parked
    assert not scenario.replay(flood[3]).left
    assert len(scenario.replay().left) == 5, "a replay makes up to as many"
    scenario.configure(layout=layout)
    assert not scenario.replay().left
    assert scenario.reasons() == {}
    if layout == "fanout":
        scenario.check()


@pytest.mark.spark
def test_change_files_make_so_many_tables_in_a_batch_whether_each_has_a_file_or_all_are_in_one(tmp_path: Path) -> None:
    bounded: dict[str, Any] = {"tables": {"max_new_tables": 2}}
    shop = Shop(tmp_path, **bounded)
    orders = mysql_table("orders")
    shop.send(change(orders, "INSERT", {"id": 1, "status": "new"}, 100))
    shop.run()
    flood = [mysql_table(f"made_up_{n}") for n in range(4)]
    sent = [change(one, "INSERT", {"id": 1, "status": "x"}, 200 + n) for n, one in enumerate([orders, *flood[:2]])]
    first = shop.send(*sent, format="json")
    strays = shop.send(
        *(change(one, "INSERT", {"id": 2, "status": "y"}, 300 + n, sec=99) for n, one in enumerate(flood)),
        format="json",
    )
    # Events of tables that nobody expects in a file of another one.
    first[0].write_bytes(first[0].read_bytes() + b"".join(path.read_bytes() for path in strays))
    for path in strays:
        path.unlink()
    shop.run()
    assert shop.reasons() == {Reason.TOO_MANY_ROUTES: 2}
    assert len(shop.log("shop_orders_log")) == 2
    assert len(shop.log("shop_made_up_0_log")) == 2
    assert not DeltaTable.is_deltatable(str(tmp_path / "lake" / "shop_made_up_3_log"))
    shop.configure()
    shop.replay()
    assert shop.reasons() == {}
    assert len(shop.log("shop_made_up_3_log")) == 1
    shop.check()
