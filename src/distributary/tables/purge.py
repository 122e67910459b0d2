"""Upkeep of deletion vectors: files with many deleted rows are written anew without them."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.tables.commits import commit_text, put_commit
from distributary.tables.engines import spark_needed
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_files import FileWriter, LiveFile, Unit, live_files, rewrite
from distributary.tables.merge_on_read import OnRead
from distributary.tables.rewrite import SMALL_BYTES
from distributary.tables.snapshot import Snapshot

SHARE = 0.05
"""A file is written anew from this share of deleted rows on. Merges do so later: they are in a hurry."""
GROUP_BYTES = 64 << 20
"""Bytes of files that one commit rewrites: who merges meanwhile is in the way of one group only."""


def purge_vectors(table: Snapshot) -> int:
    """Write files with deleted rows anew; how many. Values that were deleted are gone with the next vacuum.

    Raises CommitConflict where somebody else was first, TableFault, OSError, pa.ArrowException.
    """
    if spark_needed(table, removes=True, vectors=True) is not None:
        return 0
    files_written = 0
    while group := _group(table, on_read := OnRead(table)):
        _purge(table, on_read, group)
        files_written += len(group)
        table = Snapshot(table.uri, table.store)
    return files_written


def _group(table: Snapshot, on_read: OnRead) -> list[LiveFile]:
    if on_read.why_spark() is not None:
        return []
    group: list[LiveFile] = []
    for file in live_files(table, ()) if on_read.vectors else ():
        vector = on_read.vectors.get(file.path)
        if vector is not None and vector.rows >= SHARE * file.rows:
            if group and sum(member.size for member in group) + file.size > GROUP_BYTES:
                break
            group.append(file)
    return group


def _purge(table: Snapshot, on_read: OnRead, files: Sequence[LiveFile]) -> None:
    reader = on_read.reader(table.schema)
    units = [Unit((file,), (None,), (None,)) for file in files]
    small = [unit for unit in units if unit.files[0].size < SMALL_BYTES]
    large = [unit for unit in units if unit.files[0].size >= SMALL_BYTES]
    together = [Unit.joined(small), *large] if small else large
    moved, _ = rewrite(together, reader, FileWriter(table.uri, table.store, ()), reader.schema.empty_table())
    about = {"operation": "REORG", "operationParameters": {}, "isBlindAppend": False}
    text = commit_text(table.version, None, (), on_read.places(files), moved=moved, about=about)
    if not put_commit(table.uri, table.store, table.version + 1, text):
        raise CommitConflict(f"version {table.version + 1} of {table.uri} was written by another writer")
