"""TRUNCATEs of a source table, for the tables that tell its rows apart by key (`changes.truncates`).

They come with the batch's events, and each of the two tables remembers, as a property, what it needs of them for events
that come later. The rows that a merged table has are deleted by merges of their own, as many rows at a time as are held
at once. A batch that ends on the way does all of it again, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.model import METADATA, METADATA_TYPE
from distributary.changes.reduce import Ranked
from distributary.changes.sequence import OrderSettings
from distributary.changes.truncates import PROPERTY, Truncates, apart
from distributary.engine.changes.key_columns import KeyTypes, paths_of, whole
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import Table
from distributary.tables.tombstones import with_tombstones

AT_ONCE = 1 << 18
"""Rows of a table that are deleted at a time."""


def without_truncates(pieces: Iterable[pa.Table], truncates: list[pa.Array]) -> Iterator[pa.Table]:
    """The pieces' events; the metadata of TRUNCATEs goes to `truncates`."""
    for piece in pieces:
        rows, metadata = apart(piece)
        if len(metadata):
            truncates.append(metadata)
        yield rows


def all_truncates(table: Snapshot | None, came: Iterable[pa.Array], order: OrderSettings) -> Truncates:
    """Those that the table remembers, and those that have come."""
    text = None if table is None else table.properties.get(PROPERTY)
    truncates = Truncates.read(text, METADATA_TYPE, order)
    for metadata in came:
        truncates = truncates.joined(Truncates(metadata, order))
    return truncates


def remembering(table: Table, truncates: Truncates) -> Table:
    """The table, which knows of them from its first commit on: by then its batch counts as done."""
    return replace(table, remembers={PROPERTY: truncates.written()}) if truncates else table


def remember(table: Snapshot | None, truncates: Truncates) -> bool:
    """Let the table know of them for good; whether it did not. Raises CommitConflict, TableFault, OSError."""
    if table is None or not truncates or table.properties.get(PROPERTY) == truncates.written():
        return False
    table.set_properties({PROPERTY: truncates.written()})
    return True


def older_rows(
    table: Snapshot, keys: Sequence[str], types: KeyTypes, truncates: Truncates, order: OrderSettings, number: int = -1
) -> Iterator[pa.Table]:
    """Keys and metadata of the rows of a table, and of tombstones beside it, that are older than TRUNCATE `number`.

    Raises TableFault, OSError.
    """
    names = Ranked.needs(order, oracle=False)
    paths = [*paths_of(table.schema.names, keys), *(f"{METADATA}.{name}" for name in names)]
    for piece in chain.from_iterable(TableFiles(own).read_all(paths) for own in with_tombstones(table)):
        rows = whole(piece, types)
        columns = [rows.column(f"{METADATA}.{name}").combine_chunks() for name in names]
        metadata = pa.StructArray.from_arrays(columns, names=names)
        older = pa.array(truncates.are_newer(metadata, number))
        if pc.any(older).as_py():
            rows = rows.select(list(keys)).append_column(METADATA, metadata).filter(older)
            for begin in range(0, rows.num_rows, AT_ONCE):
                yield rows.slice(begin, AT_ONCE)
