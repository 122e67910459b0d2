"""The owner's side of a batch: chunks of a route -> decode, fit the columns, write the file, commit the table.

Runs inside Spark tasks, after the shuffle. Everything a task needs to know is in `MessageSpec`; everything it says is
an `Outcome` per route: a few numbers. One route's fault never touches another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from distributary.engine.apart import limited
from distributary.engine.appending import Appending, ReplayCheck
from distributary.engine.messages.chunks import read_records, read_rejected
from distributary.engine.messages.decode import Decoded, Fitted, all_rejected, decode, fit, fit_decided
from distributary.engine.messages.deliver_events import deliver_events
from distributary.engine.messages.pieces import Chunks, cut_pieces, grouped
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.messages.wide_commit import commit_wide
from distributary.engine.outcomes import Append, Outcome, Parked
from distributary.errors import WideUnfit
from distributary.schemas.registry.compile import CompiledSchema
from distributary.steps import Steps, finished, side_by_side, unless_large
from distributary.tables.datafile import DataFile
from distributary.tables.engines import spark_needed, why_spark
from distributary.tables.evolve import widened_in_words
from distributary.tables.quarantine import count_reasons, write_rejected
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import retried
from distributary.tables.wide import KEY, committed_routes


def deliver(
    chunks: Iterable[Mapping[str, Any]], spec: MessageSpec, schemas: Mapping[int, CompiledSchema], task: str
) -> Iterator[Outcome | DataFile]:
    """Write the routes of one task's chunks; yields an Outcome per route, or piece of it, and the quarantine's file, if
    any.

    `chunks`: rows of `CHUNK_SCHEMA` as dicts of Arrow-backed values. `task` names this task within the batch.
    """
    by_route: dict[str, Chunks] = {}
    rejected: list[pa.Table] = []
    for chunk in chunks:
        if chunk["kind"] == "bad":
            rejected.append(pa.Table.from_batches([read_rejected(chunk["blob"])]))
        elif chunk["kind"] == "rows":
            by_route.setdefault(chunk["route"], []).append((json.loads(chunk["groups"]), read_records(chunk["blob"])))
    pieces = ((r, piece) for r in sorted(by_route) for piece in _pieces(r, by_route.pop(r), spec, schemas))
    for group in grouped(pieces):
        for outcome, bad in side_by_side(_delivering_piece(route, piece, spec, schemas) for route, piece in group):
            rejected.extend(bad)
            yield outcome
    if rejected:
        yield write_rejected(spec.quarantine, rejected, spec.stream, spec.batch, task, spec.store)


def _pieces(route: str, chunks: Chunks, spec: MessageSpec, schemas: Mapping[int, CompiledSchema]) -> Iterator[Chunks]:
    """What is delivered at a time: all that the task has of a route, unless the driver makes its commit."""
    if spec.decision(route).append == "own":
        yield chunks
        return
    yield from cut_pieces(chunks, schemas, raw_nested_indexes=spec.raw_nested_indexes)


def _delivering_piece(
    route: str, piece: Chunks, spec: MessageSpec, schemas: Mapping[int, CompiledSchema]
) -> Steps[tuple[Outcome, list[pa.Table]]]:
    with limited(spec.read_sec):
        decoded = decode(route, piece, spec, schemas)
    return (yield from unless_large(decoded.nbytes, delivering(route, decoded, spec)))


# -- write -------------------------------------------------------------------------------------------------


def deliver_route(route: str, decoded: Decoded, spec: MessageSpec) -> tuple[Outcome, list[pa.Table]]:
    """Write one route; returns what was done and the rows to keep aside. Never raises for a fault of this table."""
    return finished(delivering(route, decoded, spec))


def delivering(route: str, decoded: Decoded, spec: MessageSpec) -> Steps[tuple[Outcome, list[pa.Table]]]:
    """`deliver_route`, step by step."""
    yield
    if spec.has_events(route):
        return deliver_events(route, decoded, spec)
    outcome = Outcome(route, spec.table(route), decoded.rows_in, decoders=decoded.decoders)
    try:
        append, fitted = yield from _writing(route, decoded, spec)
    except BaseException as e:
        return all_rejected(outcome.failed(e), decoded, spec)
    outcome = replace(outcome, append=append, warnings=dict(decoded.warnings))
    if append.state == "spark":
        return outcome, []
    bad = decoded.rejected if fitted is None else [*decoded.rejected, *fitted.rejected]
    schema_ids = {} if fitted is None else fitted.schema_ids
    return replace(outcome, schema_ids=schema_ids, reasons=count_reasons(bad)), bad


def _writing(route: str, decoded: Decoded, spec: MessageSpec) -> Steps[tuple[Append, Fitted | None]]:
    """What was done with a route's rows, and how they fitted into the table's columns (None: nobody tried)."""
    decision = spec.decision(route)
    if decision.append == "parked":
        raise Parked(decision.why)
    if decision.append == "refused":
        return Append(), None
    if decoded.broken is not None:
        raise decoded.broken
    if decision.append != "own":
        fitted = fit_decided(route, decoded, decision.schema, spec)
        if decision.append == "counted":
            return Append("counted", fitted.rows), fitted
        writing = unless_large(fitted.table.nbytes, spec.writing(route, fitted.table))
        files = [(yield from writing)] if fitted.rows else []
        return Append("files", fitted.rows, files=tuple(files)), fitted
    if spec.wide is not None:
        return retried(lambda: _write_wide(route, decoded, spec))

    def write(rows: pa.Table) -> Steps[list[DataFile]]:
        return [(yield from spec.writing(route, rows))]

    fitted, append = yield from Appending(
        target=spec.target(route),
        txn=spec.txn,
        tip=spec.tips.get(route),
        replay=ReplayCheck(spec.batch),
        fit=lambda columns, table: fit(route, decoded, columns, spec, table),
        write=write,
        why_spark=lambda table, evolution: why_spark(table, spec.tables, route, evolution),
    ).steps()
    return append, fitted


def _write_wide(route: str, decoded: Decoded, spec: MessageSpec) -> tuple[Append, Fitted]:
    """Commit one route's rows to the table of all routes, outside of a batch (a replay)."""
    table = open_own(route, spec)
    before = spec.columns(route, table)
    fitted = fit(route, decoded, before, spec, table)
    if table is not None and table.has(spec.txn):
        rows_of_routes = committed_routes(table, spec.txn)
        rows = ReplayCheck(spec.batch).rows(
            None if rows_of_routes is None else rows_of_routes.get(route, 0), fitted.rows, table.uri
        )
        return Append("replayed", rows), fitted
    if not fitted.rows:
        return Append(), fitted
    files = [spec.write(route, fitted.table)]
    after, evolved = fitted.evolution.schema, fitted.evolution.changed
    widened = {} if before is None else widened_in_words(before, after)
    commit_wide(table, spec, {route: after}, files, {route: fitted.rows})
    return Append("written", fitted.rows, before is None, evolved, widened), fitted


def open_own(route: str, spec: MessageSpec) -> Snapshot | None:
    """The route's table, None where there is none yet.

    Raises TableCollision when it was made by another pipeline or for another route (case D2), TableFault, OSError.
    """
    table = spec.target(route).open()
    if table is not None and spec.wide is not None and (why := spark_needed(table, [KEY])):
        raise WideUnfit(table=table.uri, detail=why)
    return table
