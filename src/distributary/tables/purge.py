"""Upkeep of deletion vectors: files with many deleted rows written anew without them, and vectors removed that no
version needs any more (delta-rs leaves these files where they are, or with `full` removes them all; deltalake 1.6.6).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.fs as pafs

from distributary.tables.commits import commit_text, put_commit
from distributary.tables.engines import spark_needed
from distributary.tables.faults import CommitConflict
from distributary.tables.merge_files import LiveFile, Unit, Writer, live_files, rewrite
from distributary.tables.merge_on_read import OnRead
from distributary.tables.rewrite import SMALL_BYTES
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import filesystem
from distributary.tables.vectors import Vector

SHARE = 0.05
"""A file is written anew from this share of deleted rows on. Merges do so later: they are in a hurry."""
GROUP_BYTES = 64 << 20
"""Bytes of files that one commit rewrites: who merges meanwhile is in the way of one group only."""

_VECTOR = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
_COMMIT = re.compile(r"\d{20}\.json")


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
    moved, _ = rewrite(together, reader, Writer(table.uri, table.store, ()), reader.schema.empty_table())
    about = {"operation": "REORG", "operationParameters": {}, "isBlindAppend": False}
    text = commit_text(table.version, None, (), on_read.places(files), moved=moved, about=about)
    if not put_commit(table.uri, table.store, table.version + 1, text):
        raise CommitConflict(f"version {table.version + 1} of {table.uri} was written by another writer")


def vacuum_vectors(table: Snapshot, seconds: float) -> list[str]:
    """Remove files of vectors that no version of the last `seconds` needs; which.

    Those that no commit names are from a merge that died or lost its race. Raises TableFault, OSError.
    """
    on_read = OnRead(table)
    if not on_read.has_feature or on_read.why_spark() is not None:
        return []
    since = time.time() - seconds
    system = filesystem(table.uri, table.store)
    live = {vector.path() for vector in on_read.vectors.values() if vector.storage == "u"}
    old = {info.base_name for info in _files(system, "", _VECTOR) if info.mtime.timestamp() < since} - live
    # A version of that time is one whose files have been removed since.
    needed = _removed_since(system, since) if old else set()
    removable = sorted(old - needed)
    for name in removable:
        system.delete_file(name)
    return removable


def _removed_since(system: pafs.FileSystem, since: float) -> set[str]:
    paths = set()
    for info in _files(system, "_delta_log", _COMMIT):
        if info.mtime.timestamp() >= since:
            with system.open_input_file(info.path) as file:
                removes = _removes(file.read())
            vectors = (remove.get("deletionVector") for remove in removes)
            paths |= {Vector.of(logged).path() for logged in vectors if logged and logged["storageType"] == "u"}
    return paths


def _removes(text: bytes) -> Iterator[dict[str, Any]]:
    return (json.loads(line)["remove"] for line in text.splitlines() if line.startswith(b'{"remove"'))


def _files(system: pafs.FileSystem, folder: str, name: re.Pattern[str]) -> list[pafs.FileInfo]:
    infos = system.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return [info for info in infos if name.fullmatch(info.base_name)]
