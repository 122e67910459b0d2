"""What a pipeline has set aside, for people: by route and reason, with details, samples, and all rows as a file."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.audit.recount import open_rows_of
from distributary.config import Pipeline
from distributary.errors import BadInput, Reason
from distributary.state.divisions import parts
from distributary.state.ledger import Ledger, is_batch, read_entries
from distributary.tables.faults import reading
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, QUARANTINE_SCHEMA, quarantine_uri
from distributary.tables.store import Store
from distributary.tables.table import Table

SAMPLES = 1
"""Rows that are shown of each route and reason."""
MOST_DETAILS = 1_000
"""Details that are told apart for one route and reason; rows with further ones are only counted."""
SHOWN_BYTES = 1_024
"""Of a sample's value."""


@dataclass(frozen=True)
class QuarantinedRow:
    """One row. `level`: what `value` is (docs/quarantine.md); `size`: of the whole value, in bytes."""

    quarantined_at: datetime
    batch: int | None
    detail: str
    schema_id: int | None
    origin: Mapping[str, Any]
    level: str
    value: bytes | None
    size: int

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "quarantined_at": self.quarantined_at.isoformat(),
            "value": None if self.value is None else base64.b64encode(self.value).decode(),
        }


@dataclass
class Group:
    """The rows of one route that were set aside for one reason. `details`: how many rows have each; `samples`: the
    newest."""

    route: str | None
    reason: str
    rows: int = 0
    first: datetime | None = None
    last: datetime | None = None
    details: Counter[str] = field(default_factory=Counter)
    samples: list[QuarantinedRow] = field(default_factory=list)

    def add(self, rows: pa.Table, samples: int) -> None:
        """Take in more rows of this route and reason."""
        self.rows += rows.num_rows
        times = pc.min_max(rows.column("quarantined_at")).as_py()
        self.first = min(filter(None, (self.first, times["min"])), default=None)
        self.last = max(filter(None, (self.last, times["max"])), default=None)
        for detail_count in pc.value_counts(rows.column("detail").combine_chunks()).to_pylist():
            has_room = detail_count["values"] in self.details or len(self.details) < MOST_DETAILS
            self.details[(detail_count["values"] or "") if has_room else "(other details)"] += detail_count["counts"]
        newest = rows.take(pc.select_k_unstable(rows, samples, [("quarantined_at", "descending")]))
        self.samples = sorted(
            [*self.samples, *map(_sample, newest.to_pylist())], key=lambda s: s.quarantined_at, reverse=True
        )[:samples]

    def to_json(self) -> dict[str, Any]:
        about = Reason.known(self.reason)
        return {
            "route": self.route,
            "reason": self.reason,
            "rows": self.rows,
            "first": self.first and self.first.isoformat(),
            "last": self.last and self.last.isoformat(),
            "cause": about and about.cause,
            "remedy": about and about.remedy,
            "details": dict(self.details.most_common()),
            "samples": [sample.to_json() for sample in self.samples],
        }


def _sample(row: Mapping[str, Any]) -> QuarantinedRow:
    names = ("topic", "partition", "offset", "timestamp", "file", "row")
    origin = {name: row[name] for name in names if row.get(name) is not None}
    value = row["value"]
    return QuarantinedRow(
        quarantined_at=row["quarantined_at"],
        batch=row.get("batch"),
        detail=row["detail"] or "",
        schema_id=row["schema_id"],
        origin={k: v.isoformat() if isinstance(v, datetime) else v for k, v in origin.items()},
        level=row["level"],
        value=None if value is None else value[:SHOWN_BYTES],
        size=0 if value is None else len(value),
    )


@dataclass(frozen=True)
class Rejections:
    """All that is set aside, the largest group first."""

    pipeline: str
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "rows": self.rows, "groups": [group.to_json() for group in self.groups]}


def quarantined_rows(config: Pipeline) -> Iterator[pa.Table]:
    """The rows that are in the quarantine and not replayed, of all streams that the pipeline has had, piece by piece.

    Columns of `QUARANTINE_SCHEMA`, of change files `EVENT_QUARANTINE_SCHEMA`. Raises StoreUnreadable.
    """
    schema = EVENT_QUARANTINE_SCHEMA if config.holds_changes else QUARANTINE_SCHEMA
    store = Store.of(config.tables)
    with reading(config.state_root):
        for stream in parts(config, store):
            entries = read_entries(stream.state_root, store)
            ledger = Ledger(stream.state_root, stream.pipeline, store, entries)
            uri = quarantine_uri(stream.state_root)
            table = Table(uri, store).open()
            yield from open_rows_of(table, uri, store, entries, _finished(ledger), schema)


def _finished(ledger: Ledger) -> Callable[[str, int], bool]:
    return lambda stream, batch: is_batch(stream) or ledger.is_finished(stream, batch)


def chosen(pieces: Iterable[pa.Table], route: str | None, reasons: Sequence[str]) -> Iterator[pa.Table]:
    """Those rows of a route, and of some reasons. None, and no reason: all."""
    for piece in pieces:
        if route is not None:
            piece = piece.filter(pc.equal(piece.column("route"), route))
        if reasons:
            piece = piece.filter(pc.is_in(piece.column("reason"), value_set=pa.array(reasons, pa.string())))
        if piece.num_rows:
            yield piece


def summarize(pipeline: str, pieces: Iterable[pa.Table], samples: int = SAMPLES) -> Rejections:
    """Count rows by route and reason; keep the `samples` newest of each."""
    groups: dict[tuple[str | None, str], Group] = {}
    keys = ["route", "reason"]
    for piece in pieces:
        for pair in piece.group_by(keys).aggregate([]).to_pylist():
            route, reason = pair["route"], pair["reason"]
            named = pc.is_null(piece.column("route")) if route is None else pc.equal(piece.column("route"), route)
            rows = piece.filter(pc.and_(pc.fill_null(named, False), pc.equal(piece.column("reason"), reason)))
            groups.setdefault((route, reason), Group(route, reason)).add(rows, samples)
    ordered = sorted(groups.values(), key=lambda g: (-g.rows, g.route or "", g.reason))
    return Rejections(pipeline, tuple(ordered))


def export(pieces: Iterable[pa.Table], out: Path) -> int:
    """Write rows with all their columns: Parquet, or a JSON object a line with `value` in base64. How many.

    Raises BadInput for another ending than .parquet or .jsonl, and where the file cannot be written.
    """
    writers = {".parquet": _parquet, ".jsonl": _json_lines}
    if out.suffix not in writers:
        raise BadInput(detail=f"--export {out}: allowed: a name that ends in .parquet or .jsonl")
    try:
        return writers[out.suffix](pieces, out)
    except OSError as e:
        raise BadInput(detail=f"--export {out}: {e}") from e


def _parquet(pieces: Iterable[pa.Table], out: Path) -> int:
    rows = 0
    writer: pq.ParquetWriter | None = None
    for piece in pieces:
        writer = writer or pq.ParquetWriter(out, piece.schema)
        writer.write_table(piece)
        rows += piece.num_rows
    if writer is None:
        pq.write_table(QUARANTINE_SCHEMA.empty_table(), out)
    else:
        writer.close()
    return rows


def _json_lines(pieces: Iterable[pa.Table], out: Path) -> int:
    rows = 0
    with out.open("w", encoding="utf-8") as file:
        for piece in pieces:
            for row in piece.to_pylist():
                file.write(json.dumps(row, default=_plain) + "\n")
            rows += piece.num_rows
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else str(value)
