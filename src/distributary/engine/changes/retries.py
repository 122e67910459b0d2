"""What of the change files is in the quarantine, and its way back: the files are given to the stream once more.

A file that comes again unchanged is delivered for the events that are still kept aside only, so that no event gets into
a log twice. One that has changed, or of which nothing could be read, is delivered whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from distributary.engine.changes.task_spec import WorkFile
from distributary.errors import Reason
from distributary.sources.file_ledger import of_paths
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, update_rows
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

_WANTED = ("id", "route", "reason", "level", "file", "row")


@dataclass(frozen=True, slots=True)
class RejectedEvent:
    """One open row of the quarantine."""

    id: str
    route: str | None
    reason: str
    level: str
    file: str
    row: int | None


class EventQuarantine:
    """The quarantine of a pipeline of change files."""

    def __init__(self, uri: str, store: Store) -> None:
        self.uri = uri
        self.store = store

    def open_rows(self, condition: str = "TRUE") -> list[RejectedEvent]:
        """Rows that wait, for which the SQL condition `condition` holds. Raises TableFault, OSError."""
        columns = ", ".join(f'"{name}"' for name in _WANTED)
        rows = self._query(f"SELECT {columns} FROM t WHERE state = 'open' AND ({condition})")
        if rows is None:
            return []
        return [RejectedEvent(*values) for values in zip(*(rows.column(n).to_pylist() for n in _WANTED), strict=True)]

    def waiting(self) -> dict[str, list[tuple[str, bytes]]]:
        """Events that are in a log and wait to be merged, by route: (id, the row). Raises TableFault, OSError."""
        rows = self._query(f"SELECT id, route, value FROM t WHERE state = 'open' AND reason = '{Reason.ROW_NOT_FOUND}'")
        waits: dict[str, list[tuple[str, bytes]]] = {}
        if rows is not None:
            for row in rows.to_pylist():
                waits.setdefault(row["route"], []).append((row["id"], row["value"]))
        return waits

    def of_files(self, paths: Collection[str]) -> dict[str, list[RejectedEvent]]:
        """Open rows by file."""
        if not paths:
            return {}
        listed = ", ".join("'" + p.replace("'", "''") + "'" for p in sorted(paths))
        rows_of: dict[str, list[RejectedEvent]] = {}
        for row in self.open_rows(f"file IN ({listed})"):
            rows_of.setdefault(row.file, []).append(row)
        return rows_of

    def release(self, ids: Sequence[str]) -> None:
        """Mark rows as brought back. Does nothing to those that are. A run that commits at the same moment makes this
        try again. Raises TableFault, OSError."""
        if not ids:
            return
        update_rows(self.uri, self.store, ids, {"state": "'replayed'"}, "t.state = 'open'")

    def _query(self, sql: str) -> pa.Table | None:
        table = Table(self.uri, self.store).open()
        if table is None:
            return None
        rows = table.query(sql)
        return rows.cast(pa.schema([EVENT_QUARANTINE_SCHEMA.field(name) for name in rows.column_names]))


def narrowed(file: WorkFile, then: Before, rows: Sequence[RejectedEvent]) -> WorkFile:
    """A file that comes again, with what is wanted of it.

    Where nothing could be read of a part of it, or where it is another file now, all of it is wanted that is not in a
    log yet. Else only events that are kept aside; those of level `merge` are brought back from the log, not from here.
    """
    changed = then.state != (file.size, file.etag or file.mtime_ms)
    aside = frozenset(row.row for row in rows if row.row is not None and row.level == "event")
    if changed or any(row.level == "file" or row.reason == Reason.FILE_BROKEN for row in rows):
        whole_file = any(row.level == "file" for row in rows)
        return replace(file, kept=whole_file, before=then.file_batches, aside=aside)
    return replace(file, only=tuple(sorted(aside)))


@dataclass(frozen=True, slots=True)
class Before:
    """What a file was when it came last, and the file batches in which it came."""

    state: tuple[int, str | int]
    file_batches: tuple[int, ...]


def previous(files_table: Snapshot | None, files: Sequence[WorkFile]) -> dict[str, Before]:
    """What files that come again were when they came before, by path."""
    if files_table is None or not files:
        return {}
    attempts = {f.path: f.attempt for f in files}
    rows = of_paths(files_table, attempts, ["path", "attempt", "size", "mtime_ms", "etag", "parcel"])
    before: dict[str, Before] = {}
    for row in rows.sort_by("attempt").to_pylist():
        if row["attempt"] < attempts[row["path"]]:
            file_batches = before[row["path"]].file_batches if row["path"] in before else ()
            state = (row["size"], row["etag"] or row["mtime_ms"])
            before[row["path"]] = Before(state, (*file_batches, row["parcel"]))
    return before
