"""Rows that vanished at the source without an event (a truncate, a gap in the log): after a backfill that has finished,
they are the keys that it did not show and that have no change since it began.

Each becomes a delete in the log, right after the event that made the row, so that any later event of the key beats it,
and so does a rebuild from the log come to the same. The merged table gets its tombstones from there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.key_text import as_type, key_texts, spelled
from distributary.changes.model import METADATA, SourceTable
from distributary.changes.sequence import REPAIR_MARGIN_MS
from distributary.config import Pipeline
from distributary.engine.changes.fitting import key_names, with_origin
from distributary.engine.changes.gather import by_share
from distributary.engine.changes.key_columns import key_columns, paths_of, whole
from distributary.engine.changes.key_shares import shares_by_hash
from distributary.engine.changes.log_rows import RECONCILED, bytes_of
from distributary.engine.changes.table_settings import Named
from distributary.engine.changes.task_spec import ORIGIN
from distributary.errors import BadInput
from distributary.state.cleaning import check_not_begun
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.faults import writing
from distributary.tables.files import TableFiles
from distributary.tables.merge_rows import DELETED
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

_NUMBER, _TIME, _BACKFILL = (f"{METADATA}.{n}" for n in ("change_sequence_number", "source_timestamp", "is_backfill"))


@dataclass
class Reconciled:
    """What is to be removed, or was. `since`: when the backfill began, ISO 8601. `keys`: the first of them."""

    route: str
    table: str
    since: str = ""
    shown: int = 0
    vanished: int = 0
    keys: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False


SHOWN_KEYS = 20
MARGIN_MS = REPAIR_MARGIN_MS
"""Changes of so long before the backfill count as later than it: clocks differ, and long reads see newer rows."""


class Reconcile:
    """One route's reconciliation: `plan` says what it would remove, `apply` writes the deletes to the log.

    Raises BadInput, StoreDown.
    """

    def __init__(
        self, config: Pipeline, route: str, source: SourceTable, keys: tuple[str, ...], since_ms: int | None = None
    ) -> None:
        self.config, self.route, self.source, self.keys = config, route, source, keys
        self.store = Store.of(config.tables)
        named = Named.of(config)
        log, merged = named.log(source), named.merged(source)
        if log is None or merged is None:
            raise BadInput(detail=f"{route}: reconcile needs both tables; set tables.log and tables.merged")
        self.log_uri, self.uri = log, merged
        self.since_ms = since_ms
        self.owner = Owner(config.pipeline, route, keys)
        self.report = Reconciled(route, merged)
        self._gone: pa.Table | None = None

    def plan(self) -> Reconciled:
        """Find the keys. Reads the log's backfilled rows, and the merged table."""
        with writing(self.uri):
            log = Table(self.log_uri, self.store, self.owner).open()
            merged = Table(self.uri, self.store, self.owner).open()
            if log is None or merged is None:
                raise BadInput(detail=f"{self.route}: there is no table to reconcile yet")
            self.keys = key_columns(log.schema.names, self.keys)
            since = self._since(log)
            self.report.since = datetime.fromtimestamp(since / 1000, UTC).isoformat().replace("+00:00", "Z")
            self._gone = self._vanished(log, merged, since)
        if not self.report.shown:
            raise BadInput(
                detail=f"{self.route}: its log has no rows of a backfill since then; give its start: --since"
            )
        self.report.vanished = self._gone.num_rows
        self.report.keys = self._gone.select(list(self.keys)).slice(0, SHOWN_KEYS).to_pylist()
        return self.report

    def apply(self) -> Reconciled:
        """Write the deletes of `plan` to the log; the caller merges them. Raises CleanUnfinished, StateNewer too."""
        vanished = self._gone
        if vanished is None or not vanished.num_rows:
            return self.report
        with writing(self.log_uri):
            check_not_begun(self.config, self.store)
            log = Table(self.log_uri, self.store, self.owner).open()
            assert log is not None
            schema = log.schema
            rows = _deletes(vanished, self.keys, with_origin(schema), self.report.since)
            evolution = evolve(schema, [rows.schema], Policy())
            files = [write_data_file(self.log_uri, rows, self.store)]
            txn = Txn(f"reconcile-{uuid.uuid4()}", 0)
            Table(self.log_uri, self.store, self.owner).commit(log, evolution, files, txn)
        self.report.done = True
        return self.report

    def rows(self) -> pa.Table | None:
        """The deletes, as rows of the log."""
        return self._gone

    # -- the keys ------------------------------------------------------------------------------------------

    def _since(self, log: Snapshot) -> int:
        """When the backfill began: as given, or the time that the newest backfilled rows carry."""
        if self.since_ms is not None:
            return self.since_ms
        newest = None
        for piece in TableFiles(log).read_all([_TIME, _BACKFILL]):
            times = pc.max(piece.column(_TIME).filter(pc.fill_null(piece.column(_BACKFILL), False))).as_py()
            newest = times if newest is None or (times is not None and times > newest) else newest
        if newest is None:
            raise BadInput(detail=f"{self.route}: its log has no backfilled rows; run a backfill at the source first")
        return int(newest)

    def _vanished(self, log: Snapshot, merged: Snapshot, since: int) -> pa.Table:
        """Rows of the merged table that the backfill did not show, and that nothing has touched since."""
        shares = shares_by_hash(self.keys, bytes_of(log) + bytes_of(merged))
        shown = by_share(self._shown(log, since), shares)
        before = by_share(self._before(merged, since), shares)
        vanished: list[pa.Table] = []
        for keys, rows in zip(shown, before, strict=True):
            shown_keys = {key for piece in keys.pieces for key in _tuples(piece, self.keys)}
            self.report.shown += len(shown_keys)
            for piece in rows.pieces:
                mask = [key not in shown_keys for key in _tuples(piece, self.keys)]
                vanished.append(piece.filter(pa.array(mask, pa.bool_())))
        return pa.concat_tables(vanished, promote_options="permissive")

    def _shown(self, log: Snapshot, since: int) -> Iterator[pa.Table]:
        paths = paths_of(log.schema.names, self.keys)
        for piece in TableFiles(log).read_all([*paths, _TIME, _BACKFILL]):
            of_backfill = pc.and_(
                pc.fill_null(piece.column(_BACKFILL), False), pc.greater_equal(piece.column(_TIME), since)
            )
            yield _spelled(piece.filter(pc.fill_null(of_backfill, False)), self.keys).select(list(self.keys))

    def _before(self, merged: Snapshot, since: int) -> Iterator[pa.Table]:
        """Living rows whose last event came before the backfill."""
        paths = [*self.keys, _TIME, _BACKFILL, _NUMBER, DELETED]
        for piece in TableFiles(merged).read_all(paths):
            old = pc.less(piece.column(_TIME), since - MARGIN_MS)
            living = pc.and_(old, pc.invert(pc.fill_null(piece.column(DELETED), False)))
            yield piece.filter(pc.fill_null(living, False))


