"""Which rows of the quarantine are in a table already: their commit seemed to fail, though it had come through."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from distributary.engine.messages.task_spec import MessageSpec
from distributary.errors import Reason
from distributary.tables.snapshot import Snapshot, batches_of
from distributary.tables.table import Table


def already_there(rows: pa.Table, route: str, spec: MessageSpec) -> pa.Array:
    """Rows that were kept aside because a table of the route failed, though its commit had come through."""
    tables = (Table(uri, spec.store).open() for uri in spec.all_of(route))
    return reduce(pc.and_, (committed(rows, route, table).fill_null(False) for table in tables))


def in_log(rows: pa.Table, route: str, spec: MessageSpec) -> pa.Array:
    """Rows whose merge failed once their log had them."""
    uri = spec.log(route)
    return committed(rows, route, None if uri is None else Table(uri, spec.store).open()).fill_null(False)


def unsure_rows(rows: pa.Table, route: str, spec: MessageSpec, *, is_claimed: bool = False) -> pa.Array:
    """Rows that a table which keeps every row may have or not, as nobody can say any more. A merge does no harm twice.
    `is_claimed`: by the replay of `spec`, which may have written them."""
    uri = spec.log(route) if spec.has_events(route) else spec.table(route)
    table = None if uri is None else Table(uri, spec.store).open()
    if table is None or (is_claimed and table.has(spec.txn)):
        return pa.array([False] * rows.num_rows, pa.bool_())
    return committed(rows, route, table).is_null()


def committed(rows: pa.Table, route: str, table: Snapshot | None) -> pa.Array:
    """Of rows that were kept aside because a table of the route failed: is the commit of their batch in this one? Null
    where nobody can say: the table has taken batches since, and its log does not go back to that one any more."""
    columns = (rows.column(n).to_pylist() for n in ("reason", "stream", "batch"))
    batches = [None if r != Reason.TABLE_PARKED else (stream, batch) for r, stream, batch in zip(*columns, strict=True)]
    if table is None or not any(batches):
        return pa.array([False] * len(batches), pa.bool_())
    answers = _Answers(route, table)
    answer_of = {b: answers.of(*b) for b in set(batches) if b is not None}
    return pa.array([False if b is None else answer_of[b] for b in batches], pa.bool_())


class _Answers:
    def __init__(self, route: str, table: Snapshot) -> None:
        self._table = table
        commits = table.history()
        self._txns = batches_of(commits, route).keys()
        self._oldest: dict[str, int] = {}
        """Stream -> the oldest batch that the log still has: all that came after it are there too."""
        for stream, batch in batches_of(commits):
            self._oldest[stream] = min(batch, self._oldest.get(stream, batch))
        self._is_whole = any(commit["version"] == 0 for commit in commits)

    def of(self, stream: str, batch: int) -> bool | None:
        if (stream, batch) in self._txns:
            return True
        if self._is_whole or self._oldest.get(stream, batch) < batch or self._table.newest(stream) < batch:
            return False
        return None
