"""The log table of a route: every event as it came, one marked commit per batch, from inside the task."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable

from distributary import __version__
from distributary.engine.changes.fitting import Fitted, RouteEvents, fit
from distributary.engine.changes.orders import ChangeOrders, ChangeOutcome, RouteOrder
from distributary.errors import ReplayMismatch
from distributary.tables import append
from distributary.tables.append import Owner
from distributary.tables.datafile import write_data_file
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.rewrite import commit_rows, committed_widening
from distributary.tables.tip import Tip, append_on_tip
from distributary.tables.widening import growing, in_place, said_of

FILE_ROWS = 500_000
"""Rows of one data file at most."""


def append_events(events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome) -> Fitted:
    """Append the events to the table at `uri`, once per mark; the rows that are in it now and those that may not be.

    Raises CommitConflict (other writers were first each time), TableCollision, ReplayMismatch, DeltaError, OSError.
    """
    return append.retried(lambda: _append(events, uri, orders, outcome))


def _append(events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome) -> Fitted:
    order = orders.order(events.source.route)
    if order.log == "files":
        return write_files(events, uri, orders, outcome, order)
    return _on_tip(events, uri, orders, outcome) or _opened(events, uri, orders, outcome)


def write_files(
    events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome, order: RouteOrder, keep: bool = True
) -> Fitted:
    """Only write the rows; the driver commits them with those of other tasks, or hands them to another engine.

    `keep` False: not even that, the caller merges them from memory.
    """
    schema, table = order.schema, None
    if schema is None and (table := _open(events, outcome.table, orders)) is not None:
        schema = payload_schema(append.arrow_schema(table))
    fitted = _fit(events, schema, orders, table, outcome.table)
    outcome.rows_written = fitted.table.num_rows
    if not keep:
        return fitted
    outcome.state = "files"
    outcome.schema = fitted.evolution.schema.serialize().to_pybytes()
    outcome.incoming = [schema.serialize().to_pybytes() for schema in fitted.incoming]
    outcome.known = fitted.known
    outcome.files_at = uri
    if fitted.table.num_rows:
        outcome.files = [write_data_file(uri, rows, orders.store) for rows in _pieces(fitted.table)]
    return fitted


def _on_tip(events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome) -> Fitted | None:
    """Without opening the table, where its newest version is known; None where that does not do."""
    tip = orders.tips.get(events.source.route)
    if tip is None or not tip.leads(uri, orders.store):
        return None
    fitted = _fit(events, tip.arrow_schema(), orders)
    if fitted.evolution.changed or not fitted.table.num_rows:
        return None
    files = [write_data_file(uri, rows, orders.store) for rows in _pieces(fitted.table)]
    if not append_on_tip(uri, tip, files, orders.mark, orders.store):
        return None
    outcome.state, outcome.rows_written = "written", fitted.table.num_rows
    outcome.tip = tip.after(orders.mark)
    return fitted


def _opened(events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome) -> Fitted:
    table = _open(events, uri, orders)
    fitted = _fit(events, None if table is None else append.arrow_schema(table), orders, table, uri)
    route = events.source.route
    outcome.why_spark = append.why_spark(table, orders.named.tables, route)
    if in_place(orders.named.policy(route), table):
        outcome.why_spark = outcome.why_spark or widening(fitted)
    if outcome.why_spark:
        # The rows wait in files of ours until Spark has appended them.
        return write_files(events, orders.parts, orders, outcome, RouteOrder(schema=fitted.evolution.schema))
    rows = fitted.table.num_rows
    if table is not None and append.committed_batch(table, orders.app) >= orders.batch:
        grown = any(part.changed for part in events.parts)
        outcome.state, outcome.rows_written = (
            "replayed",
            _replayed(append.committed_rows(table, orders.mark), rows, uri, orders, grown),
        )
        outcome.changed, outcome.widened = outcome.rows_written != rows, committed_widening(table, orders.mark)
        outcome.rows_in -= max(0, rows - outcome.rows_written)
        return fitted
    if not rows:
        return fitted
    files = [write_data_file(uri, piece, orders.store) for piece in _pieces(fitted.table)]
    owner = Owner(orders.pipeline, route)
    version = commit_rows(
        table, uri, fitted.evolution, files, orders.mark, owner, orders.store, orders.named.tables.properties
    )
    outcome.state, outcome.rows_written = "written", rows
    outcome.created, outcome.evolved = table is None, fitted.evolution.changed
    outcome.widened = said_of(table, fitted.evolution)
    if version is not None:
        outcome.tip = Tip.of(version, fitted.evolution.schema, orders.mark)
    return fitted


def _replayed(committed: int | None, rows: int, uri: str, orders: ChangeOrders, grown: bool) -> int:
    """Rows that the batch's commit holds. It may hold more than the files do now, when one of them is gone since; fewer
    only when one has `grown` since, which comes again for what is missing. Else a row would be in no table.

    Raises ReplayMismatch.
    """
    if committed is not None and committed < rows and not grown:
        raise ReplayMismatch(table=uri, batch=orders.batch, committed=committed, decoded=rows, version=__version__)
    return rows if committed is None else committed


def payload_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a merged table that events have too."""
    return pa.schema([f for f in schema if f.name not in (DELETED, DELETED_AT)])


def _open(events: RouteEvents, uri: str, orders: ChangeOrders) -> DeltaTable | None:
    return append.open_owned(uri, Owner(orders.pipeline, events.source.route), orders.store)


def _fit(
    events: RouteEvents, schema: pa.Schema | None, orders: ChangeOrders, table: DeltaTable | None = None, uri: str = ""
) -> Fitted:
    """`table`: as it is open at `uri`; without it, no column that is there gets another type."""
    named, route = orders.named, events.source.route
    flat, keys, policy = named.tables.metadata_columns, named.own(route).keys, named.policy(route)
    grow = growing(table, policy, uri, orders.store)
    return fit(events, schema, policy, orders.batch, flat=flat, keys=keys, grow=grow)


def widening(fitted: Fitted) -> str | None:
    """Why Spark must write these rows: columns that get wider, in words."""
    return fitted.evolution.widening


def _pieces(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(at, FILE_ROWS) for at in range(0, max(1, rows.num_rows), FILE_ROWS)]
