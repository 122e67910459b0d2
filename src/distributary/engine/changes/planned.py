"""What a run would do with the change files that wait: they are read and fitted, and nothing is written.

Needs no Spark. The file ledger says what the stream was given and what of it a batch has read; those that no batch has
read, and everything else below the source's path, are read here, in the batches that a run would make of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from distributary.changes.model import FileEvents, Reading
from distributary.config import Pipeline
from distributary.engine.apart import Apart, WorkerDied
from distributary.engine.changes.backlog import last_file_batch
from distributary.engine.changes.fitting import FilePart, RouteEvents, fit
from distributary.engine.changes.log_append import payload_schema
from distributary.engine.changes.read import events_of
from distributary.engine.changes.table_settings import Named, reading_of
from distributary.errors import Outage, Reason
from distributary.errors.border import contained
from distributary.sources.bodies import open_body, source_options
from distributary.sources.discovery import look
from distributary.sources.file_ledger import FileLedger, file_batches, file_batches_after
from distributary.sources.known_files import FileRef
from distributary.sources.listing import Round
from distributary.state.ledger import Ledger
from distributary.tables.engines import why_spark
from distributary.tables.faults import reading
from distributary.tables.quarantine import count_reasons
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.widening import growing

Attempts = list[tuple[FileRef, int]]
"""Files, and which attempt at each it is; from the second on, what comes of it hangs on the quarantine."""


@dataclass
class RoutePlan:
    """One source table: events that wait, and what its log table's columns would become."""

    route: str
    log: str | None
    merged: str | None
    keys: tuple[str, ...]
    before: pa.Schema | None = None
    after: pa.Schema | None = None
    why_spark: str | None = None
    parked: str | None = None
    table: Snapshot | None = field(default=None, repr=False)
    """The table at `log`, or at `merged` where there is no log, as it is open."""
    events: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class FilesPlan:
    """`reasons`: of what could not be given to a source table. `again`: files among `files` that come once more, for
    what of them is in the quarantine; how many events that brings back, only a run can say. `stops`: the limit of the
    quarantine that would end the run after `batches`, leaving files behind. `strays`: files that are left alone.
    `killers`: files that ended the process which read them, and how."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    again: int = 0
    stops: str | None = None
    strays: list[str] = field(default_factory=list)
    killers: dict[str, str] = field(default_factory=dict)
    routes: dict[str, RoutePlan] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.reasons.total() + sum(route.events for route in self.routes.values())

    @property
    def bad(self) -> int:
        """Rows that would be quarantined for what they are, not for their table."""
        for_their_routes = sum(route.reasons.total() for route in self.routes.values() if route.parked is None)
        return self.reasons.total() + for_their_routes


def plan_files(config: Pipeline) -> FilesPlan:
    """Raises SourceDown, SourceMissing, StoreUnreadable."""
    store = Store.of(config.tables)
    with reading(config.state_root):
        ledger = Ledger(config.state_root, config.pipeline, store)
        files = FileLedger(config.state_root, config.pipeline, store)
        listed = look(config, files)
        batches = _batches(config, files, file_batches_after(config.state_root, store, last_file_batch(ledger)), listed)
    return _planned(config, store, batches, ledger.resting(time.time()), listed.strays)


def _planned(
    config: Pipeline, store: Store, batches: Sequence[Attempts], resting: Mapping[str, str], strays: list[str]
) -> FilesPlan:
    plan = FilesPlan(strays=strays)
    bad_batches = 0
    apart = Apart(config.quarantine.read_sec)
    for refs in batches:
        plan.files += len(refs)
        plan.bytes += sum(ref.size for ref, _ in refs)
        plan.again += sum(attempt > 1 for _, attempt in refs)
        rows, bad = plan.rows, plan.bad
        for events in _events(config, [ref for ref, attempt in refs if attempt == 1], plan, apart):
            _add(config, store, events, plan, resting)
        plan.batches += 1
        bad_batches = bad_batches + 1 if plan.bad > bad else 0
        if (limit := config.quarantine.passed(plan.rows - rows, plan.bad - bad, bad_batches)) is not None:
            plan.stops = limit
            break
    return plan


def _batches(config: Pipeline, ledger: FileLedger, taken_before: list[Attempts], listed: Round) -> list[Attempts]:
    """The files that wait, as a run would take them: those that it was `taken_before` before, then those that are
    new."""
    source = config.change_files
    new = file_batches(listed.files, source.max_files_per_batch, source.max_bytes_per_batch)
    return [*taken_before, *([(ref, ledger.known_files.attempts(ref) + 1) for ref in refs] for refs in new)]


@dataclass(frozen=True)
class _Read:
    """Reads a file, in a process of its own, which it may end."""

    reading: Reading
    options: Mapping[str, str]

    def __call__(self, path: str) -> FileEvents:
        return events_of(open_body(path, self.options), path, self.options, self.reading)


def _events(config: Pipeline, refs: list[FileRef], plan: FilesPlan, apart: Apart) -> Iterator[RouteEvents]:
    read_apart = _Read(reading_of(config), source_options(config))
    for ref in refs:
        [answer] = apart.each(read_apart, [ref.path])
        if isinstance(answer, WorkerDied):
            plan.reasons[Reason.KILLED_READER] += 1
            plan.killers[ref.path] = answer.how
            continue
        if isinstance(answer.error, Outage):
            raise answer.error
        if answer.result is None:
            plan.reasons[Reason.FILE_BROKEN] += 1
            continue
        events = answer.result
        plan.reasons.update(event.reason.value for event in events.bad)
        for events_of_table in events.events:
            yield RouteEvents(events_of_table.table, [FilePart(events_of_table, ref.path)])


def _add(
    config: Pipeline, store: Store, events: RouteEvents, files_plan: FilesPlan, resting: Mapping[str, str]
) -> None:
    named, route = Named.of(config), events.source.route
    plan = files_plan.routes.get(route)
    if plan is None:
        keys = named.keys(events.source, events.key_lists()[0])
        log, merged = named.log(events.source), named.merged(events.source) if keys else None
        plan = files_plan.routes[route] = RoutePlan(route, log, merged, keys)
        uri = log or named.merged(events.source)
        try:
            table = None if uri is None else Table(uri, store, Owner(config.pipeline, route)).open()
            plan.table = table
            if table is not None:
                plan.before = payload_schema(table.schema)
            plan.why_spark = why_spark(table, config.tables, route)
            plan.parked = resting.get(route)
        except BaseException as e:
            plan.parked = contained(e)
        plan.after = plan.before
    plan.events += events.rows
    flat, keys_given, policy = config.tables.metadata_columns, named.own(route).keys, named.policy(route)
    grow = None if plan.table is None else growing(plan.table, policy)
    try:
        fitted = fit(events, plan.after, policy, 0, flat=flat, keys=keys_given, grow=grow)
    except BaseException as e:
        plan.parked = plan.parked or contained(e)
        return
    plan.why_spark = plan.why_spark or why_spark(plan.table, config.tables, route, fitted.evolution)
    plan.after = fitted.evolution.schema
    plan.reasons.update(count_reasons(fitted.rejected))
