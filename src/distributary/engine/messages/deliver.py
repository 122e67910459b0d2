"""The owner's side of a batch: chunks of a route -> decode, fit the columns, write the file, commit the table.

Runs inside Spark tasks, after the shuffle. Everything a task needs to know is in `Orders`; everything it says is an
`Outcome` per route: a few numbers. One route's fault never touches another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from distributary import __version__
from distributary.engine.apart import limited
from distributary.engine.messages.chunks import read_records, read_rejected
from distributary.engine.messages.decode import Decoded, Fitted, decode, fit, fit_decided, rejected_rows
from distributary.engine.messages.orders import Orders, Outcome
from distributary.engine.messages.pieces import Chunks, cut_pieces
from distributary.engine.messages.wide import commit_wide
from distributary.errors import Reason, ReplayMismatch, WideUnfit
from distributary.schemas.registry.compile import CompiledSchema
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.engines import spark_needed, why_spark
from distributary.tables.evolve import widened_in_words
from distributary.tables.quarantine import count_reasons, write_rejected
from distributary.tables.rewrite import committed_widening
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import retried
from distributary.tables.tip import Tip, append_on_tip
from distributary.tables.wide import KEY, committed_routes
from distributary.tables.widening import said_of


def deliver(
    chunks: Iterable[Mapping[str, Any]], orders: Orders, schemas: Mapping[int, CompiledSchema], part: str
) -> Iterator[Outcome | DataFile]:
    """Write the routes of one task's chunks; yields an Outcome per route, or piece of it, and the quarantine's file, if
    any.

    `chunks`: rows of `CHUNK_SCHEMA` as dicts of Arrow-backed values. `part` names this task within the batch.
    """
    by_route: dict[str, Chunks] = {}
    rejected: list[pa.Table] = []
    for chunk in chunks:
        if chunk["kind"] == "bad":
            rejected.append(pa.Table.from_batches([read_rejected(chunk["blob"])]))
        elif chunk["kind"] == "rows":
            by_route.setdefault(chunk["route"], []).append((json.loads(chunk["groups"]), read_records(chunk["blob"])))
    for route in sorted(by_route):
        for piece in _pieces(route, by_route.pop(route), orders, schemas):
            with limited(orders.read_sec):
                decoded = decode(route, piece, orders, schemas)
            outcome, bad = deliver_route(route, decoded, orders)
            rejected.extend(bad)
            yield outcome
    if rejected:
        yield write_rejected(orders.quarantine, rejected, orders.stream, orders.batch, part, orders.store)


def _pieces(route: str, chunks: Chunks, orders: Orders, schemas: Mapping[int, CompiledSchema]) -> Iterator[Chunks]:
    """What is delivered at a time: all that the task has of a route, unless the driver makes its commit."""
    if route not in orders.special:
        yield chunks
        return
    yield from cut_pieces(chunks, schemas, raw_nested_indexes=orders.raw_nested_indexes)


class _Parked(Exception):
    """The driver decided not to try this table."""


# -- write -------------------------------------------------------------------------------------------------


def deliver_route(route: str, decoded: Decoded, orders: Orders) -> tuple[Outcome, list[pa.Table]]:
    """Write one route; returns what was done and the rows to keep aside. Never raises for a fault of this table."""
    uri = orders.table(route)
    outcome = Outcome(route, uri, "empty", decoded.rows_in, decoders=decoded.decoders, warnings=dict(decoded.warnings))
    try:
        bad = retried(lambda: _write(route, decoded, orders, outcome))
    except BaseException as e:
        why = outcome.fail(e)
        outcome.error = str(e) if isinstance(e, _Parked) else why
        outcome.rows_written, outcome.files, outcome.schema_ids, outcome.warnings = 0, [], {}, {}
        bad = list(decoded.rejected)
        for writer, origin in zip(decoded.writers, decoded.origins, strict=True):
            every = np.arange(origin.num_rows)
            bad.append(rejected_rows(route, writer, origin, every, Reason.TABLE_PARKED, outcome.error, orders))
    if outcome.state == "spark":
        return outcome, []
    outcome.reasons = count_reasons(bad)
    return outcome, bad


def _write(route: str, decoded: Decoded, orders: Orders, outcome: Outcome) -> list[pa.Table]:
    special = orders.special.get(route)
    if special is not None and special.mode == "parked":
        raise _Parked(special.why)
    if special is not None and special.mode == "refused":
        return decoded.rejected
    if decoded.broken is not None:
        raise decoded.broken
    if special is not None:
        fitted = fit_decided(route, decoded, special.schema, orders)
        outcome.state = "files" if special.mode == "files" else "counted"
        outcome.schema_ids = fitted.schema_ids
        outcome.rows_written = fitted.rows
        if special.mode == "files" and fitted.rows:
            outcome.files = [orders.write(route, fitted.table)]
        return [*decoded.rejected, *fitted.rejected]
    if (bad := _write_on_tip(route, decoded, orders, outcome)) is not None:
        return bad
    return _write_opened(route, decoded, orders, outcome)


def _write_on_tip(route: str, decoded: Decoded, orders: Orders, outcome: Outcome) -> list[pa.Table] | None:
    """Append without opening the table, where its newest version is known; None where that does not do."""
    tip = orders.tips.get(route)
    if tip is None or not tip.leads(outcome.table, orders.store):
        return None
    fitted = fit(route, decoded, tip.arrow_schema(), orders)
    if fitted.evolution.changed or not fitted.rows:
        return None
    file = write_data_file(outcome.table, fitted.table, orders.store)
    if not append_on_tip(outcome.table, tip, [file], orders.mark, orders.store):
        return None
    outcome.state, outcome.schema_ids, outcome.rows_written = "written", fitted.schema_ids, fitted.rows
    outcome.tip = tip.after(orders.mark)
    return [*decoded.rejected, *fitted.rejected]


def _write_opened(route: str, decoded: Decoded, orders: Orders, outcome: Outcome) -> list[pa.Table]:
    """Open the table, decide with what is there, and commit."""
    uri = outcome.table
    table = open_own(route, orders)
    fitted = fit(route, decoded, orders.columns(route, table), orders, table)
    if orders.wide is not None:
        return _write_wide(route, decoded, fitted, table, orders, outcome)
    outcome.why_spark = why_spark(table, orders.tables, route, fitted.evolution)
    if outcome.why_spark:
        outcome.state = "spark"
        return []
    outcome.schema_ids, outcome.rows_written = fitted.schema_ids, fitted.rows
    bad = [*decoded.rejected, *fitted.rejected]
    if table is not None and table.has(orders.mark):
        check_replay(table.rows_of(orders.mark), fitted.rows, uri, orders)
        outcome.state, outcome.widened = "replayed", committed_widening(table, orders.mark)
        return bad
    if not fitted.rows:
        return bad
    files = [orders.write(route, fitted.table)]
    version = orders.target(route).commit(table, fitted.evolution, files, orders.mark)
    outcome.state, outcome.created, outcome.evolved = "written", table is None, fitted.evolution.changed
    outcome.widened = said_of(table, fitted.evolution)
    if version is not None:
        outcome.tip = Tip.of(version, fitted.evolution.schema, orders.mark)
    return bad


def _write_wide(
    route: str, decoded: Decoded, fitted: Fitted, table: Snapshot | None, orders: Orders, outcome: Outcome
) -> list[pa.Table]:
    """Commit one route's rows to the table of all routes, outside of a batch (a replay)."""
    outcome.schema_ids, outcome.rows_written = fitted.schema_ids, fitted.rows
    bad = [*decoded.rejected, *fitted.rejected]
    if table is not None and table.has(orders.mark):
        found = committed_routes(table, orders.mark)
        check_replay(None if found is None else found.get(route, 0), fitted.rows, outcome.table, orders)
        outcome.state = "replayed"
    elif fitted.rows:
        files = [orders.write(route, fitted.table)]
        outcome.created, outcome.evolved = orders.columns(route, table) is None, fitted.evolution.changed
        if (before := orders.columns(route, table)) is not None:
            outcome.widened = widened_in_words(before, fitted.evolution.schema)
        commit_wide(table, orders, {route: fitted.evolution.schema}, files, {route: fitted.rows})
        outcome.state = "written"
    return bad


def open_own(route: str, orders: Orders) -> Snapshot | None:
    """The route's table, None where there is none yet.

    Raises TableCollision when it was made by another pipeline or for another route (case D2), TableFault, OSError.
    """
    table = orders.target(route).open()
    if table is not None and orders.wide is not None and (why := spark_needed(table, [KEY])):
        raise WideUnfit(table=table.uri, detail=why)
    return table


def check_replay(committed: int | None, decoded: int, uri: str, orders: Orders) -> None:
    """Raises ReplayMismatch when a replayed batch no longer decodes to the rows that its commit holds."""
    if committed is not None and committed != decoded:
        raise ReplayMismatch(table=uri, batch=orders.batch, committed=committed, decoded=decoded, version=__version__)
