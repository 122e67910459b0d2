"""Tombstones out of a merged table into the one beside it, where they are to be from now on (`tables.tombstones`).

The table says so first: no merge adds a tombstone to it any more, and each looks at both places. Then they are copied,
then deleted. Who dies in between does it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digits import metadata_in
from distributary.changes.reduce import Reduced, reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.tables.files import TableFiles
from distributary.tables.merge import MergeTarget, merge_rows
from distributary.tables.merge_rows import DELETED, MergeRules, fitted
from distributary.tables.snapshot import Snapshot, Txn
from distributary.tables.table import Table, retried
from distributary.tables.tombstones import BESIDE, POLICY, PROPERTY, Tombstones, are_beside, columns_beside, place_of

AT_ONCE = 1 << 18
"""Tombstones that are moved at a time, at the least."""
MOVED = "moved tombstones"
"""Stream of the commits that copy them."""


def move_beside(table: Snapshot, order: OrderSettings) -> int:
    """Move the tombstones of a merged table beside it; how many. `table` is then of the newest version.

    Raises CommitConflict where somebody else was first, TableFault, OSError, pa.ArrowException.
    """
    owner = table.owner
    keys = () if owner is None else owner.keys
    if not keys:
        return 0
    place = place_of(Table(table.uri, table.store, owner))
    columns = columns_beside(table.schema, keys, metadata_in(table.schema.names))
    if not are_beside(table):
        Tombstones(place).made(columns, keys)
        table.set_properties({PROPERTY: BESIDE})
        table.refresh()
    moved = 0
    for rows in _tombstones_in(table, columns):
        events = reduce_rows(rows.drop_columns(columns.names[-2:]), keys, order)
        retried(lambda events=events: _copy(place, columns, events, keys, order))  # type: ignore[misc]
        moved += rows.num_rows
    if moved:
        table.delete(f"{DELETED} = true")
        table.refresh()
    return moved


def _copy(place: Table, columns: pa.Schema, events: Reduced, keys: Sequence[str], order: OrderSettings) -> None:
    opened = Tombstones(place).made(columns, keys)
    target = MergeTarget(place, opened.before, POLICY)
    merged = merge_rows(target, events, keys, MergeRules(order=order), Txn(MOVED, 0))
    if merged.why_spark is not None:
        raise OSError(f"{place.uri}: {merged.why_spark}")


def _tombstones_in(table: Snapshot, columns: pa.Schema) -> Iterator[pa.Table]:
    dead_rows: list[pa.Table] = []
    for piece in TableFiles(table).read_all(columns.names):
        dead = piece.filter(pc.fill_null(piece.column(DELETED), False))
        if dead.num_rows:
            dead_rows.append(fitted(dead, columns))
        if sum(rows.num_rows for rows in dead_rows) >= AT_ONCE:
            yield pa.concat_tables(dead_rows)
            dead_rows = []
    if dead_rows:
        yield pa.concat_tables(dead_rows)
