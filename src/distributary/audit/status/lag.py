"""How many rows wait at the source: what it holds now, less what the last committed batch has read.

Spark's checkpoint says what was read: for Kafka the next offset of each partition, for Delta a place in the source's
log (`sources.unread`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from distributary.config import Pipeline
from distributary.engine.changes.backlog import last_file_batch
from distributary.errors import CheckpointDamaged, SourceDown, SourceMissing
from distributary.running.bronze.bronze_table import first_hop
from distributary.sources.port import AnswerCache, SourceLag
from distributary.sources.registered import source_of
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.divisions import current_parts
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary.tables.table import Table


def pipeline_lag(config: Pipeline, store: Store) -> SourceLag:
    """Rows that are in no table yet: of two hops, those that wait for either. Raises OSError."""
    streams, answers = current_parts(config, store), AnswerCache()
    if config.bronze_table is None:
        return slowest(source_lag(stream, store, answers) for stream in streams)
    first = source_lag(first_hop(config), store, answers)
    if Table(config.bronze_table, store).open() is None:
        return first
    second = slowest(source_lag(stream, store, answers) for stream in streams)
    return _together([first, second], sum)


def source_lag(config: Pipeline, store: Store, answers: AnswerCache | None = None) -> SourceLag:
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
    read = offsets[0] if offsets else None
    try:
        ledger = partial(Ledger, config.state_root, config.pipeline, store)
        return source_of(config).lag(read, answers or AnswerCache(), lambda: last_file_batch(ledger()))
    except (SourceDown, SourceMissing, OSError) as e:
        return SourceLag(note=f"the source cannot be asked: {e}")


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
