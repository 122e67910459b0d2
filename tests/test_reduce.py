"""From a batch's events to one per key, whatever order they came in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.reduce import MissingColumns, newest, reduce_rows
from distributary.changes.sequence import OrderSettings
from tests.events import Event, backfilled, table_of

COLUMNS = {"id": pa.int64(), "value": pa.string()}


def values(found: pa.Table) -> dict[Any, Any]:
    return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


@given(st.permutations(range(6)), st.integers(0, 2))
def test_the_newest_event_of_each_key_stays_in_any_order_with_any_duplicates(order: list[int], twice: int) -> None:
    events = [
        Event({"id": 1, "value": "old"}, 10), Event({"id": 1, "value": "new"}, 20),
        Event({"id": 2, "value": "gone"}, 30, "UPDATE-DELETE"), Event({"id": 2, "value": "back"}, 30),
        backfilled({"id": 3, "value": "read"}, sec=99), Event({"id": 3, "value": "changed"}, 5),
    ]  # fmt: skip
    given_events = [events[n] for n in order] + [events[order[0]]] * twice
    assert values(newest(table_of(given_events, COLUMNS), ["id"])) == {1: "new", 2: "back", 3: "changed"}


def test_null_is_a_key_like_others() -> None:
    rows = table_of([Event({"id": None, "value": "a"}, 1), Event({"id": None, "value": "b"}, 2)], COLUMNS)
    assert values(newest(rows, ["id"])) == {None: "b"}


def test_rows_without_a_key_cannot_be_reduced() -> None:
    with pytest.raises(ValueError, match="without a key"):
        newest(table_of([Event({"id": 1}, 1)], COLUMNS), [])


def test_what_the_newest_event_does_not_say_comes_from_the_one_before() -> None:
    rows = table_of([Event({"id": 1, "value": "long"}, 1, "INSERT"), Event({"id": 1}, 2, "UPDATE")], COLUMNS)
    reduced = reduce_rows(rows, ["id"], OrderSettings(), MissingColumns(toast=("value",)))
    assert values(reduced.rows) == {1: "long"}
    assert not reduced.unchanged


def test_what_no_event_of_the_batch_says_is_left_to_the_table() -> None:
    rows = table_of([Event({"id": 1}, 2, "UPDATE"), Event({"id": 2, "value": "x"}, 3, "UPDATE")], COLUMNS)
    reduced = reduce_rows(rows, ["id"], OrderSettings(), MissingColumns(toast=("value",)))
    assert reduced.unchanged["value"].to_pylist() == [True, False]


def test_after_a_delete_an_unsaid_value_is_null() -> None:
    events = [
        Event({"id": 1, "value": "long"}, 1, "INSERT"), Event({"id": 1}, 2, "DELETE"), Event({"id": 1}, 3, "UPDATE"),
    ]  # fmt: skip
    reduced = reduce_rows(table_of(events, COLUMNS), ["id"], OrderSettings(), MissingColumns(toast=("value",)))
    assert values(reduced.rows) == {1: None}


@given(st.permutations(range(5)))
def test_oracle_a_key_that_changes_hands_twice_in_one_transaction_ends_right_within_a_batch(order: list[int]) -> None:
    """Row B leaves the key after A took it, as logged; then A leaves it too."""

    def event(at: int, change: str, row_id: str, tx: str = "tx") -> Event:
        source = {"scn": 100, "rs_id": f"0x000001.{at:08x}.0010", "ssn": 0}
        return Event({"id": 6, "value": row_id}, at, change, tx=tx, row_id=row_id, source=source)

    events = [
        event(1, "INSERT", "B", "before"), event(2, "UPDATE-INSERT", "A"), event(3, "UPDATE-DELETE", "B"),
        event(4, "UPDATE-DELETE", "A"), event(5, "UPDATE-INSERT", "C"),
    ]  # fmt: skip
    stays = newest(table_of([events[n] for n in order if n < 3], COLUMNS, "oracle"), ["id"])
    assert values(stays) == {6: "A"}
    gone = newest(table_of([events[n] for n in order if n < 4], COLUMNS, "oracle"), ["id"])
    assert gone["datastream_metadata"][0]["is_deleted"].as_py()
    assert values(newest(table_of([events[n] for n in order], COLUMNS, "oracle"), ["id"])) == {6: "C"}
