"""Bronze from outside Spark: its counts by version for the ledger, its rows that are set aside, and replays into it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from distributary.declarative.datasets import Datasets
from distributary.errors import Reason
from distributary.tables.snapshot import NoTable, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

ENVELOPE = -1
"""Stands for the schema ids of envelopes that were not known: rows of no route."""
COUNTED = ["route", "schema_id", "reason", "payload", "detail", "replay_of", "timestamp", "warnings"]


@dataclass
class RouteCount:
    """Records of one route (None: of none that is known). `unknown`: rows by schema id that its silver lacks."""

    good: int = 0
    aside: int = 0
    replayed: int = 0
    tombstones: int = 0
    schema_ids: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    newest: int | None = None


Counts = dict[str | None, RouteCount]
"""What is in bronze, by route."""


@dataclass(frozen=True)
class Bronze:
    """The bronze table of a pipeline."""

    uri: str
    store: Store

    @classmethod
    def of(cls, datasets: Datasets, store: Store) -> Bronze:
        return cls(datasets.uri(datasets.bronze), store)

    def open(self, version: int | None = None) -> Snapshot | None:
        """The table, at a version; None where there is none. Raises TableFault, OSError."""
        table = Table(self.uri, self.store).open()
        return table if table is None or version is None else table.at(version)

    def count(self, table: Snapshot, files: Iterable[str] | None = None) -> Counts:
        """Records by route; in `files` (names as the table has them) only, where given."""
        rows = table.dataset()
        if files is not None:
            names = {_name(file) for file in files}
            fragments = [f for f in rows.get_fragments() if _name(f.path) in names]
            rows = ds.FileSystemDataset(fragments, rows.schema, rows.format, rows.filesystem) if fragments else None
        counts: Counts = {}
        if rows is not None:
            columns = {n: ds.field(n) for n in COUNTED if n != "payload"}
            columns["there"] = ds.field("payload").is_valid()
            for batch in rows.to_batches(columns=columns):
                _count(pa.Table.from_batches([batch]), counts)
        return counts

    def added(self, table: Snapshot, since: int) -> list[str] | None:
        """Files that came after version `since`; None where files also went, that version is not kept any more, or the
        files are not told."""
        if since == table.version:
            return []
        if table.by_query is not None:
            return None
        try:
            old = self.open(since)
        except OSError:
            return None
        assert old is not None
        before, now = set(old.addresses()), set(table.addresses())
        return None if before - now else sorted(now - before)

    def quarantined_rows(self, reasons: Sequence[str] | None = None, route: str | None = None) -> pa.Table:
        """Rows that are set aside and not replayed, with all columns. Raises TableFault, OSError."""
        table = self.open()
        if table is None:
            return pa.table({})
        rows = table.dataset()
        condition = ds.field("reason").is_valid()
        if reasons is not None:
            condition = condition & ds.field("reason").isin(list(reasons))
        if route is not None:
            condition = condition & (ds.field("route") == route)
        rejected = rows.to_table(filter=condition)
        replayed = rows.to_table(columns=["replay_of"], filter=ds.field("replay_of").is_valid()).column("replay_of")
        return rejected.filter(pc.invert(pc.is_in(rejected.column("id"), value_set=replayed.combine_chunks())))

    def replay(self, rows: pa.Table) -> None:
        """Append rows that are good now, in one commit: the originals are replayed from this moment.

        `rows` have all columns of bronze. Raises TableFault, OSError.
        """
        table = self.open()
        if table is None:
            raise NoTable("there is no bronze")
        table.append_rows(rows, {"distributary.replayed": str(rows.num_rows)})


def replayed_from(route: str | None, reason: str) -> str:
    """What the copy of a replayed row says of its original, in the column `detail`."""
    return json.dumps({"replayed_from": {"route": route, "reason": reason}}, ensure_ascii=False)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _count(rows: pa.Table, counts: Counts) -> None:
    keys = ["route", "schema_id", "reason", "there"]
    _count_warnings(rows, counts)
    copies = rows.filter(pc.is_valid(rows.column("replay_of")))
    plain = rows.filter(pc.is_null(rows.column("replay_of")))
    plain = plain.set_column(plain.column_names.index("timestamp"), "newest", plain.column("timestamp"))
    for group in plain.group_by(keys).aggregate([("detail", "count", _ALL), ("newest", "max")]).to_pylist():
        count = counts.setdefault(group["route"], RouteCount())
        rows_found, newest = group["detail_count"], group["newest_max"]
        if newest is not None:
            micros = int(newest.timestamp() * 1e6)
            count.newest = max(micros, count.newest or micros)
        if group["reason"] is not None:
            count.aside += rows_found
            count.reasons[group["reason"]] += rows_found
            if group["reason"] == Reason.UNKNOWN_SCHEMA_ID:
                count.unknown[_id(group["schema_id"])] += rows_found
        elif group["there"]:
            count.good += rows_found
            count.schema_ids[group["schema_id"]] += rows_found
        else:
            count.tombstones += rows_found
    for group in copies.group_by(["route", "schema_id", "detail"]).aggregate([("there", "count", _ALL)]).to_pylist():
        _count_replayed(group, group["there_count"], counts)


_ALL = pc.CountOptions(mode="all")


def _count_warnings(rows: pa.Table, counts: Counts) -> None:
    warned = rows.filter(pc.is_valid(rows.column("warnings")))
    for route, names in zip(warned.column("route").to_pylist(), warned.column("warnings").to_pylist(), strict=True):
        counts.setdefault(route, RouteCount()).warnings.update(names)


def _count_replayed(group: Mapping[str, Any], rows: int, counts: Counts) -> None:
    """Copies: good in their route, and no longer aside where their originals were."""
    origin = json.loads(group["detail"])["replayed_from"]
    count = counts.setdefault(group["route"], RouteCount())
    count.replayed += rows
    count.schema_ids[group["schema_id"]] += rows
    before = counts.setdefault(origin["route"], RouteCount())
    before.aside -= rows
    before.reasons[origin["reason"]] -= rows
    if origin["reason"] == Reason.UNKNOWN_SCHEMA_ID:
        before.unknown[group["schema_id"] if origin["route"] is not None else ENVELOPE] -= rows


def _id(schema_id: int | None) -> int:
    return ENVELOPE if schema_id is None else schema_id
