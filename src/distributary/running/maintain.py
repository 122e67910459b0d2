"""Upkeep of a pipeline's tables, beside a run or without one: many small files into few, old tombstones out, files that
no version needs any more removed.

Of a merged table, tombstones go once they are older than `tables.tombstone_retention`, counted back from the newest
source time that is merged, not from the wall clock (a backlog must not purge itself), unless that time lies in the
future. How far is written into the table first, since an older event that comes later can then not be judged any more.
So none goes that is newer than the oldest file that waits (`engine.changes.backlog`), and none of a table whose log is
ahead of it. Of messages, tombstones go where the pipeline file gives `tables.tombstone_retention`, and none that is
newer than a message in the quarantine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from distributary.changes.model import metadata_in
from distributary.config import Pipeline
from distributary.config.base import is_given
from distributary.engine.changes.backlog import oldest_waiting_ms, version_read
from distributary.engine.changes.merging import HORIZON
from distributary.engine.changes.table_settings import history_of, named_of, source_of
from distributary.errors import BadInput, DistributaryError
from distributary.errors.border import contained
from distributary.sources.file_ledger import tidy
from distributary.state.cleaning import check_not_begun
from distributary.state.ledger import Entry, quarantine_files, read_entries, totals
from distributary.tables.by_name import is_named
from distributary.tables.crowding import crowd_of
from distributary.tables.engines import kept_by_catalog, spark_needed
from distributary.tables.faults import CommitConflict, reading
from distributary.tables.files import TableFiles
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.moved_tombstones import move_beside
from distributary.tables.purge import purge_vectors
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.spark_upkeep import compact_by_spark, purge_by_spark, vacuum_by_spark
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tombstones import tombstones_of
from distributary.tables.vacuum import vacuum
from distributary.tables.wide import KEY

PURGED_OF_MESSAGES = "distributary.tombstonesPurgedUntil"
"""Table property of messages' tables: source time in ms up to which tombstones have been removed. Other than of change
files (`HORIZON`), an older message of a key that the table does not have comes in."""
DEFAULT_RETENTION_SEC = 7 * 86400.0
"""Delta's own least time for which removed files stay; less takes its say-so."""


@dataclass
class Maintained:
    """What was done to one table. `busy`: somebody else wrote at the same moment; the next upkeep does it. `held`: why
    old tombstones stay for now, where they do. `moved`: tombstones out of the table beside it. `by_catalog`: its files
    are looked after by its catalog only."""

    table: str
    route: str | None
    files_before: int = 0
    files_after: int = 0
    purged: int = 0
    moved: int = 0
    vacuumed: int = 0
    busy: bool = False
    skipped: str | None = None
    held: str | None = None
    by_catalog: bool = False


Oldest = Callable[[], int | None]
"""`oldest_waiting_ms`, asked once, and only when something could be purged: it lists the whole source."""
Spark = Callable[[], SparkSession]
"""A session, asked for only where delta-rs must not write a table."""
Purge = Callable[[Sequence[Snapshot], int, str], int]
"""As `purge`."""


@dataclass(frozen=True)
class OwnTable:
    """A table that the pipeline looks after. `merged`: the route's entry, where this is a merged table whose tombstones
    are purged; `keyed`: the same of each merged table. `joins`: small files into large ones; a history joins its own as
    it is written, open versions apart from ended ones. `is_filled`: are rows in it, by the ledger?"""

    uri: str
    route: str | None
    owner: Owner
    merged: Entry | None = None
    keyed: Entry | None = None
    partitioned_by: tuple[str, ...] = ()
    joins: bool = True
    is_filled: bool = False


def maintain(config: Pipeline, spark: Spark | None = None) -> Iterator[Maintained]:
    """Look after every table of the pipeline, one after the other. Safe beside a run. `spark`: else one is made, where
    it is needed.

    Raises CleanUnfinished, StateNewer, and StoreUnreadable when the ledger cannot be read; a table that cannot be is
    `skipped`, with the reason.
    """
    if config.is_declarative and config.tables.managed:
        raise BadInput(
            detail=f"pipeline {config.pipeline}: its tables are Lakeflow's, which looks after them by itself"
        )
    store = Store.of(config.tables)
    with reading(config.state_root):
        check_not_begun(config, store)
        sums = totals(read_entries(config.state_root, store))
    carer = Carer(config, store, spark or lru_cache(maxsize=1)(lambda: _session(config)))
    for table in tables_of(config, sums):
        yield carer.whole(table)
    if config.source.reads_files:
        yield tidied(config, store)


