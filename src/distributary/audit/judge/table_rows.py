"""The rows of a table as plain values, some thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distributary.audit.judge.plain_values import plain
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

AT_ONCE = 4_096


def table_rows(uri: str, store: Store) -> Iterator[list[dict[str, Any]]]:
    """File by file; nothing where there is no table. Raises TableFault, OSError."""
    opened = Table(uri, store).open()
    if opened is not None:
        yield from rows_of(opened)


def tombstones_beside(merged: Snapshot) -> Snapshot | None:
    """The table of a merged table's deleted keys; None where these are rows of the merged table itself.

    Raises TableFault where it is not there, OSError.
    """
    if merged.properties.get("distributary.tombstones") != "beside":
        return None
    return Snapshot(f"{merged.uri}/_tombstones", merged.store)


def tombstone_rows(uri: str, store: Store) -> Iterator[list[dict[str, Any]]]:
    """Those of a merged table, as `table_rows`; nothing where they lie in it."""
    opened = Table(uri, store).open()
    beside = None if opened is None else tombstones_beside(opened)
    if beside is not None:
        yield from rows_of(beside)


def rows_of(opened: Snapshot) -> Iterator[list[dict[str, Any]]]:
    """File by file. Raises TableFault, OSError."""
    files = TableFiles(opened)
    for name in files.names:
        for piece in files.read_whole(name):
            for begin in range(0, piece.num_rows, AT_ONCE):
                some = piece.slice(begin, AT_ONCE)
                values = zip(*(plain(some.column(c)) for c in some.column_names), strict=True)
                yield [dict(zip(some.column_names, row_values, strict=True)) for row_values in values]
