"""Where a pipeline is spread over several processes: only the chunks of the routes that this one takes.

Every process reads the whole source, and cuts chunks of its own routes. What names no route belongs to the first share.
A replay cuts without this: whatever is in a share's quarantine is its own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from distributary.engine.messages.chunks import Cut, one_array
from distributary.shares import Share


class OwnedCut(Cut):
    """A `Cut` that leaves out what belongs to other shares."""

    def __init__(self, task: int, seq: int, share: Share) -> None:
        super().__init__(task, seq)
        self._share = share

    def tombstones(self, route: str | None, rows: int) -> None:
        if self._share.owns(route):
            super().tombstones(route, rows)

    def excluded(self, route: pa.Array) -> None:
        mine = self._owned(route)
        if len(our_routes := route if mine is None else route.filter(mine)):
            super().excluded(our_routes)

    def bad(self, rows: pa.Table) -> None:
        mine = self._owned(one_array(rows.column("route")))
        if mine is None:
            super().bad(rows)
        elif (our_rows := rows.filter(mine)).num_rows:
            super().bad(our_rows)

    def rows(self, route: pa.Array, *columns: Any) -> None:
        mine = self._owned(route)
        if mine is None:
            super().rows(route, *columns)
        else:
            super().rows(route.filter(mine), *(column.filter(mine) for column in columns))

    def _owned(self, route: pa.Array) -> pa.Array | None:
        """Which rows are ours; None for all of them. One look-up per distinct route."""
        encoded = route.dictionary_encode("encode")
        owns = pa.array([self._share.owns(name) for name in encoded.dictionary.to_pylist()], pa.bool_())
        return None if owns.true_count == len(owns) else owns.take(encoded.indices)
