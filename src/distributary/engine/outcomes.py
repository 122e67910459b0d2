"""What became of a route in a batch, in parts: the append, the merge, the rows set aside, what took how long.

A task says one `Outcome` per route, or per piece of one; the driver joins those of a route, and replaces the parts that
are its own to do. Plain values, none of which changes; all pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

import pyarrow as pa

from distributary.changes.model import SourceTable, known_one
from distributary.errors import LogBegunAnew, StoreDown
from distributary.errors.border import contained
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy, evolve
from distributary.tables.merge_tip import MergeTip
from distributary.tables.outage import is_store_fault, may_be_store
from distributary.tables.tip import Tip

State = Literal["written", "replayed", "empty", "files", "counted", "spark", "failed"]
MergeState = Literal["off", "append_only", "merged", "rows", "waiting", "parked"]
"""`waiting`: in the log, to be merged later. `rows`: the events lie in files, the driver has them merged. Each leaves
more to do than the ones before it. None: nothing is said of it, so it is as it was."""
_LEAVES_MORE: tuple[MergeState, ...] = get_args(MergeState)


class Parked(Exception):
    """The driver decided not to try this table."""


@dataclass(frozen=True)
class Fault:
    """Why a table cannot be written, in words. `of_store`: it speaks of the store as a whole. `below`: it came from
    below the tables, and is the store's where all tables have such a one."""

    words: str
    of_store: bool = False
    below: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Raises what is meant for the process (`errors.border`)."""
        why = contained(error)
        return cls(str(error) if isinstance(error, Parked) else why, is_store_fault(error), may_be_store(error))

    def own(self, path: str) -> str:
        """Why, of the table at `path` alone. Raises StoreDown where it is the whole store's."""
        if self.of_store:
            raise StoreDown(path=path, detail=self.words)
        return self.words


@dataclass(frozen=True)
class Append:
    """What was done to the table that rows are appended to.

    - `rows`: in it by this batch's commit, in files of `size` bytes (0: not known). `other`: they are not as many as
      were brought, for an earlier attempt found other files.
    - `files`: written in `folder`, for the driver to commit. `schema`: their columns, as an Arrow IPC message, of which
      the first `known` are the table's; `incoming`: the schemas of the rows in them, or of those counted, likewise.
    - `widened`: columns that got a wider type: `score` -> `int -> bigint`. `tip`: what is known of the table now.
    - `why_spark`: why only engine `spark` may write it; `by_spark`: it has.
    """

    state: State = "empty"
    rows: int = 0
    created: bool = False
    evolved: bool = False
    widened: Mapping[str, str] = field(default_factory=dict)
    tip: Tip | None = None
    other: bool = False
    why_spark: str | None = None
    by_spark: bool = False
    files: tuple[DataFile, ...] = ()
    folder: str = ""
    schema: bytes | None = None
    known: int = 0
    incoming: tuple[bytes, ...] = ()
    size: int = 0

    def columns(self) -> pa.Schema:
        """The columns of the files; none where there are none."""
        return pa.schema([]) if self.schema is None else pa.ipc.read_schema(pa.py_buffer(self.schema))

    def joined(self, other: Append) -> Append:
        """As one, with what another task did to the same table."""
        columns = self.schema or other.schema
        if self.schema is not None and other.schema is not None:
            # They agree on the types, or the driver has them tried again: this only adds columns.
            columns = evolve(self.columns(), [other.columns()], Policy()).schema.serialize().to_pybytes()
        return replace(
            self,
            rows=self.rows + other.rows,
            created=self.created or other.created,
            evolved=self.evolved or other.evolved,
            widened={**self.widened, **other.widened},
            tip=other.tip or self.tip,
            other=self.other or other.other,
            by_spark=self.by_spark or other.by_spark,
            files=self.files + other.files,
            schema=columns,
            size=self.size + other.size,
        )


