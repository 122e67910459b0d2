"""Bring rows that bronze has set aside into their silver tables, once the cause is gone.

A copy of the row, good this time, is appended to bronze in one commit, and names its original. The original stays as it
is: so silver takes the copy and only the copy, also when it is refreshed in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.config import Pipeline
from distributary.declarative.bronze_counts import Bronze, replayed_from
from distributary.declarative.datasets import Datasets
from distributary.declarative.judge import judge_columns, judge_values
from distributary.declarative.known_routes import KnownRoutes, Writers, add_writers, discover
from distributary.declarative.trials import without_killers
from distributary.engine.apart import Apart
from distributary.engine.messages.chunks import WriterSchema, one_array
from distributary.engine.replay import ReplayReport
from distributary.engine.schemas import Schemas, schemas_of
from distributary.errors import Reason, SchemaNotFound
from distributary.running.named_tables import with_session
from distributary.schemas.formats import FORMATS
from distributary.schemas.registry import Registry
from distributary.sources.bronze_rows import RECORD_KEY
from distributary.tables.faults import writing
from distributary.tables.store import Store

PASSES = 3
"""An envelope that can be read now may name a route or a writer that has to be looked up in its turn."""


def replay(
    config: Pipeline,
    registry: Registry,
    route: str | None = None,
    reasons: Collection[Reason] | None = None,
    most_ids: int | None = None,
) -> ReplayReport:
    """Replay what can be decoded now, of one route or of all. The next update writes it to silver. `most_ids`: of those
    for which the registry is asked (None: any number).

    Only one process may replay at a time (lock `replay`). Raises Outage (registry, store): nothing is changed.
    """
    with_session(config)
    store = Store.of(config.tables)
    bronze = Bronze.of(Datasets.of(config), store)
    with writing(bronze.uri):
        if reasons is None:  # what has ended a reader: only if it is asked for
            reasons = set(Reason) - {Reason.KILLED_READER}
        rows = bronze.quarantined_rows([r.value for r in reasons])
        if not rows.num_rows:
            return ReplayReport()
        verdicts, more_writers = _judge_again(config, registry, rows, most_ids)
        good = pc.and_(pc.is_null(verdicts.column("reason")), pc.is_valid(verdicts.column("route")))
        if route is not None:
            good = pc.and_(good, pc.equal(verdicts.column("route"), route))
        report = _report(rows, verdicts, good, route)
        if pc.any(good).as_py():
            taken_back = verdicts.filter(good)
            add_writers(config, store, _used(taken_back, more_writers))
            bronze.replay(_copies(rows.filter(good), taken_back, has_keys=config.source.record_key is not None))
        return report


def _judge_again(
    config: Pipeline, registry: Registry, rows: pa.Table, most_ids: int | None
) -> tuple[pa.Table, Writers]:
    """A verdict for each row, with all the writers that the registry knows by now, and those that no subject names."""
    more_writers: dict[str, set[WriterSchema]] = {}
    asked_pairs: set[tuple[str, WriterSchema]] = set()
    plain = FORMATS[config.payload.encoding].without_schema(config.payload.columns)
    schemas = Schemas(registry, schemas_of(config).compiler, plain=plain)
    with Apart(config.quarantine.read_sec) as apart:
        for _ in range(PASSES):
            verdicts = _judge(rows, discover(config, schemas, more_writers), apart)
            missing = _missing(verdicts) - asked_pairs
            asked_pairs |= missing
            registered_ids = ids_there(config, registry, {writer[0] for _, writer in missing}, most_ids)
            registered = [(name, writer) for name, writer in missing if writer[0] in registered_ids]
            if not registered:
                break
            for name, writer in registered:
                more_writers.setdefault(name, set()).add(writer)
    return verdicts, more_writers


def _judge(rows: pa.Table, known_routes: KnownRoutes, apart: Apart) -> pa.Table:
    """Verdicts in the order of `rows`; what would end this process is tried apart."""
    is_payload = np.asarray(pc.equal(rows.column("level"), "payload"))
    tables, places = [], []
    for row_places in (np.flatnonzero(is_payload), np.flatnonzero(~is_payload)):
        if not len(row_places):
            continue
        rows_of_kind = rows.take(pa.array(row_places))
        values, keys = one_array(rows_of_kind.column("payload")), _keys(rows_of_kind, known_routes)
        if is_payload[row_places[0]]:
            names, ids = one_array(rows_of_kind.column("route")), one_array(rows_of_kind.column("envelope_schema_id"))
            sound = without_killers(names, ids, values, known_routes=known_routes, apart=apart)
            judged = judge_columns(names, ids, values, sound, keys)
        else:
            judged = judge_values(values, without_killers(values, known_routes=known_routes, apart=apart), keys)
        tables.append(pa.Table.from_struct_array(judged))
        places.append(row_places)
    order = np.empty(rows.num_rows, np.int64)
    order[np.concatenate(places)] = np.arange(rows.num_rows)
    return pa.concat_tables(tables).take(pa.array(order))


def _keys(rows: pa.Table, known_routes: KnownRoutes) -> pa.Array | None:
    """The records' keys, where they are columns; null for what came before they were."""
    if known_routes.reader.record_key is None:
        return None
    is_there = RECORD_KEY in rows.column_names
    return one_array(rows.column(RECORD_KEY)) if is_there else pa.nulls(rows.num_rows, pa.binary())


