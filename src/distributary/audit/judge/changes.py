"""Are the tables of a pipeline of change files what the files say?

Nothing here believes the ledger, the tasks or the merge, and nothing uses their code: files are read again by plain
readers (`raw_files`), each log is held against them event by event (`log`), and each merged table against the newest
event of every key by the raw metadata (`merged`, `change_events`). Where a file is gone, its log speaks for it.

What a batch has written but not finished is pending, neither lost nor doubled.

Memory: some bytes per event of the source, some source files, and some thousand rows at a time, of `AT_A_TIME` tables;
keys are sorted on the local disk (`by_key`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from distributary.audit.judge.by_key import ByKey
from distributary.audit.judge.change_books import ChangeBooks, read_books
from distributary.audit.judge.change_events import Order
from distributary.audit.judge.log_table import (
    METADATA,
    OURS,
    LogCount,
    LogRow,
    counted,
    first_of,
    hold_against_files,
    log_rows,
    missing_events,
    payload_names,
    pieces,
)
from distributary.audit.judge.merged import MergedJudge, MergedRules, SourceEvent, Values
from distributary.audit.judge.plain_values import plain
from distributary.audit.judge.source_files import says_nothing
from distributary.audit.judge.table_rows import tombstones_beside
from distributary.audit.verify import TableCheck, Verification
from distributary.config import Pipeline
from distributary.config.quantities import milliseconds
from distributary.errors.border import contained
from distributary.names import shown
from distributary.state.ledger import Entry, totals
from distributary.tables.faults import reading
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

AT_A_TIME = 2
STRAY = "+2"
"""Behind the stream's id in the transactions of events that were found in files of other tables."""
PURGED = "distributary.purgedUntil"
"""The table property with the source time (ms) before which tombstones may be gone."""


@dataclass
class _RouteCheck:
    """A route, judged as far as its own tables go. `logged`: it has a log table. `unjudged`: rows of the merged table
    that are newer than every event that is still known."""

    entry: Entry
    log: LogCount = field(default_factory=LogCount)
    logged: bool = True
    unjudged: int = 0


def verify_changes(config: Pipeline) -> Verification:
    """Recount everything. Takes some minutes per ten million events. Safe beside a run.

    Raises StoreUnreadable, SourceDown.
    """
    store = Store.of(config.tables)
    with reading(config.state_root):
        books = read_books(config, store)
    sums = totals(books.entries)
    routes = sorted(route for route in sums if route is not None)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        checked = list(pool.map(partial(_check, books), (sums[route] for route in routes)))
        list(
            pool.map(
                books.sources.open, sorted(books.sources.known_files.keys() - books.sources.rows.keys() - books.whole)
            )
        )
    unknown = sorted({route for rows in books.sources.rows.values() for route in rows} - set(routes))
    tables = [_finish(books, check) for check in checked] + [
        _finish(books, _RouteCheck(Entry("", 0, r))) for r in unknown
    ]
    tables = [t for t in tables if t.table is not None or t.rows_in or t.problems]
    return _sum_up(books, sums, tables, sum(check.unjudged for check in checked))


# -- one route ---------------------------------------------------------------------------------------------


def _check(books: ChangeBooks, entry: Entry) -> _RouteCheck:
    """The route's tables; whatever one of them does to its reader is a problem of this route."""
    checked = _RouteCheck(entry, logged=entry.table is not None and entry.table != entry.merged)
    try:
        _judge(books, checked)
    except BaseException as e:
        checked.log.problems.append(f"a table cannot be read: {contained(e)}")
    if not checked.logged:
        checked.log.rows = entry.rows_written
    return checked