@dataclass(frozen=True)
class Merge:
    """What was done to the merged table of a route of change events, at the address `table` (None: there is none).

    - `upserts`, `deletes`: keys that were written; `stale`: those for which the table had a newer event.
    - `late` (`late_rows`): events for the quarantine that are in the log, but could not be merged; `resolved`: ids of
      such ones of earlier batches that could be now.
    - `anew`: the source's log has begun anew: once the settings say since when, all of the log table is merged again,
      since changes that it ignored before may be newer than the rows.
    - `why_spark`: why Spark must merge; its rows lie in `files`, in the folder for that. `by_spark`: it has.
    - `truncates`: what the table is to remember of TRUNCATEs (`changes.truncates`), where it is made by Spark.
    """

    table: str | None = None
    state: MergeState | None = "off"
    fault: Fault | None = None
    anew: bool = False
    created: bool = False
    widened: Mapping[str, str] = field(default_factory=dict)
    tip: MergeTip | None = None
    why_spark: str | None = None
    by_spark: bool = False
    files: tuple[DataFile, ...] = ()
    upserts: int = 0
    deletes: int = 0
    stale: int = 0
    late: tuple[pa.Table, ...] = ()
    late_rows: int = 0
    resolved: tuple[str, ...] = ()
    truncates: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        return None if self.fault is None else self.fault.words

    def parked(self, error: BaseException) -> Merge:
        """As it is where the table cannot be written. Raises what is no table's fault (`errors.border`)."""
        return replace(self, state="parked", fault=Fault.of(error), anew=isinstance(error, LogBegunAnew))

    def then(self, other: Merge) -> Merge:
        """With what a merge of other keys did after it."""
        return replace(
            self._sum(other),
            state="rows" if "rows" in (self.state, other.state) else other.state,
            why_spark=self.why_spark or other.why_spark,
            files=self.files + other.files,
            tip=other.tip,
        )

    def joined(self, other: Merge) -> Merge:
        """With what another task did. Of two states the one that leaves more to do counts."""
        total = self._sum(other)
        assert self.state is not None and other.state is not None
        if self.state == "rows" or _LEAVES_MORE.index(other.state) > _LEAVES_MORE.index(self.state):
            total = replace(total, state=other.state, fault=other.fault, anew=self.anew or other.anew)
        return replace(total, why_spark=other.why_spark, files=other.files, tip=other.tip or self.tip)

    def _sum(self, other: Merge) -> Merge:
        return replace(
            self,
            created=self.created or other.created,
            widened={**self.widened, **other.widened},
            by_spark=self.by_spark or other.by_spark,
            upserts=self.upserts + other.upserts,
            deletes=self.deletes + other.deletes,
            stale=self.stale + other.stale,
            late=self.late + other.late,
            late_rows=self.late_rows + other.late_rows,
            resolved=self.resolved + other.resolved,
            truncates=other.truncates or self.truncates,
            seconds=added(self.seconds, other.seconds),
        )


@dataclass(frozen=True)
class SourceEvents:
    """What the events of a route said of their source table, and which of them had come before.

    - `newest_ms`: newest source time. `brought`: columns by schema key; with `keeps`, the ledger is to keep them.
    - `split`: columns of which JSON files have numbers of two types (`fitting.Fitted`).
    - `again`: events that were in the quarantine and are in the table now, by file.
    """

    source: SourceTable
    keys: tuple[str, ...] = ()
    has_log: bool = True
    newest_ms: int | None = None
    brought: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keeps: bool = False
    split: tuple[str, ...] = ()
    again: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def joined(self, other: SourceEvents) -> SourceEvents:
        """With what another task found of the same source table."""
        paths = dict.fromkeys((*self.again, *other.again))
        return replace(
            self,
            source=known_one(self.source, other.source),
            newest_ms=max((ms for ms in (self.newest_ms, other.newest_ms) if ms is not None), default=None),
            brought={**self.brought, **other.brought},
            again={path: (*self.again.get(path, ()), *other.again.get(path, ())) for path in paths},
        )


