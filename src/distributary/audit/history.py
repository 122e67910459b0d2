"""The history of one route: which schemas came when, what each batch did, what it added to the table.

Out of the ledger, the table's log and, for offsets, the table's own rows (`_origin`). Changes nothing, takes no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from heapq import merge
from typing import Any

import pyarrow as pa

from distributary.audit.plan_report import TablePlan
from distributary.config import Pipeline
from distributary.engine.messages.task_spec import ORIGIN
from distributary.errors import BadInput
from distributary.errors.border import TableFault
from distributary.names import shown
from distributary.running.named_tables import with_session
from distributary.state.divisions import parts
from distributary.state.ledger import MERGE, Entry, is_batch, read_entries
from distributary.tables.faults import reading
from distributary.tables.snapshot import Snapshot, batches_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.wide import KEY, partition, seen_by


@dataclass(frozen=True)
class SchemaSeen:
    """A writer schema of the route. `first_batch`, `first_at`: of the oldest batch that the ledger still has by itself.
    `first_offset`: of its oldest row in each partition of the source; empty where the table does not say."""

    id: int
    rows: int
    first_batch: int | None
    first_at: str | None
    decoder: str | None = None
    first_offset: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HistoryStep:
    """What one batch, replay or merge did. `version`: of the table, where its log still says so. `new_schemas`: ids
    that no batch before it brought. `summed`: older batches, which the ledger has added up."""

    kind: str
    batch: int
    at: str | None
    state: str
    rows: int
    quarantined: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    version: int | None = None
    new_schemas: tuple[int, ...] = ()
    created: bool = False
    new_columns: Mapping[str, str] = field(default_factory=dict)
    type_changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    error: str | None = None
    summed: int = 1

    @property
    def is_event(self) -> bool:
        """Did more happen than that rows were written?"""
        return bool(
            self.created or self.new_schemas or self.new_columns or self.type_changes or self.error
        ) or self.state not in ("written", "empty", "replayed", "merged")


@dataclass(frozen=True)
class RouteHistory:
    """Of one route, oldest first. `notes`: what could not be found out."""

    pipeline: str
    route: str
    table: str | None
    columns: Mapping[str, str]
    rows: int
    schemas: tuple[SchemaSeen, ...]
    steps: tuple[HistoryStep, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def history(config: Pipeline, route: str) -> RouteHistory:
    """All that is known of a route. Raises BadInput: nobody has seen it; StoreUnreadable."""
    with_session(config)
    store = Store.of(config.tables)
    with reading(config.state_root):
        ledgers = [read_entries(stream.state_root, store) for stream in parts(config, store)]
    # Each ledger has its own order, whatever the clock said; which of two shares was first, only the clock says.
    entries = list(merge(*ledgers, key=lambda entry: entry.finished_at))
    of_route = [entry for entry in entries if entry.route == route]
    if not of_route:
        known_routes = sorted({entry.route for entry in entries if entry.route is not None})
        some = (
            f"; known are {', '.join(map(shown, known_routes[:10]))}{' and more' if len(known_routes) > 10 else ''}"
            if known_routes
            else ""
        )
        raise BadInput(detail=f"no batch has had a record of the route {route!r}{some}")
    uri = next((entry.table for entry in reversed(of_route) if entry.table), None)
    notes: list[str] = []
    with reading(uri or config.tables.root):
        table = None if uri is None else Table(uri, store).open()
        grown = _Grown(table, route if config.shared_table is not None else None, notes)
        steps = _steps(of_route, grown)
        offsets = _offsets(table, route if config.shared_table is not None else None, notes)
    columns = TablePlan(route, "", new=True)
    columns.add_changes(None, grown.now())
    return RouteHistory(
        config.pipeline,
        route,
        uri,
        columns.new_columns,
        sum(entry.rows_written for entry in of_route),
        tuple(_schemas(of_route, offsets)),
        tuple(steps),
        tuple(notes),
    )


# -- the table's log ---------------------------------------------------------------------------------------


class _Grown:
    """A table's columns after each of its own commits, as far as its log still says so."""

    def __init__(self, table: Snapshot | None, wide_route: str | None, notes: list[str]) -> None:
        self._table = table
        self._wide_route = wide_route
        self._notes = notes
        self._versions = {} if table is None else batches_of(table.history(), wide_route)
        self._last: pa.Schema | None = None
        self._is_known = True

    def now(self) -> pa.Schema:
        return pa.schema([]) if self._table is None else self._plain(self._table.schema)

    def version(self, entry: Entry) -> int | None:
        return self._versions.get((entry.stream, entry.batch))

    def by(self, entry: Entry) -> TablePlan:
        """What the entry's commit changed. Called for the entries that changed something, oldest first."""
        table_plan = TablePlan(entry.route or "", entry.table or "", entry.created)
        version = self.version(entry)
        if self._table is None or version is None:
            self._is_known = False
            return table_plan
        try:
            after = self._plain(self._table.at(version).schema)
            if self._last is None and not entry.created:
                self._last = self._plain(self._table.at(version - 1).schema) if version > 0 else None
        except (TableFault, OSError) as e:
            self._notes.append(f"what batch {entry.batch} added is not in the table's log any more: {e}")
            self._last = None
            return table_plan
        table_plan.add_changes(None if entry.created else self._last, after)
        self._last = after
        return table_plan

    def _plain(self, schema: pa.Schema) -> pa.Schema:
        columns = schema if self._wide_route is None else seen_by(self._wide_route, schema, ORIGIN)
        return pa.schema([f for f in columns or () if f.name != ORIGIN])


