"""From one division of the routes to another, so that no route is written twice or left out.

Every stream has its own position in the source, and a route may only change streams at one common position. So: first
each stream of the old division is brought to the same one, then the new streams begin exactly there.

1. A stream that has begun a batch, has not begun at all, or is still in the source's first snapshot, runs until it has
   taken what is there.
2. The position of the one that is farthest becomes the next batch of each other: it is written into its checkpoint as
   planned (Spark replays a planned batch to exactly these offsets), and run.
3. Each new stream gets a checkpoint of its own (a new stream id) whose last batch ended at this position.
4. The new division becomes the current one: one small file, and the moment from which it holds.

A crash anywhere before step 4 leaves the old division as it was; do it again.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from distributary.config import Pipeline, StateFolder
from distributary.engine.batch import BatchReport
from distributary.errors import HandoverFailed
from distributary.running.stream import Run, run
from distributary.shares import Division
from distributary.state.checkpoint import last_committed, stream_id
from distributary.state.cleaning import at_work
from distributary.state.divisions import Current, current, current_parts, follow, has_run
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary.tables.store import Store, join

Position = dict[str, Any]
_HEADER_LINES = 2


def hand_over(config: Pipeline, division: Division, say: Callable[[str], None] = lambda _: None) -> Current:
    """Make `division` the current one; `say` hears of each step. Starts Spark only where a stream has something to do.

    Raises AlreadyRunning when a stream or a supervisor is, CleanUnfinished, HandoverFailed, and what a run raises.
    """
    store = Store.of(config.tables)
    before = current(config, store)
    if before is not None and before.division == division:
        return before
    old = current_parts(config, store)
    new = Current(division, (before.generation if before is not None else 0) + 1)
    with at_work(config, store, "supervisor"), ExitStack() as locks:
        if any(has_run(stream, store) for stream in old):
            for stream in old:
                with only_run(stream.state_root, stream.pipeline):
                    pass
            end = _settle(old, store, say)
            for stream in old:
                locks.enter_context(only_run(stream.state_root, stream.pipeline))
            _check(config, old, end, store)
            for stream in new.parts(config):
                _seed(stream, end, old[0], store)
        follow(config, new, store)
    say(f"the routes are divided over {len(division.clusters)} clusters now")
    return new


# -- positions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a stream is: the newest batch that is finished, and its entry in the offset log."""

    batch: int
    entry: bytes

    @property
    def position(self) -> Position:
        return dict(json.loads(self.entry.decode().splitlines()[_HEADER_LINES]))

    def moved(self, position: Position) -> bytes:
        head = self.entry.decode().splitlines()[:_HEADER_LINES]
        return "\n".join([*head, json.dumps(position)]).encode()


def _place(stream: Pipeline, store: Store, batch: int | None) -> _Place | None:
    entry = None if batch is None else store.get(join(stream.checkpoint_path, "offsets"), str(batch))
    return None if batch is None or entry is None else _Place(batch, entry)


def _committed(stream: Pipeline, store: Store) -> _Place | None:
    return _place(stream, store, last_committed(stream.checkpoint_path, store))


def _finished(stream_config: Pipeline, store: Store) -> _Place | None:
    """By the ledger, which decides: Spark may have been stopped before it wrote down that a batch is done."""
    stream = stream_id(stream_config.checkpoint_path, store)
    finished = Ledger(stream_config.state_root, stream_config.pipeline, store).finished.get(stream or "")
    committed = last_committed(stream_config.checkpoint_path, store)
    return _place(stream_config, store, max((b for b in (finished, committed) if b is not None), default=None))


def _is_unsettled(stream: Pipeline, store: Store) -> bool:
    """Has it a batch under way, or no position that another stream could take over?"""
    place = _committed(stream, store)
    if place is None or place.position.get("isStartingVersion"):
        return True
    return store.get(join(stream.checkpoint_path, "offsets"), str(place.batch + 1)) is not None


def farthest(positions: Sequence[Position]) -> Position:
    """The position that no other is beyond: for Kafka per partition, for Delta by version and index.

    Spark's offset logs: `KafkaSourceOffset` (topic -> partition -> next offset); Delta Lake, `DeltaSourceOffset`.
    """
    if all("reservoirVersion" in position for position in positions):
        return max(positions, key=lambda p: (int(p["reservoirVersion"]), int(p["index"])))
    end: dict[str, dict[str, int]] = {}
    for position in positions:
        for topic, partitions in position.items():
            for partition, offset in partitions.items():
                so_far = end.setdefault(topic, {}).get(partition, 0)
                end[topic][partition] = max(so_far, int(offset))
    return end


def _settle(old: Sequence[Pipeline], store: Store, say: Callable[[str], None]) -> _Place:
    """Bring all streams to one position; the place of one of them then. Raises what a run raises."""
    for stream in old:
        if _is_unsettled(stream, store):
            say(f"{_name(stream)}: takes what is there")
            run(stream, once=True)
    places = [_committed(stream, store) for stream in old]
    known_places = [place for place in places if place is not None]
    if len(known_places) < len(places):
        raise HandoverFailed(pipeline=old[0].pipeline, detail="the source is empty for one of them")
    end = farthest([place.position for place in known_places])
    for stream, place in zip(old, known_places, strict=True):
        if place.position != end:
            say(f"{_name(stream)}: goes on to where the farthest stream is")
            store.put_whole(join(stream.checkpoint_path, "offsets"), str(place.batch + 1), place.moved(end))
            _run_batch(stream, place.batch + 1)
    last = _finished(old[0], store)
    assert last is not None
    return last


def _run_batch(stream: Pipeline, batch: int) -> None:
    """Run a stream until `batch` is done, and no further."""
    running: list[Run] = []

    def progress(report: BatchReport) -> None:
        if report.batch >= batch and running:
            threading.Thread(target=running[0].stop, name="stop", daemon=True).start()
            # The next batch must not begin before the run knows that it is to stop.
            running[0]._stopping.wait()

    run(stream, once=True, progress=progress, handle=running.append)


def _check(config: Pipeline, old: Sequence[Pipeline], end: _Place, store: Store) -> None:
    for stream in old:
        place = _finished(stream, store)
        if place is None or place.position != end.position:
            position = "nowhere" if place is None else json.dumps(place.position)
            detail = f"{_name(stream)} is at {position}, another at {json.dumps(end.position)}"
            raise HandoverFailed(pipeline=config.pipeline, detail=detail)


def _seed(stream: Pipeline, end: _Place, old: Pipeline, store: Store) -> None:
    """A checkpoint under a new stream id, whose batch 0 ended at `end`; and what `old` knows of the source's topics."""
    if (topics := store.get(old.state_root, StateFolder.topics.name)) is not None:
        store.put_whole(stream.state_root, StateFolder.topics.name, topics)
    root = stream.checkpoint_path
    store.put_whole(stream.state_root, StateFolder.handed_over.name, b"")
    store.put_whole(join(root, "offsets"), "0", end.entry)
    store.put_whole(join(root, "commits"), "0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put_whole(root, "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())


def _name(stream: Pipeline) -> str:
    return stream.share.name if stream.share is not None else "the undivided stream"