def _session(config: Pipeline) -> SparkSession:
    from distributary.running.stream import session_of  # a run looks after its tables too

    return session_of(config)


def tables_of(config: Pipeline, sums: Mapping[str | None, Entry]) -> Iterator[OwnTable]:
    """The tables that a ledger knows, each once, and the quarantine. `sums`: of each route."""
    wide = config.shared_table
    if wide is not None:
        filled = any(entry.rows_written > 0 for entry in sums.values())
        yield OwnTable(wide, None, Owner(config.pipeline, ""), partitioned_by=(KEY,), is_filled=filled)
    for route, entry in sorted((r, e) for r, e in sums.items() if r is not None and wide is None):
        owner, filled = Owner(config.pipeline, route), entry.rows_written > 0
        for uri in dict.fromkeys(u for u in (entry.table, entry.merged) if u):
            merged = entry if uri == entry.merged and _purges(config) else None
            keyed = entry if uri == entry.merged else None
            yield OwnTable(uri, route, owner, merged, keyed, is_filled=filled and uri == entry.table)
        if entry.merged is not None and (history := history_of(config, entry.about, entry.table)) is not None:
            yield OwnTable(history, route, owner, joins=False)
    # There, bronze keeps what is set aside: a partitioned table, which Spark has to look after.
    if not config.is_declarative:
        yield OwnTable(quarantine_uri(config.state_root), None, Owner(config.pipeline, ""))


def tidied(config: Pipeline, store: Store) -> Maintained:
    """The file ledger has an upkeep of its own: Spark's stream reads it commit by commit."""
    upkeep = Maintained(config.state_folder.files, None)
    with _kept(upkeep):
        version = version_read(config, store)
        if version >= 0:
            tidy(config.state_root, store, version)
    return upkeep


@contextmanager
def _kept(upkeep: Maintained) -> Iterator[None]:
    """What goes wrong with one table stays with it."""
    try:
        yield
    except CommitConflict:
        upkeep.busy = True
    except BaseException as e:
        upkeep.skipped = contained(e)


