"""Is every row where the ledger says it is? Recounts the tables and the quarantine from their data files.

A row is this pipeline's own if its `_origin.batch` is set; rows of others in the same table do not count. A file
without that column counts as ours in a table that this pipeline made. With `tables.origin: false` nothing tells rows
apart: every row of the table counts, so the table must hold this pipeline's rows only.

What a batch or a replay has written but not finished (no entry in the ledger yet) is neither lost nor doubled: it is
pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeAlias

from distributary.audit.recount import Count, QuarantineCount, count_quarantine, count_rows
from distributary.config import Pipeline
from distributary.errors import Exit
from distributary.errors.border import contained
from distributary.names import shown, table_name
from distributary.running.named_tables import with_session
from distributary.state.checkpoint import is_handed_over, readable_stream_id
from distributary.state.divisions import parts
from distributary.state.ledger import LOSS, Entry, Ledger, is_batch, read_entries, replay_stream, totals
from distributary.tables.faults import reading
from distributary.tables.files import TableFiles
from distributary.tables.quarantine import quarantine_uri, replay_app
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.wide import KEY

TABLES_AT_A_TIME = 8


@dataclass(frozen=True)
class TableCheck:
    """One table: what came in by the ledger, and where it was found. `rows_written`: in the table's own files.

    `rows_compared`: with their records, value by value. `rows_living`: of a table with keys, the rows that could be;
    None where each row that was written could.
    `schema_ids`: rows found by writer schema. `rows_pending`: rows of a batch that is not finished; not counted.
    `rows_foreign`: rows of other writers.  rows_in = rows_written + rows_quarantined + rows_lost - rows_duplicated.
    """

    route: str
    table: str | None
    engine: str
    rows_in: int = 0
    rows_written: int = 0
    rows_quarantined: int = 0
    rows_lost: int = 0
    rows_duplicated: int = 0
    schema_ids: Mapping[int, int] = field(default_factory=dict)
    tombstones: int = 0
    rows_pending: int = 0
    rows_foreign: int = 0
    problems: tuple[str, ...] = ()
    rows_compared: int = 0
    rows_living: int | None = None


@dataclass(frozen=True)
class Verification:
    """The sums over all tables and rows without one. `quarantine`: its rows by state. `problems`: in words.
    `notes`: what could not be judged. `excluded`: records of routes that the pipeline file leaves out."""

    pipeline: str
    ok: bool
    rows_in: int
    rows_written: int
    rows_quarantined: int
    rows_lost: int
    rows_duplicated: int
    tombstones: int
    tables: tuple[TableCheck, ...]
    quarantine: Mapping[str, int]
    source_losses: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    excluded: int = 0

    @property
    def exit_code(self) -> Exit:
        return Exit.OK if self.ok else Exit.ATTENTION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def judged(self, tables: Sequence[TableCheck], notes: Iterable[str]) -> Verification:
        """With what a closer look says of the tables, in the same order: the problems that it adds to them count."""
        problems = [
            f"{shown(table.table or table.route)}: {text}"
            for table, before in zip(tables, self.tables, strict=True)
            for text in table.problems[len(before.problems) :]
        ]
        return replace(
            self,
            ok=self.ok and not problems,
            tables=tuple(tables),
            problems=(*self.problems, *problems),
            notes=(*self.notes, *notes),
        )


def verify(config: Pipeline) -> Verification:
    """Recount everything. Safe beside a run: batches that finish meanwhile are left out.

    Raises StoreUnreadable when ledger or quarantine cannot be read. A table that cannot be read counts as lost.
    """
    with_session(config)
    store = Store.of(config.tables)
    with reading(config.state_root):
        books, quarantine = _read(config, store)
    sums = totals(books.entries)
    routes = sorted({route for route in [*sums, *quarantine.rows] if route is not None})
    entries = [sums.get(route, Entry("", 0, route)) for route in routes]
    opened: _Open = partial(_open, store, books)
    if config.shared_table is not None:
        opened = cache(opened)  # all routes are in one
    with ThreadPoolExecutor(TABLES_AT_A_TIME) as pool:
        tables = list(pool.map(partial(_check, config, store, opened, quarantine), entries))
    return _sum_up(config, books, quarantine, sums, tables)


# -- what is finished --------------------------------------------------------------------------------------


def _read(config: Pipeline, store: Store) -> tuple[_Books, QuarantineCount]:
    """The ledgers and quarantines of all the streams of a pipeline. Raises TableFault, OSError."""
    all_finished, quarantine = [], QuarantineCount()
    for stream in parts(config, store):
        finished = _Finished.read(stream, store)
        uri = quarantine_uri(stream.state_root)
        quarantine.add(count_quarantine(finished.quarantine, uri, store, finished.entries, finished.is_finished))
        all_finished.append(finished)
    return _Books([e for finished in all_finished for e in finished.entries], all_finished), quarantine


@dataclass(frozen=True)
class _Books:
    """What all streams have finished. Numbers of replays are each stream's own, so each keeps its own transactions."""

    entries: Sequence[Entry]
    each: Sequence[_Finished]

    def settled(self, table: Snapshot) -> Snapshot | None:
        """The table before whatever is not finished; None when that is all it holds."""
        while not all(finished.is_settled(table) for finished in self.each):
            if table.version == 0:
                return None
            table = table.at(table.version - 1)
        return table


