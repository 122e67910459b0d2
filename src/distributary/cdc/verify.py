"""Is every event of the files in its log, and is every merged table what its log folds to?

Nothing here believes the ledger, the tasks or the merge: files are read again and counted, logs are counted by file and
event number, and each merged table is held against a fold of its own (`cdc.fold`).

What a batch has written but not finished is pending, neither lost nor doubled.

Memory: a bit per event, some hundred bytes per file, and the keys of one share of a table at a time (`FOLD_ROWS`), of
`AT_A_TIME` tables; the rest goes through the local disk (`cdc.gather`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.border import contained
from distributary.cdc.backlog import parcel_done
from distributary.cdc.fold import PATHS, Fold, merged_state
from distributary.cdc.gather import MOST_SHARES, by_share
from distributary.cdc.logs import RECONCILED
from distributary.cdc.merging import horizon
from distributary.cdc.micro_batch import about
from distributary.cdc.names import Named, reading_of, source_options
from distributary.cdc.orders import ORIGIN, STRAY
from distributary.cdc.read import events_of
from distributary.cdc.tally import Tally
from distributary.config import Pipeline
from distributary.datastream.model import METADATA
from distributary.errors import StoreUnreadable
from distributary.names import shown
from distributary.sources.bodies import open_body
from distributary.state.ledger import Entry, Ledger, read_entries, totals
from distributary.tables import append
from distributary.tables.append import Owner
from distributary.tables.files import TableFiles
from distributary.tables.merge_rows import DELETED
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store, join
from distributary.verify import TableCheck, Verification

AT_A_TIME = 4
FOLD_ROWS = 250_000
"""Rows of a log per share of its keys: about a kilobyte is held for each key of a share, in the fold and the table."""

_Place = tuple[str, int]


@dataclass
class _Books:
    """What the pipeline says and keeps. `files`: (path, attempts) of finished batches; `aside`: by route, the events in
    the quarantine by file; `whole`: files of which nothing could be read."""

    config: Pipeline
    store: Store
    named: Named
    entries: Sequence[Entry]
    stream: str | None
    newest: int
    files: dict[str, int] = field(default_factory=dict)
    aside: dict[str | None, Counter[str]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    late: set[_Place] = field(default_factory=set)
    states: Counter[str] = field(default_factory=Counter)


def verify_changes(config: Pipeline) -> Verification:
    """Recount everything. Takes about as long as reading all the files took. Safe beside a run.

    Raises StoreUnreadable, SourceDown.
    """
    store = Store.of(config.tables)
    try:
        books = _read_books(config, store)
    except (OSError, DeltaError) as e:
        raise StoreUnreadable(path=config.state_root, detail=append.in_words(e)) from e
    in_files, unread = _count_files(books)
    sums = totals(books.entries)
    routes = sorted({r for r in [*sums, *in_files] if r is not None})
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = pool.map(
            partial(_check, books), [(r, sums.get(r, Entry("", 0, r)), in_files.get(r, {}), unread) for r in routes]
        )
        tables = list(found)
    return _sum_up(books, sums, tables, in_files, unread)


def _read_books(config: Pipeline, store: Store) -> _Books:
    entries = read_entries(config.state_root, store)
    ledger = Ledger(config.state_root, config.pipeline, store, entries)
    newest = ledger.finished.get(ledger.stream or "", -1)
    books = _Books(config, store, Named.of(config), entries, ledger.stream, newest)
    _read_quarantine(books)
    table = append.open_table(join(config.state_root, "files"), store)
    if table is not None:
        rows = table.to_pyarrow_dataset().to_table(columns=["path", "parcel", "attempt"])
        done = rows.filter(pc.less_equal(rows.column("parcel"), parcel_done(ledger)))
        for path, attempt in zip(done.column("path").to_pylist(), done.column("attempt").to_pylist(), strict=True):
            books.files[path] = max(attempt, books.files.get(path, 0))
    return books


def _read_quarantine(books: _Books) -> None:
    uri = quarantine_uri(books.config.state_root)
    table = append.open_table(uri, books.store)
    if table is None:
        return
    for piece in TableFiles(table, uri, books.store).read_all(["route", "level", "state", "file", "row"]):
        for row in piece.to_pylist():
            if row["level"] != "merge":
                books.states[row["state"]] += 1
            if row["state"] == "replayed":
                continue
            if row["level"] == "merge":
                books.late.add((row["file"], row["row"]))
            elif row["level"] == "file":
                books.whole.add(row["file"])
                books.aside.setdefault(None, Counter())[row["file"]] += 1
            else:
                books.aside.setdefault(row["route"], Counter())[row["file"]] += 1


# -- files -------------------------------------------------------------------------------------------------


def _count_files(books: _Books) -> tuple[dict[str | None, dict[str, int]], set[str]]:
    """(route -> file -> events; None: those that the reader cannot use), and the files that cannot be read any more."""
    reading, options = reading_of(books.config), source_options(books.config)
    counts: dict[str | None, dict[str, int]] = {}
    unread: set[str] = set()

    def count(path: str) -> tuple[str, Counter[str | None] | None]:
        try:
            found = events_of(open_body(path, options), path, options, reading)
        except BaseException as e:
            contained(e)  # whatever such a file does to its reader
            return path, None
        rows: Counter[str | None] = Counter({None: len(found.bad)})
        for events in found.events:
            rows[events.table.route] += events.rows.num_rows
        return path, rows

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for path, rows in pool.map(count, sorted(books.files)):
            if rows is None:
                unread.add(path)
            else:
                for route, n in rows.items():
                    if n:
                        counts.setdefault(route, {})[path] = n
    return counts, unread


# -- one route ---------------------------------------------------------------------------------------------


@dataclass
class _Log:
    """A log table as counted."""

    rows: int = 0
    pending: int = 0
    foreign: int = 0
    tally: Tally = field(default_factory=Tally)
    problems: list[str] = field(default_factory=list)


def _check(books: _Books, asked: tuple[str, Entry, Mapping[str, int], set[str]]) -> TableCheck:
    route, said, in_files, unread = asked
    log = _Log()
    try:
        table = append.open_table(said.table, books.store) if said.table else None
        if table is not None and Owner.of(table) != Owner(books.config.pipeline, route):
            table = None  # another source table was there first: this one is parked
        logged = said.table is not None and said.table != said.merged
        if logged and table is None and said.rows_written:
            log.problems.append("the log table is not there")
        if logged and table is not None:
            _count_log(books, table, str(said.table), log)
            _hold_against_files(books, route, in_files, unread, log)
            if said.merged is not None:
                log.problems += _hold_against_fold(books, said, table)
        elif not logged:
            log.rows = said.rows_written
    except (DeltaError, OSError, pa.ArrowException) as e:
        log.problems.append(f"a table cannot be read: {e}")
    aside = sum(books.aside.get(route, {}).values())
    lost = max(0, said.rows_written - (log.rows - log.tally.repeated))
    doubled = max(log.tally.repeated, log.rows - said.rows_written, 0)
    if lost:
        log.problems.append(f"{lost} events are missing from the log table")
    if doubled:
        log.problems.append(f"{doubled} events are in the log table more often than they came in")
    return TableCheck(
        route=route,
        table=said.table,
        engine=said.engine,
        rows_in=said.rows_in,
        rows_written=log.rows,
        rows_quarantined=aside,
        rows_lost=lost,
        rows_duplicated=doubled,
        rows_pending=log.pending,
        rows_foreign=log.foreign,
        problems=tuple(log.problems),
    )


def _count_log(books: _Books, table: DeltaTable, uri: str, log: _Log) -> None:
    names = [f"{ORIGIN}.{n}" for n in ("file", "row", "batch")]
    for piece in TableFiles(table, uri, books.store).read_all(names):
        batch = piece.column(names[2])
        if pa.types.is_null(batch.type):
            log.foreign += piece.num_rows
            continue
        log.foreign += batch.null_count
        log.pending += pc.sum(pc.greater(batch, books.newest)).as_py() or 0
        ours = piece.filter(pc.less_equal(batch, books.newest))
        log.rows += ours.num_rows
        log.tally.add(ours.column(names[0]), ours.column(names[1]))
    # Somebody gave these rows our batch numbers, but no file: none of ours.
    log.rows, log.foreign = log.rows - log.tally.strange, log.foreign + log.tally.strange


def _hold_against_files(books: _Books, route: str, in_files: Mapping[str, int], unread: set[str], log: _Log) -> None:
    """Each file's events of this route are in the log or in the quarantine."""
    aside = books.aside.get(route, Counter())
    wrong = []
    for path in sorted({*in_files, *log.tally.files, *aside}):
        if path in unread or path in books.whole or books.files.get(path, 0) > 1 or path not in books.files:
            continue  # gone, or it was another file when it was read before
        expected, found = in_files.get(path, 0), log.tally.files[path] + aside[path]
        if expected != found:
            wrong.append(
                f"{path} has {expected} events, {log.tally.files[path]} are in the log and {aside[path]} kept aside"
            )
    log.problems += wrong[:5] + ([f"and {len(wrong) - 5} files more"] if len(wrong) > 5 else [])


