"""Is the source still the one that the stream began with? Asked after a batch was read, before anything is written.

A topic or table that was deleted and made anew under its name goes on being read at the old place: what is before that
place in the new one would never be read, and nobody would know. An id never comes back, so a source that has its own
after a batch's last row was read had it for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.errors import SourceDown, SourceReplaced
from distributary.sources.delta_batch import store_of_source
from distributary.sources.kafka import TopicIds
from distributary.state.checkpoint import TopicIdsSeen, read_offsets, refuse_loss
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
        bronze = config.bronze_path if config.layout == "two_hop" else None
        return cls(config.state_root, config.checkpoint_path, bronze)


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

    def _check_topics(self, source: KafkaSource) -> list[str]:
        if self._topics is None:
            self._topics = TopicIds(source), TopicIdsSeen(self.place.state, self.store)
        topics, seen = self._topics
        now = topics.now()
        lost = [*seen.made_anew(now).values()]
        refuse_loss(lost, source)
        seen.add(now)
        return lost

    def _check_table(self, batch: int, path: str, now: str | None) -> None:
        """Spark's offsets say which table the stream has begun with."""
        offsets = read_offsets(self.place.checkpoint, self.store, batch) or [{}]
        began = offsets[0].get("reservoirId")
        if began is not None and now != began:
            raise SourceReplaced(source=path, began=began, now=now or "there is no table")


def _table_id(path: str, store: Store) -> str | None:
    try:
        table = Table(path, store).open()
    except OSError as e:
        raise SourceDown(source=path, detail=str(e)) from e
    return None if table is None else table.id
