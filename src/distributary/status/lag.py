"""How many rows wait at the source: what it holds now, less what the last committed batch has read.

Spark's checkpoint says what was read: for Kafka the next offset of each partition, for Delta a place in the source's
log (Delta Lake, `DeltaSourceOffset`: all files of versions before `reservoirVersion` and those of it up to `index` are
read; `isStartingVersion`: the files are those of the whole table at that version, by modification time and path).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.errors import SourceDown, SourceMissing
from distributary.sources.kafka import Topic, describe_topics
from distributary.state.checkpoint import read_offsets
from distributary.tables.files import filesystem
from distributary.tables.store import Store, engine_uri, join


@dataclass(frozen=True)
class SourceLag:
    """`rows`: rows that wait; None where nobody can say, and `note` says why."""

    rows: int | None = None
    note: str | None = None


def source_lag(config: Pipeline, store: Store) -> SourceLag:
    """Ask the source. A source that is down is a note, never an error. Raises OSError when the checkpoint is away."""
    batch = last_committed(config.checkpoint_path, store)
    offsets = None if batch is None else read_offsets(config.checkpoint_path, store, batch)
    if batch is not None and not offsets:
        return SourceLag(note=f"the checkpoint does not say what batch {batch} has read")
    read = offsets[0] if offsets else None
    try:
        if isinstance(config.source, KafkaSource):
            return kafka_lag(config.source, describe_topics(config.source), read)
        return _delta_lag(config.source, read, store)
    except (SourceDown, SourceMissing, DeltaError, OSError) as e:
        return SourceLag(note=f"the source cannot be asked: {e}")


def last_committed(checkpoint: str, store: Store) -> int | None:
    """The newest batch whose offsets are committed; None for none. Raises OSError."""
    found = filesystem(checkpoint, store).get_file_info(pafs.FileSelector("commits", allow_not_found=True))
    return max((int(f.base_name) for f in found if f.base_name.isdecimal()), default=None)


# -- Kafka -------------------------------------------------------------------------------------------------


def kafka_lag(source: KafkaSource, topics: list[Topic], read: Mapping[str, Mapping[str, int]] | None) -> SourceLag:
    """End offsets less the offsets in `read`; before the first batch, less where it will begin."""
    if read is None and source.starting_offsets != "earliest":
        return SourceLag(note="no batch has been read yet")
    rows, gone = 0, []
    for topic in topics:
        done = (read or {}).get(topic.name, {})
        for partition, latest in topic.latest.items():
            # A partition that is new since the last batch is read from its beginning.
            begin = done.get(str(partition), topic.earliest[partition])
            if begin > latest:
                gone.append(f"{topic.name} partition {partition} ends at {latest}, but was read up to {begin}")
            rows += max(0, latest - begin)
    note = "was the topic made anew? " + "; ".join(gone) if gone else None
    return SourceLag(rows, note)


# -- Delta -------------------------------------------------------------------------------------------------


class _Unknown(Exception):
    """Nobody can say how many rows; the text says why."""


def _delta_lag(source: DeltaSource, read: Mapping[str, Any] | None, store: Store) -> SourceLag:
    options = dict(store.options) or None
    table = DeltaTable(engine_uri(source.path), storage_options=options)
    try:
        if read is not None:
            return SourceLag(_unread(source, table, read, store))
        if source.starting_timestamp is not None:
            return SourceLag(note="no batch has been read yet")
        if source.starting_version is not None:
            return SourceLag(sum(_versions(source, source.starting_version, table.version(), store)))
        return SourceLag(sum(_snapshot(table)))
    except _Unknown as e:
        return SourceLag(note=str(e))


def _unread(source: DeltaSource, table: DeltaTable, read: Mapping[str, Any], store: Store) -> int:
    if read.get("reservoirId") != table.metadata().id:
        raise _Unknown(f"the source at {source.path} is another table now than the one that was read")
    version, index = int(read["reservoirVersion"]), int(read["index"])
    if not read.get("isStartingVersion"):
        after = sum(_versions(source, version + 1, table.version(), store))
        return after + (sum(_commit(source, version, store)[max(0, index + 1) :]) if version <= table.version() else 0)
    options = dict(store.options) or None
    first = DeltaTable(engine_uri(source.path), version=version, storage_options=options)
    return sum(_snapshot(first)[max(0, index + 1) :]) + sum(_versions(source, version + 1, table.version(), store))


def _snapshot(table: DeltaTable) -> list[int]:
    """Rows of each file of the table, in the order in which Delta's source reads them."""
    files = pa.table(table.get_add_actions()).select(["path", "modification_time", "num_records"])
    rows = files.sort_by([("modification_time", "ascending"), ("path", "ascending")]).column("num_records").to_pylist()
    if None in rows:
        raise _Unknown("the source's files have no row counts")
    return [int(n) for n in rows]


def _versions(source: DeltaSource, first: int, last: int, store: Store) -> Iterator[int]:
    for version in range(first, last + 1):
        yield sum(_commit(source, version, store))


def _commit(source: DeltaSource, version: int, store: Store) -> list[int]:
    """Rows of each file that a version of the source adds."""
    body = store.get(join(source.path, "_delta_log"), f"{version:020d}.json")
    if body is None:
        raise _Unknown(f"version {version} of the source has not been read, and its log is gone (delta.logRetention)")
    actions = [json.loads(line) for line in body.splitlines() if line.strip()]
    changes = [a for a in actions if any(a.get(kind, {}).get("dataChange") for kind in ("add", "remove"))]
    if source.skip_change_commits and any("remove" in a for a in changes):
        return []
    return [_rows(a["add"]) for a in changes if "add" in a]


def _rows(add: Mapping[str, Any]) -> int:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        raise _Unknown("the source's files have no row counts")
    return int(rows) - int((add.get("deletionVector") or {}).get("cardinality", 0))
