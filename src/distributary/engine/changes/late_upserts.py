"""Which events of a merge that is done could not be judged: asked again when its batch is, since what was said of them
was lost with the process. They are in the log only; the quarantine must have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.keys import KeyIndex
from distributary.changes.model import metadata_in
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.tombstones import with_tombstones


def late_upserts(rows: pa.Table, keys: Sequence[str], purged_until: int | None, table: Snapshot) -> pa.Table:
    """Of events, one per key, the upserts older than `purged_until` (ms) whose key the table does not have.

    Raises TableFault, OSError, pa.ArrowException.
    """
    if purged_until is None:
        return rows.slice(0, 0)
    metadata = rows.column(metadata_in(rows.column_names)).combine_chunks()
    time, backfill, deleted = (pc.struct_field(metadata, n) for n in ("source_timestamp", "is_backfill", "is_deleted"))
    either = pc.or_(pc.fill_null(backfill, False), pc.fill_null(deleted, False))
    old = rows.filter(pc.and_(pc.less(pc.fill_null(time, 0), purged_until), pc.invert(either)))
    if not old.num_rows:
        return old
    index = KeyIndex(old, keys)
    in_table = np.zeros(len(index), bool)
    for own in with_tombstones(table):
        for piece in TableFiles(own).read_all(keys):
            codes = index.find(piece)
            in_table[codes[codes >= 0]] = True
    return old.filter(pa.array(~in_table[index.codes]))
