"""Which task writes what: chunks into buckets of equal weight, each no larger than a task may hold."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BUCKET_BYTES = 64 * 2**20
"""Payload bytes of a route that one task takes, and of a bucket: what bounds a task's memory."""
TABLE_WEIGHT = 1_500
"""A commit costs about what so many rows cost (measured: 3.5 ms against 2.5 us, two cores, local disk)."""
SHARE_ROWS = 100_000
"""A route with fewer rows is not worth several tasks."""


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk by (task, seq), with what it weighs. `route` None: rows for the quarantine. `cells`: rows times columns
    that it decodes to, where that could be too many for one piece."""

    task: int
    seq: int
    route: str | None
    rows: int
    size: int
    cells: int = 0


@dataclass(frozen=True)
class Packing:
    """`bucket_of`: chunk -> bucket. `shared`: routes whose commit is the driver's: those in several buckets, and those
    that a task writes in several pieces."""

    buckets: int
    bucket_of: dict[tuple[int, int], int]
    shared: frozenset[str]

    def as_arrays(self) -> list[list[int]]:
        """bucket_of as [task][seq]; -1 where there is no chunk to write."""
        table: list[list[int]] = []
        for (task, seq), bucket in sorted(self.bucket_of.items()):
            table.extend([] for _ in range(len(table), task + 1))
            table[task].extend([-1] * (seq - len(table[task])))
            table[task].append(bucket)
        return table


@dataclass(slots=True)
class _Item:
    route: str | None
    weight: int
    size: int
    chunks: list[ChunkRef] = field(default_factory=list)


def pack(chunks: Sequence[ChunkRef], slots: int, room: int = BUCKET_BYTES, most_cells: int | None = None) -> Packing:
    """Longest first, each to the bucket with the least weight that has room. A route too large for one task is cut
    by chunks. Only a single chunk, or a route that is one chunk, can be larger than a bucket; it then has one alone.

    `room`: bytes of a bucket, `BUCKET_BYTES` at least. `most_cells`: of a route, that one piece holds.
    """
    if not chunks:
        return Packing(0, {}, frozenset())
    total_size = sum(c.size for c in chunks)
    total_weight = sum(c.rows for c in chunks) + TABLE_WEIGHT * len({c.route for c in chunks})
    count = max(slots, -(-total_size // room))
    items, shared = _items(chunks, total_weight / count)
    wide = _wide(chunks, most_cells)
    buckets = _Buckets(min(count, len(items)), room)
    bucket_of: dict[tuple[int, int], int] = {}
    buckets_of: dict[str, set[int]] = {}
    for item in sorted(items, key=lambda i: -i.weight):
        bucket = buckets.take(item)
        for chunk in item.chunks:
            bucket_of[chunk.task, chunk.seq] = bucket
            if item.route in shared:
                buckets_of.setdefault(item.route, set()).add(bucket)
    spread = frozenset(r for r, buckets_found in buckets_of.items() if len(buckets_found) > 1)
    return Packing(len(buckets.sizes), bucket_of, spread | wide)


def _wide(chunks: Sequence[ChunkRef], most_cells: int | None) -> frozenset[str]:
    """Routes of more cells than one piece holds."""
    cells: dict[str, int] = {}
    for chunk in chunks:
        if chunk.route is not None:
            cells[chunk.route] = cells.get(chunk.route, 0) + chunk.cells
    return frozenset(
        route for route, cells_found in cells.items() if most_cells is not None and cells_found > most_cells
    )


class _Buckets:
    """Buckets by weight; opens another one when an item has room in none."""

    def __init__(self, count: int, room: int) -> None:
        self.room = room
        self.sizes = [0] * count
        self._lightest = [(0, b) for b in range(count)]

    def take(self, item: _Item) -> int:
        passed: list[tuple[int, int]] = []
        while self._lightest:
            weight, bucket = heapq.heappop(self._lightest)
            if not self.sizes[bucket] or self.sizes[bucket] + item.size <= self.room:
                break
            passed.append((weight, bucket))
        else:
            weight, bucket = 0, len(self.sizes)
            self.sizes.append(0)
        for entry in (*passed, (weight + item.weight, bucket)):
            heapq.heappush(self._lightest, entry)
        self.sizes[bucket] += item.size
        return bucket


def _items(chunks: Sequence[ChunkRef], fair: float) -> tuple[list[_Item], set[str]]:
    by_route: dict[str | None, _Item] = {}
    for chunk in chunks:
        item = by_route.setdefault(chunk.route, _Item(chunk.route, TABLE_WEIGHT, 0))
        item.weight += chunk.rows
        item.size += chunk.size
        item.chunks.append(chunk)
    items: list[_Item] = []
    shared: set[str] = set()
    for route, item in by_route.items():
        hot = item.weight > fair * 1.1 and item.weight - TABLE_WEIGHT >= SHARE_ROWS
        large = hot or item.size > BUCKET_BYTES
        if route is None or (large and len(item.chunks) > 1):
            items.extend(_Item(route, c.rows + TABLE_WEIGHT, c.size, [c]) for c in item.chunks)
            shared |= set() if route is None else {route}
        else:
            items.append(item)
    return items, shared


def refs(rows: Iterable[tuple[int, int, str, str | None, int, int, int]]) -> list[ChunkRef]:
    """Chunks that hold rows, from (task, seq, kind, route, rows, size, cells)."""
    return [ChunkRef(t, s, r, n, z, c) for t, s, kind, r, n, z, c in rows if kind in ("rows", "bad")]
