"""The owner's side of a batch of change files: read, split by table, append to the log, reduce, merge.

Runs inside Spark tasks. Everything a task needs to know is in `ChangeOrders`; what it says is a `ChangeOutcome` per
route and a `Seen` per file. A route's fault is its own, and so is a file's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from distributary.engine.changes.fitting import Fitted, RouteEvents, newest_ms, origins
from distributary.engine.changes.keys import key_columns
from distributary.engine.changes.log import append_events, write_files
from distributary.engine.changes.merging import merge_now
from distributary.engine.changes.orders import ChangeOrders, ChangeOutcome, Seen, WorkFile
from distributary.engine.changes.read import read_files
from distributary.engine.changes.rejected import rejected_events, without
from distributary.errors import Reason
from distributary.tables.datafile import DataFile
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, count_reasons, write_rejected
from distributary.tables.table import Table


@dataclass(frozen=True)
class Work:
    """Files that one task reads, and the routes that it owns among them. Read and written as one: their bytes are what
    a task holds at a time."""

    routes: frozenset[str]
    files: tuple[WorkFile, ...]


class _Parked(Exception):
    """The driver decided not to try this table."""


def deliver(work: Iterable[Work], orders: ChangeOrders, name: str) -> Iterator[ChangeOutcome | DataFile | Seen]:
    """Write the routes of one task; yields what became of each route and file, and the quarantine's file, if any.

    `name` names this task within the batch. Raises SourceDown.
    """
    rejected: list[pa.Table] = []
    for one in work:
        found = read_files(one.files, one.routes, orders)
        rejected += found.rejected
        yield from found.seen
        for route in sorted(found.routes):
            outcome, bad = deliver_route(found.routes.pop(route), orders)
            new = [rows for rows in (without(rows, found.again) for rows in bad) if rows.num_rows]
            outcome.reasons = count_reasons(new)
            rejected += [*new, *outcome.late]
            outcome.late_rows, outcome.late = sum(rows.num_rows for rows in outcome.late), []
            yield outcome
    if rejected:
        yield write_rejected(
            orders.quarantine, rejected, orders.app, orders.batch, name, orders.store, EVENT_QUARANTINE_SCHEMA
        )


def deliver_route(events: RouteEvents, orders: ChangeOrders) -> tuple[ChangeOutcome, list[pa.Table]]:
    """Write one route: what was done, and the events to keep aside. Never raises for a fault of this route's tables."""
    source = events.source
    route = source.route
    rows_in = events.rows - events.again  # those of `again` that are good now come to it below
    outcome = ChangeOutcome(route, "", "empty", rows_in, source=source, keeps=orders.named.keeps)
    try:
        log, outcome.merged = orders.named.log(source), orders.named.merged(source)
        outcome.table = log or outcome.merged or ""
        keys = [orders.named.keys(source, found) for found in events.key_lists()]
        outcome.keys, outcome.has_log = keys[0], log is not None or not keys[0]
        outcome.newest_ms = newest_ms(events)
        order = orders.order(route)
        if order.log == "parked":
            raise _Parked(order.why)
        if order.no_table and Table(outcome.table, orders.store).open() is None:
            return outcome, [
                rejected_events(route, origins(events, orders.batch), Reason.TOO_MANY_ROUTES, order.no_table)
            ]
        started = time.monotonic()
        fitted = _log(events, log, outcome.merged, orders, outcome)
        outcome.seconds["log"] = time.monotonic() - started
    except BaseException as e:
        return outcome, _failed(events, orders, outcome, e)
    if events.again:
        outcome.again = _brought_back(events, fitted)
        outcome.rows_in += sum(map(len, outcome.again.values()))
    outcome.brought, outcome.split = fitted.brought, fitted.split
    outcome.keys = key_columns(fitted.table.column_names, keys[0])
    try:
        merge_now(events, keys, fitted, orders, outcome)
    except BaseException as e:
        if not outcome.has_log:
            return outcome, _failed(events, orders, outcome, e)
        outcome.park_merge(e)
    return outcome, fitted.rejected


def _log(
    events: RouteEvents, log: str | None, merged: str | None, orders: ChangeOrders, outcome: ChangeOutcome
) -> Fitted:
    """To the log table; a table without keys is a log by itself. Without either, only fit the rows."""
    uri = log
    if uri is None and not outcome.keys:
        uri, outcome.merged = merged, None
    if uri is None:
        order = orders.order(events.source.route)
        return write_files(events, orders.parts, orders, outcome, order, keep=order.log == "files")
    return append_events(events, uri, orders, outcome)


def _failed(events: RouteEvents, orders: ChangeOrders, outcome: ChangeOutcome, error: BaseException) -> list[pa.Table]:
    why = outcome.fail(error)
    outcome.error = str(error) if isinstance(error, _Parked) else why
    outcome.rows_in = events.rows - events.again
    outcome.rows_written, outcome.files, outcome.again = 0, [], {}
    return [rejected_events(events.source.route, origins(events, orders.batch), Reason.TABLE_PARKED, outcome.error)]


def _brought_back(events: RouteEvents, fitted: Fitted) -> dict[str, list[int]]:
    """Events that were in the quarantine and are good now, by file."""
    refused = {(f, n) for rows in fitted.rejected for f, n in zip(*_places(rows), strict=True)}
    found: dict[str, list[int]] = {}
    for part in events.parts:
        if part.again:
            numbers = part.events.numbers.to_pylist()
            found.setdefault(part.path, []).extend(n for n in numbers if (part.path, n) not in refused)
    return found


def _places(rows: pa.Table) -> tuple[list[str], list[int]]:
    return rows.column("file").to_pylist(), rows.column("row").to_pylist()
