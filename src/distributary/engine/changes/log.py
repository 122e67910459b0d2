"""The log table of a route: every event as it came, one marked commit per batch, from inside the task."""

from __future__ import annotations

import pyarrow as pa

from distributary import __version__
from distributary.engine.changes.fitting import Fitted, RouteEvents, fit
from distributary.engine.changes.orders import ChangeOrders, ChangeOutcome, RouteOrder
from distributary.errors import ReplayMismatch
from distributary.tables.datafile import write_data_file
from distributary.tables.engines import why_spark
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.rewrite import committed_widening
from distributary.tables.snapshot import Snapshot, columns_of
from distributary.tables.table import retried
from distributary.tables.tip import Tip, append_on_tip
from distributary.tables.widening import growing, said_of

FILE_ROWS = 500_000
"""Rows of one data file at most."""


def append_events(events: RouteEvents, uri: str, orders: ChangeOrders, outcome: ChangeOutcome) -> Fitted:
    """Append the events to the table at `uri`, once per mark; the rows that are in it now and those that may not be.

    Raises CommitConflict (other writers were first each time), TableCollision, ReplayMismatch, TableFault, OSError.
    """
    return retried(lambda: _append(events, uri, orders, outcome))


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
    if schema is None and (table := orders.target(outcome.table, events.source.route).open()) is not None:
        schema = payload_schema(table.schema)
    fitted = _fit(events, schema, orders, table)
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
    route = events.source.route
    target = orders.target(uri, route)
    table = target.open()
    fitted = _fit(events, columns_of(table), orders, table)
    outcome.why_spark = why_spark(table, orders.named.tables, route, fitted.evolution)
    if outcome.why_spark:
        # The rows wait in files of ours until Spark has appended them.
        return write_files(events, orders.parts, orders, outcome, RouteOrder(schema=fitted.evolution.schema))
    rows = fitted.table.num_rows
    if table is not None and table.has(orders.mark):
        grown = any(part.changed for part in events.parts)
        outcome.state, outcome.rows_written = (
            "replayed",
            _replayed(table.rows_of(orders.mark), rows, uri, orders, grown),
        )
        outcome.changed, outcome.widened = outcome.rows_written != rows, committed_widening(table, orders.mark)
        outcome.rows_in -= max(0, rows - outcome.rows_written)
        return fitted
    if not rows:
        return fitted
    files = [write_data_file(uri, piece, orders.store) for piece in _pieces(fitted.table)]
    version = target.commit(table, fitted.evolution, files, orders.mark)
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


def _fit(events: RouteEvents, schema: pa.Schema | None, orders: ChangeOrders, table: Snapshot | None = None) -> Fitted:
    """`table`: as it is open; without it, no column that is there gets another type."""
    named, route = orders.named, events.source.route
    flat, keys, policy = named.tables.metadata_columns, named.own(route).keys, named.policy(route)
    grow = growing(table, policy)
    return fit(events, schema, policy, orders.batch, flat=flat, keys=keys, grow=grow)


def _pieces(rows: pa.Table) -> list[pa.Table]:
    return [rows.slice(at, FILE_ROWS) for at in range(0, max(1, rows.num_rows), FILE_ROWS)]