class Carer:
    """Looks after single tables of one pipeline. Never raises for a table: it is `skipped` then, or `busy`."""

    def __init__(self, config: Pipeline, store: Store, spark: Spark) -> None:
        self.config = config
        self.store = store
        self._spark = spark
        self._oldest_file = lru_cache(maxsize=1)(lambda: oldest_waiting_ms(config, store))

    def _oldest(self, route: str | None) -> Oldest:
        """Asks for the oldest event of a route that is in no table yet."""
        if self.config.holds_changes:
            return self._oldest_file
        return partial(oldest_aside_ms, self.config, self.store, route or "")

    def whole(self, table: OwnTable) -> Maintained:
        """All of upkeep: old tombstones out, small files into few, old files away."""
        return self._done(table, self._whole)

    def join(self, table: OwnTable, at_most: int) -> Maintained:
        """Only join its small files, where there are more than `at_most`; `files_before` and `files_after` count those
        of its fullest partition. Not of a table by its name, whose files are not counted so."""
        if is_named(table.uri):
            return Maintained(table.uri, table.route)
        return self._done(table, partial(self._join, at_most=at_most))

    def _done(self, table: OwnTable, work: Callable[[OwnTable, Snapshot, Maintained], None]) -> Maintained:
        upkeep = Maintained(table.uri, table.route)
        with _kept(upkeep):
            if is_named(table.uri):
                self._spark()  # which opens it
            opened = Table(table.uri, self.store).open()
            if opened is None:
                # What nothing has been written to need not be there, and all is well.
                upkeep.skipped = "there is no such table" if table.is_filled else None
            elif opened.owner != table.owner:
                upkeep.skipped = "it was not made by this pipeline"
            else:
                work(table, opened, upkeep)
        return upkeep

    def _whole(self, table: OwnTable, opened: Snapshot, upkeep: Maintained) -> None:
        rules = self.config.maintenance
        by_spark = spark_needed(opened, table.partitioned_by) is not None
        if not by_spark:
            opened.keep_owner()
        if table.keyed is not None and self.config.tables.tombstones == "beside" and not by_spark:
            upkeep.moved = self._move_beside(opened, table.keyed)
        beside = None if table.keyed is None else tombstones_of(opened)
        if table.merged is not None:
            tables = [opened] if beside is None else [opened, beside]
            remove = partial(_purge_by_spark, self._spark) if by_spark else purge
            _purge(tables, self.config, table.merged, self._oldest(table.route), upkeep, remove)
        if not by_spark and self.config.tables.merge == "merge_on_read":
            purge_vectors(Snapshot(table.uri, self.store))
        opened.refresh()
        upkeep.files_before = upkeep.files_after = len(opened.addresses())
        if kept_by_catalog(opened):
            upkeep.by_catalog = True
            return
        if table.joins and upkeep.files_before > rules.min_files:
            opened = self._compact(opened, by_spark, rules.target_file_size)
            upkeep.files_after = len(opened.addresses())
        enforce = rules.vacuum_after >= DEFAULT_RETENTION_SEC
        if beside is not None:
            upkeep.vacuumed += len(vacuum(beside, rules.vacuum_after, enforce=enforce))
        if by_spark:
            vacuum_by_spark(self._spark(), opened.uri, rules.vacuum_after, enforce=enforce)
        else:
            is_quarantine = table.uri == quarantine_uri(self.config.state_root)
            awaited = _decided_files(read_entries(self.config.state_root, self.store)) if is_quarantine else set()
            upkeep.vacuumed += len(vacuum(opened, rules.vacuum_after, enforce=enforce, awaited=awaited))

    def _move_beside(self, table: Snapshot, entry: Entry) -> int:
        """Tombstones that lie in the table, of a time when they were to. Raises CommitConflict, TableFault, OSError."""
        named = named_of(self.config)
        if named is None or entry.about is None:
            return 0
        return move_beside(table, named.order(source_of(entry.about)))

    def _join(self, table: OwnTable, opened: Snapshot, upkeep: Maintained, at_most: int) -> None:
        # Where rows are marked as deleted, their files are written anew first, which is the whole of upkeep.
        if not table.joins or "deletionVectors" in opened.reader_features:
            return
        target = self.config.maintenance.target_file_size
        crowd = crowd_of(opened, target)
        upkeep.files_before = upkeep.files_after = crowd.files
        if crowd.files > at_most:
            by_spark = spark_needed(opened, table.partitioned_by) is not None
            opened = self._compact(opened, by_spark, crowd.join_up_to)
            upkeep.files_after = crowd_of(opened, target).files

    def _compact(self, table: Snapshot, by_spark: bool, target: int) -> Snapshot:
        """The table after it. Raises CommitConflict, TableFault, SparkEngineError, OSError."""
        if by_spark:
            compact_by_spark(self._spark(), table.uri, target)
        else:
            Snapshot(table.uri, table.store).compact(target_size=target, max_concurrent_tasks=2)
        return Table(table.uri, table.store).open() or table


def _decided_files(entries: Sequence[Entry]) -> set[str]:
    """The quarantine's data files that the newest decision of each stream names: a batch that was killed right behind
    it commits them when it comes again. `entries`: oldest first."""
    newest = {entry.stream: json.loads(entry.details or "{}") for entry in entries if entry.route is None}
    return {file.path for details in newest.values() for file in quarantine_files(details)}


def _purges(config: Pipeline) -> bool:
    """Of messages only where the pipeline file asks for it: nobody knows how late they come."""
    return config.holds_changes or is_given(config.tables, "tombstone_retention")


