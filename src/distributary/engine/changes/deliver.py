"""The owner's side of a batch of change files: read, split by table, append to the log, reduce, merge.

Runs inside Spark tasks. Everything a task needs to know is in `ChangeSpec`; what it says is an `Outcome` per
route and a `FileReport` per file. A route's fault is its own, and so is a file's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from distributary.changes.model import SourceTable
from distributary.changes.truncates import NO_TABLE, is_truncate
from distributary.engine.changes.fitting import Fitted, RouteEvents, all_unfit, newest_ms
from distributary.engine.changes.key_columns import NEWEST, key_columns, newest_key_columns
from distributary.engine.changes.log_append import append_events, write_files
from distributary.engine.changes.merging import merge_now
from distributary.engine.changes.read import read_files
from distributary.engine.changes.rejected_events import without
from distributary.engine.changes.task_spec import ChangeSpec, FileReport, WorkFile
from distributary.engine.changes.transactions import log_of
from distributary.engine.outcomes import Append, Merge, Outcome, Parked, SourceEvents
from distributary.errors import Reason
from distributary.tables.datafile import DataFile
from distributary.tables.files import TableFiles
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, count_reasons, write_rejected
from distributary.tables.table import Table


@dataclass(frozen=True)
class Work:
    """Files that one task reads, and the routes that it owns among them. Read and written as one: their bytes are what
    a task holds at a time."""

    routes: frozenset[str]
    files: tuple[WorkFile, ...]


def deliver(work: Iterable[Work], spec: ChangeSpec, name: str) -> Iterator[Outcome | DataFile | FileReport]:
    """Write the routes of one task; yields what became of each route and file, and the quarantine's file, if any.

    `name` names this task within the batch. Raises SourceDown.
    """
    rejected: list[pa.Table] = []
    for item in work:
        read = read_files(item.files, item.routes, spec)
        rejected += read.rejected
        yield from read.seen
        for route in sorted(read.routes):
            outcome, bad = deliver_route(read.routes.pop(route), spec)
            new = [rows for rows in (without(rows, read.again) for rows in bad) if rows.num_rows]
            merge = outcome.merge or Merge()
            rejected += [*new, *merge.late]
            merge = replace(merge, late=(), late_rows=sum(rows.num_rows for rows in merge.late))
            yield replace(outcome, reasons=count_reasons(new), merge=merge)
    if rejected:
        yield write_rejected(spec.quarantine, rejected, spec.app, spec.batch, name, spec.store, EVENT_QUARANTINE_SCHEMA)


def deliver_route(events: RouteEvents, spec: ChangeSpec) -> tuple[Outcome, list[pa.Table]]:
    """Write one route: what was done, and the events to keep aside. Never raises for a fault of this route's tables."""
    source = events.source
    about = SourceEvents(source, keeps=spec.named.keeps)
    # Those of `again` that are good now come to it below.
    outcome = Outcome(source.route, "", events.rows - events.again, merge=Merge(), events=about)
    try:
        log, merged = spec.named.log(source), spec.named.merged(source)
        outcome = replace(outcome, table=log or merged or "", merge=Merge(merged))
        events, unknown = with_keys(events, spec)
        if not events.parts:
            return replace(outcome, aside=True), unknown
        keys = [spec.named.keys(source, named_keys) for named_keys in events.key_lists()]
        about = replace(about, keys=keys[0], has_log=log is not None or not keys[0])
        outcome = replace(outcome, events=about)
        about = replace(about, newest_ms=newest_ms(events))
        outcome = replace(outcome, events=about)
        decision = spec.decision(source.route)
        if decision.append == "parked":
            raise Parked(decision.why)
        if decision.no_table and Table(outcome.table, spec.store).open() is None:
            return outcome, [all_unfit(events, spec.batch, Reason.TOO_MANY_ROUTES, decision.no_table)]
        if not keys[0] and log is None:  # a table without keys is a log by itself
            log, outcome = merged, replace(outcome, merge=Merge())
        started = time.monotonic()
        fitted, append = _log(events, log, outcome.table, spec)
        outcome = replace(outcome, append=append, seconds={"log": time.monotonic() - started})
    except BaseException as e:
        return _failed(events, spec, outcome, e)
    outcome = _entered(events, fitted, outcome)
    try:
        outcome = _merge(events, keys, fitted, spec, outcome)
    except BaseException as e:
        if not about.has_log:
            return _failed(events, spec, outcome, e)
        outcome = replace(outcome, merge=(outcome.merge or Merge()).parked(e))
    return outcome, [*fitted.rejected, *unknown]