# -- the ledger --------------------------------------------------------------------------------------------


def _steps(of_route: Sequence[Entry], grown: _Grown) -> list[HistoryStep]:
    steps, ids_seen = [], set[int]()
    for entry in of_route:
        changes = grown.by(entry) if entry.created or entry.evolved or entry.widened else None
        kinds = dict(changes.type_changes) if changes is not None else {}
        if not kinds:
            kinds = {path: change.split(" -> ") for path, change in entry.widened.items()}
        steps.append(
            HistoryStep(
                kind="batch" if is_batch(entry.stream) else "merge" if entry.stream == MERGE else entry.stream,
                batch=entry.batch,
                at=_iso(entry.finished_at),
                state=entry.state,
                rows=entry.rows_written,
                quarantined=entry.rows_quarantined,
                reasons={reason: rows for reason, rows in entry.reasons.items() if rows},
                version=grown.version(entry),
                new_schemas=tuple(sorted(entry.schema_ids.keys() - ids_seen)),
                created=entry.created,
                new_columns={} if changes is None else dict(changes.new_columns),
                type_changes=kinds,
                error=entry.error,
                summed=entry.batches,
            )
        )
        ids_seen |= entry.schema_ids.keys()
    return steps


def _schemas(of_route: Sequence[Entry], offsets: Mapping[int, Mapping[str, int]]) -> Iterable[SchemaSeen]:
    rows: dict[int, int] = {}
    first: dict[int, Entry] = {}
    decoders: dict[int, str] = {}
    for entry in of_route:
        decoders |= entry.decoders
        for schema_id, number in entry.schema_ids.items():
            rows[schema_id] = rows.get(schema_id, 0) + number
            first.setdefault(schema_id, entry)
    for schema_id in sorted(rows):
        entry = first[schema_id]
        alone = entry.batches == 1
        yield SchemaSeen(
            schema_id,
            rows[schema_id],
            entry.batch if alone else None,
            _iso(entry.finished_at) if alone else None,
            decoders.get(schema_id),
            offsets.get(schema_id, {}),
        )


def _offsets(table: Snapshot | None, wide_route: str | None, notes: list[str]) -> dict[int, dict[str, int]]:
    """Schema id -> partition of the source -> offset of its first row in the table."""
    if table is None or ORIGIN not in table.schema.names:
        return {}
    # The key is a table's name: letters, digits and `_`.
    condition = "" if wide_route is None else f" WHERE {KEY} = '{partition(wide_route)[KEY]}'"
    schema_id, number, offset = (f"{ORIGIN}['{name}']" for name in ("schema_id", "partition", "offset"))
    query = f"SELECT {schema_id} AS i, {number} AS p, min({offset}) AS o FROM t{condition} GROUP BY 1, 2 ORDER BY 1, 2"
    try:
        rows = table.query(query)
    except (TableFault, OSError, ValueError) as e:
        notes.append(f"the rows were not asked for their offsets: {e}")
        return {}
    offsets_of: dict[int, dict[str, int]] = {}
    for row in rows.to_pylist():
        if row["i"] is not None and row["o"] is not None:
            offsets_of.setdefault(int(row["i"]), {})[str(row["p"])] = int(row["o"])
    return offsets_of


def _iso(micros: int) -> str | None:
    if not micros:
        return None
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
