"""The new versions of rows: what the events say, and the values that stay as the table has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.reduce import Places
from distributary.changes.sequence import Bools
from distributary.tables.merge_rows import DELETED, DELETED_AT, Incoming, bools, flat


def completed(
    incoming: Incoming, places: Places, old: pa.Table, olds: Places, unchanged: Mapping[str, pa.Array]
) -> pa.Table:
    """The new versions of rows (`places`: their events), with the values that stay as the table has them.

    `old`: rows of the table that are replaced; `olds`: the event of each.
    """
    rows = incoming.rows.take(pa.array(places))
    kept_columns = _kept_columns(incoming, rows, places, unchanged)
    if not kept_columns or not old.num_rows:
        return rows
    # Of two old rows of one key the last counts; both go.
    row_of = np.full(incoming.rows.num_rows, -1, np.int64)
    row_of[olds] = np.arange(len(olds))
    old_of = row_of[places]
    living = bools(pc.invert(pc.fill_null(flat(old.column(DELETED)), False)))
    for column, (mask, from_dead) in kept_columns.items():
        use = mask & (old_of >= 0) & ~incoming.was_dead[places]
        if not from_dead:
            use &= living[old_of]
        new = flat(rows.column(column))
        both = pa.concat_arrays([new, flat(old.column(column))])
        picked = np.where(use, len(new) + old_of, np.arange(len(new)))
        number = rows.column_names.index(column)
        rows = rows.set_column(number, rows.schema.field(number), both.take(pa.array(picked)))
    return rows


def _kept_columns(
    incoming: Incoming, rows: pa.Table, places: Places, unchanged: Mapping[str, pa.Array]
) -> dict[str, tuple[Bools, bool]]:
    """Column -> (rows whose value stays, also that of a tombstone)."""
    kept_columns = {
        column: (bools(mask)[places], False) for column, mask in unchanged.items() if column in rows.column_names
    }
    are_deleted = incoming.deletes[places]
    if incoming.rules.keep_deleted_values and are_deleted.any():
        for column in rows.column_names:
            if column not in (*incoming.keys, incoming.metadata, DELETED, DELETED_AT):
                kept_columns[column] = (are_deleted & bools(pc.is_null(flat(rows.column(column)))), True)
    return {column: (mask, dead) for column, (mask, dead) in kept_columns.items() if mask.any()}


@dataclass(frozen=True, slots=True)
class Tail:
    """New versions of the rows that went out of one file. `olds`: their events, in the order of the file."""

    incoming: Incoming
    unchanged: Mapping[str, pa.Array]
    places: Places
    olds: Places

    @property
    def asks_old(self) -> bool:
        """Does some new version keep a value of its old one?"""
        keeps = self.incoming.rules.keep_deleted_values and self.incoming.deletes[self.places].any()
        return bool(keeps) or any(pc.any(mask.take(pa.array(self.places))).as_py() for mask in self.unchanged.values())

    def __call__(self, dropped_rows: pa.Table | None, dropped: Places) -> pa.Table:
        old = self.incoming.rows.schema.empty_table() if dropped_rows is None else dropped_rows
        return completed(self.incoming, self.places, old, self.olds, self.unchanged)
