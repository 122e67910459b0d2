"""What a run would do with the change files that wait: they are read and fitted, and nothing is written.

Needs no Spark. The file ledger says what was taken; everything else below the source's path is read here, in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake.exceptions import DeltaError

from distributary.border import contained
from distributary.cdc.fitting import Part, RouteEvents, fit
from distributary.cdc.log import payload_schema, widening
from distributary.cdc.names import Named, reading_of, source_options
from distributary.cdc.read import events_of
from distributary.cdc.rejected import count_reasons
from distributary.config import DatastreamSource, Pipeline
from distributary.config.quantities import moment
from distributary.errors import Outage, Reason, StoreUnreadable
from distributary.names import shown
from distributary.sources.bodies import open_body
from distributary.sources.file_ledger import FileLedger
from distributary.sources.known import FileRef
from distributary.sources.listing import Lister, Round
from distributary.sources.watch import open_tree
from distributary.tables import append
from distributary.tables.append import Owner
from distributary.tables.store import Store

STRAYS_NAMED = 5


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
    events: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class FilesPlan:
    """`reasons`: of what could not be given to a source table. `strays`: files that are left alone."""

    files: int = 0
    bytes: int = 0
    routes: dict[str, RoutePlan] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    strays: list[str] = field(default_factory=list)


def plan_files(config: Pipeline) -> FilesPlan:
    """Raises SourceDown, SourceMissing, StoreUnreadable."""
    store = Store.of(config.tables)
    try:
        round_ = look(config, store)
    except (OSError, DeltaError) as e:
        raise StoreUnreadable(path=config.state_root, detail=append.in_words(e)) from e
    refs = round_.files
    found = FilesPlan(len(refs), sum(ref.size for ref in refs), strays=round_.strays)
    for events in _events(config, refs, found):
        _add(config, store, events, found)
    return found


def waiting_files(config: Pipeline, store: Store, full: bool = True) -> list[FileRef]:
    """Files below the source's path that no run has taken: all of them, or those that a run would find first.

    Raises SourceDown, SourceMissing, DeltaError, OSError.
    """
    return look(config, store, full).files


def look(config: Pipeline, store: Store, full: bool = True) -> Round:
    """As `waiting_files`, with what else such a round finds."""
    source = config.source
    assert isinstance(source, DatastreamSource)
    ledger = FileLedger(config.state_root, config.pipeline, store)
    start = None if source.start_date is None else moment(source.start_date)
    tree = open_tree(source.path, source_options(config))
    lister = Lister(tree, ledger.known, start=start, strays=source.stray_files == "read")
    lister.seed(ledger.folders)
    return lister.new_files(full)


def strays_left(strays: Sequence[str], root: str) -> str:
    """In words: files that are none of Datastream's by their place."""
    names = [shown(path.removeprefix(root.rstrip("/")).lstrip("/"), 200) for path in strays[:STRAYS_NAMED]]
    more = f" and {len(strays) - len(names):,} more" if len(strays) > len(names) else ""
    return (
        f"{len(strays):,} file{'' if len(strays) == 1 else 's'} at the source left alone, which by place or ending "
        f"Datastream did not write: {', '.join(names)}{more} (source.stray_files: read takes them too)"
    )


def _events(config: Pipeline, refs: list[FileRef], found: FilesPlan) -> Iterator[RouteEvents]:
    reading, options = reading_of(config), source_options(config)
    for ref in refs:
        try:
            events = events_of(open_body(ref.path, options), ref.path, options, reading)
        except Outage:
            raise
        except BaseException as e:
            contained(e)
            found.reasons[Reason.FILE_BROKEN] += 1
            continue
        found.reasons.update(event.reason.value for event in events.bad)
        for one in events.events:
            yield RouteEvents(one.table, [Part(one, ref.path)])


def _add(config: Pipeline, store: Store, events: RouteEvents, found: FilesPlan) -> None:
    named, route = Named.of(config), events.source.route
    plan = found.routes.get(route)
    if plan is None:
        keys = named.keys(events.source, events.key_lists()[0])
        log, merged = named.log(events.source), named.merged(events.source) if keys else None
        plan = found.routes[route] = RoutePlan(route, log, merged, keys)
        uri = log or named.merged(events.source)
        try:
            table = None if uri is None else append.open_owned(uri, Owner(config.pipeline, route), store)
            if table is not None:
                plan.before = payload_schema(append.arrow_schema(table))
            plan.why_spark = append.why_spark(table, config.tables, route)
        except BaseException as e:
            plan.parked = contained(e)
        plan.after = plan.before
    plan.events += events.rows
    flat, given = config.tables.metadata_columns, named.own(route).keys
    try:
        fitted = fit(events, plan.after, named.policy(route), 0, flat=flat, keys=given)
    except BaseException as e:
        plan.parked = plan.parked or contained(e)
        return
    if plan.before is not None:
        plan.why_spark = plan.why_spark or widening(fitted)
    plan.after = fitted.evolution.schema
    plan.reasons.update(count_reasons(fitted.rejected))
