"""How many rows wait at the source: what it holds now, less what the last committed batch has read.

Spark's checkpoint says what was read: for Kafka the next offset of each partition, for Delta a place in the source's
log (`sources.unread`).
"""

from __future__ import annotations

from functools import partial

from distributary.config import Pipeline
from distributary.engine.changes.backlog import last_file_batch
from distributary.errors import CheckpointDamaged, SourceDown, SourceMissing
from distributary.sources.port import AnswerCache, SourceLag
from distributary.sources.registered import source_of
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.ledger import Ledger
from distributary.tables.store import Store


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
