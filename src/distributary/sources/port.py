"""What a source is to those who read it, whatever it is: a topic, a Delta table, files, bronze.

`sources.registered` chooses the one of a pipeline. What must hold of each stands in `tests/source_contract.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa

from distributary.config import Pipeline
from distributary.sources.data_files import BatchFiles
from distributary.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Found = TypeVar("Found")
Position = Mapping[str, Any]
"""A place in a source, as Spark's checkpoint writes it for one source: for Kafka topic -> partition -> next offset, for
Delta a place in the table's log (`sources.unread`)."""

ORIGIN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
    ]
)
"""Where a record comes from, as `Source.newest` has it."""


@dataclass(frozen=True)
class SourceLag:
    """`rows`: rows that wait; None where nobody can say, and `note` says why. `files`, `bytes`: change files that were
    found and wait, or would be first; how many events they hold, nobody knows before they are read."""

    rows: int | None = None
    note: str | None = None
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Sight:
    """Something of a source, in words. `remedy`: what to do, where it is not what one would wish."""

    text: str
    remedy: str | None = None


class AnswerCache:
    """What sources hold at this moment. Each is asked once, whatever number of streams reads it; one that does not
    answer is not waited for twice."""

    def __init__(self) -> None:
        self._answers: dict[str, Any] = {}

    def once(self, question: str, ask: Callable[[], Found]) -> Found:
        """The answer of the first who asked `question`, or the error that it was."""
        if question not in self._answers:
            try:
                self._answers[question] = ask()
            except Exception as e:
                self._answers[question] = e
        answer = self._answers[question]
        if isinstance(answer, Exception):
            raise answer
        result: Found = answer
        return result


class Ids(Protocol):
    """The ids of what a source reads from, by name. An id never comes back, so a source that has its own after a
    batch's last row was read had it for all of them. Ships to tasks."""

    @property
    def agreed(self) -> bool:
        """May something be lost without ending the stream (`source.on_data_loss: continue`)?"""

    @property
    def in_positions(self) -> bool:
        """Do the stream's positions say the ids that it began with? Else its state folder keeps them."""

    def now(self) -> dict[str, str]:
        """As they are now. Raises SourceDown, SourceMissing."""

    def begun(self, position: Position) -> dict[str, str]:
        """Those that the stream began with, as far as `position` says it."""

    def refuse(self, seen: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
        """What is lost with names that have another id now, in words, where that is agreed.

        Raises SourceDataLost, SourceReplaced.
        """


class SeenIds(Protocol):
    """Ids that a stream has seen, kept in its state folder."""

    ids: dict[str, str]

    def add(self, now: Mapping[str, str]) -> None:
        """From now on these count. Raises OSError."""


class Source(ABC):
    """Where the records of one pipeline come from, or of one of its streams."""

    def __init__(self, config: Pipeline) -> None:
        self.config = config
        self.store = Store.of(config.tables)

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is and where, in words."""

    def check_here(self) -> None:  # noqa: B027 - most need nothing that could be missing
        """Can it be read from this machine, by its settings and by what is installed? Asks nobody. Raises BadInput."""

    @abstractmethod
    def look(self) -> list[Sight]:
        """What is there now, seen before anything is started. Raises SourceDown, SourceMissing."""

    @abstractmethod
    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        """The streaming DataFrame. Build it anew for every start: a plan that is kept goes stale
        (delta-io/delta#6050). `all_shares`: the rows of all shares. Raises SourceMissing."""

    def files(self, spark: SparkSession, query: StreamingQuery, batch: int) -> BatchFiles | None:
        """The data files that the batch stands for which `query` runs now, where tasks can read them themselves."""
        return None

    @abstractmethod
    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        """What waits behind the position `read` (None: nothing was read). `last_file_batch`: the last one of the file
        ledger that a finished batch has taken. Raises SourceDown, SourceMissing, OSError."""

    def ids(self) -> Ids | None:
        """None where nobody but Spark can ask for them."""
        return None

    def lost(self, read: Position, seen: SeenIds) -> list[str]:
        """What was never read and is gone, in words, where that is agreed. `read`: where the stream is; empty before
        its first batch. Raises SourceDataLost, SourceDown, SourceMissing, OSError."""
        return []

    def decided(self, position: Callable[[], Position | None]) -> None:  # noqa: B027 - most have nobody to tell
        """Tell those who watch the stream that all before `position` is in the tables. What cannot be told is a line
        in the log, never an error."""

    @abstractmethod
    def newest(self, count: int) -> pa.Table:
        """At most `count` records, the newest last, read without Spark: the columns of `ORIGIN`, and what the
        stream has besides. Raises BadInput where it has no records, SourceDown, SourceMissing, StoreUnreadable."""

    def beginning_at(self, position: Position) -> Self:
        """This source for a stream that begins there. Only those that have offsets (`source.has_offsets`) can."""
        return self
