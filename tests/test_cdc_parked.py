"""A route's log and its merged table are parked apart, also in the books that the next process reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributary.errors import Reason
from distributary.state.ledger import rests_until
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

ORDERS = mysql_table()
FROZEN = {"new_column": "freeze", "type_change": "freeze"}


@contextmanager
def broken(table: Path) -> Iterator[None]:
    """In place of the table lies what no writer can open."""
    aside = table.with_name(f"{table.name}.aside")
    table.rename(aside)
    table.write_text("not a table")
    yield
    table.unlink()
    aside.rename(table)


def test_the_log_goes_on_in_the_next_process_while_the_merged_table_rests(lake: Path) -> None:
    """Also when all that a batch brought in between was set aside, so that nothing was to be merged."""
    rules = {"evolution": FROZEN, "routes": {"shop.orders": {"evolution": FROZEN}}}
    shop = Sparkless(lake, tables={**rules, "retry_after": "1 ms"}, source={"max_files_per_batch": 1})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    with broken(lake / "lake" / "shop_orders"):
        shop.send(change(ORDERS, "INSERT", order(2, "new"), 200, sec=70))
        assert shop.run().parked == ("shop.orders",)
        shop.configure(tables={**rules, "retry_after": "1 hour"}, source={"max_files_per_batch": 1})
        wider = mysql_table(columns={**{c.name: c.type for c in ORDERS.columns}, "note": ORDERS.columns[1].type})
        shop.send(change(wider, "INSERT", {**order(3, "new"), "note": "x"}, 300, sec=140))
        shop.run()
        assert shop.reasons() == {Reason.FROZEN_COLUMN: 1}
        shop.garbage()
        shop.run()
        shop.send(change(ORDERS, "INSERT", order(4, "new"), 400, sec=210))
        shop.run()
        assert shop.entry("shop.orders").merge_state == "parked"
        assert [row["id"] for row in shop.log("shop_orders_log")] == [1, 2, 4]
    shop.replay()
    assert [row[0] for row in shop.living("shop_orders")] == [1, 2, 4]
    shop.check()


def test_what_waits_to_be_merged_is_not_forgotten_while_the_log_is_parked(lake: Path) -> None:
    shop = Sparkless(lake, tables={"retry_after": "1 ms"}, source={"max_files_per_batch": 1})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    with broken(lake / "lake" / "shop_orders"):
        shop.send(change(ORDERS, "INSERT", order(2, "new"), 200, sec=70))
        shop.run()
        assert len(shop.log("shop_orders_log")) == 2
        with broken(lake / "lake" / "shop_orders_log"):
            shop.send(change(ORDERS, "INSERT", order(3, "new"), 300, sec=140))
            shop.run()
            assert shop.reasons() == {Reason.TABLE_PARKED: 1}
    shop.send(change(ORDERS, "INSERT", order(4, "new"), 400, sec=210))
    shop.run()
    shop.run()
    assert [row[0] for row in shop.living("shop_orders")] == [1, 2, 3, 4]
    shop.check()


def test_a_table_that_is_parked_is_told_by_the_run_that_gives_its_files_to_the_stream_once_more(lake: Path) -> None:
    """`retry_after: 0` too: each retry makes the stream one more batch, and a rest of nothing would never end that."""
    shop = Sparkless(lake, tables={"retry_after": "0 s"}, source={"max_files_per_batch": 1})
    shop.send(change(ORDERS, "INSERT", order(1, "new"), 100))
    shop.run()
    with broken(lake / "lake" / "shop_orders_log"):
        shop.send(change(ORDERS, "INSERT", order(2, "new"), 200, sec=70))
        assert shop.run().parked == ("shop.orders",)
        assert shop.run().parked == ("shop.orders",)
        assert shop.reasons() == {Reason.TABLE_PARKED: 1}
    rests = [rests_until(failures, 0.0, 0.0) for failures in range(1, 4)]
    assert 0 < rests[0] < rests[1] < rests[2]
    shop.run()
    shop.run()
    assert [row[0] for row in shop.living("shop_orders")] == [1, 2]
    assert shop.quarantined() == []
    shop.check()