def _judge(books: ChangeBooks, checked: _RouteCheck) -> None:
    entry, log = checked.entry, checked.log
    # The merged table first: what is in it, is in the log by then.
    merged = _own(books, entry, entry.merged)
    table = _own(books, entry, entry.table) if checked.logged else None
    if checked.logged and table is None and entry.rows_written:
        log.problems.append("the log table is not there")
    if merged is None and entry.merged is not None and entry.merge_state == "merged" and entry.rows_written:
        log.problems.append("the merged table is not there")
    if merged is not None and not checked.logged:
        merged = _finished(books, merged)
    about = _about(entry)
    judged = merged is not None and about is not None and _has_keys(merged, about[1])
    with ByKey() as by_key:
        judge = None
        if judged and merged is not None and about is not None:
            judge = _merged_judge(books, entry, about, merged, by_key)
        if table is not None:
            _read_log(books, entry, table, log, judge, merged)
        elif judge is not None:
            judge.take_events(_events_of_files(books, entry, log))
            judge.partly = books.is_partly_gone()
        if judge is not None and merged is not None:
            _read_merged(books, entry, merged, judge, log, table)
            checked.unjudged = judge.unjudged


def _own(books: ChangeBooks, entry: Entry, uri: str | None) -> Snapshot | None:
    """The table; None where there is none, or another source table was there first: then this one is parked."""
    table = None if uri is None else Table(uri, books.store).open()
    owner = None if table is None else table.owner
    return (
        None if owner is not None and (owner.pipeline, owner.route) != (books.config.pipeline, entry.route) else table
    )


def _about(entry: Entry) -> tuple[str, tuple[str, ...]] | None:
    """(kind of database, key columns) of a route; None where it has no key."""
    about = json.loads(entry.about) if entry.about else {}
    return (str(about["source"][0]), tuple(about["keys"])) if about.get("keys") else None


def _has_keys(merged: Snapshot, keys: Sequence[str]) -> bool:
    """False for a table that is parked because the source's key has changed."""
    owner = merged.owner
    return owner is None or not owner.keys or {k.lower() for k in owner.keys} == {k.lower() for k in keys}


def _merged_judge(
    books: ChangeBooks, entry: Entry, about: tuple[str, tuple[str, ...]], merged: Snapshot, by_key: ByKey
) -> MergedJudge:
    config, route = books.config, str(entry.route)
    table_config = config.tables.routes.get(route)
    epochs = config.change_files.epochs if table_config is None or table_config.epochs is None else table_config.epochs
    repairs = [] if table_config is None else table_config.repair_backfills
    order = Order(about[0], sorted(map(milliseconds, epochs)), sorted(map(milliseconds, repairs)))
    limit = merged.properties.get(PURGED)
    silent = config.tables.dropped_columns == "keep" or bool(table_config and table_config.toast_columns)
    silent = silent or config.change_files.written_by == "debezium"
    names = payload_names(TableFiles(merged), flat=config.tables.metadata_columns)
    return MergedJudge(MergedRules(about[1], order, None if limit is None else int(limit), silent), by_key, names)


# -- events and rows ---------------------------------------------------------------------------------------


def _read_log(
    books: ChangeBooks, entry: Entry, table: Snapshot, log: LogCount, judge: MergedJudge | None, merged: Snapshot | None
) -> None:
    files = TableFiles(table)
    names = payload_names(files, flat=books.config.tables.metadata_columns)
    upto = -1 if merged is None else _committed(books, merged)
    for piece in pieces(files, log.problems):
        rows = hold_against_files(
            log_rows(counted(piece, books.newest, log), names), str(entry.route), books.sources, names, log
        )
        if judge is None:
            for _ in rows:
                pass
        else:
            judge.take_events(_to_merge(books, rows, upto, judge.rules.keys))


def _committed(books: ChangeBooks, merged: Snapshot) -> int:
    return max(merged.newest(f"{books.stream}{suffix}") for suffix in ("", STRAY))