def with_keys(events: RouteEvents, spec: ChangeSpec) -> tuple[RouteEvents, list[pa.Table]]:
    """The events with their TRUNCATEs, which have no key, as events of the others' key; and those that have no table
    yet, for the quarantine."""
    if not any(is_truncate(file_events.events) for file_events in events.parts):
        return events, []
    others = [file_events for file_events in events.parts if not is_truncate(file_events.events)]
    truncates = [file_events for file_events in events.parts if is_truncate(file_events.events)]
    keys = others[0].events.keys if others else known_keys(events.source, spec)
    if keys is None:
        unfit = all_unfit(replace(events, parts=truncates), spec.batch, Reason.TRUNCATED, NO_TABLE)
        return RouteEvents(events.source), [unfit]
    named = [replace(file_events, events=replace(file_events.events, keys=keys)) for file_events in truncates]
    return replace(events, parts=[*others, *named]), []


def known_keys(source: SourceTable, spec: ChangeSpec) -> tuple[str, ...] | None:
    """The key columns of a route's merged table, by its log where its first merge has yet to be; () for a table that
    takes all its events; None where there is none."""
    if (tip := spec.merge_tips.get(source.route)) is not None:
        return tuple(tip.keys)
    uri = spec.named.merged(source)
    table = None if uri is None else Table(uri, spec.store).open()
    if table is not None:
        return () if table.owner is None else tuple(table.owner.keys)
    log = log_of(source, spec)
    return None if log is None else newest_key_columns(TableFiles(log).read_all(NEWEST))


def _log(events: RouteEvents, log: str | None, table: str, spec: ChangeSpec) -> tuple[Fitted, Append]:
    """To the log table. Without one, only fit the rows."""
    if log is not None:
        return append_events(events, log, spec)
    decision = spec.decision(events.source.route)
    return write_files(events, table, spec.parts, spec, decision.schema, keep=decision.append == "files")


def _entered(events: RouteEvents, fitted: Fitted, outcome: Outcome) -> Outcome:
    """With what came in with the events, and what of them had come before."""
    assert outcome.events is not None
    again = _brought_back(events, fitted) if events.again else {}
    rows_in = outcome.rows_in + sum(map(len, again.values()))
    if outcome.append.state == "replayed":
        rows_in -= max(0, fitted.table.num_rows - outcome.rows_written)
    keys = key_columns(fitted.table.column_names, outcome.events.keys)
    about = replace(outcome.events, keys=keys, brought=fitted.brought, split=fitted.split, again=again)
    return replace(outcome, rows_in=rows_in, events=about)


def _merge(
    events: RouteEvents, keys: Sequence[tuple[str, ...]], fitted: Fitted, spec: ChangeSpec, outcome: Outcome
) -> Outcome:
    merge = merge_now(events, keys, fitted, spec, outcome)
    append = outcome.append
    if merge.state == "merged" and append.state == "empty":
        # Without a log table, what is merged is what was written.
        append = replace(append, state="written", created=merge.created)
    return replace(outcome, append=append, merge=merge)


def _failed(
    events: RouteEvents, spec: ChangeSpec, outcome: Outcome, error: BaseException
) -> tuple[Outcome, list[pa.Table]]:
    outcome = outcome.failed(error)
    about = None if outcome.events is None else replace(outcome.events, again={})
    outcome = replace(outcome, rows_in=events.rows - events.again, events=about)
    return outcome, [all_unfit(events, spec.batch, Reason.TABLE_PARKED, str(outcome.error))]


def _brought_back(events: RouteEvents, fitted: Fitted) -> dict[str, tuple[int, ...]]:
    """Events that were in the quarantine and are good now, by file."""
    refused = {(f, n) for rows in fitted.rejected for f, n in zip(*_places(rows), strict=True)}
    numbers_of: dict[str, list[int]] = {}
    for file_events in events.parts:
        if file_events.again and isinstance(file_events.path, str):
            numbers = file_events.events.numbers.to_pylist()
            numbers_of.setdefault(file_events.path, []).extend(
                n for n in numbers if (file_events.path, n) not in refused
            )
    return {path: tuple(numbers) for path, numbers in numbers_of.items()}


def _places(rows: pa.Table) -> tuple[list[str], list[int]]:
    return rows.column("file").to_pylist(), rows.column("row").to_pylist()
