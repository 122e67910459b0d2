"""What the driver and its tasks say to each other about change files. Plain values, all pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from distributary.changes.model import Reading, SourceTable
from distributary.engine.changes.names import Named
from distributary.engine.messages.orders import Outcome
from distributary.errors import LogBegunAnew
from distributary.errors.border import contained
from distributary.tables.datafile import DataFile
from distributary.tables.merge_tip import MergeTip
from distributary.tables.snapshot import Mark, Owner
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip

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
"""The part of a batch's mark under which events are written that were found in files of other tables."""

MergeState = Literal["off", "merged", "waiting", "append_only", "parked", "rows"]
"""`waiting`: in the log, to be merged later. `rows`: the events lie in files, the driver has them merged. None: nothing
is said of it, so it is as it was."""


@dataclass(frozen=True, slots=True)
class WorkFile:
    """A file of the batch, for one task. `only`: numbers of the events that are wanted, where it was read before.

    `routes`: only events of these; None: of all that the task owns. `kept`: the quarantine has it as a whole already.
    `before`: parcels in which it came before, whole or in part; the batch of a parcel has its number, or a later one.
    `aside`: numbers of its events in the quarantine.
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


@dataclass(frozen=True)
class RouteOrder:
    """What the driver decided for one route before the tasks run.

    `log`: `own`: the task that owns the route commits its table; `files`: several tasks write files, or another engine
    needs them, the driver commits; `parked`: not tried, `why` says so.
    `merge`: `now`, in the same task; `rows`: by the driver, out of the files; `later`: out of the log; `parked`.
    `schema`: the columns that all tasks of a shared route must agree on, where they did not by themselves.
    `no_table`: why no table is made of the route where it has none yet.
    """

    log: Literal["own", "files", "parked"] = "own"
    merge: Literal["now", "rows", "later", "parked"] = "now"
    schema: pa.Schema | None = None
    why: str = ""
    no_table: str = ""


@dataclass(frozen=True)
class ChangeOrders:
    """One batch's orders to its tasks. `part` tells two passes over one batch apart; it is a part of the mark.

    `tips`, `merge_tips`: by route, what is known of its log table and its merged table, as the batch before left them.
    `waiting`: by route, events of earlier batches that could not be merged: (id in the quarantine, the row).
    """

    pipeline: str
    stream: str
    batch: int
    named: Named
    reading: Reading
    store: Store
    source_options: Mapping[str, str]
    quarantine: str
    parts: str
    routes: Mapping[str, RouteOrder] = field(default_factory=dict)
    tips: Mapping[str, Tip] = field(default_factory=dict)
    merge_tips: Mapping[str, MergeTip] = field(default_factory=dict)
    waiting: Mapping[str, Sequence[tuple[str, bytes]]] = field(default_factory=dict)
    part: str = ""
    killed: Mapping[str, str] = field(default_factory=dict)
    """Files that end the process which reads them, and how."""
    read_sec: float = 300
    """CPU time that reading a file may take."""

    @property
    def app(self) -> str:
        """The stream as it marks its commits. A second pass over one batch has commits of its own."""
        return f"{self.stream}{self.part}"

    @property
    def mark(self) -> Mark:
        return Mark(self.app, self.batch)

    def target(self, uri: str, route: str, keys: Sequence[str] = ()) -> Table:
        """A table of the route, as it must be: its log, or with `keys` its merged one."""
        return Table(uri, self.store, Owner(self.pipeline, route, tuple(keys)), self.named.tables.properties)

    def order(self, route: str) -> RouteOrder:
        return self.routes.get(route, RouteOrder())


@dataclass
class ChangeOutcome(Outcome):
    """What one task did with one route. `table` is its log table, or the merged one where there is no log (`has_log`).

    - `upserts`, `deletes`: keys that were written to the merged table; `stale`: those for which it had a newer event.
    - `newest_ms`: newest source time. `brought`: columns by schema key; with `keeps`, the ledger is to keep them.
    - `split`: columns of which JSON files have numbers of two types (`Fitted`).
    - `again`: events that were in the quarantine and are in the table now, by file.
    - `late` (`late_rows`): events for the quarantine that are in the log, but could not be merged; `resolved`: ids of
      such ones of earlier batches that could be now.
    - `anew`: the merge found the source's log begun anew: once the settings say since when, all of the log table is
      merged again, since changes that it ignored before may be newer than the rows.
    - `merge_spark`: why Spark must merge, and `merge_files` in the folder `parts`, whose rows these are.
    - `merge_tip`: what is known of the merged table now.
    - `seconds`: what took how long in the task: log, reduce, merge.
    - `files_at`: the folder of `files`; `schema`: their columns, as an Arrow IPC message, of which the first `known`
      are the table's; `incoming`: the schemas of the events in them, likewise.
    - `changed`: the log holds other rows of this batch than the files do now. `by_spark`: Spark has written one of its
      tables.
    """

    source: SourceTable | None = None
    has_log: bool = True
    keys: tuple[str, ...] = ()
    merged: str | None = None
    merge_state: MergeState | None = "off"
    merge_error: str | None = None
    anew: bool = False
    merge_created: bool = False
    merge_spark: str | None = None
    merge_files: list[DataFile] = field(default_factory=list)
    merge_tip: MergeTip | None = None
    upserts: int = 0
    deletes: int = 0
    stale: int = 0
    newest_ms: int | None = None
    schema: bytes | None = None
    known: int = 0
    incoming: list[bytes] = field(default_factory=list)
    changed: bool = False
    by_spark: bool = False
    files_at: str = ""
    again: dict[str, list[int]] = field(default_factory=dict)
    brought: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keeps: bool = False
    split: tuple[str, ...] = ()
    late: list[pa.Table] = field(default_factory=list)
    late_rows: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    resolved: list[str] = field(default_factory=list)

    def park_merge(self, error: BaseException) -> None:
        """Note that the merged table cannot be written. Raises what is no table's fault (`border`)."""
        self.merge_state, self.merge_error = "parked", contained(error)
        self.anew = isinstance(error, LogBegunAnew)
        self.blame(error)

    def _about(self) -> str | None:
        if self.source is None:
            return None
        source = self.source
        about = {"source": [source.kind, source.database, source.schema, source.table], "keys": self.keys}
        more = ({"brought": self.brought} if self.keeps else {}) | ({"anew": True} if self.anew else {})
        return json.dumps(about | more)

    def more(self) -> dict[str, Any]:
        return {
            "merged": self.merged if self.merge_state != "append_only" else None,
            "merge_state": self.merge_state,
            "about": self._about(),
            "upserts": self.upserts,
            "deletes": self.deletes,
            "stale": self.stale,
        }


@dataclass(frozen=True)
class Seen:
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
