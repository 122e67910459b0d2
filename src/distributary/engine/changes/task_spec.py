"""What the driver and its tasks say to each other about change files. Plain values, all pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from distributary.changes.model import Reading
from distributary.engine.appending import ReplayCheck
from distributary.engine.changes.table_settings import Named
from distributary.engine.decisions import TaskSpec
from distributary.tables.merge_tip import MergeTip
from distributary.tables.snapshot import Owner
from distributary.tables.table import Table

ORIGIN = "_origin"
ORIGIN_TYPE = pa.struct(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("batch", pa.int64()),
        ("key", pa.string()),
        ("key_columns", pa.string()),
    ]
)
"""Where an event in a log table came from: the file, its number in it (from 0), the batch that brought it; and its key
as it came, whatever becomes of its columns: a JSON array of the values (`changes.key_text`), and one of the columns'
names, in the same order. Null for an event without a key, and in logs of versions before 0.2."""

STRAY = "+2"
"""The part of a batch's transaction under which events are written that were found in files of other tables."""


@dataclass(frozen=True, slots=True)
class WorkFile:
    """A file of the batch, for one task. `only`: numbers of the events that are wanted, where it was read before.

    `routes`: only events of these; None: of all that the task owns. `kept`: the quarantine has it as a whole already.
    `before`: file batches in which it came before, whole or in part; the batch of a file batch has its number, or a
    later one. `aside`: numbers of its events in the quarantine.
    """

    path: str
    size: int
    mtime_ms: int
    folder: str = ""
    attempt: int = 1
    etag: str = ""
    only: tuple[int, ...] | None = None
    routes: frozenset[str] | None = None
    kept: bool = False
    before: tuple[int, ...] = ()
    aside: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ChangeSpec(TaskSpec):
    """What a batch's tasks are told to do. `part` tells two passes over one batch apart; it is a part of the
    transaction. `tips`: of the log tables, `merge_tips` of the merged ones. `killed`: files, by path.

    `parts`: folder for rows that Spark is to write. `waiting`: by route, events of earlier batches that could not be
    merged: (id in the quarantine, the row).
    """

    named: Named
    parts: str
    reading: Reading = field(default_factory=Reading)
    source_options: Mapping[str, str] = field(default_factory=dict)
    merge_tips: Mapping[str, MergeTip] = field(default_factory=dict)
    waiting: Mapping[str, Sequence[tuple[str, bytes]]] = field(default_factory=dict)
    part: str = ""

    @property
    def app(self) -> str:
        """The stream as its commits name it. A second pass over one batch has commits of its own."""
        return f"{self.stream}{self.part}"

    def target(self, uri: str, route: str, keys: Sequence[str] = ()) -> Table:
        """A table of the route, as it must be: its log, or with `keys` its merged one."""
        return Table.of_route(uri, self.store, Owner(self.pipeline, route, tuple(keys)), self.named.tables)

    @property
    def replay(self) -> ReplayCheck:
        """What this attempt expects where an earlier one has committed: files may have come or gone since."""
        return ReplayCheck(self.batch, fewer=self.named.of_files, more=self.named.of_files)

    def anew(self) -> Self:
        return replace(super().anew(), merge_tips={})


@dataclass(frozen=True)
class FileReport:
    """What a task found in one file. `foreign`: events by route that it does not own, and has not written.

    `broken`: why nothing can be read. `nameless`: events that were set aside without a route, by reason. `still`: those
    of `WorkFile.aside` that are no better now. `beyond`: times that no reader can hold and that are null, by column.
    """

    path: str
    attempt: int
    foreign: Mapping[str, int] = field(default_factory=dict)
    routes: tuple[str, ...] = ()
    broken: str | None = None
    gone: bool = False
    unknown_fields: tuple[str, ...] = ()
    beyond: Mapping[str, int] = field(default_factory=dict)
    nameless: Mapping[str, int] = field(default_factory=dict)
    still: tuple[int, ...] = ()
    seconds: float = 0.0
