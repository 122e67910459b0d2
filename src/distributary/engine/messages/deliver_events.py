"""A route whose messages are events, from a task: to its log, if it has one, and into its merged table."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa

from distributary.changes.model import Kind, SourceTable
from distributary.engine.changes.deliver import deliver_route
from distributary.engine.changes.fitting import Fitted, RouteEvents, fit
from distributary.engine.changes.log_append import payload_schema
from distributary.engine.changes.table_settings import DebeziumNames
from distributary.engine.messages.changed import changed
from distributary.engine.messages.decode import Decoded, all_rejected
from distributary.engine.messages.events import Maker, keyed, rejected_records, route_events
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.outcomes import Append, Merge, Outcome, Parked, SourceEvents
from distributary.tables.by_name import is_named
from distributary.tables.quarantine import count_reasons


def deliver_events(route: str, decoded: Decoded, spec: MessageSpec) -> tuple[Outcome, list[pa.Table]]:
    """Write one route; returns what was done and the rows to keep aside. Never raises for a fault of its tables."""
    outcome = _begun(route, decoded, spec)
    decision = spec.decision(route)
    if decision.append == "refused":
        return replace(outcome, reasons=count_reasons(decoded.rejected)), decoded.rejected
    try:
        if decision.append == "parked":
            raise Parked(decision.why)
        if decoded.broken is not None:
            raise decoded.broken
        events, bad = route_events(route, decoded, spec, maker_of(spec))
    except BaseException as e:
        return all_rejected(outcome.failed(e), decoded, spec)
    late: list[pa.Table] = []
    if events.rows and decision.append == "counted":
        fitted = fit_events(events, decision.schema, spec)
        late = list(rejected_records(route, fitted.rejected, decoded, spec))
        bad += late
        brought = tuple(schema.serialize().to_pybytes() for schema in fitted.incoming)
        outcome = replace(outcome, append=Append("counted", fitted.table.num_rows, incoming=brought))
    elif events.rows:
        delivered, unfit = deliver_route(events, spec.for_changes())
        if delivered.state == "failed":
            return all_rejected(replace(outcome, fault=delivered.fault), decoded, spec)
        late = list(rejected_records(route, unfit, decoded, spec))
        bad += late
        outcome = replace(delivered, rows_in=decoded.rows_in, decoders=decoded.decoders)
    bad = [*decoded.rejected, *bad]
    ids = _schema_ids(events, late)
    return replace(outcome, schema_ids=ids, reasons=count_reasons(bad), warnings=dict(decoded.warnings)), bad


def maker_of(spec: MessageSpec) -> Maker:
    """What the pipeline's messages are."""
    return changed if isinstance(spec.named, DebeziumNames) else keyed


def fit_events(events: RouteEvents, columns: pa.Schema | None, spec: MessageSpec) -> Fitted:
    """The events as they would enter a merged table of these columns (None: there is none yet)."""
    schema = None if columns is None else payload_schema(columns)
    return fit(events, schema, spec.policy(events.source.route), spec.batch, flat=False)


def _begun(route: str, decoded: Decoded, spec: MessageSpec) -> Outcome:
    """The outcome of a route of which no event is written (yet)."""
    changes, source = spec.for_changes(), SourceTable(Kind.MESSAGES, "", "", route)
    log, merged = changes.named.log(source), changes.named.merged(source)
    about = SourceEvents(source, spec.tables.keys_of(route), log is not None)
    append = Append(
        "files" if spec.decision(route).append == "files" else "empty",
        folder=spec.parts if log is None or is_named(log) else log,
    )
    return Outcome(route, log or merged or "", decoded.rows_in, append, Merge(merged), about, decoders=decoded.decoders)


def _schema_ids(events: RouteEvents, late: list[pa.Table]) -> dict[int, int]:
    """Events by writer schema, without those that were set aside afterwards (`late`)."""
    events_of: Counter[int] = Counter()
    if events.source.kind is not Kind.MESSAGES:  # no writer's schema has a number
        return {}
    for file_events in events.parts:
        events_of[int(file_events.events.schema_key)] += file_events.events.rows.num_rows
    for rows in late:
        events_of.subtract(rows.column("schema_id").drop_null().to_pylist())
    return {schema_id: rows for schema_id, rows in events_of.items() if schema_id >= 0 and rows > 0}
