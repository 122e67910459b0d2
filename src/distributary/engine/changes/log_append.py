"""The log table of a route: every event as it came, one marked commit per batch, from inside the task."""

from __future__ import annotations

import pyarrow as pa

from distributary.engine.appending import Appending, ReplayCheck
from distributary.engine.changes.fitting import Fitted, RouteEvents, fit
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.engine.outcomes import Append
from distributary.steps import Steps, finished
from distributary.tables.by_name import is_named
from distributary.tables.datafile import DataFile, writing_data_file
from distributary.tables.engines import why_spark
from distributary.tables.merge_rows import DELETED, DELETED_AT
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import retried
from distributary.tables.widening import growing

FILE_ROWS = 500_000
"""Rows of one data file at most."""


def append_events(events: RouteEvents, uri: str, spec: ChangeSpec) -> tuple[Fitted, Append]:
    """Append the events to the table at `uri`, once per transaction; the rows that are in it now and those that may not
    be.

    Raises CommitConflict (other writers were first each time), TableCollision, ReplayMismatch, TableFault, OSError.
    """
    route = events.source.route
    decision = spec.decision(route)
    if decision.append == "files":
        folder = spec.parts if is_named(uri) else uri
        return retried(lambda: write_files(events, uri, folder, spec, decision.schema))
    fitted, append = Appending(
        target=spec.target(uri, route),
        txn=spec.txn,
        tip=spec.tips.get(route),
        # The commit may hold more than the files do now, when one of them is gone since; fewer only when one has grown
        # since, which comes again for what is missing. Else an event would be in no table.
        replay=ReplayCheck(
            spec.batch, fewer=any(file_events.changed for file_events in events.parts), more=spec.named.of_files
        ),
        fit=lambda columns, table: _fit(events, columns, spec, table),
        write=lambda rows: _writing(uri, rows, spec),
        why_spark=lambda table, evolution: why_spark(table, spec.named.tables, route, evolution),
    ).run()
    if append.state != "spark":
        return fitted, append
    # The rows wait in files of ours until Spark has appended them.
    columns = fitted.evolution.schema
    return retried(lambda: write_files(events, uri, spec.parts, spec, columns, append.why_spark))


def write_files(
    events: RouteEvents,
    uri: str,
    folder: str,
    spec: ChangeSpec,
    schema: pa.Schema | None,
    why_spark: str | None = None,
    *,
    keep: bool = True,
) -> tuple[Fitted, Append]:
    """Only write the rows, fitted for the table at `uri`, as files in `folder`; the driver commits them with those of
    other tasks, or hands them to another engine. `schema`: the columns that were settled for all of them. `keep` False:
    not even that, the caller merges them from memory."""
    table = None
    if schema is None and (table := spec.target(uri, events.source.route).open()) is not None:
        schema = payload_schema(table.schema)
    fitted = _fit(events, schema, spec, table)
    rows = fitted.table.num_rows
    if not keep:
        return fitted, Append(rows=rows)
    return fitted, Append(
        "files",
        rows,
        why_spark=why_spark,
        files=tuple(finished(_writing(folder, fitted.table, spec))) if rows else (),
        folder=folder,
        schema=fitted.evolution.schema.serialize().to_pybytes(),
        known=fitted.known,
        incoming=tuple(schema.serialize().to_pybytes() for schema in fitted.incoming),
    )


def payload_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a merged table that events have too."""
    return pa.schema([f for f in schema if f.name not in (DELETED, DELETED_AT)])


def _fit(events: RouteEvents, schema: pa.Schema | None, spec: ChangeSpec, table: Snapshot | None = None) -> Fitted:
    """`table`: as it is open; without it, no column that is there gets another type."""
    named, route = spec.named, events.source.route
    flat, keys, policy = named.tables.metadata_columns, named.own(route).keys, named.policy(route)
    grow = growing(table, policy)
    return fit(events, schema, policy, spec.batch, flat=flat, keys=keys, grow=grow)


def _writing(folder: str, rows: pa.Table, spec: ChangeSpec) -> Steps[list[DataFile]]:
    files = []
    for begin in range(0, max(1, rows.num_rows), FILE_ROWS):
        files.append((yield from writing_data_file(folder, rows.slice(begin, FILE_ROWS), spec.store)))
    return files
