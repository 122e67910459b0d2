"""`verify` of change files finds nothing wrong with tables that are right: a false alarm is a fault too.

Hundreds of random histories of few columns: tests/test_cdc_property.py. Here: every type in every format, and what is
hard to read. `DISTRIBUTARY_TEST_HISTORIES=200` makes it so many.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

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
