"""Chunks into buckets: none lost, none too large, no bucket much heavier than it has to be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from distributary.engine.packing import BUCKET_BYTES, SHARE_ROWS, TABLE_WEIGHT, ChunkRef, Packing, pack, refs

ROUTES = ["hot", "a", "b", "c", "d", None]


@st.composite
def chunk_lists(draw: st.DrawFn, max_size: int = BUCKET_BYTES // 2, max_rows: int = 65_536) -> list[ChunkRef]:
    places = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), unique=True, max_size=25))
    rows, sizes = st.integers(1, max_rows), st.integers(1, max_size)
    return [ChunkRef(t, s, draw(st.sampled_from(ROUTES)), draw(rows), draw(sizes)) for t, s in places]


def bytes_by_bucket(chunks: list[ChunkRef], found: Packing) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for c in chunks:
        sizes[found.bucket_of[c.task, c.seq]] += c.size
    return sizes


def buckets_of(route: str, chunks: list[ChunkRef], found: Packing) -> set[int]:
    return {found.bucket_of[c.task, c.seq] for c in chunks if c.route == route}


def weight_by_bucket(chunks: list[ChunkRef], found: Packing) -> Counter[int]:
    weights: Counter[int] = Counter()
    for route in {c.route for c in chunks}:
        own = [c for c in chunks if c.route == route]
        alone = route is None or route in found.shared
        for c in own:
            weights[found.bucket_of[c.task, c.seq]] += c.rows + (TABLE_WEIGHT if alone else 0)
        if not alone:
            weights[found.bucket_of[own[0].task, own[0].seq]] += TABLE_WEIGHT
    return weights


@given(chunk_lists(), st.integers(1, 8))
def test_every_chunk_lands_in_exactly_one_bucket(chunks: list[ChunkRef], slots: int) -> None:
    found = pack(chunks, slots)
    assert found.bucket_of.keys() == {(c.task, c.seq) for c in chunks}
    assert set(found.bucket_of.values()) == set(range(found.buckets))


@given(chunk_lists(), st.integers(1, 8))
def test_as_arrays_says_the_same(chunks: list[ChunkRef], slots: int) -> None:
    found = pack(chunks, slots)
    said = {(t, s): b for t, row in enumerate(found.as_arrays()) for s, b in enumerate(row) if b >= 0}
    assert said == found.bucket_of


def test_as_arrays_leaves_gaps_where_there_is_no_chunk() -> None:
    assert Packing(2, {(0, 1): 0, (2, 0): 1}, frozenset()).as_arrays() == [[-1, 0], [], [1]]


@given(chunk_lists(), st.integers(1, 8))
def test_a_route_is_shared_exactly_when_it_is_in_several_buckets(chunks: list[ChunkRef], slots: int) -> None:
    """What the packing calls shared is committed by the driver; all else by the one task that has it."""
    found = pack(chunks, slots)
    for route in {c.route for c in chunks if c.route is not None}:
        assert (len(buckets_of(route, chunks, found)) > 1) == (route in found.shared)


@given(chunk_lists(max_size=1000), st.integers(1, 8))
def test_a_route_below_the_row_limit_is_never_shared(chunks: list[ChunkRef], slots: int) -> None:
    rows: Counter[str | None] = Counter()
    for c in chunks:
        rows[c.route] += c.rows
    assert all(rows[route] >= SHARE_ROWS for route in pack(chunks, slots).shared)


def test_the_cost_of_a_commit_does_not_count_as_rows() -> None:
    chunks = [ChunkRef(0, n, "a", (SHARE_ROWS - 1) // 2, 1) for n in range(2)]
    assert pack(chunks, 8).shared == frozenset()


@given(chunk_lists(max_size=BUCKET_BYTES), st.integers(1, 8))
def test_no_bucket_holds_more_than_a_task_may(chunks: list[ChunkRef], slots: int) -> None:
    found = pack(chunks, slots)
    assert all(size <= BUCKET_BYTES for size in bytes_by_bucket(chunks, found).values())


@given(chunk_lists(max_size=BUCKET_BYTES), st.integers(1, 8))
def test_the_bytes_do_not_make_needlessly_many_buckets(chunks: list[ChunkRef], slots: int) -> None:
    """A bucket is opened only when none has room, so any two that were opened hold more than one may."""
    least = -(-sum(c.size for c in chunks) // BUCKET_BYTES)
    assert pack(chunks, slots).buckets <= max(slots, least) + 2 * least


def test_a_chunk_too_large_for_a_bucket_has_one_of_its_own() -> None:
    chunks = [ChunkRef(0, 0, "big", 10, 2 * BUCKET_BYTES), *(ChunkRef(0, n, f"r{n}", 10, 1) for n in range(1, 9))]
    found = pack(chunks, 2)
    alone = found.bucket_of[0, 0]
    assert [place for place, bucket in found.bucket_of.items() if bucket == alone] == [(0, 0)]


def test_few_rows_with_many_bytes_are_spread_too() -> None:
    heavy = [ChunkRef(0, n, f"heavy{n}", 10, BUCKET_BYTES * 2 // 3) for n in range(4)]
    light = [ChunkRef(1, n, f"light{n}", 60_000, 1000) for n in range(4)]
    found = pack([*heavy, *light], 4)
    assert max(bytes_by_bucket([*heavy, *light], found).values()) <= BUCKET_BYTES


@given(chunk_lists(max_size=1000), st.integers(1, 8))
def test_no_bucket_is_much_heavier_than_it_has_to_be(chunks: list[ChunkRef], slots: int) -> None:
    """Graham's bound: the heaviest bucket is at most the fair share and one item, whatever the order."""
    if not chunks:
        return
    found = pack(chunks, slots)
    weights = weight_by_bucket(chunks, found)
    items: Counter[object] = Counter()
    for c in chunks:
        alone = c.route is None or c.route in found.shared
        items[(c.task, c.seq) if alone else c.route] += c.rows + TABLE_WEIGHT
    # a route cut by chunks that all landed in one bucket pays its commit once
    assert max(weights.values()) <= sum(items.values()) / min(slots, len(items)) + max(items.values())


