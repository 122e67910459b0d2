"""Is the source still the one that the stream began with? Asked after a batch was read, before anything is decided.

A topic or table that was deleted and made anew under its name goes on being read at the old place: what is before that
place in the new one would never be read, and nobody would know. An id never comes back, so a source that has its own
after a batch's last row was read had it for all of them. Where Spark alone reads and writes, its tasks ask, each after
its own last row (`SameSource`).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.errors import SourceDown, SourceMissing, SourceReplaced
from distributary.sources.delta_batch import store_of_source
from distributary.sources.kafka import TopicIds
from distributary.state.checkpoint import TopicIdsSeen, made_anew, read_offsets, refuse_loss
from distributary.tables.store import Store
from distributary.tables.table import Table


@dataclass(frozen=True)
class Place:
    """Where a stream keeps what it has read: the folder of its topics' ids, and its checkpoint. `bronze`: the table
    that it reads in place of the source, where it is the second of two hops."""

    state: str
    checkpoint: str
    bronze: str | None = None

    @classmethod
    def of(cls, config: Pipeline) -> Place:
        return cls(config.state_root, config.checkpoint_path, config.bronze_table)


class SourceIdentity:
    """Of one run. Keeps its connection, and the topics' ids that it has seen."""

    def __init__(self, config: Pipeline, store: Store, place: Place | None = None) -> None:
        self.config = config
        self.store = store
        self.place = place or Place.of(config)
        self._topics: tuple[TopicIds, TopicIdsSeen] | None = None

    def check(self, batch: int) -> list[str]:
        """What was lost and agreed to (`on_data_loss: continue`), in words. `batch`: the one that runs.

        Raises SourceDataLost, SourceReplaced, SourceMissing, SourceDown, OSError.
        """
        source = self.config.source
        if (bronze := self.place.bronze) is not None:
            self._check_table(batch, bronze, _table_id(bronze, self.store))
        elif isinstance(source, KafkaSource):
            return self._check_topics(source)
        elif isinstance(source, DeltaSource) and (store := store_of_source(source, self.config.tables)) is not None:
            self._check_table(batch, source.path, _table_id(source.path, store))
        return []

    def for_tasks(self) -> SameSource | None:
        """What the tasks of a query that begins now compare the source with; None where a loss is agreed to, or where
        nobody but Spark can read the source. Raises SourceMissing, SourceDown, OSError."""
        source, state = self.config.source, self.place.state
        if isinstance(source, KafkaSource) and source.on_data_loss == "fail":
            return SameSource(source, TopicIdsSeen(state, self.store).ids, state, self.store)
        if isinstance(source, DeltaSource) and (store := store_of_source(source, self.config.tables)) is not None:
            if (began := _table_id(source.path, store)) is None:
                raise SourceMissing(source=source.path, what="Delta table")
            return SameSource(source, {source.path: began}, state, store)
        return None

    def _check_topics(self, source: KafkaSource) -> list[str]:
        if self._topics is None:
            self._topics = TopicIds(source), TopicIdsSeen(self.place.state, self.store)
        topics, seen = self._topics
        now = topics.now()
        lost = [*made_anew(seen.ids, now).values()]
        refuse_loss(lost, source)
        seen.add(now)
        return lost

    def _check_table(self, batch: int, path: str, now: str | None) -> None:
        """Spark's offsets say which table the stream has begun with."""
        offsets = read_offsets(self.place.checkpoint, self.store, batch) or [{}]
        began = offsets[0].get("reservoirId")
        if began is not None and now != began:
            raise SourceReplaced(source=path, began=began, now=now or "there is no table")


@dataclass(frozen=True)
class SameSource:
    """Ships to the tasks of one query. `began`: topic, or address of a Delta table -> its id then. `state`: the folder
    with the ids of topics that have come since."""

    source: KafkaSource | DeltaSource
    began: Mapping[str, str]
    state: str
    store: Store

    def check(self) -> None:
        """In a task that has read its last row. Raises SourceDataLost, SourceReplaced, SourceMissing, SourceDown."""
        if isinstance(self.source, DeltaSource):
            began, now = self.began[self.source.path], _table_id(self.source.path, self.store)
            if now != began:
                raise SourceReplaced(source=self.source.path, began=began, now=now or "there is no table")
            return
        topics = _topics_of(pickle.dumps(self.source)).now()
        seen = self.began if topics.keys() <= self.began.keys() else TopicIdsSeen(self.state, self.store).ids
        refuse_loss([*made_anew(seen, topics).values()], self.source)


@lru_cache(maxsize=4)
def _topics_of(source: bytes) -> TopicIds:
    """One connection for all tasks of a worker."""
    return TopicIds(pickle.loads(source))


def _table_id(path: str, store: Store) -> str | None:
    try:
        table = Table(path, store).open()
    except OSError as e:
        raise SourceDown(source=path, detail=str(e)) from e
    return None if table is None else table.id
