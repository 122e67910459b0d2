"""Whatever order a table's events come in, however often and in whatever batches: the table is what the source holds.

The truth is a small database of each kind that lived the history (`change_histories`), not another merge.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.changes.model import METADATA
from distributary.changes.reduce import reduce_rows
from distributary.tables import merge, merge_on_read
from distributary.tables.commits import put_commit
from distributary.tables.evolve import Policy
from distributary.tables.merge import MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import DELETED, Incoming, MergeRules, as_merged
from distributary.tables.merge_tip import MergeTip
from distributary.tables.merge_values import completed
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


class Died(BaseException):
    """The end of the process."""


@settings(max_examples=settings().max_examples // 2)
@given(histories, st.integers(0, 2**32), st.booleans())
def test_tombstones_beside_a_table_leave_the_rows_and_the_deleted_keys_that_they_leave_in_it(
    lived: Database, seed: int, on_read: bool
) -> None:
    """Some processes end between the two commits, and what they did is done again."""
    random, tips = Random(seed), dict[str, MergeTip | None]()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for module in (merge, merge_on_read):
            patch.setattr(module, "TINY_BYTES", 0)
        for number, batch in enumerate(delivered(lived.events, Random(seed))):
            for name in ("in_table", "beside"):
                rules = MergeRules(on_read=on_read, beside=name == "beside")
                tip = tips.get(name) if number % 4 else None
                if name == "beside" and random.random() < 0.3:
                    with pytest.MonkeyPatch.context() as dying, suppress(Died):
                        dying.setattr(merge, "put_commit", _dies_at_the_table)
                        _merge_files(f"{folder}/{name}", batch, lived.kind, number, tip, rules)
                if batch:
                    tips[name] = _merge_files(f"{folder}/{name}", batch, lived.kind, number, tip, rules)
        if lived.events:
            in_table, beside = (DeltaTable(f"{folder}/{name}") for name in ("in_table", "beside"))
            names = ["id", "value", DELETED]
            rows = _rows(beside, names)
            # `count` of deltalake (1.6.6) counts rows that vectors mark, too.
            assert not any(row[DELETED] for row in rows) and len(rows) == len(lived.rows)
            assert {row["id"]: row["value"] for row in rows} == lived.rows == _living_rows(_rows(in_table, names))
            dead = {row["id"] for row in _rows(DeltaTable(f"{folder}/beside/_tombstones"), ["id"])}
            assert dead - lived.rows.keys() == {row["id"] for row in _rows(in_table, names) if row[DELETED]}


def _rows(table: DeltaTable, names: list[str]) -> list[dict[str, Any]]:
    columns = ", ".join(names)
    return list(pa.table(QueryBuilder().register("t", table).execute(f"select {columns} from t")).to_pylist())


def _living_rows(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["id"]: row["value"] for row in rows if not row[DELETED]}


def _dies_at_the_table(uri: str, *rest: Any) -> bool:
    if uri.endswith("_tombstones"):
        return put_commit(uri, *rest)
    raise Died


def _merge_files(
    uri: str, batch: list[Event], kind: str, number: int, tip: MergeTip | None, rules: MergeRules = RULES
) -> MergeTip | None:
    reduced = reduce_rows(table_of(batch, COLUMNS, kind), ["id"], RULES.order)
    target = MergeTarget(
        Table(uri, Store(), Owner("p", "t", ("id",))), Snapshot.open(uri, Store()), Policy(can_widen=False)
    )
    txn = Txn("s", number)
    merged = None if tip is None else merge_on_tip(target, tip, reduced, ["id"], rules, txn)
    assert tip is None or merged is not None or rules.beside or rules.on_read
    merged = merged or merge_rows(target, reduced, ["id"], rules, txn)
    assert merged.why_spark is None
    return merged.tip
