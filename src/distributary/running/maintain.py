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

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.model import metadata_in
from distributary.config import Pipeline
from distributary.config.base import is_given
from distributary.engine.changes.backlog import oldest_waiting_ms, version_read
from distributary.engine.changes.merging import HORIZON
from distributary.engine.changes.table_settings import history_of
from distributary.errors import DistributaryError
from distributary.errors.border import contained
from distributary.sources.file_ledger import tidy
from distributary.state.cleaning import check_not_begun
from distributary.state.ledger import Entry, read_entries, totals
from distributary.tables.engines import spark_needed
from distributary.tables.faults import CommitConflict, reading
from distributary.tables.files import TableFiles
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.purge import purge_vectors, vacuum_vectors
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.snapshot import OWNER_KEY, Owner, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

PURGED_OF_MESSAGES = "distributary.tombstonesPurgedUntil"
"""Table property of messages' tables: source time in ms up to which tombstones have been removed. Other than of change
files (`HORIZON`), an older message of a key that the table does not have comes in."""
DEFAULT_RETENTION_SEC = 7 * 86400.0
"""Delta's own least time for which removed files stay; less takes its say-so."""


@dataclass
class Maintained:
    """What was done to one table. `busy`: somebody else wrote at the same moment; the next upkeep does it. `held`: why
    old tombstones stay for now, where they do."""

    table: str
    route: str | None
    files_before: int = 0
    files_after: int = 0
    purged: int = 0
    vacuumed: int = 0
    busy: bool = False
    skipped: str | None = None
    held: str | None = None


Oldest = Callable[[], int | None]
"""`oldest_waiting_ms`, asked once, and only when something could be purged: it lists the whole source."""


def maintain(config: Pipeline) -> Iterator[Maintained]:
    """Look after every table of the pipeline, one after the other. Safe beside a run.

    Raises CleanUnfinished, StateNewer, and StoreUnreadable when the ledger cannot be read; a table that cannot be is
    `skipped`, with the reason.
    """
    store = Store.of(config.tables)
    with reading(config.state_root):
        check_not_begun(config, store)
        sums = totals(read_entries(config.state_root, store))
    files = lru_cache(maxsize=1)(lambda: oldest_waiting_ms(config, store))
    for route, entry in sorted((r, e) for r, e in sums.items() if r is not None):
        owner = Owner(config.pipeline, route)
        oldest = files if config.holds_changes else partial(oldest_aside_ms, config, store, route)
        for uri in dict.fromkeys(u for u in (entry.table, entry.merged) if u):
            merged = entry if uri == entry.merged and _purges(config) else None
            yield _look_after(uri, owner, store, config, Maintained(uri, route), merged, oldest)
        if entry.merged is not None and (history := history_of(config, entry.about)) is not None:
            done = Maintained(history, route)
            yield _look_after(history, owner, store, config, done, None, oldest, joins=False)
    # There, bronze keeps what is set aside: a partitioned table, which Spark has to look after.
    if not config.is_declarative:
        quarantine = quarantine_uri(config.state_root)
        yield _look_after(
            quarantine, Owner(config.pipeline, ""), store, config, Maintained(quarantine, None), None, files
        )
    if config.source.reads_files:
        yield _tidy(config, store)


def _tidy(config: Pipeline, store: Store) -> Maintained:
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


def _look_after(
    uri: str,
    owner: Owner,
    store: Store,
    config: Pipeline,
    upkeep: Maintained,
    merged: Entry | None,
    oldest: Oldest,
    *,
    joins: bool = True,
) -> Maintained:
    """`merged`: the route's entry, where this is its merged table. `joins`: small files into large ones; a history
    joins its own as it is written, open versions apart from ended ones."""
    with _kept(upkeep):
        table = Table(uri, store).open()
        if table is None:
            # As long as nothing has been set aside, there is no quarantine, and all is well.
            upkeep.skipped = None if upkeep.route is None else "there is no such table"
        elif table.owner != owner:
            upkeep.skipped = "it was not made by this pipeline"
        elif why := spark_needed(table):
            upkeep.skipped = f"delta-rs must not write it: {why}"
        else:
            _own(table)
            if merged is not None:
                _purge(table, config, merged, oldest, upkeep)
            if config.tables.merge == "merge_on_read":
                purge_vectors(Snapshot(uri, store))
            _compact(table, config, upkeep, joins=joins)
    return upkeep


def _purges(config: Pipeline) -> bool:
    """Of messages only where the pipeline file asks for it: nobody knows how late they come."""
    return config.holds_changes or is_given(config.tables, "tombstone_retention")


def _own(table: Snapshot) -> None:
    """Earlier versions wrote the owner into the description, which anybody may change."""
    if table.owner is not None and OWNER_KEY not in table.properties:
        table.set_properties(table.owner.properties())
        table.refresh()


def _compact(table: Snapshot, config: Pipeline, upkeep: Maintained, *, joins: bool) -> None:
    rules = config.maintenance
    table.refresh()
    upkeep.files_before = upkeep.files_after = len(table.addresses())
    if joins and upkeep.files_before > rules.min_files:
        table = Snapshot(table.uri, table.store)
        table.compact(target_size=rules.target_file_size, max_concurrent_tasks=2)
        table.refresh()
        upkeep.files_after = len(table.addresses())
    enforce = rules.vacuum_after >= DEFAULT_RETENTION_SEC
    upkeep.vacuumed = len(table.vacuum(rules.vacuum_after // 3600, enforce=enforce))
    table.refresh()
    upkeep.vacuumed += len(vacuum_vectors(table, rules.vacuum_after))


def _purge(table: Snapshot, config: Pipeline, entry: Entry, oldest: Oldest, upkeep: Maintained) -> None:
    """Remove old tombstones of a merged table. Raises CommitConflict, TableFault, OSError."""
    newest = _newest_ms(table)
    if newest is None:
        return
    # One record of a clock that is ahead must not make all that comes later late.
    limit = min(newest, int(time.time() * 1000)) - int(config.tables.tombstone_retention * 1000)
    if not _has_older(table, limit):
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
        if not _has_older(table, limit):
            return
    upkeep.purged = purge(table, limit, HORIZON if config.holds_changes else PURGED_OF_MESSAGES)


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


def purge(table: Snapshot, limit: int, name: str = HORIZON) -> int:
    """Remove the tombstones of a merged table from before `limit` (ms), which the property `name` says; how many.

    Raises CommitConflict, TableFault, OSError.
    """
    old = pa.scalar(limit * 1000, pa.timestamp("us", tz="UTC"))
    if int(table.properties.get(name, 0)) < limit:
        table.set_properties({name: str(limit)})
    when = old.as_py().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    moment = f"arrow_cast('{when}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return table.delete(f"{DELETED} = true AND {DELETED_AT} < {moment}")


def _newest_ms(table: Snapshot) -> int | None:
    path = f"{metadata_in(table.schema.names)}.source_timestamp"
    newest_of_files = [pc.max(piece.column(path)).as_py() for piece in TableFiles(table).read_all([path])]
    return max((ms for ms in newest_of_files if ms is not None), default=None)


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
