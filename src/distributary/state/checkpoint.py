"""Is the checkpoint the one that wrote these tables, and the topic the one that it has read? Asked before each start.

A new checkpoint beside old tables would write every row twice; a checkpoint older than the ledger would reuse batch
ids for other rows, which the tables would skip as replays (delta-io/delta#1813). Both are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distributary.config import Pipeline, StateFolder
from distributary.errors import CheckpointDamaged, CheckpointLost, StateLost
from distributary.sources.registered import source_of
from distributary.state.checkpoint_damage import Checkpoint
from distributary.state.journal import Journal
from distributary.state.ledger import Ledger, is_batch
from distributary.tables.files import names_in
from distributary.tables.store import Store, join

"""In the state folder of a share whose checkpoint was made by a hand-over, not by a run."""


def stream_id(checkpoint: str, store: Store) -> str | None:
    """The streaming query's id as its checkpoint has it; None for no checkpoint. Raises CheckpointDamaged, OSError."""
    return Checkpoint(checkpoint, store).stream_id()


def readable_stream_id(checkpoint: str, store: Store) -> str | None:
    """As `stream_id`, and None also where the checkpoint is damaged. Raises OSError."""
    with suppress(CheckpointDamaged):
        return stream_id(checkpoint, store)
    return None


def read_offsets(checkpoint: str, store: Store, batch: int) -> list[dict[str, Any]] | None:
    """The source offsets at the end of `batch`, one per source; None when the checkpoint does not have it.

    Raises CheckpointDamaged, OSError.
    """
    return Checkpoint(checkpoint, store).offsets(batch)


def position_after(checkpoint: str, store: Store, batch: int) -> dict[str, Any] | None:
    """The place of the one source at the end of `batch`; None where nobody can say."""
    with suppress(CheckpointDamaged, OSError):
        offsets = read_offsets(checkpoint, store, batch)
        return offsets[0] if offsets else None
    return None


def last_committed(checkpoint: str, store: Store) -> int | None:
    """The newest batch whose offsets are committed; None for none. Raises OSError."""
    batches = names_in(join(checkpoint, "commits"), store)
    return max((int(name) for name in batches if name.isdecimal()), default=None)


def last_begun(checkpoint: str, store: Store) -> int:
    """The newest batch that has been planned, and may have been attempted; -1 for none. Raises OSError."""
    return max((int(name) for name in names_in(join(checkpoint, "offsets"), store) if name.isdecimal()), default=-1)


def is_handed_over(config: Pipeline, store: Store) -> bool:
    """Has the stream only what a hand-over gave it: a position, and no batch of its own? Raises OSError."""
    return (
        store.get(config.state_root, StateFolder.handed_over.name) is not None
        and last_committed(config.checkpoint_path, store) == 0
    )


def check_checkpoint(config: Pipeline, ledger: Ledger) -> None:
    """Raises CheckpointLost when the checkpoint is not the one that the ledger knows, or is older than it;
    CheckpointDamaged when Spark cannot read it; StateLost when it has finished batches and the ledger none."""
    finished = {s: b for s, b in ledger.finished.items() if is_batch(s)}
    stream = max(finished, key=lambda s: finished[s], default=None)
    checkpoint, journal = Checkpoint(config.checkpoint_path, ledger.store), Journal(config.state_root, ledger.store)

    def begun(batch: int) -> bool:
        # Of change files a batch is a file batch of the file ledger, so it comes again as it was.
        return not config.source.reads_files and journal.refused(checkpoint.stream_id() or "", batch) is not None

    checkpoint.check(-1 if stream is None else finished[stream], stream, begun)
    if stream is None:
        _check_first_start(config, ledger)
        return
    stream_found = checkpoint.stream_id()
    about = {"pipeline": config.pipeline, "ledger": ledger.uri, "checkpoint": config.checkpoint_path}
    if stream_found not in finished:
        says = "is not there" if stream_found is None else f"belongs to stream {stream_found}"
        raise CheckpointLost(**about, known=stream, found=says)
    if read_offsets(config.checkpoint_path, ledger.store, finished[stream_found]) is None:
        says = f"has not begun batch {finished[stream_found]}, which the ledger has finished"
        raise CheckpointLost(**about, known=stream_found, found=says)


def _check_first_start(config: Pipeline, ledger: Ledger) -> None:
    """A checkpoint apart from the state folder may have outlived it, and with it the books and the rows set aside."""
    if config.new_state == "continue" or is_handed_over(config, ledger.store):
        return
    if last_committed(config.checkpoint_path, ledger.store) is not None:
        stream = Checkpoint(config.checkpoint_path, ledger.store).stream_id()
        about = {"pipeline": config.pipeline, "state": config.state_root}
        raise StateLost(**about, found=f"checkpoint {config.checkpoint_path} has batches", stream=stream)


def check_source(config: Pipeline, store: Store, ledger: Ledger) -> None:
    """Raises SourceDataLost when a topic was made anew, or has lost offsets that were never read (case S6).

    Raises SourceDown, SourceMissing when the broker or the topic is not there.
    """
    finished = max((b for s, b in ledger.finished.items() if is_batch(s)), default=None)
    offsets = [] if finished is None else read_offsets(config.checkpoint_path, store, finished) or []
    if lost := source_of(config).lost(offsets[0] if offsets else {}, TopicIdsSeen(config.state_root, store)):
        ledger.note_loss(lost)


class TopicIdsSeen:
    """The ids that a stream's topics had when it read them (`ids`), kept in its state folder. Raises OSError."""

    def __init__(self, state_root: str, store: Store) -> None:
        self._root, self._store = state_root, store
        self.ids: dict[str, str] = json.loads(store.get(state_root, StateFolder.topics.name) or b"{}")

    def add(self, now: Mapping[str, str]) -> None:
        """From now on these count."""
        if now.items() - self.ids.items():
            self.ids |= now
            self._store.put_whole(self._root, StateFolder.topics.name, json.dumps(self.ids).encode())
