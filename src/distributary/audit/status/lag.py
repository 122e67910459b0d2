"""How many rows wait at the source: what it holds now, less what the last committed batch has read.

Spark's checkpoint says what was read: for Kafka the next offset of each partition, for Delta a place in the source's
log (`sources.unread`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributary.config import DatastreamSource, DeltaSource, KafkaSource, Pipeline
from distributary.engine.changes.backlog import parcel_done
from distributary.engine.changes.planned import look, strays_left
from distributary.errors import CheckpointDamaged, SourceDown, SourceMissing
from distributary.running.bronze.table import first_hop
from distributary.sources.bronze import bronze_source
from distributary.sources.file_ledger import read_version, waiting
from distributary.sources.kafka import Topic, describe_topics
from distributary.sources.unread import Unknown, unread
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.ledger import Ledger
from distributary.state.shares import current_parts
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table


@dataclass(frozen=True)
class SourceLag:
    """`rows`: rows that wait; None where nobody can say, and `note` says why. `files`, `bytes`: change files that were
    found and wait, or would be first; how many events they hold, nobody knows before they are read."""

    rows: int | None = None
    note: str | None = None
    files: int | None = None
    bytes: int | None = None


class Asked:
    """What a pipeline's sources hold at this moment. Each is asked once, whatever number of streams reads it; one that
    does not answer is not waited for twice."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._said: dict[str, Any] = {}

    def topics(self, source: KafkaSource) -> list[Topic]:
        """Raises SourceDown, SourceMissing."""
        found: list[Topic] = self._once("topics", lambda: describe_topics(source))
        return found

    def unread(self, source: DeltaSource, read: Mapping[str, Any] | None) -> int:
        """Raises Unknown, TableFault, OSError."""
        table = self._once(f"table {source.path}", lambda: Snapshot(source.path, self.store))
        # Shares are often at one and the same place.
        place = f"unread {source.path} {json.dumps(read, sort_keys=True)}"
        found: int = self._once(place, lambda: unread(source, table, read, self.store))
        return found

    def _once(self, what: str, ask: Callable[[], Any]) -> Any:
        if what not in self._said:
            try:
                self._said[what] = ask()
            except Exception as e:
                self._said[what] = e
        if isinstance(found := self._said[what], Exception):
            raise found
        return found


def pipeline_lag(config: Pipeline, store: Store) -> SourceLag:
    """Rows that are in no table yet: of two hops, those that wait for either. Raises OSError."""
    streams, asked = current_parts(config, store), Asked(store)
    if config.bronze_table is None:
        return slowest(source_lag(stream, store, asked) for stream in streams)
    first = source_lag(first_hop(config), store, asked)
    if Table(config.bronze_table, store).open() is None:
        return first
    second = slowest(source_lag(stream, store, asked) for stream in streams)
    return _together([first, second], sum)


def source_lag(config: Pipeline, store: Store, asked: Asked | None = None) -> SourceLag:
    """Ask the source (of a stream over bronze: bronze). A source that is down is a note, never an error.

    Raises OSError when the checkpoint is away.
    """
    try:
        batch = last_committed(config.checkpoint_path, store)
        offsets = None if batch is None else read_offsets(config.checkpoint_path, store, batch)
    except CheckpointDamaged as e:
        return SourceLag(note=str(e))
    if batch is not None and not offsets:
        return SourceLag(note=f"the checkpoint does not say what batch {batch} has read")
    read, asked = offsets[0] if offsets else None, asked or Asked(store)
    try:
        if config.bronze_table is not None:
            return _delta_lag(bronze_source(config), read, asked)
        if isinstance(config.source, KafkaSource):
            return kafka_lag(config.source, asked.topics(config.source), read)
        if isinstance(config.source, DatastreamSource):
            return _files_lag(config, store, read_version(read))
        return _delta_lag(config.source, read, asked)
    except (SourceDown, SourceMissing, OSError) as e:
        return SourceLag(note=f"the source cannot be asked: {e}")


def _files_lag(config: Pipeline, store: Store, version: int) -> SourceLag:
    """Files that were found and wait, and those that lie where a run would look first."""
    source = config.source
    assert isinstance(source, DatastreamSource)
    # A batch is finished by the ledger's word, which comes before Spark's.
    finished = parcel_done(Ledger(config.state_root, config.pipeline, store))
    given = waiting(config.state_root, store, version, finished)
    try:
        found = look(config, store, full=False)
    except (SourceDown, SourceMissing) as e:
        return SourceLag(note=f"the source cannot be asked: {e}", files=given.files, bytes=given.bytes)
    return SourceLag(
        note=strays_left(found.strays, source.path) if found.strays else None,
        files=given.files + len(found.files),
        bytes=given.bytes + sum(ref.size for ref in found.files),
    )


def slowest(lags: Iterable[SourceLag]) -> SourceLag:
    """The lag of several streams over one source: that of the one which is farthest behind."""
    return _together(list(lags), max)


def _together(lags: Sequence[SourceLag], of: Callable[[list[int]], int]) -> SourceLag:
    """The lag of several streams: the `sum`, where each reads rows of its own. Rows are known where each knows its."""
    rows = [lag.rows for lag in lags if lag.rows is not None]
    files = [lag.files for lag in lags if lag.files is not None]
    sizes = [lag.bytes for lag in lags if lag.bytes is not None]
    notes = list(dict.fromkeys(lag.note for lag in lags if lag.note))
    return SourceLag(
        of(rows) if rows and len(rows) == len(lags) else None,
        "; ".join(notes) or None,
        of(files) if files else None,
        of(sizes) if sizes else None,
    )


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


def _delta_lag(source: DeltaSource, read: Mapping[str, Any] | None, asked: Asked) -> SourceLag:
    try:
        found = asked.unread(source, read)
    except Unknown as e:
        return SourceLag(note=str(e))
    return SourceLag(found)