@dataclass(frozen=True)
class _Finished:
    """A ledger as it was at one moment, and its quarantine right after. `txns`: the ledger's table then."""

    root: str
    entries: Sequence[Entry]
    txns: Snapshot | None
    newest: Mapping[str, int]
    apps: Sequence[str]
    quarantine: Snapshot | None
    handed_over: bool

    @classmethod
    def read(cls, config: Pipeline, store: Store) -> _Finished:
        # The transactions first: a batch that finishes in between is then in the entries, and finished by them.
        txns = Table(config.state_folder.ledger, store).open()
        entries = read_entries(config.state_root, store)
        newest = Ledger(config.state_root, config.pipeline, store, entries).finished
        streams = {e.stream for e in entries if is_batch(e.stream)} | {
            readable_stream_id(config.checkpoint_path, store)
        }
        quarantine = Table(quarantine_uri(config.state_root), store).open()
        apps = sorted(s for s in streams if s)
        return cls(config.state_root, entries, txns, newest, apps, quarantine, is_handed_over(config, store))

    def is_finished(self, stream: str, batch: int) -> bool:
        """Old entries are added up and lose their stream; the ledger's transactions keep it."""
        if batch <= self.newest.get(stream, -1):
            return True
        return self.txns is not None and batch <= self.txns.newest(stream)

    def is_settled(self, table: Snapshot) -> bool:
        """Is everything of this stream in the table finished?"""
        if any(not self.is_finished(app, table.newest(app)) for app in self._in(table, self.apps)):
            return False
        for app in self._in(table, [] if self.quarantine is None else [replay_app(self.quarantine)]):
            number = table.newest(app)
            if not self.is_finished(replay_stream(number), number):
                return False
        return True

    @staticmethod
    def _in(table: Snapshot, apps: Iterable[str]) -> list[str]:
        return [app for app in apps if table.newest(app) >= 0]


# -- one table ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OpenedTable:
    """A table of ours: its files now, and those of it without what is not finished (None: nothing is)."""

    owner: Owner | None
    newest: TableFiles
    settled: TableFiles | None

    def within(self, column: str, value: str) -> _OpenedTable:
        """One partition of it."""
        newest = self.newest.within(column, value)
        if self.settled is self.newest:
            return _OpenedTable(self.owner, newest, newest)
        return _OpenedTable(self.owner, newest, None if self.settled is None else self.settled.within(column, value))


_Open: TypeAlias = Callable[[str], _OpenedTable | None]


def _open(store: Store, books: _Books, uri: str) -> _OpenedTable | None:
    """None where there is no table. Raises TableFault, OSError."""
    table = Table(uri, store).open()
    if table is None:
        return None
    before, newest = books.settled(table), TableFiles(table)
    settled = newest if before is table else None if before is None else TableFiles(before)
    return _OpenedTable(table.owner, newest, settled)


def _check(config: Pipeline, store: Store, opened: _Open, quarantine: QuarantineCount, entry: Entry) -> TableCheck:
    """Compare a route's entries, added up, with its table and its rows in the quarantine."""
    count, problems = _count(config, opened, entry)
    aside = quarantine.rows[entry.route]
    if count.rows > entry.rows_written and (both := _in_both(store, quarantine, entry)):
        # The ledger has them as kept aside, and by writer schema nobody has counted them.
        count.rows -= both
        count.by_schema.clear()
    lost, doubled = _differences(entry, count)
    # Bad rows that had no owner yet when they were set aside are in the ledger's entry without a route.
    early = max(0, aside - entry.rows_quarantined)
    lost_from_quarantine = max(0, entry.rows_quarantined - aside)
    if lost:
        problems.append(f"{lost} rows are missing from the table")
    if doubled:
        problems.append(f"{doubled} rows are in the table more often than they came in")
    if lost_from_quarantine:
        problems.append(f"{lost_from_quarantine} rows are missing from the quarantine")
    if entry.rows_in != entry.rows_written + entry.rows_quarantined:
        problems.append(f"the ledger says {entry.rows_in} rows in, {entry.rows_written} written, the rest quarantined")
    return TableCheck(
        route=str(entry.route),
        table=entry.table,
        engine=entry.engine,
        rows_in=entry.rows_in + early,
        rows_written=count.rows,
        rows_quarantined=aside,
        rows_lost=lost + lost_from_quarantine,
        rows_duplicated=doubled,
        schema_ids=dict(sorted((count.by_schema or entry.schema_ids).items())),
        tombstones=entry.tombstones,
        rows_pending=count.pending,
        rows_foreign=count.foreign,
        problems=tuple(problems),
    )