def _spelled(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """With keys as text, in which they are the same whatever the types of their columns are."""
    return whole(rows, dict.fromkeys(keys, pa.string()))


def _tuples(rows: pa.Table, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    texts = _spelled(rows, keys)
    return list(zip(*(texts.column(key).to_pylist() for key in keys), strict=True))


def _deletes(vanished: pa.Table, keys: Sequence[str], schema: pa.Schema, since: str) -> pa.Table:
    """A delete per row, in the log's columns: the same key, the place right behind the row's own."""
    count = vanished.num_rows
    numbers = pa.array([_next(number) for number in vanished.column(_NUMBER).to_pylist()], pa.string())
    since_ms = int(datetime.fromisoformat(since).timestamp() * 1000)
    kind = schema.field(METADATA).type
    metadata: dict[str, Any] = {
        "uuid": pa.array([uuid.uuid4().hex for _ in range(count)]),
        "source_timestamp": pa.repeat(pa.scalar(since_ms, pa.int64()), count),
        "read_timestamp": pa.repeat(pa.scalar(since_ms, pa.int64()), count),
        "change_sequence_number": numbers,
        "change_type": pa.repeat("DELETE", count),
        "is_deleted": pa.repeat(True, count),
        "is_backfill": pa.repeat(False, count),
        "read_method": pa.repeat("reconcile", count),
    }
    origin: dict[str, Any] = {
        "file": pa.repeat(f"{RECONCILED}{since}", count),
        "row": pa.array(range(count), pa.int64()),
        "key": key_texts([vanished.column(key) for key in keys]),
        "key_columns": pa.repeat(key_names(keys), count),
    }
    columns: dict[str, Any] = {
        METADATA: _struct(metadata, kind, count),
        ORIGIN: _struct(origin, schema.field(ORIGIN).type, count),
        **{
            key: _as_in_log(spelled(vanished.column(key)), schema.field(key).type)
            for key in keys
            if key in schema.names
        },
    }
    return pa.table(
        [(columns[f.name] if f.name in columns else pa.nulls(count, f.type)) for f in schema],
        schema=schema,
    )


def _as_in_log(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The keys that the log's column can hold; `_origin` has them all."""
    typed = as_type(texts, kind)
    if typed is not None:
        return typed
    each = [as_type(texts.slice(n, 1), kind) for n in range(len(texts))]
    return pa.concat_arrays([pa.nulls(1, kind) if array is None else array for array in each])


def _struct(columns: Mapping[str, pa.Array], kind: pa.StructType, count: int) -> pa.StructArray:
    fields = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in kind]
    return pa.StructArray.from_arrays(fields, fields=list(kind))


def _next(number: str) -> str:
    """The sequence number right behind another: nothing that a source writes comes between."""
    tail = 12
    return number[:-tail] + f"{min(int(number[-tail:], 16) + 1, 16**tail - 1):0{tail}x}"
