"""A value that was not logged, and an event that comes late and says it, or says that there was none.

A row holds what its newest event says, and in a column of which that one does not speak the value of the newest older
event that does. Of that event the row does not say where it stands. So where a late one comes, nobody can say which of
the two holds but by all events of the key: the log has them, and the merge asks for them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digits import UNCHANGED, unchanged_columns
from distributary.changes.sequence import Bools

FIELDS = ("schema_key", "is_deleted")
"""Of an event's metadata, what is read here."""


class Unfilled(Exception):
    """The rows of these `keys` (a table of their columns) lack values that late events may say."""

    def __init__(self, keys: pa.Table) -> None:
        self.keys = keys
        super().__init__(f"late events of {keys.num_rows} keys may say what newer ones do not")


def lacking(rows: pa.Array) -> Bools:
    """Which rows, by their metadata, do not say all their values themselves."""
    marked = pc.match_substring(pc.struct_field(rows, "schema_key"), UNCHANGED)
    lacks: Bools = pc.fill_null(marked, False).to_numpy(zero_copy_only=False)
    return lacks


def may_say(event: pa.Array, row: pa.Array) -> list[bool]:
    """Whether each event says a value that its row lacks: also a delete does, that there is none."""
    deleted = pc.fill_null(pc.struct_field(event, "is_deleted"), False).to_pylist()
    keys = (pc.fill_null(pc.struct_field(struct, "schema_key"), "").to_pylist() for struct in (event, row))
    return [
        is_delete or not set(unchanged_columns(lacks)) <= set(unchanged_columns(says))
        for is_delete, says, lacks in zip(deleted, *keys, strict=True)
    ]