def _count(config: Pipeline, opened: _Open, entry: Entry) -> tuple[Count, list[str]]:
    if entry.table is None:
        return Count(), []
    try:
        table = opened(entry.table)
        if table is None:
            return Count(), ["the table is not there"] if entry.rows_written else []
        shared, route = config.shared_table is not None, str(entry.route)
        ours = Owner(config.pipeline, "" if shared else route)
        if table.owner is not None and table.owner != ours:
            whose = f"pipeline {shown(table.owner.pipeline)}, route {shown(table.owner.route)!r}"
            return Count(), [f"the table belongs to {whose}: its rows are not this route's, whose rows are kept aside"]
        if entry.merged == entry.table:
            # It holds the newest rows of each key: `judge.upserts` says whether they are right.
            return Count(entry.rows_written), []
        if shared:
            table = table.within(KEY, table_name(route))
        count = count_rows(
            table.newest,
            table.settled,
            plain_is_ours=table.owner == ours,
            by_offset=config.source.has_offsets,
        )
        if entry.merged is not None:
            count.by_schema.clear()  # the log of a table with keys
        return count, list(count.problems)
    except BaseException as e:
        return Count(), [f"the table cannot be read: {contained(e)}"]


def _in_both(store: Store, quarantine: QuarantineCount, entry: Entry) -> int:
    """Rows kept aside because their commit seemed to fail, though it had come through; a replay lets them go."""
    parked = {key: rows for key, rows in quarantine.parked.items() if key[0] == entry.route}
    table = Table(str(entry.table), store).open() if parked else None
    if table is None:
        return 0
    txns = table.txns(entry.route)
    return sum(rows for (_, stream, batch), rows in parked.items() if (stream, batch) in txns)


def _differences(entry: Entry, count: Count) -> tuple[int, int]:
    """Rows lost and rows doubled: by number, by offset and by writer schema; the largest of what these tell."""
    lost = max(0, entry.rows_written - (count.rows - count.repeated))
    doubled = max(0, count.repeated, count.rows - entry.rows_written)
    ids = Counter(entry.schema_ids)
    if count.by_schema and not count.plain and ids.total() == entry.rows_written:
        lost = max(lost, (ids - count.by_schema).total())
        doubled = max(doubled, (count.by_schema - ids).total())
    return lost, doubled


# -- all of them -------------------------------------------------------------------------------------------


def _sum_up(
    config: Pipeline,
    books: _Books,
    quarantine: QuarantineCount,
    sums: Mapping[str | None, Entry],
    tables: Sequence[TableCheck],
) -> Verification:
    own_entry = sums.get(None, Entry("", 0, None))
    rows_in = sum(entry.rows_in for entry in sums.values())
    # What is left of the entry without a route, once bad rows with a known route are counted there.
    nameless = own_entry.rows_quarantined - (sum(t.rows_in for t in tables) + own_entry.rows_in - rows_in)
    lost, doubled = max(0, nameless - quarantine.rows[None]), max(0, quarantine.rows[None] - nameless)
    problems = [f"{shown(t.table or t.route)}: {text}" for t in tables for text in t.problems]
    if lost:
        problems.append(f"{lost} rows without a route are missing from the quarantine")
    if doubled:
        problems.append(f"{doubled} rows are in the quarantine without an entry in the ledger")
    unkept = (
        finished.root for finished in books.each if finished.txns is None and finished.apps and not finished.handed_over
    )
    problems += [f"{root}: there is a checkpoint, but no ledger" for root in unkept]
    return Verification(
        pipeline=config.pipeline,
        ok=not problems,
        rows_in=rows_in,
        rows_written=sum(t.rows_written for t in tables),
        rows_quarantined=sum(t.rows_quarantined for t in tables) + quarantine.rows[None],
        rows_lost=sum(t.rows_lost for t in tables) + lost,
        rows_duplicated=sum(t.rows_duplicated for t in tables) + doubled,
        tombstones=own_entry.tombstones + sum(t.tombstones for t in tables),
        tables=tuple(tables),
        quarantine=dict(quarantine.states),
        source_losses=tuple(e.error for e in books.entries if e.stream == LOSS and e.error),
        problems=tuple(problems),
        excluded=own_entry.excluded,
    )