def _purge(
    tables: Sequence[Snapshot], config: Pipeline, entry: Entry, oldest: Oldest, upkeep: Maintained, remove: Purge
) -> None:
    """Remove old tombstones of a merged table. `tables`: it, and the one of its tombstones where they lie beside it.

    Raises CommitConflict, TableFault, SparkEngineError, OSError.
    """
    newest = _newest_ms(tables)
    if newest is None:
        return
    # One record of a clock that is ahead must not make all that comes later late.
    limit = min(newest, int(time.time() * 1000)) - int(config.tables.tombstone_retention * 1000)
    if not _have_older(tables, limit):
        return
    if entry.state == "parked" or entry.merge_state in ("waiting", "parked"):
        upkeep.held = "its log has events that are not merged yet"
        return
    try:
        waiting = oldest()
    except DistributaryError as e:
        upkeep.held = f"nobody can say what waits: {e}"
        return
    if waiting is not None and waiting < limit:
        what = "files wait" if config.holds_changes else "messages wait in the quarantine"
        limit, upkeep.held = waiting, f"{what} that are as old"
        if not _have_older(tables, limit):
            return
    upkeep.purged = remove(tables, limit, HORIZON if config.holds_changes else PURGED_OF_MESSAGES)


def oldest_aside_ms(config: Pipeline, store: Store, route: str) -> int | None:
    """The time of the oldest message of the route that waits in the quarantine, in ms; 0 where it is not known, None
    where none waits. Raises TableFault, OSError."""
    table = Table(quarantine_uri(config.state_root), store).open()
    oldest: int | None = None
    for piece in TableFiles(table).read_all(["route", "state", "timestamp"]) if table is not None else ():
        whose = piece.column("route")
        mine = pc.or_(pc.is_null(whose), pc.fill_null(pc.equal(whose, route), False))
        times = piece.filter(pc.and_(mine, pc.not_equal(piece.column("state"), "replayed"))).column("timestamp")
        if len(times):
            # Of Debezium, the record may have come long after its change, whose time the tombstones have.
            unknown = config.envelope.is_debezium or times.null_count
            first = 0 if unknown else pc.min(times.cast(pa.timestamp("ms", "UTC"), safe=False)).value
            oldest = first if oldest is None else min(oldest, first)
    return oldest


def purge(tables: Sequence[Snapshot], limit: int, name: str = HORIZON) -> int:
    """Remove the tombstones of a merged table (`tables`: as of `_purge`) from before `limit` (ms), which its property
    `name` says; how many.

    Raises CommitConflict, TableFault, OSError.
    """
    if _is_later(tables[0], limit, name):
        tables[0].set_properties({name: str(limit)})
    return sum(_delete_older(own, limit) for own in tables if _has_older(own, limit))


def _delete_older(table: Snapshot, limit: int) -> int:
    old = pa.scalar(limit * 1000, pa.timestamp("us", tz="UTC"))
    when = old.as_py().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    moment = f"arrow_cast('{when}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return table.delete(f"{DELETED} = true AND {DELETED_AT} < {moment}")


def _purge_by_spark(spark: Spark, tables: Sequence[Snapshot], limit: int, name: str) -> int:
    table, *beside = tables
    purged = purge_by_spark(spark(), table.uri, limit, name if _is_later(table, limit, name) else None)
    return purged + sum(_delete_older(own, limit) for own in beside)


def _is_later(table: Snapshot, limit: int, name: str) -> bool:
    """Than what the table says already, which must stay: what went then is not known any more."""
    return int(table.properties.get(name, 0)) < limit


def _newest_ms(tables: Sequence[Snapshot]) -> int | None:
    path = f"{metadata_in(tables[0].schema.names)}.source_timestamp"
    pieces = chain.from_iterable(TableFiles(own).read_all([path]) for own in tables)
    newest_of_files = [pc.max(piece.column(path)).as_py() for piece in pieces]
    return max((ms for ms in newest_of_files if ms is not None), default=None)


def _have_older(tables: Sequence[Snapshot], limit: int) -> bool:
    return any(_has_older(own, limit) for own in tables)


def _has_older(table: Snapshot, limit: int) -> bool:
    kind = pa.timestamp("us", tz="UTC")
    moment = pa.scalar(limit * 1000, kind)
    for piece in TableFiles(table).read_all([DELETED, DELETED_AT]):
        # Spark writes times without their zone.
        deleted_at = piece.column(DELETED_AT).cast(kind)
        old = pc.and_(pc.fill_null(piece.column(DELETED), False), pc.less(deleted_at, moment))
        if pc.any(old).as_py():
            return True
    return False
