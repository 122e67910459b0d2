"""How many small files a table has, and which of them are best joined.

To join all of them each time would write the rows of a young table again and again. So they are joined by size, as a
log-structured store does it: the smallest files, together with each one that is not much larger than all before it. A
row is written anew about once for each doubling of its file, and files grow until they are large enough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from distributary.tables.snapshot import Snapshot

LARGER = 2.0
"""A file of more than so many times the bytes of all smaller ones together stays as it is."""
_PARTITION = "partition."


@dataclass(frozen=True)
class Crowd:
    """The files below the size to which files are joined: how many in the fullest partition, and up to which size
    (bytes) they are best joined now."""

    files: int
    join_up_to: int


def crowd_of(table: Snapshot, target: int) -> Crowd:
    """The small files of a table. `target`: bytes from which a file is large enough. Raises TableFault, OSError."""
    adds = table.adds()
    names = [name for name in adds.column_names if name.startswith(_PARTITION)]
    columns = [adds.column(name).to_pylist() for name in names]
    where = list(zip(*columns, strict=True)) if columns else [()] * adds.num_rows
    sizes: dict[tuple[object, ...], list[int]] = {}
    for partition, size in zip(where, adds.column("size_bytes").to_pylist(), strict=True):
        if size < target:
            sizes.setdefault(partition, []).append(size)
    return fullest(list(sizes.values()), target)


def fullest(partitions: Collection[Sequence[int]], target: int) -> Crowd:
    """`partitions`: bytes of the small files of each."""
    most = max(partitions, key=len, default=())
    return Crowd(len(most), min(target, 1 + joined_bytes(most)))


def joined_bytes(sizes: Sequence[int]) -> int:
    """The bytes of the files that are best joined into one; at least of the two smallest."""
    ordered = sorted(sizes)
    total = sum(ordered[:2])
    for size in ordered[2:]:
        if size > LARGER * total:
            break
        total += size
    return total