def _to_merge(books: ChangeBooks, rows: Iterator[LogRow], upto: int, keys: Sequence[str]) -> Iterator[SourceEvent]:
    """Events that the merged table has taken: those of its batches, and deletes that `reconcile` made."""
    for row in rows:
        if (row.batch is None or row.batch <= upto) and (row.file, row.row) not in books.late:
            # An older log, or one of other key columns, has the key in its columns only.
            key = row.key if _fold(row.key_columns) == _fold(keys) else None
            yield SourceEvent(row.file or "", -1 if row.row is None else row.row, row.meta, row.values, key)


def _fold(names: Sequence[str]) -> list[str]:
    return [name.lower() for name in names]


def _events_of_files(books: ChangeBooks, entry: Entry, log: LogCount) -> Iterator[SourceEvent]:
    """Without a log table: what the files say."""
    for path in sorted(books.sources.known_files):
        source = None if books.skips(path) else books.sources.open(path)
        for number, (meta, event) in source.events.items() if source else ():
            aside = number in books.aside.get(path, ()) or (path, number) in books.late
            if meta.route == entry.route and not aside and not says_nothing(meta, event):
                yield SourceEvent(path, number, meta, event.payload)


def _read_merged(
    books: ChangeBooks, entry: Entry, merged: Snapshot, judge: MergedJudge, log: LogCount, table: Snapshot | None
) -> None:
    files = TableFiles(merged)
    for piece in pieces(files, log.problems):
        judge.take_rows(_rows(piece, judge))
    if (beside := tombstones_beside(merged)) is not None:
        for piece in pieces(TableFiles(_upto(books, beside, merged)), log.problems):
            judge.take_tombstones(_tombstones(piece))
        # What has been purged since the table was opened, it says by now.
        limit = Snapshot(merged.uri, merged.store).properties.get(PURGED)
        judge.rules = replace(judge.rules, purged_until=None if limit is None else int(limit))
    if judge.verdict():
        for piece in pieces(files, []):
            judge.kept_rows(values for _, deleted, values in _rows(piece, judge) if not deleted)
        _look_at_values(books, entry, judge, table)
    log.problems += judge.problems()


def _rows(piece: pa.Table, judge: MergedJudge) -> Iterator[tuple[Mapping[str, Any], bool, Values]]:
    for begin in range(0, piece.num_rows, 4096):
        some = piece.slice(begin, 4096)
        metas, deleted = plain(some.column("datastream_metadata")), plain(some.column("_deleted"))
        values = zip(*(plain(some.column(name)) for name in judge.names.columns), strict=True)
        for meta, is_deleted, row_values in zip(metas, deleted, values, strict=True):
            yield meta or {}, bool(is_deleted), dict(zip(judge.names.columns, row_values, strict=True))


def _tombstones(piece: pa.Table) -> Iterator[tuple[Mapping[str, Any], Values]]:
    names = [name for name in piece.column_names if name not in OURS]
    for begin in range(0, piece.num_rows, 4096):
        some = piece.slice(begin, 4096)
        values = zip(*(plain(some.column(name)) for name in names), strict=True)
        for meta, row_values in zip(plain(some.column(METADATA)), values, strict=True):
            yield meta or {}, dict(zip(names, row_values, strict=True))


def _upto(books: ChangeBooks, beside: Snapshot, merged: Snapshot) -> Snapshot:
    """The tombstones before those of a batch that the merged table, which is written after them, does not have yet."""
    upto = _committed(books, merged)
    while beside.version > 0 and _committed(books, beside) > upto:
        beside = beside.at(beside.version - 1)
    return beside


def _look_at_values(books: ChangeBooks, entry: Entry, judge: MergedJudge, table: Snapshot | None) -> None:
    if table is None:
        for path in sorted(books.sources.known_files):
            source = None if books.skips(path) else books.sources.open(path)
            if source is not None:
                judge.look_at(path, ((n, event.payload) for n, (_, event) in source.events.items()))
        return
    files = TableFiles(table)
    names = payload_names(files, flat=books.config.tables.metadata_columns)
    for piece in pieces(files, []):
        of_file: list[LogRow] = []
        for row in log_rows(piece, names):
            if of_file and of_file[0].file != row.file:
                judge.look_at(of_file[0].file or "", ((r.row or 0, r.values) for r in of_file))
                of_file = []
            of_file.append(row)
        if of_file:
            judge.look_at(of_file[0].file or "", ((r.row or 0, r.values) for r in of_file))