@dataclass(frozen=True)
class Outcome:
    """What was done with one route. `rows_in`: rows that came; each is in the table or counted in `reasons`.

    `table`: the one that rows are appended to; where events have no log table, the merged one. `merge`, `events`: of
    change events only. `schema_ids`, `decoders`, `warnings`: of messages. `seconds`: what took how long in the task.
    `aside`: all that came was set aside before anything was known of the tables.
    """

    route: str
    table: str
    rows_in: int = 0
    append: Append = field(default_factory=Append)
    merge: Merge | None = None
    events: SourceEvents | None = None
    fault: Fault | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    schema_ids: Mapping[int, int] = field(default_factory=dict)
    decoders: Mapping[int, str] = field(default_factory=dict)
    warnings: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    aside: bool = False

    @property
    def state(self) -> State:
        return "failed" if self.fault is not None else self.append.state

    @property
    def error(self) -> str | None:
        return None if self.fault is None else self.fault.words

    @property
    def rows_written(self) -> int:
        return self.append.rows

    @property
    def faults(self) -> list[Fault]:
        """Of all tables of the route."""
        faults = (self.fault, None if self.merge is None else self.merge.fault)
        return [fault for fault in faults if fault is not None]

    @property
    def widened(self) -> Mapping[str, str]:
        """Columns of either table that got a wider type."""
        return {**self.append.widened, **({} if self.merge is None else self.merge.widened)}

    @property
    def by_spark(self) -> bool:
        """Has engine `spark` written one of its tables?"""
        return self.append.by_spark or (self.merge is not None and self.merge.by_spark)

    def failed(self, error: BaseException) -> Outcome:
        """As it is where the table cannot be written, and nothing of the route was. Raises what is no table's fault
        (`errors.border`)."""
        return replace(self, fault=Fault.of(error), append=Append())

    def joined(self, other: Outcome) -> Outcome:
        """With what another task did with the same route."""
        if self.aside and not other.aside:
            return other.joined(self)
        merge = self.merge
        if merge is not None and other.merge is not None and not other.aside:
            merge = merge.joined(other.merge)
        return replace(
            self,
            rows_in=self.rows_in + other.rows_in,
            append=self.append.joined(other.append),
            merge=merge,
            events=self.events.joined(other.events) if self.events is not None and other.events else self.events,
            fault=other.fault or self.fault,
            reasons=added(self.reasons, other.reasons),
            schema_ids=added(self.schema_ids, other.schema_ids),
            decoders={**self.decoders, **other.decoders},
            warnings=added(self.warnings, other.warnings),
            seconds=added(self.seconds, other.seconds),
        )


@dataclass
class Delivered:
    """What a batch did: an outcome per route, the quarantine's files, rows set aside before they
    had an owner (route -> reason -> rows). `excluded`: records of routes that are left out."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    quarantine: list[DataFile] = field(default_factory=list)
    bad: Mapping[str | None, Mapping[str, int]] = field(default_factory=dict)
    tombstones: Mapping[str | None, int] = field(default_factory=dict)
    excluded: int = 0
    newest: Mapping[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def join_into(outcomes: dict[str, Outcome], outcome: Outcome) -> None:
    """Enter what one of several tasks did with a route."""
    before = outcomes.get(outcome.route)
    outcomes[outcome.route] = outcome if before is None else before.joined(outcome)


K = TypeVar("K")
N = TypeVar("N", int, float)


def added(left: Mapping[K, N], right: Mapping[K, N]) -> dict[K, N]:
    """The sums by key."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in dict.fromkeys((*left, *right))}


def raise_store_faults(tried: Mapping[str, Outcome]) -> None:
    """Raises StoreDown where the store is at fault, not a table: one speaks of it, or all of several routes have a
    fault that came from below their tables. `tried`: the routes whose tables were to be written."""
    failed = {route: outcome.faults for route, outcome in tried.items() if outcome.faults}
    all_below = len(failed) == len(tried) > 1 and all(any(f.below for f in faults) for faults in failed.values())
    for route, faults in failed.items():
        for fault in faults:
            replace(fault, of_store=all_below or fault.of_store).own(tried[route].table)


def check_counts(outcomes: Iterable[Outcome]) -> None:
    """Asserts that no row is unaccounted for."""
    for outcome in outcomes:
        quarantined = sum(outcome.reasons.values())
        if outcome.rows_in != outcome.rows_written + quarantined:
            raise AssertionError(
                f"{outcome.route}: {outcome.rows_in} in, {outcome.rows_written} written, {quarantined} kept"
            )
