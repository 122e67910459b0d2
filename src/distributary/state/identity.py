"""Is the source still the one that the stream began with? Asked after a batch was read, before anything is decided.

A topic or table that was deleted and made anew under its name goes on being read at the old place: what is before that
place in the new one would never be read, and nobody would know. An id never comes back, so a source that has its own
after a batch's last row was read had it for all of them. Where Spark alone reads and writes, its tasks ask, each after
its own last row (`SameSource`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distributary.config import Pipeline
from distributary.errors import SourceMissing
from distributary.sources.port import Ids
from distributary.sources.registered import source_of
from distributary.state.checkpoint import TopicIdsSeen, read_offsets
from distributary.tables.store import Store


class SourceIdentity:
    """Of one run of one stream. Keeps its connection, and the ids that it has seen."""

    def __init__(self, config: Pipeline, store: Store) -> None:
        self.config = config
        self.store = store
        self.source = source_of(config)
        self._ids: Ids | None = None
        self._seen: TopicIdsSeen | None = None

    def check(self, batch: int) -> list[str]:
        """What was lost and agreed to (`on_data_loss: continue`), in words. `batch`: the one that runs.

        Raises SourceDataLost, SourceReplaced, SourceMissing, SourceDown, OSError.
        """
        ids = self._ids = self._ids or self.source.ids()
        if ids is None:
            return []
        now = ids.now()
        if ids.in_positions:
            position = (read_offsets(self.config.checkpoint_path, self.store, batch) or [{}])[0]
            return ids.refuse(ids.begun(position), now)
        self._seen = self._seen or TopicIdsSeen(self.config.state_root, self.store)
        lost = ids.refuse(self._seen.ids, now)
        self._seen.add(now)
        return lost

    def for_tasks(self) -> SameSource | None:
        """What the tasks of a query that begins now compare the source with; None where a loss is agreed to, or where
        nobody but Spark can read the source. Raises SourceMissing, SourceDown, OSError."""
        ids, state = self.source.ids(), self.config.state_root
        if ids is None or ids.agreed:
            return None
        if not ids.in_positions:
            return SameSource(ids, TopicIdsSeen(state, self.store).ids, state, self.store)
        if not (began := ids.now()):
            raise SourceMissing(source=self.source.name, what="Delta table")
        return SameSource(ids, began, state, self.store)


@dataclass(frozen=True)
class SameSource:
    """Ships to the tasks of one query. `began`: name -> its id then. `state`: the folder with the ids of topics that
    have come since."""

    ids: Ids
    began: Mapping[str, str]
    state: str
    store: Store

    def check(self) -> None:
        """In a task that has read its last row. Raises SourceDataLost, SourceReplaced, SourceMissing, SourceDown."""
        now = self.ids.now()
        has_all_ids = now.keys() <= self.began.keys()
        self.ids.refuse(self.began if has_all_ids else TopicIdsSeen(self.state, self.store).ids, now)
