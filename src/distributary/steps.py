"""Small works side by side: a step of each before the next step of any.

What a batch does for a table are steps of some tens of microseconds: bytes to columns, columns into the table's, a
Parquet file, its statistics, a commit. Each step is other code, Rust or C++ or Python, and all of it together is more
than a processor has at hand. One table after the other, each step finds its code gone; step by step it is fetched once
for many tables, which takes a quarter of the CPU time away (`make bench ONLY=append_vs_spark_jobs`).

A work is a generator that yields between its steps and returns what it has come to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

LARGE_BYTES = 8 << 20
"""So much is held for one work at a time only."""

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


def finished(work: Steps[T]) -> T:
    """What a work comes to, alone. Raises what it raises."""
    (result,) = side_by_side([work])
    return result


def unless_large(size: int, work: Steps[T]) -> Steps[T]:
    """`work`, which holds `size` bytes from its beginning on: step by step, or at once where others must not hold as
    much beside it."""
    return finished(work) if size > LARGE_BYTES else (yield from work)


def side_by_side(works: Iterable[Steps[T]]) -> list[T]:
    """What each of them comes to. Raises what one of them raises; then the others go no further."""
    going = dict(enumerate(works))
    results: dict[int, T] = {}
    while going:
        for number, work in list(going.items()):
            try:
                next(work)
            except StopIteration as end:
                results[number] = end.value
                del going[number]
    return [results[number] for number in sorted(results)]
