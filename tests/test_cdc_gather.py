"""Work by share of the keys: the same rows, whatever the number of shares and whoever wrote the files."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.sequence import OrderSettings
from distributary.engine.changes.gather import Gathered, by_share, in_share, shares_of
from distributary.engine.changes.seen_events import SeenEvents
from tests.test_cdc_orphans import events


def keyed(values: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({"id": pa.array(values, kind), "n": range(len(values))})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (keyed([1, -2, None], pa.int32()), keyed([1, -2, None], pa.int64())),
        (keyed([0.0, 1.5, float("nan")], pa.float32()), keyed([-0.0, 1.5, float("nan")], pa.float64())),
        (keyed(["a", "", None], pa.string()), keyed(["a", "", None], pa.large_string())),
        (keyed([b"a", b"", None], pa.binary()), keyed([b"a", b"", None], pa.large_binary())),
        (keyed([Decimal("1.50"), None], pa.decimal128(5, 2)), keyed([Decimal("1.5"), None], pa.decimal128(9, 1))),
    ],
    ids=["integers", "floats", "texts", "bytes", "decimals"],
)
def test_a_key_has_one_share_in_whatever_type_it_is_kept(one: pa.Table, other: pa.Table) -> None:
    for number in range(7):
        found = [in_share(rows, ["id"], number, 7).column("n").to_pylist() for rows in (one, other)]
        assert found[0] == found[1]


@pytest.mark.parametrize("shares", [1, 2, 9])
def test_every_row_is_in_one_share_also_where_the_columns_change(shares: int) -> None:
    pieces = [keyed(list(range(at, at + 50)), pa.int64()) for at in (0, 50, 100)]
    pieces[1] = pieces[1].append_column("more", pa.array(["x"] * 50))
    parts = [[row for piece in of for row in piece.column("id").to_pylist()] for of in by_share(pieces, ["id"], shares)]
    assert len(parts) == shares
    assert sorted(row for part in parts for row in part) == list(range(150))
    if shares > 1:
        assert all(len(part) < 150 for part in parts)


def test_what_is_held_is_a_row_per_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.engine.changes.gather.LEAST_ROWS", 8)
    held = Gathered(["id"], OrderSettings(), keeps_all=False)
    for at in range(0, 100, 5):
        held.add(events([(n % 3, n, "UPDATE", None, None) for n in range(at, at + 5)]))
    assert sum(piece.num_rows for piece in held._held) < 20
    found = held.rows()
    assert found is not None
    assert sorted(found.column("id").to_pylist()) == [0, 1, 2]
    assert {m["source_timestamp"] for m in found.column("datastream_metadata").to_pylist()} == {97, 98, 99}


def test_many_bytes_are_cut_into_shares_but_never_into_too_many() -> None:
    assert [shares_of(size) for size in (0, 128 << 20, 1 << 50)] == [1, 2, 256]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=60), st.integers(1, 7))
def test_a_tally_counts_each_event_once_and_knows_what_came_again(rows: list[tuple[str, int]], size: int) -> None:
    seen_events = SeenEvents()
    for at in range(0, len(rows), size):
        part = rows[at : at + size]
        seen_events.add(
            pa.chunked_array([pa.array([f for f, _ in part], pa.string())]),
            pa.chunked_array([pa.array([n for _, n in part], pa.int64())]),
        )
    assert seen_events.files.total() == len(rows)
    assert seen_events.repeated == len(rows) - len(set(rows))


def test_rows_that_name_no_event_are_strange_and_cost_no_memory() -> None:
    seen_events = SeenEvents()
    files = pa.chunked_array([pa.array(["a", None, "a", "a"])])
    seen_events.add(files, pa.chunked_array([pa.array([1, 2, 1 << 50, None], pa.int64())]))
    assert (seen_events.strange, dict(seen_events.files), seen_events.repeated) == (3, {"a": 1}, 0)


def test_a_tally_of_many_events_takes_a_bit_for_each() -> None:
    seen_events = SeenEvents()
    for at in range(0, 4_000_000, 1_000_000):
        numbers = pa.array(np.arange(at, at + 1_000_000))
        seen_events.add(pa.chunked_array([pa.repeat("a", len(numbers))]), pa.chunked_array([numbers]))
    assert sum(bits.nbytes for bits in seen_events._seen.values()) == 500_000
