"""Files that no version of a table needs any more, removed.

delta-rs removes what commits have taken out (deltalake 1.6.6). Two kinds are left to us: data files that no commit ever
took in, of a task that was killed or lost its race (delta-rs lists them with `full` only, together with every deletion
vector, in use or not, and whatever else somebody has put there), and deletion vectors.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Collection, Iterator
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow.fs as pafs

from distributary.tables.merge_on_read import OnRead
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import filesystem
from distributary.tables.vectors import Vector

ORPHAN_HOURS = 24
"""A data file is younger while the task that wrote it may still commit it, however short the retention is."""

_VECTOR = re.compile(r"deletion_vector_[0-9a-f-]{36}\.bin")
_COMMIT = re.compile(r"\d{20}\.json")


def vacuum(
    table: Snapshot, seconds: float, *, enforce: bool = False, awaited: Collection[str] = frozenset()
) -> list[str]:
    """Remove what no version of the last `seconds` needs; paths below the table, or URLs. `enforce`: refuse less than
    the table's own retention. `awaited`: data files that stay, for they are to be committed yet. `table` is then of the
    newest version.

    Raises TableFault, OSError.
    """
    hours = math.ceil(seconds / 3600)  # delta-rs counts whole ones, and none may be too few
    removed = table.vacuum(hours, enforce=enforce)
    table.refresh()
    return [*removed, *remove_orphans(table, max(hours, ORPHAN_HOURS), awaited), *vacuum_vectors(table, seconds)]


def remove_orphans(table: Snapshot, hours: int, awaited: Collection[str] = frozenset()) -> list[str]:
    """Remove data files that are older than `hours`, in no commit and not `awaited`; which. Those of a table that lies
    below this one are its own. Raises TableFault, OSError.
    """
    system = filesystem(table.uri, table.store)
    is_table = lru_cache(maxsize=None)(partial(_is_table, system))
    unknown = [PurePosixPath(path) for path in table.unknown_files(hours) if path.endswith(".parquet")]
    unknown = [path for path in unknown if str(path) not in awaited]
    orphans = [str(path) for path in unknown if not any(map(is_table, list(path.parents)[:-1]))]
    for path in orphans:
        system.delete_file(path)
    return orphans


def _is_table(system: pafs.FileSystem, folder: PurePosixPath) -> bool:
    return bool(system.get_file_info(str(folder / "_delta_log")).type == pafs.FileType.Directory)


def vacuum_vectors(table: Snapshot, seconds: float) -> list[str]:
    """Remove files of vectors that no version of the last `seconds` needs; which.

    Those that no commit names are from a merge that died or lost its race, or of one that is to commit yet: they stay
    for `ORPHAN_HOURS`. Raises TableFault, OSError.
    """
    on_read = OnRead(table)
    if not on_read.has_feature or on_read.why_spark() is not None:
        return []
    since = time.time() - seconds
    system = filesystem(table.uri, table.store)
    live = {vector.path() for vector in on_read.vectors.values() if vector.storage == "u"}
    files = ((info.base_name, info.mtime.timestamp()) for info in _files(system, "", _VECTOR))
    old_at = {name: at for name, at in files if at < since and name not in live}
    old = set(old_at)
    # A version of that time is one whose files have been removed since.
    needed = _removed_since(system, since) if old else set()
    removable = old - needed
    young_since = time.time() - ORPHAN_HOURS * 3600
    if young := {name for name in removable if old_at[name] >= young_since}:
        removable -= young - _removed_since(system, young_since)
    for name in sorted(removable):
        system.delete_file(name)
    return sorted(removable)


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