def _hold_against_fold(books: _Books, said: Entry, log: DeltaTable) -> list[str]:
    """What is wrong with a merged table, in words."""
    uri = str(said.merged)
    merged = append.open_table(uri, books.store)
    known = about(said)
    if merged is None or known is None:
        return ["the merged table is not there"] if said.merge_state == "merged" else []
    owner = Owner.of(merged)
    if owner is not None and owner.keys and set(owner.keys) != set(known.keys):
        return []  # it is parked, because its key has changed
    upto = max(append.committed_batch(merged, f"{books.stream}{part}") for part in ("", STRAY))
    shares = min(MOST_SHARES, 1 + _rows_of(log) // FOLD_ROWS)
    orphans: list[pa.Table] = []
    events = by_share(
        _keyed(_events(books, log, str(said.table), known.keys, upto), known.keys, orphans), known.keys, shares
    )
    paths = [*known.keys, f"{METADATA}.change_sequence_number", DELETED]
    rows = by_share(TableFiles(merged, uri, books.store).read_all(paths), known.keys, shares)
    wrong = Counter[str]()
    for of_log, of_merged in zip(events, rows, strict=True):
        fold = Fold(known.keys, books.named.order(str(said.route)))
        for piece in of_log:
            fold.add(piece)
        for piece in orphans:
            fold.add(piece)
        fold.finish()
        wrong += _differences(fold, merged_state(of_merged, known.keys, DELETED), horizon(merged))
    return [f"{count} {text}" for text, count in wrong.items()]


def _differences(fold: Fold, state: Mapping[Any, tuple[str, bool]], limit: int | None) -> Counter[str]:
    """`limit`: tombstones older than that may have been purged."""
    found = Counter[str]()
    for key, winner in fold.winners.items():
        there = state.get(key)
        if there is None:
            purged = winner.deleted and limit is not None and winner.source_ms < limit
            found["keys of the log are missing from the merged table"] += not purged
        elif there[1] != winner.deleted or (there[0] != winner.number and not winner.deleted):
            found["rows of the merged table are not the newest event of their key"] += 1
    found["rows of the merged table have a key that is not in the log"] += len(state.keys() - fold.winners.keys())
    return found


def _rows_of(table: DeltaTable) -> int:
    """As logged."""
    found = pa.table(table.get_add_actions())
    return sum(n or 0 for n in found.column("num_records").to_pylist()) if "num_records" in found.column_names else 0


def _keyed(pieces: Iterator[pa.Table], keys: Sequence[str], orphans: list[pa.Table]) -> Iterator[pa.Table]:
    """Rows that have a key; deletes with nothing but a ROWID go to `orphans`: whose they are, any share may know."""
    for piece in pieces:
        lost = pc.and_(
            pc.is_valid(piece.column(f"{METADATA}.source.row_id")),
            pc.fill_null(piece.column(f"{METADATA}.is_deleted"), False),
        )
        for key in keys:
            lost = pc.and_(lost, pc.is_null(piece.column(key)))
        if pc.any(lost).as_py():
            orphans.append(piece.filter(lost))
            piece = piece.filter(pc.invert(lost))
        yield piece


def _events(books: _Books, log: DeltaTable, uri: str, keys: Sequence[str], upto: int) -> Iterator[pa.Table]:
    names = [f"{ORIGIN}.{n}" for n in ("file", "row", "batch")]
    for piece in TableFiles(log, uri, books.store).read_all([*keys, *PATHS, *names]):
        rows = piece.filter(_counts(piece.column(names[0]), piece.column(names[2]), upto))
        if books.late:
            places = zip(rows.column(names[0]).to_pylist(), rows.column(names[1]).to_pylist(), strict=True)
            rows = rows.filter(pa.array([place not in books.late for place in places], pa.bool_()))
        yield rows


def _counts(file: pa.ChunkedArray, batch: pa.ChunkedArray, upto: int) -> pa.ChunkedArray:
    """Events of finished batches, and deletes that `reconcile` made, which are in no batch."""
    made = pc.starts_with(file.cast(pa.string()), RECONCILED)
    inside = pc.less_equal(batch.cast(pa.int64()), upto)
    return pc.or_(pc.fill_null(inside, False), pc.fill_null(pc.and_(pc.is_null(batch), made), False))


# -- all of them -------------------------------------------------------------------------------------------


def _sum_up(
    books: _Books,
    sums: Mapping[str | None, Entry],
    tables: Sequence[TableCheck],
    in_files: Mapping[str | None, Mapping[str, int]],
    unread: set[str],
) -> Verification:
    own = sums.get(None, Entry("", 0, None))
    nameless = books.aside.get(None, Counter())
    problems = [f"{shown(t.route)}: {text}" for t in tables for text in t.problems]
    quarantined = sum(t.rows_quarantined for t in tables) + sum(nameless.values())
    said = sum(e.rows_quarantined for e in sums.values())
    lost, doubled = max(0, said - quarantined), max(0, quarantined - said)
    if lost:
        problems.append(f"{lost} events are missing from the quarantine")
    if doubled:
        problems.append(f"{doubled} events are in the quarantine without an entry in the ledger")
    gone = len(unread - books.whole)
    note = f"{gone} files that were read are gone by now, or cannot be read; their events were counted in the logs only"
    return Verification(
        pipeline=books.config.pipeline,
        ok=not problems,
        rows_in=sum(e.rows_in for e in sums.values()),
        rows_written=sum(t.rows_written for t in tables),
        rows_quarantined=quarantined,
        rows_lost=sum(t.rows_lost for t in tables) + lost,
        rows_duplicated=sum(t.rows_duplicated for t in tables) + doubled,
        tombstones=own.tombstones,
        tables=tuple(tables),
        quarantine=dict(books.states),
        source_losses=(note,) if gone else (),
        problems=tuple(problems),
    )
