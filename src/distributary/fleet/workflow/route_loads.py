"""Which routes a pipeline has, and what each costs: from its ledgers, its bronze table, its registry, or a list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from distributary.config import Pipeline
from distributary.engine.messages.envelopes import Envelopes
from distributary.engine.messages.opening import EnvelopeReader, wrong_fields
from distributary.engine.schemas import LOOKUPS, Schemas
from distributary.errors import BadInput, SchemaBroken, SourceMissing
from distributary.fleet.workflow.placement import ROUTE_ROWS, RouteLoad
from distributary.names import route_of
from distributary.running.bronze.bronze_table import open_bronze, route_keys
from distributary.schemas.decoding import BadIndex
from distributary.schemas.formats import decoder_for
from distributary.schemas.registry import Registry, open_registry
from distributary.schemas.registry.compile import CompiledSchema
from distributary.sources.bronze_rows import UNROUTED
from distributary.state.divisions import all_entries
from distributary.state.ledger import Entry, is_batch
from distributary.tables.faults import reading
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

Where: TypeAlias = Literal["auto", "ledger", "bronze", "registry"]

WINDOW_HOURS = 24.0
"""Load is measured over the newest so many hours of the ledger."""
_HOUR_MICROS = 3600e6


@dataclass(frozen=True)
class DiscoveredRoutes:
    """Routes with their loads, and where they were found, in words."""

    loads: tuple[RouteLoad, ...]
    where: str


def discover(config: Pipeline, source_word: Where = "auto", listed: Path | None = None) -> DiscoveredRoutes:
    """The pipeline's routes with what the ledger knows of their load. `listed`: a file with a route a line.

    `auto`: the ledger, and the source's partitions where it is partitioned by route; where neither has any, the
    registry's subjects. Raises StoreUnreadable, SourceMissing, RegistryDown, BadInput.
    """
    store = Store.of(config.tables)
    with reading(config.state_root):
        entries = all_entries(config, store)
    ledger_routes = {e.route for e in entries if e.route}
    if listed is not None:
        routes, origin = read_list(listed), str(listed)
    elif source_word == "registry":
        routes, origin = registry_routes(config), "the registry"
    elif source_word == "bronze":
        routes, origin = bronze_routes(config, store), "the source's partitions"
    elif source_word == "ledger":
        routes, origin = sorted(ledger_routes), "the ledger"
    elif source_word == "auto":
        routes, origin = _any(config, store, ledger_routes)
    else:
        raise BadInput(detail=f"--routes-from {source_word}: allowed: {', '.join(get_args(Where))}")
    return DiscoveredRoutes(tuple(measure(routes, entries)), origin)


def _any(config: Pipeline, store: Store, ledger_routes: Iterable[str]) -> tuple[list[str], str]:
    routes, origins = set(ledger_routes), ["the ledger"]
    try:
        routes |= set(bronze_routes(config, store))
        origins.append("the source's partitions")
    except (BadInput, SourceMissing):
        pass  # it is not partitioned by route, or not there yet
    if not routes and config.registry is not None:
        return registry_routes(config), "the registry"
    return sorted(routes), " and ".join(origins)


def bronze_routes(config: Pipeline, store: Store) -> list[str]:
    """The partitions of bronze, or of a Delta source, by its log alone. Raises SourceMissing, BadInput."""
    if config.bronze_table is not None:
        bronze = open_bronze(config, store)
        if bronze is None:
            raise SourceMissing(source=config.bronze_table, what="Delta table. Hop 1 makes it: run FILE --hop 1")
        # A key that was cut for its length says no route; the ledger knows it once a batch was written.
        keys = (key for key in route_keys(bronze) if key and key != UNROUTED)
        return sorted({route for key in keys if (route := route_of(key)) is not None})
    source = config.source
    if source.address is None:
        problem = "is named in the catalog" if source.has_columns else f"is {source.type}"
        raise BadInput(detail=f"--routes-from bronze: the source {problem}; allowed with a Delta table by source.path")
    table = Table(source.address, store).open()
    if table is None:
        raise SourceMissing(source=source.address, what="Delta table. Check source.path, or write to it first.")
    column = config.envelope.columns[0]
    if config.envelope.format != "columns" or column not in table.partitioned_by:
        has = ", ".join(table.partitioned_by) or "nothing"
        raise BadInput(
            detail=f"--routes-from bronze: {source.address} is partitioned by {has}, not by {column}. "
            "Use --routes-from registry, or --routes FILE"
        )
    return sorted({r for r in _partition_values(table, column) if r})


def _partition_values(table: Snapshot, column: str) -> Iterable[str | None]:
    actions = table.adds()
    name = f"partition.{column}"
    return (None if v is None else str(v) for v in actions.column(name).to_pylist()) if len(actions) else ()


def registry_routes(config: Pipeline) -> list[str]:
    """Subjects that are no envelope's, without a `-value`: the name of a route, as far as subjects follow routes."""
    assert config.registry is not None
    registry = open_registry(config.registry)
    subjects = [subject for subject in registry.subjects() if not subject.endswith("-key")]
    envelopes = _envelope_subjects(config, registry, subjects)
    return sorted({s.removesuffix("-value") for s in subjects if s not in envelopes} - {""})


