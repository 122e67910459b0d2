"""Work by share of the keys: the same rows, whatever the number of shares and whoever wrote the files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.changes.sequence import OrderSettings
from distributary.engine.changes.gather import Gathered, by_share
from distributary.engine.changes.key_shares import KeyShares, key_shares, shares_of
from distributary.engine.changes.seen_events import SeenEvents
from distributary.tables.store import Store
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
        shares = KeyShares(("id",), 7)
        found = [shares.of(rows, number).column("n").to_pylist() for rows in (one, other)]
        assert found[0] == found[1]


def ids_of(pieces: Iterable[pa.Table]) -> list[Any]:
    return [row for piece in pieces for row in piece.column("id").to_pylist()]


@pytest.mark.parametrize("shares", [1, 2, 9])
def test_every_row_is_in_one_share_also_where_the_columns_change(shares: int) -> None:
    pieces = [keyed(list(range(at, at + 50)), pa.int64()) for at in (0, 50, 100)]
    pieces[1] = pieces[1].append_column("more", pa.array(["x"] * 50))
    parts = [ids_of(part.pieces) for part in by_share(pieces, KeyShares(("id",), shares))]
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
    assert [shares_of(size) for size in (0, 96 << 20, 1 << 50)] == [1, 2, 256]


def test_the_last_share_is_the_last_one_with_a_row() -> None:
    """Its commit carries the batch's transaction, so it must not be one that merges nothing."""
    shares = KeyShares(("id",), 4, "id", pa.array([10, 20, 30]))
    pieces = [keyed([1, 25], pa.int64()), keyed([12, None], pa.int64())]
    parts = [(ids_of(part.pieces), part.is_last) for part in by_share(pieces, shares)]
    assert parts == [([1, None], False), ([12], False), ([25], True), ([], True)]


def test_shares_that_hold_other_keys_or_have_another_order_have_other_names() -> None:
    """A merge that was killed goes on by the names of its shares: with a log that was compacted meanwhile, other rows
    are looked at, and the bounds are others."""
    plain, order = OrderSettings(), OrderSettings(epochs=((5, 1),))
    shares, by_hash = KeyShares(("id",), 3, "id", pa.array([10, 20])), KeyShares(("id",), 3)
    assert shares.name(1, plain) == KeyShares(("id",), 3, "id", pa.array([10, 20])).name(1, plain)
    others = [KeyShares(("id",), 3, "id", pa.array([10, 21])), KeyShares(("id",), 3, "n", pa.array([10, 20])), by_hash]
    names = {shares.name(1, plain), shares.name(2, plain), *(other.name(1, plain) for other in others)}
    assert len(names | {shares.name(1, order), by_hash.name(1, order)}) == 7


KEYS_OF_ALL_TYPES = [
    (pa.int64(), list(range(-3000, 3000))),
    (pa.decimal128(38, 0), [Decimal(n) * 10**20 for n in range(6000)]),
    (pa.string(), [f"user {n:05}" for n in range(6000)]),
    (pa.date32(), [date(2000, 1, 1) + timedelta(days=n) for n in range(6000)]),
    (pa.timestamp("us", "UTC"), [datetime(2000, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(6000)]),
]


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary.engine.changes.key_shares.SHARE_BYTES", 20_000)
    monkeypatch.setattr("distributary.engine.changes.key_shares.SMALL_BYTES", 100)


def log_of(folder: Path, *columns: dict[str, pa.Array]) -> list[str]:
    for number, of_file in enumerate(columns):
        pq.write_table(pa.table(of_file), folder / f"{number}.parquet")
    return [f"{number}.parquet" for number in range(len(columns))]


@pytest.mark.usefixtures("small_shares")
@pytest.mark.parametrize(
    ("kind", "keys"), KEYS_OF_ALL_TYPES, ids=lambda value: str(value) if not isinstance(value, list) else ""
)
def test_shares_are_even_ranges_of_the_keys_whatever_their_type(
    tmp_path: Path, kind: pa.DataType, keys: list[Any]
) -> None:
    shuffled = list(np.random.default_rng(1).permutation(len(keys)))
    files = [pa.array([keys[n] for n in shuffled[at::3]], kind) for at in range(3)]
    names = log_of(tmp_path, *({"id": ids} for ids in files))
    shares = key_shares(str(tmp_path), names, ["id"], {"id": kind}, Store())
    assert (shares.column, shares.count >= 2) == ("id", True)
    parts = [sorted(ids_of(part.pieces)) for part in by_share([pa.table({"id": ids}) for ids in files], shares)]
    assert [row for part in parts for row in part] == sorted(keys), "one range after the other"
    assert max(map(len, parts)) < 2 * len(keys) / shares.count
    assert shares == key_shares(str(tmp_path), names[::-1], ["id"], {"id": kind}, Store()), (
        "the same for the same files"
    )


@pytest.mark.usefixtures("small_shares")
def test_keys_are_cut_by_the_column_that_tells_them_apart_else_by_hash(tmp_path: Path) -> None:
    few, many = pa.array(np.arange(6000) % 2), pa.array(np.arange(6000))
    keys, types = ["tenant", "id"], {"tenant": pa.int64(), "id": pa.int64()}
    shares = key_shares(str(tmp_path), log_of(tmp_path, {"tenant": few, "id": many}), keys, types, Store())
    assert shares.column == "id"
    shares = key_shares(str(tmp_path), log_of(tmp_path, {"tenant": few, "id": few}), keys, types, Store())
    assert (shares.column, shares.count > 2) == (None, True)


@pytest.mark.usefixtures("small_shares")
def test_rows_count_by_their_memory_not_by_the_bytes_of_their_files(tmp_path: Path) -> None:
    alike = {"id": pa.array(range(2000)), "note": pa.repeat("the same long note in every row " * 10, 2000)}
    names = log_of(tmp_path, alike)
    assert (tmp_path / names[0]).stat().st_size < 20_000
    assert key_shares(str(tmp_path), names, ["id"], {"id": pa.int64()}, Store()).count > 20


@given(st.lists(st.one_of(st.none(), st.decimals(-(10**9), 10**9, places=9)), min_size=1), st.integers(1, 9))
def test_equal_keys_have_one_share_and_a_range_ends_before_the_next_one_begins(
    values: list[Decimal | None], cuts: int
) -> None:
    kind = pa.decimal128(38, 9)
    bounds = pa.array(sorted({float(v) for v in values if v is not None})[::cuts], pa.float64())
    shares = KeyShares(("id",), len(bounds) + 1, "id", bounds)
    numbers = shares.numbers(pa.table({"id": pa.array(values, kind)})).tolist()
    share_of: dict[Decimal | None, int] = {}
    for value, number in zip(values, numbers, strict=True):
        assert share_of.setdefault(value, number) == number
        assert number <= len(bounds)
    ordered = [share_of[value] for value in sorted(v for v in share_of if v is not None)]
    assert ordered == sorted(ordered)


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
