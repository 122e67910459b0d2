"""Layout `wide`: what all tasks of a batch wrote becomes one commit of one table, which says how many rows of which
routes it took. A batch that is done again counts by that, and keeps aside the rows of a route that it had left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from distributary.engine.messages.task_spec import ORIGIN, MessageSpec
from distributary.tables.datafile import DataFile
from distributary.tables.snapshot import Snapshot, columns_of
from distributary.tables.wide import about, grown, within


def commit_wide(
    table: Snapshot | None,
    spec: MessageSpec,
    columns: Mapping[str, pa.Schema],
    files: Sequence[DataFile],
    rows: Mapping[str, int],
) -> None:
    """Take `files` into the wide table in one marked commit. `columns`: what each route sees of the table then.

    Raises CommitConflict, TableFault, OSError.
    """
    assert spec.wide is not None
    before = columns_of(table)
    spec.target("").commit(
        table, grown(before, columns, ORIGIN), files, spec.txn, about=about(rows), within=within(*columns)
    )
