"""`verify` of change files finds nothing wrong with tables that are right: a false alarm is a fault too.

Hundreds of random histories of few columns: tests/test_cdc_property.py. Here: every type in every format, all settings,
upkeep, repairs and damaged files in between, and what is hard to read. `DISTRIBUTARY_TEST_HISTORIES=200`: so many.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit.judge.change_events import Meta, Order, of_row
from distributary.audit.judge.changes import verify_changes
from distributary.changes.model import METADATA
from distributary.changes.reduce import newest
from distributary_simulate.change_files.stream import write_history
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from tests.change_histories import KINDS, Database, delivered
from tests.event_files import avro, event, parquet, schema
from tests.events import table_of
from tests.right_pipelines import right_pipeline
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

HISTORIES = int(os.environ.get("DISTRIBUTARY_TEST_HISTORIES", "1"))


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize(
    "plan",
    [
        {"format": "avro"},
        {"format": "jsonl", "schema_files": True},
        {"format": "jsonl.gz", "schema_files": True},
        {"format": "parquet"},
    ],
    ids=lambda plan: str(plan["format"]),
)
def test_tables_of_a_random_history_of_all_types_are_right(lake: Path, plan: dict[str, Any], seed: int) -> None:
    shop = Sparkless(lake)
    history = History(HistoryPlan(seed=seed, schema_changes=0, initial_rows=8))
    write_history(history, ChangeFiles(FilesPlan(shop.files, **plan)), 300)
    shop.run()
    found = verify_changes(shop.config)
    assert found.problems == ()
    assert found.rows_written == found.rows_in > 300


@pytest.mark.parametrize("seed", range(3 * HISTORIES))
def test_right_tables_stay_right_under_any_settings_and_whatever_is_done_between_runs(lake: Path, seed: int) -> None:
    shop, done = right_pipeline(lake, f"right {seed}")
    found = verify_changes(shop.config)
    assert found.problems == (), done


@pytest.mark.parametrize("kind", KINDS)
def test_the_judge_and_the_merge_call_the_same_event_the_newest(kind: str) -> None:
    for seed in range(50):
        database = Database(kind, Random(seed))
        database.live(12)
        events = [e for batch in delivered(database.events, Random(seed)) for e in batch]
        rows = table_of(events, {"id": pa.int64(), "value": pa.string()}, kind)
        taken = {row["id"]: of_row(row[METADATA]).identity for row in newest(rows, ["id"]).to_pylist()}
        by_key: dict[int, list[Meta]] = {}
        for row in rows.to_pylist():
            by_key.setdefault(row["id"], []).append(of_row(row[METADATA]))
        for key, metas in by_key.items():
            assert taken[key] in {metas[n].identity for n in Order(kind).newest(metas)}, (seed, key)


def test_a_file_that_no_reader_can_use_is_named_and_the_rest_is_judged(lake: Path) -> None:
    shop = Sparkless(lake)
    whole = avro(schema([("id", "long")]), [event(n) for n in range(20)], interval=1)
    shop.garbage("shop_orders/2026/01/01/00/00/whole.avro", whole)
    shop.garbage("shop_orders/2026/01/01/00/01/cut.avro", whole[:-30])
    days = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    shop.garbage("shop_orders/2026/01/01/00/02/foreign.parquet", parquet(pa.table({"day": days})))
    shop.run()
    found = verify_changes(shop.config)
    assert found.problems == ()
    assert found.rows_written + found.rows_quarantined == found.rows_in > 38


def test_events_that_were_all_kept_aside_make_no_table_and_none_is_missed(lake: Path) -> None:
    shop = Sparkless(lake, tables={"evolution": {"max_columns": 1}})
    shop.send(change(mysql_table(), "INSERT", order(1, "new"), 100))
    shop.run()
    assert shop.reasons() == {"TOO_MANY_COLUMNS": 1}
    assert verify_changes(shop.config).problems == ()


@pytest.mark.parametrize("what", ["touched", "gone"])
def test_without_a_log_only_what_is_still_known_is_judged(lake: Path, what: str) -> None:
    """A row that is newer than all events that are there is of a file that is gone; every other one is judged."""
    shop = Sparkless(lake, tables={"log": None})
    orders = mysql_table()
    shop.send(*(change(orders, "INSERT", order(n, "new"), 100 + n) for n in range(1, 4)))
    [file] = shop.send(change(orders, "UPDATE-INSERT", order(1, "paid"), 200, sec=60))
    shop.run()
    if what == "gone":
        file.unlink()
    else:
        os.utime(file, (1, 1))
        shop.run()
    found = verify_changes(shop.config)
    assert found.problems == ()
    assert bool(found.notes) == (what == "gone")
    uri = str(lake / "lake" / "shop_orders")
    rows = DeltaTable(uri).to_pyarrow_table()
    kept = [{**row, "status": "changed"} if row["id"] == 2 else row for row in rows.to_pylist()]
    write_deltalake(uri, pa.Table.from_pylist(kept, rows.schema), mode="overwrite")
    assert len(verify_changes(shop.config).problems) == 1


def test_events_of_a_file_that_was_written_again_must_be_in_the_log_too(lake: Path) -> None:
    shop = Sparkless(lake)
    [file] = shop.send(*(change(mysql_table(), "INSERT", order(n, "new"), 100 + n) for n in range(1, 4)))
    shop.run()
    os.utime(file, (1, 1))
    shop.run()
    assert verify_changes(shop.config).problems == ()
    uri = str(lake / "lake" / "shop_orders_log")
    rows = DeltaTable(uri).to_pyarrow_table()
    changed = [{**row, "status": "changed"} if row["id"] == 2 else row for row in rows.to_pylist()]
    write_deltalake(uri, pa.Table.from_pylist(changed, rows.schema), mode="overwrite")
    assert any("status" in problem for problem in verify_changes(shop.config).problems)


def test_a_table_that_cannot_be_opened_is_named_and_the_others_are_judged(lake: Path) -> None:
    shop = Sparkless(lake)
    fields = [("id", "long")]
    shop.garbage("a/2026/01/01/00/00/a.avro", avro(schema(fields), [event(n) for n in range(3)]))
    shop.garbage("b/2026/01/01/00/00/b.avro", avro(schema(fields), [event(n, table="users") for n in range(3)]))
    shop.run()
    for file in (lake / "lake" / "shop_users" / "_delta_log").iterdir():
        file.write_text("{")
    found = verify_changes(shop.config)
    assert {t.route: bool(t.problems) for t in found.tables} == {"shop.orders": False, "shop.users": True}
