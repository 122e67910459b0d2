"""Rows of a Delta source that a stream has not read yet, by the source's log.

Spark's offset log says where the stream is (Delta Lake, `DeltaSourceOffset`): all files of versions before
`reservoirVersion` and those of it up to `index` are read; `isStartingVersion`: the files are those of the whole table
at that version, by modification time and path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc

from distributary.config import DeltaSource
from distributary.errors.border import TableFault
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, join


class Unknown(Exception):
    """Nobody can say how many rows; the text says why."""


def unread(source: DeltaSource, table: Snapshot, read: Mapping[str, Any] | None, store: Store) -> int:
    """Rows after the offset `read` (None: nothing is read yet). Raises Unknown, TableFault, OSError."""
    return sum(_files(source, table, read, store))


@dataclass(frozen=True)
class AlreadyRead:
    """What a stream has read of a table: all that it held at `version` (None: nothing), and the files `paths`."""

    version: int | None
    paths: tuple[str, ...] = ()


def already_read(
    source: DeltaSource, table: Snapshot, read: Mapping[str, Any], store: Store, partition: tuple[str, str]
) -> AlreadyRead:
    """What lies before the offset `read`, of the rows of (partition column, value).

    Raises Unknown while the stream is in the middle of the first snapshot, or where the log is gone; OSError.
    """
    if read.get("reservoirId") != table.id:
        raise Unknown(f"the table at {source.path} is another one now than the one that was read")
    version, index = int(read["reservoirVersion"]), int(read["index"])
    if read.get("isStartingVersion"):
        raise Unknown("the stream is still in the rows that were there when it began")
    snapshot = _between(source, version - 1, store, partition)
    if index < 0:
        return snapshot
    adds = [action["add"] for action in _changes(source, version, store) if "add" in action][: index + 1]
    adds = [add for add in adds if _key(add, partition[0]) == partition[1]]
    if any(add.get("deletionVector") for add in adds):
        raise Unknown(f"version {version} of {source.path} has deletion vectors")
    return replace(snapshot, paths=(*snapshot.paths, *(unquote(add["path"]) for add in adds)))


def _between(source: DeltaSource, last: int, store: Store, partition: tuple[str, str]) -> AlreadyRead:
    """What the table held at version `last` of what came since the stream's beginning. Raises Unknown."""
    if source.starting_timestamp is not None:
        raise Unknown("it began at bronze.starting_timestamp: give the version of that time, bronze.starting_version")
    first = source.starting_version or 0
    if last < first:
        return AlreadyRead(None)
    if not (before := _held(source, first - 1, store, partition)):
        return AlreadyRead(last)
    now = _held(source, last, store, partition)
    if not before <= now:
        raise Unknown(f"files of {source.path} were rewritten since its version {first} (bronze.starting_version)")
    return AlreadyRead(None, tuple(sorted(now - before)))


def _held(source: DeltaSource, version: int, store: Store, partition: tuple[str, str]) -> set[str]:
    """The files of a partition at a version. Raises Unknown."""
    if version < 0:
        return set()
    name, value = partition
    try:
        table = Snapshot(source.path, store, version)
        files = table.adds()
        deleted = table.deletion_vectors().num_rows
    except TableFault as e:
        raise Unknown(f"version {version} of {source.path} cannot be read: {e}") from e
    if deleted:
        raise Unknown(f"version {version} of {source.path} has deletion vectors")
    return set(files.filter(pc.equal(files.column(f"partition.{name}"), value)).column("path").to_pylist())


def _files(source: DeltaSource, table: Snapshot, read: Mapping[str, Any] | None, store: Store) -> Iterator[int]:
    """Rows of each file, in the order in which Delta's source reads them."""
    newest = table.version
    if read is None:
        if source.starting_timestamp is not None:
            raise Unknown("no batch has been read yet")
        if source.starting_version is None:
            yield from _snapshot(table)
            return
        yield from _versions(source, source.starting_version, newest, store)
        return
    if read.get("reservoirId") != table.id:
        raise Unknown(f"the source at {source.path} is another table now than the one that was read")
    version, index = int(read["reservoirVersion"]), int(read["index"])
    if read.get("isStartingVersion"):
        yield from _snapshot(Snapshot(source.path, store, version))[max(0, index + 1) :]
    elif version <= newest:
        yield from _commit(source, version, store)[max(0, index + 1) :]
    yield from _versions(source, version + 1, newest, store)


def _snapshot(table: Snapshot) -> list[int]:
    files = table.adds().select(["path", "modification_time", "num_records"])
    rows: list[int] = files.sort_by([("modification_time", "ascending"), ("path", "ascending")])[2].to_pylist()
    if None in rows:
        raise Unknown("the source's files have no row counts")
    return rows


def _versions(source: DeltaSource, first: int, last: int, store: Store) -> Iterator[int]:
    for version in range(first, last + 1):
        yield from _commit(source, version, store)


def _commit(source: DeltaSource, version: int, store: Store) -> list[int]:
    """What a version of the source adds."""
    changes = _changes(source, version, store)
    if source.skip_change_commits and any("remove" in a for a in changes):
        return []
    return [_rows(a["add"]) for a in changes if "add" in a]


def _changes(source: DeltaSource, version: int, store: Store) -> list[dict[str, Any]]:
    """The files that a version adds and removes."""
    body = store.get(join(source.path, "_delta_log"), f"{version:020d}.json")
    if body is None:
        raise Unknown(f"version {version} of the source has not been read, and its log is gone (delta.logRetention)")
    actions = [json.loads(line) for line in body.splitlines() if line.strip()]
    return [a for a in actions if any(a.get(kind, {}).get("dataChange") for kind in ("add", "remove"))]


def _key(add: Mapping[str, Any], partition: str) -> str | None:
    values: Mapping[str, str | None] = add.get("partitionValues") or {}
    return values.get(partition)


def _rows(add: Mapping[str, Any]) -> int:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        raise Unknown("the source's files have no row counts")
    return int(rows) - int((add.get("deletionVector") or {}).get("cardinality", 0))
