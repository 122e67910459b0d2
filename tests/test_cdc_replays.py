"""Batches that are taken again by a process that knows less than the one that died."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distributary.state.ledger import Ledger
from distributary_simulate.change_files.events import Event, Layout, event_schema
from distributary_simulate.change_files.writer import STREAM
from distributary_simulate.changes.model import Change
from tests.scenarios import dying
from tests.shop import change, mysql_table
from tests.sparkless import Sparkless

ONE = mysql_table("b_c", database="a")
TWO = mysql_table("c", database="a_b")


def mixed_file(shop: Sparkless, name: str, *changes: Change) -> None:
    """A file of two tables: they share folder, schema and so the names of their files."""
    events = [Event(one, f"00000000-0000-0000-0000-0000{n:08b}", 0) for n, one in enumerate(changes)]
    schema = {event.change.table: event_schema(event.change.table, Layout.Y2025, STREAM) for event in events}
    keys = {one.key for one in schema.values()}
    assert len(keys) == 1
    path = shop.files / f"a_b_c/2026/01/01/00/00/{keys.pop()}_mysql-cdc-binlog_1_1_{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{schema[event.change.table].line(event)}\n" for event in events))


@pytest.mark.parametrize("log", ["l_{database}__{table}", None])
def test_a_file_of_two_tables_is_not_doubled_by_a_process_that_takes_its_batch_again(
    lake: Path, log: str | None
) -> None:
    """The process that died knew from the batch before that the files hold both tables, so that one task wrote both at
    once. The next one sees the first event only: the other table's are strays to it, which have a mark of their own."""
    shop = Sparkless(lake, source={"max_files_per_batch": 1}, tables={"merged": "m_{database}__{table}", "log": log})
    for number in (1, 2):
        row = {"id": number, "status": "new"}
        mixed_file(
            shop, str(number), change(ONE, "INSERT", row, 10 * number), change(TWO, "INSERT", row, 10 * number + 5)
        )
    with dying(Ledger, "record", nth=2):
        shop.run()
    shop.run()
    for name in ("a__b_c", "a_b__c"):
        assert shop.living(f"m_{name}") == [(1, "new"), (2, "new")]
        assert log is None or len(shop.log(f"l_{name}")) == 2
    shop.check()


def test_an_upload_that_went_on_before_its_batch_was_taken_again_costs_and_doubles_nothing(lake: Path) -> None:
    """A folder in which somebody writes in place: the log has taken the half of a file that was there."""
    shop = Sparkless(lake)
    table = mysql_table()
    [path] = shop.send(*(change(table, "INSERT", {"id": n, "status": "new"}, n) for n in range(5)), format="jsonl")
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    with dying(Ledger, "record"):
        shop.run()
    path.write_bytes(whole)
    report = shop.run()
    assert (report.rows_in, report.rows_written, report.rows_quarantined) == (5, 5, 0)
    assert len(shop.log("shop_orders_log")) == len(shop.living("shop_orders")) == 5
    shop.check()


def test_of_a_file_that_is_rewritten_with_other_events_the_log_takes_those_whose_numbers_are_new(lake: Path) -> None:
    """Datastream never does that; the log knows an event by its file and its number there."""
    shop = Sparkless(lake)
    table = mysql_table()
    [path] = shop.send(*(change(table, "INSERT", {"id": n, "status": "new"}, n) for n in (1, 2)), format="jsonl")
    shop.run()
    first = path.read_bytes()
    shop.send(*(change(table, "INSERT", {"id": n, "status": "new"}, n) for n in (7, 8, 9)), format="jsonl")
    [other] = [file for file in shop.files.rglob("*.jsonl") if file.read_bytes() != first]
    path.write_bytes(other.read_bytes())
    if other != path:
        other.unlink()
    os.utime(path, (2e9, 2e9))
    shop.run()
    assert shop.living("shop_orders") == [(1, "new"), (2, "new"), (9, "new")]
    shop.check()
