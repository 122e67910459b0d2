"""What must hold of every source (`sources.port`). A test module makes a `Stage` for one and calls `check_all`."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.errors import BadInput, SourceDataLost, SourceMissing, SourceReplaced
from distributary.sources.port import ORIGIN, AnswerCache, Position, Source, SourceLag
from distributary.sources.registered import source_of
from distributary.state.checkpoint import TopicIdsSeen, last_committed, read_offsets
from distributary.tables.store import Store


class Stage(ABC):
    """A source that a test can fill, over a folder of its own."""

    has_records = True
    """Else a record of its stream is a file."""

    def __init__(self, root: Path, config: Pipeline) -> None:
        self.root = root
        self.config = config

    @abstractmethod
    def add(self, count: int) -> None:
        """So many records more."""

    @abstractmethod
    def make_anew(self) -> None:
        """Take the source away, and put another one of its name in its place."""

    def prepare(self) -> None:  # noqa: B027 - most streams need nothing
        """What a run does before its stream begins."""

    def taken(self) -> int:
        """The last file batch that a batch has taken."""
        return -1

    @property
    def source(self) -> Source:
        return source_of(self.config)

    def waiting(self, position: Position | None, asked: AnswerCache | None = None) -> int | None:
        lag: SourceLag = self.source.lag(position, asked or AnswerCache(), self.taken)
        return lag.rows if self.has_records else lag.files


def check_all(stage: Stage, spark: SparkSession) -> None:
    check_it_says_what_it_is(stage)
    check_what_waits_is_counted_and_read_once(stage, spark)
    check_the_newest_records_are_shown(stage)
    check_another_source_of_the_same_name_is_refused(stage)


def check_it_says_what_it_is(stage: Stage) -> None:
    with pytest.raises(SourceMissing):
        stage.source.look()
    stage.add(3)
    assert all(seen.text for seen in stage.source.look())
    assert len(stage.source.name) > 8 and "\n" not in stage.source.name


def check_what_waits_is_counted_and_read_once(stage: Stage, spark: SparkSession) -> None:
    assert stage.waiting(None) == 3
    assert run(stage, spark, "a") == 3
    position = read_up_to(stage, "a")
    assert stage.waiting(position) == 0
    stage.add(2)
    asked = AnswerCache()
    assert [stage.waiting(position, asked) for _ in range(2)] == [2, 2]
    assert run(stage, spark, "a") == 2, "what was read is not read again"
    assert stage.waiting(read_up_to(stage, "a")) == 0
    assert run(stage, spark, "b") == 5, "a stream of its own reads all"
    seen = TopicIdsSeen(str(stage.root / "contract-state"), Store())
    assert stage.source.lost(read_up_to(stage, "a"), seen) == []


def check_the_newest_records_are_shown(stage: Stage) -> None:
    if not stage.has_records:
        with pytest.raises(BadInput):
            stage.source.newest(4)
        return
    found = stage.source.newest(4)
    assert 0 < found.num_rows <= 4
    assert set(ORIGIN.names) < set(found.column_names), "and what the record holds"


def check_another_source_of_the_same_name_is_refused(stage: Stage) -> None:
    ids = stage.source.ids()
    if ids is None:
        return
    began = ids.now()
    assert began and pickle.loads(pickle.dumps(ids)).now() == began
    assert ids.refuse(began, ids.now()) == []
    assert ids.begun(read_up_to(stage, "a")) == (began if ids.in_positions else {})
    stage.make_anew()
    stage.add(1)
    with pytest.raises((SourceDataLost, SourceReplaced)):
        ids.refuse(began, ids.now())


# -- how a stream reads ------------------------------------------------------------------------------------


def run(stage: Stage, spark: SparkSession, name: str) -> int:
    """Rows of a stream with checkpoint `name`, from where it was up to the end."""
    rows: list[Any] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend(batch.collect())

    stage.prepare()
    writer = stage.source.stream(spark).writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stage.root / f"checkpoint-{name}")).start()
    query.awaitTermination()
    return len(rows)


def read_up_to(stage: Stage, name: str) -> Position:
    checkpoint = str(stage.root / f"checkpoint-{name}")
    batch = last_committed(checkpoint, Store())
    assert batch is not None
    offsets = read_offsets(checkpoint, Store(), batch)
    assert offsets is not None
    return offsets[0]