def _finished(books: ChangeBooks, table: Snapshot) -> Snapshot | None:
    """The table before what no finished batch has merged; None where that is all it holds."""
    while _committed(books, table) > books.newest:
        if table.version == 0:
            return None
        table = table.at(table.version - 1)
    return table


# -- all of them -------------------------------------------------------------------------------------------


def _finish(books: ChangeBooks, checked: _RouteCheck) -> TableCheck:
    entry, log, route = checked.entry, checked.log, str(checked.entry.route)
    lost = max(0, entry.rows_written - (log.rows - log.seen_events.repeated - log.seen_events.strange))
    doubled = max(log.seen_events.repeated, log.rows - log.seen_events.strange - entry.rows_written, 0)
    if lost:
        log.problems.append(f"{lost} events are missing from the log table")
    if doubled:
        log.problems.append(f"{doubled} events are in the log table more often than they came in")
    if checked.logged:
        log.problems += missing_events(route, books.sources, log, books.aside, books.skips)
    log.problems += first_of([f"{count} {text}" for text, count in log.wrong.items() if count])
    return TableCheck(
        route=route,
        table=entry.table,
        engine=entry.engine,
        rows_in=entry.rows_in,
        rows_written=log.rows - log.seen_events.strange,
        rows_quarantined=books.kept[entry.route],
        rows_lost=lost,
        rows_duplicated=doubled,
        rows_pending=log.pending,
        rows_foreign=log.foreign + log.seen_events.strange,
        problems=tuple(log.problems),
    )


def _sum_up(
    books: ChangeBooks, sums: Mapping[str | None, Entry], tables: Sequence[TableCheck], unjudged: int
) -> Verification:
    batch_totals = sums.get(None, Entry("", 0, None))
    problems = [f"{shown(t.route)}: {text}" for t in tables for text in t.problems]
    quarantined = sum(books.kept.values())
    ledger_count = sum(e.rows_quarantined for e in sums.values())
    lost, doubled = max(0, ledger_count - quarantined), max(0, quarantined - ledger_count)
    if lost:
        problems.append(f"{lost} events are missing from the quarantine")
    if doubled:
        problems.append(f"{doubled} events are in the quarantine without an entry in the ledger")
    if books.decided > books.newest:
        problems.append(f"the ledger lacks what batch {books.decided} did; its newest entry is of batch {books.newest}")
    unread = {p: why for p, why in books.sources.partly.items() if p not in books.whole and p not in books.aside}
    problems += [
        f"{path} cannot be read in full, though nothing of it is quarantined: {why}" for path, why in unread.items()
    ]
    notes = []
    if lost_files := len(books.gone()):
        problem = "files that were read are gone, damaged or others by now"
        notes.append(f"{lost_files} {problem}; their events are judged by the log tables alone")
    if unjudged:
        notes.append(f"{unjudged} rows of merged tables without a log are newer than all events that are still there")
    return Verification(
        pipeline=books.config.pipeline,
        ok=not problems,
        rows_in=sum(e.rows_in for e in sums.values()),
        rows_written=sum(t.rows_written for t in tables),
        rows_quarantined=quarantined,
        rows_lost=sum(t.rows_lost for t in tables) + lost,
        rows_duplicated=sum(t.rows_duplicated for t in tables) + doubled,
        tombstones=batch_totals.tombstones,
        tables=tuple(tables),
        quarantine=dict(books.states),
        source_losses=(),
        problems=tuple(problems),
        notes=tuple(notes),
    )