@given(st.integers(2, 8), st.integers(4, 12))
def test_a_hot_route_is_shared(slots: int, hot: int) -> None:
    chunks = [ChunkRef(0, n, "hot", 65_536, 10**6) for n in range(hot)]
    chunks += [ChunkRef(1, n, f"cold{n}", 100, 10**3) for n in range(20)]
    found = pack(chunks, slots)
    assert found.shared == {"hot"}
    assert len(buckets_of("hot", chunks, found)) == min(slots, hot)
    weights = weight_by_bucket(chunks, found)
    assert max(weights.values()) <= sum(weights.values()) / slots + 65_536 + TABLE_WEIGHT


def test_a_route_larger_than_a_bucket_is_shared_even_with_few_rows() -> None:
    chunks = [ChunkRef(0, n, "fat", 10, BUCKET_BYTES // 2 + 1) for n in range(3)]
    found = pack(chunks, 1)
    assert found.shared == {"fat"}
    assert found.buckets == 3


def test_one_slot_shares_nothing_that_fits() -> None:
    chunks = [ChunkRef(0, n, "hot", 65_536, 1000) for n in range(9)]
    assert pack(chunks, 1) == Packing(1, dict.fromkeys([(0, n) for n in range(9)], 0), frozenset())


def test_nothing_to_pack_needs_no_bucket() -> None:
    assert pack([], 4) == Packing(0, {}, frozenset())
    assert pack([], 4).as_arrays() == []


def test_a_thousand_small_routes_fill_all_slots_evenly() -> None:
    chunks = [ChunkRef(n % 4, n // 4, f"r{n}", 100, 10_000) for n in range(1000)]
    weights = weight_by_bucket(chunks, found := pack(chunks, 8))
    assert found.buckets == 8
    assert max(weights.values()) == min(weights.values())


def test_a_route_of_more_cells_than_a_piece_holds_is_committed_by_the_driver() -> None:
    chunks = [ChunkRef(0, 0, "wide", 60_000, 400_000, 60_000 * 1_700), ChunkRef(0, 1, "flat", 60_000, 4_000_000)]
    assert pack(chunks, 2, most_cells=1 << 24).shared == {"wide"}
    assert pack(chunks, 2).shared == frozenset()


def test_only_chunks_that_hold_rows_are_packed() -> None:
    rows = [(0, n, kind, "r", 1, 2, 0) for n, kind in enumerate(["rows", "bad", "tombstones", "unknown"])]
    assert [(c.task, c.seq) for c in refs(rows)] == [(0, 0), (0, 1)]
