"""What a data file's footer says of the order of its events: whether a merge must read their sequence numbers at all.

A number is 110 digits, a key often eight bytes: of a large file the numbers are nearly all that a merge reads. Most
events are newer than every row of the table, and the bounds of a file's numbers prove it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from distributary.changes.digits import NUMBER

TIME = "source_timestamp"


@dataclass(frozen=True, slots=True)
class EventBounds:
    """Of the rows of one file: their least and greatest number, and the greatest source time in ms; rows whose number
    is null are in none of them. `latest_ms`: None where the file does not say."""

    low: bytes
    high: bytes
    latest_ms: int | None


def event_bounds(footer: pq.FileMetaData, metadata: str) -> EventBounds | None:
    """By the statistics of the column `metadata`; None where they say nothing of the numbers. A bound that its writer
    has cut is still one (Parquet format, "Statistics": is_max_value_exact)."""
    numbers = _ends(footer, f"{metadata}.{NUMBER}")
    times = _ends(footer, f"{metadata}.{TIME}")
    if numbers is None or not all(isinstance(end, str | bytes) for end in numbers):
        return None
    low, high = (end.encode() if isinstance(end, str) else end for end in numbers)
    return EventBounds(low, high, times[1] if times is not None and isinstance(times[1], int) else None)


def _ends(footer: pq.FileMetaData, path: str) -> tuple[Any, Any] | None:
    """The least and the greatest value of a leaf; None where a row group that has values does not say."""
    ends: list[tuple[Any, Any]] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        index = next((n for n in range(group.num_columns) if group.column(n).path_in_schema == path), None)
        statistics = None if index is None else group.column(index).statistics
        if statistics is None:
            return None
        if statistics.has_min_max:
            ends.append((statistics.min, statistics.max))
        elif not statistics.has_null_count or statistics.null_count != group.num_rows:
            return None
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