def _missing(verdicts: pa.Table) -> set[tuple[str, WriterSchema]]:
    rows = verdicts.filter(pc.equal(verdicts.column("reason"), Reason.UNKNOWN_SCHEMA_ID.value))
    keys = ["route", "schema_id", "message"]
    groups = rows.select(keys).group_by(keys).aggregate([]).to_pylist()
    return {(g["route"], (g["schema_id"], g["message"])) for g in groups if g["route"] and g["message"] is not None}


def ids_there(config: Pipeline, registry: Registry, ids: Iterable[int], most: int | None) -> set[int]:
    """Those of `ids` that the registry has; only the `most` lowest ones are asked for, since registries count up and
    made-up ids are most likely beyond what they have. Where payloads have no schema, their id is 0, and it is there.
    Raises RegistryDown, RegistryDenied."""
    plain = set() if config.payload.has_schema else {0} & set(ids)
    return plain | {schema_id for schema_id in sorted(set(ids) - plain)[:most] if _is_there(registry, schema_id)}


def _is_there(registry: Registry, schema_id: int) -> bool:
    """Does the registry have this id? Raises RegistryDown, RegistryDenied."""
    try:
        registry.get(schema_id)
    except SchemaNotFound:
        return False
    return True


def _used(taken_back: pa.Table, more_writers: Writers) -> Writers:
    keys = ["route", "schema_id", "message"]
    used: dict[str, set[WriterSchema]] = {}
    for group in taken_back.select(keys).group_by(keys).aggregate([]).to_pylist():
        writer = (group["schema_id"], group["message"])
        # A shape that covers several that were found is none of them.
        if writer in more_writers.get(group["route"], ()) or writer[0] == 0:
            used.setdefault(group["route"], set()).add(writer)
    return used


def _copies(rows: pa.Table, verdicts: pa.Table, *, has_keys: bool) -> pa.Table:
    """Bronze rows for verdicts that are good now; where they came from is as it was."""
    count = rows.num_rows
    origins = zip(rows.column("route").to_pylist(), rows.column("reason").to_pylist(), strict=True)
    changed = {
        **{
            n: verdicts.column(n)
            for n in ("route", "schema_id", "message", "payload", "envelope_schema_id", "warnings")
        },
        "detail": pa.array([replayed_from(route, reason) for route, reason in origins]),
        **({RECORD_KEY: verdicts.column(RECORD_KEY)} if has_keys else {}),
        "replay_of": rows.column("id"),
        "bronze_at": pa.repeat(pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC")), count),
        **{n: pa.nulls(count, pa.string()) for n in ("reason", "level", "id")},
    }
    columns = [changed.get(f.name, rows.column(f.name)).cast(f.type) for f in rows.schema]
    return pa.table(columns, schema=rows.schema)


def _report(rows: pa.Table, verdicts: pa.Table, good: pa.Array, only: str | None) -> ReplayReport:
    report = ReplayReport()
    names: Iterable[str | None] = verdicts.column("route").to_pylist()
    pairs = zip(
        names, rows.column("route").to_pylist(), verdicts.column("reason").to_pylist(), good.to_pylist(), strict=True
    )
    for name, before, reason, ok in pairs:
        route = str(name or before or "")
        if only is not None and route != only:
            continue
        counts = report.rows if ok else report.left
        counts[route] = counts.get(route, 0) + 1
        if reason == Reason.KILLED_READER:
            report.killed[route] = report.killed.get(route, 0) + 1
    return report
