"""Rows of a task in windows: as many at a time as it is to hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def windows(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.Table]:
    """The rows, about `most_bytes` at a time; none where there are no more."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= most_bytes:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if any(batch.num_rows for batch in pending):
        yield pa.Table.from_batches(pending)
