"""Whatever order a table's events come in, however often and in whatever batches: the table is what the source holds.

The truth is a small database of each kind that lived the history (`change_histories`), not another merge.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.model import METADATA
from distributary.changes.reduce import reduce_rows
from distributary.tables.evolve import Policy
from distributary.tables.merge import MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import DELETED, Incoming, MergeRules, as_merged, completed
from distributary.tables.merge_tip import MergeTip
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.change_histories import KINDS, Database, delivered
from tests.events import Event, table_of

COLUMNS = {"id": pa.int64(), "value": pa.string()}
RULES = MergeRules()

histories = st.builds(
    lambda kind, seed, statements: _lived(kind, Random(seed), statements),
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.integers(1, 25),
)


def _lived(kind: str, random: Random, statements: int) -> Database:
    database = Database(kind, random)
    database.live(statements)
    return database


def _merged(table: pa.Table | None, events: list[Event], kind: str) -> pa.Table:
    """`table` (in memory) with a batch merged into it, by the rules that the files' merge applies."""
    reduced = reduce_rows(table_of(events, COLUMNS, kind), ["id"], RULES.order)
    incoming = Incoming(as_merged(reduced.rows, ["id"], RULES), ["id"], RULES)
    if table is None:
        return incoming.rows
    at, mine, wins = incoming.meet(table)
    verdict = incoming.verdict()
    keep = np.ones(table.num_rows, bool)
    keep[at[wins]] = False
    old = table.take(pa.array(at[wins]))
    changed = completed(incoming, np.flatnonzero(verdict.replaces), old, mine[wins], {})
    return pa.concat_tables([table.filter(pa.array(keep)), changed, incoming.rows.filter(pa.array(verdict.new))])


def _living(table: pa.Table) -> dict[int, str]:
    rows = table.select(["id", "value", DELETED]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["value"] for row in rows if not row[DELETED]}


@settings(max_examples=4 * settings().max_examples)
@given(histories, st.integers(0, 2**32))
def test_any_order_any_duplicates_and_any_batches_give_the_rows_of_the_source(lived: Database, seed: int) -> None:
    table: pa.Table | None = None
    for batch in delivered(lived.events, Random(seed)):
        table = _merged(table, batch, lived.kind) if batch else table
    assert (_living(table) if table is not None else {}) == lived.rows


@settings(max_examples=2 * settings().max_examples)
@given(histories, st.integers(0, 2**32))
def test_tombstones_too_are_the_same_as_if_all_had_come_at_once(lived: Database, seed: int) -> None:
    if not lived.events:
        return
    table: pa.Table | None = None
    for batch in delivered(lived.events, Random(seed)):
        table = _merged(table, batch, lived.kind)
    assert table is not None
    at_once = _merged(None, lived.events, lived.kind)
    assert table.sort_by("id").to_pylist() == at_once.sort_by("id").to_pylist()


@settings(max_examples=settings().max_examples // 2)
@given(histories, st.integers(0, 2**32))
def test_delta_tables_end_with_the_rows_of_the_source(lived: Database, seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uri = str(Path(folder) / "t")
        tip: MergeTip | None = None
        for number, batch in enumerate(delivered(lived.events, Random(seed))):
            if batch:
                # Some batches come to a process that knows nothing of the table.
                tip = _merge_files(uri, batch, lived.kind, number, tip if number % 4 else None)
        if lived.events:
            table = DeltaTable(uri)
            assert _living(table.to_pyarrow_table(columns=["id", "value", DELETED])) == lived.rows
            assert METADATA in table.schema().to_arrow().names


def _merge_files(uri: str, batch: list[Event], kind: str, number: int, tip: MergeTip | None) -> MergeTip | None:
    reduced = reduce_rows(table_of(batch, COLUMNS, kind), ["id"], RULES.order)
    target = MergeTarget(
        Table(uri, Store(), Owner("p", "t", ("id",))), Snapshot.open(uri, Store()), Policy(can_widen=False)
    )
    txn = Txn("s", number)
    merged = None if tip is None else merge_on_tip(target, tip, reduced, ["id"], RULES, txn)
    assert tip is None or merged is not None
    merged = merged or merge_rows(target, reduced, ["id"], RULES, txn)
    assert merged.why_spark is None
    return merged.tip