def _envelope_subjects(config: Pipeline, registry: Registry, subjects: Sequence[str]) -> set[str]:
    """The subject that the pipeline names; where it names none, those whose newest schema has an envelope's fields.
    None where there are no envelopes."""
    if config.envelope.format in ("none", "json"):
        return set()
    if config.envelope_subject is not None or config.envelope.format != "protobuf":
        return {config.envelope_subject or ""}
    schemas = Schemas(registry)
    reader = Envelopes(config, schemas).begin()
    with ThreadPoolExecutor(LOOKUPS) as pool:
        ids = dict(zip(subjects, pool.map(lambda s: registry.latest(s).schema.id, subjects), strict=True))
    compiled, _ = schemas.resolve(ids.values())
    return {s for s, i in ids.items() if i in compiled and _is_envelope(compiled[i], reader)}


def _is_envelope(schema: CompiledSchema, reader: EnvelopeReader) -> bool:
    try:
        return wrong_fields(decoder_for(schema, reader.message or "0").columns, reader) is None
    except (BadIndex, SchemaBroken, KeyError):
        return False


def read_list(path: Path) -> list[str]:
    """A route a line; empty lines are left out. Raises BadInput."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(detail=f"--routes {path} cannot be read: {e}") from e
    routes = [line for line in lines if line]
    if len(set(routes)) < len(routes):
        raise BadInput(
            detail=f"--routes {path}: {sorted({r for r in routes if routes.count(r) > 1})[0]!r} is there twice"
        )
    return routes


def measure(routes: Sequence[str], entries: Sequence[Entry]) -> list[RouteLoad]:
    """Each route's work an hour, over the ledger's newest hours: its rows, and a number for each batch it is in."""
    batches = [e for e in entries if is_batch(e.stream) and e.finished_at]
    newest = max((e.finished_at for e in batches), default=0)
    recent = [e for e in batches if e.route and e.finished_at >= newest - WINDOW_HOURS * _HOUR_MICROS]
    oldest = min((e.finished_at for e in recent), default=newest)
    # A pipeline that has run for a minute is not measured by the hour.
    hours = max((newest - oldest) / _HOUR_MICROS, 1 / 60)
    rows: dict[str, int] = defaultdict(int)
    work: dict[str, int] = defaultdict(int)
    for entry in recent:
        rows[str(entry.route)] += entry.rows_in
        work[str(entry.route)] += entry.rows_in + ROUTE_ROWS * entry.batches
    active_routes = {str(e.route) for e in batches if e.route}
    return [
        RouteLoad(r, work[r] / hours, rows[r] / hours / 3600) if r in active_routes else RouteLoad(r)
        for r in dict.fromkeys(routes)
    ]
