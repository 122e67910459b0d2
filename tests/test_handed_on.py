"""Keys that rows of one Oracle transaction hand on, more than once: whatever batches its events come in, in any order
and doubled, a key is with the row that has it when the transaction ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.audit.judge.histories import HistoryRules, versions
from distributary.changes.keys import KeyIndex
from distributary.changes.model import METADATA
from distributary.changes.reduce import Ranked, newest, partly
from distributary.changes.sequence import OrderSettings
from distributary.changes.spans import in_true_order
from distributary.tables.merge_rows import DELETED, MergeRules
from tests.events import Event, table_of
from tests.fuzz.histories import merged

COLUMNS = {"id": pa.int64(), "value": pa.string()}
ROWS = ("A", "B", "C")
KEYS = range(4)
RULES = MergeRules(order=OrderSettings(kind="oracle"), settled=frozenset())


@dataclass
class Database:
    """One table and its log. A statement inserts rows, deletes some, or gives rows new keys, for a while of two rows
    the same.

    `method`: how the log is read. Debezium without its headers says INSERT and DELETE of rows that get new keys, too.
    """

    dice: Random
    method: str = "oracle-cdc-logminer"
    rows: dict[str, int] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def transact(self, statements: int) -> None:
        """Keys are unique when a statement ends; how its changes lie in the log is left to chance."""
        transaction = f"tx {len(self.events)}"
        for _ in range(statements):
            new = [row for row in ROWS if row not in self.rows]
            old = [row for row in ROWS if row in self.rows]
            if old and self.dice.random() < 0.2:
                gone = self.dice.choice(old)
                self._log(transaction, "DELETE", gone, self.rows.pop(gone))
                continue
            some = new if new and (not old or self.dice.random() < 0.3) else old
            moved = self.dice.sample(some, self.dice.randint(1, len(some)))
            taken = {key for row, key in self.rows.items() if row not in moved}
            changes: list[tuple[str, str, int]] = []
            for row in moved:
                before, key = self.rows.get(row), self.dice.choice([key for key in KEYS if key not in taken])
                taken.add(key)
                if before is None:
                    changes.append(("INSERT", row, key))
                elif before == key:
                    changes.append(("UPDATE", row, key))
                else:
                    changes += [("UPDATE-DELETE", row, before), ("UPDATE-INSERT", row, key)]
                self.rows[row] = key
            for change, row, key in changes:
                self._log(transaction, change, row, key)

    def _log(self, transaction: str, change: str, row: str, key: int) -> None:
        at = len(self.events)
        self.values[row] = f"value {at}"
        source = {"scn": 100 + at // 3, "rs_id": f"0x000001.{at:08x}.0010", "ssn": 0}
        new = {"id": key, "value": self.values[row]}
        change = {"UPDATE-INSERT": "INSERT", "UPDATE-DELETE": "DELETE"}.get(change, change) if self._is_bare else change
        self.events.append(Event(new, at, change, tx=transaction, row_id=row, source=source, method=self.method))

    @property
    def _is_bare(self) -> bool:
        return self.method == "debezium"

    @property
    def held(self) -> dict[int, str]:
        return {key: self.values[row] for row, key in self.rows.items()}


def living(table: pa.Table) -> dict[Any, Any]:
    return {row["id"]: row["value"] for row in table.to_pylist() if not row[DELETED]}


def batches_of(events: Sequence[Event], dice: Random) -> list[list[Event]]:
    """In any order and cut, some of them more than once: as they were, or read once more."""
    come = [
        event.with_(read_ms=n, uuid=f"{n:032x}") for event in events for n in dice.choice(((0,), (0,), (0, 0), (0, 1)))
    ]
    dice.shuffle(come)
    found = []
    while come:
        size = dice.randint(1, 4)
        found.append(come[:size])
        come = come[size:]
    return found


def test_a_key_that_is_handed_on_twice_and_then_left_is_left_whatever_the_order_of_the_batches() -> None:
    def event(at: int, change: str, row_id: str) -> pa.Table:
        source = {"scn": 100, "rs_id": f"0x000001.{at:08x}.0010", "ssn": 0}
        new = Event({"id": 1, "value": row_id}, at, change, tx="tx", row_id=row_id, source=source)
        return table_of([new], COLUMNS, "oracle")

    events = [
        event(1, "UPDATE-INSERT", "A"), event(2, "UPDATE-INSERT", "C"), event(3, "UPDATE-DELETE", "A"),
        event(4, "UPDATE-DELETE", "C"),
    ]  # fmt: skip
    for order in permutations(events):
        table: pa.Table | None = None
        # The first one comes again at the end.
        for n in range(len(order) + 1):
            table = merged(table, [*order, order[0]][: n + 1], "id", RULES)
        assert table is not None
        assert living(table) == {}


def lived(method: str, dice: Random, transactions: list[int]) -> Database:
    """After transactions of so many statements."""
    database = Database(dice, method)
    for statements in transactions:
        database.transact(statements)
    return database


METHODS = st.sampled_from(["oracle-cdc-logminer", "debezium"])


@given(METHODS, st.randoms(use_true_random=False), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_a_key_is_with_the_row_that_has_it_when_its_transaction_ends(
    method: str, dice: Random, transactions: list[int]
) -> None:
    database = lived(method, dice, transactions)
    table: pa.Table | None = None
    log: list[pa.Table] = []
    for events in batches_of(database.events, dice):
        log.append(table_of(events, COLUMNS, "oracle"))
        table = merged(table, log, "id", RULES)
    assert table is not None
    assert living(table) == database.held


@given(METHODS, st.randoms(use_true_random=False), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_events_that_are_reduced_a_part_at_a_time_end_as_those_that_are_all_at_hand(
    method: str, dice: Random, transactions: list[int]
) -> None:
    database = lived(method, dice, transactions)
    held: list[pa.Table] = []
    for events in batches_of(database.events, dice):
        held = [partly(pa.concat_tables([*held, table_of(events, COLUMNS, "oracle")]), ["id"], RULES.order)]
    rows = newest(held[0], ["id"], RULES.order).to_pylist()
    assert {r["id"]: r["value"] for r in rows if not r["datastream_metadata"]["is_deleted"]} == database.held


@given(METHODS, st.randoms(use_true_random=False), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_the_last_event_of_a_key_in_its_history_is_that_of_the_row_that_has_it(
    method: str, dice: Random, transactions: list[int]
) -> None:
    """In the order of the product's histories, and in that of the judge's."""
    database = lived(method, dice, transactions)
    events = [event for batch in batches_of(database.events, dice) for event in batch]
    table = table_of(events, COLUMNS, "oracle")
    metadata = table.column(METADATA).combine_chunks()
    index = KeyIndex(table, ["id"])
    places = in_true_order(index.codes, Ranked.of(metadata, OrderSettings(kind="oracle"), oracle=True))
    rows = table.to_pylist()
    last = {rows[n]["id"]: rows[n] for n in np.argsort(places, kind="stable").tolist()}
    assert {key: r["value"] for key, r in last.items() if not r[METADATA]["is_deleted"]} == database.held
    rules = HistoryRules(["id"])
    judged = {
        key: versions(rules.said({**row, "_origin": None}) for row in rows if row["id"] == key)
        for key in {row["id"] for row in rows}
    }
    assert {key for key, of_key in judged.items() if of_key and of_key[-1].current} == database.held.keys()
