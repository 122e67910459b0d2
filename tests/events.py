"""Change events by hand, as rows of a log table: payload columns and `datastream_metadata`, numbered by the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from distributary.changes.hashing import row_hash
from distributary.changes.model import METADATA, METADATA_TYPE
from distributary.changes.sequence import sequence_numbers

START_MS = 1_767_225_600_000
"""2026-01-01 00:00:00 UTC."""
DELETES = ("DELETE", "UPDATE-DELETE")


@dataclass(frozen=True)
class Event:
    """An event of one row. `at`: its place in the source's log; `sec`: source time after the start;
    `read_ms`: how much later it was read;
    `number`: its change_sequence_number, where that is not to be today's; `method`: how it was read."""

    row: Mapping[str, Any]
    at: int = 0
    change: str = "UPDATE-INSERT"
    sec: int = 0
    file: str = "mysql-bin.000001"
    backfill: bool = False
    schema: str = "a" * 40
    tx: str | None = None
    row_id: str | None = None
    uuid: str = "0" * 32
    read_ms: int = 0
    source: Mapping[str, Any] = field(default_factory=dict)
    number: str | None = None
    method: str | None = None

    def with_(self, **changes: Any) -> Event:
        return replace(self, **changes)


def backfilled(row: Mapping[str, Any], sec: int = 0) -> Event:
    return Event(row, 0, "INSERT", sec, backfill=True)


def deleted(row: Mapping[str, Any], at: int, sec: int = 0, **more: Any) -> Event:
    return Event(row, at, "DELETE", sec, **more)


def table_of(events: Sequence[Event], columns: Mapping[str, pa.DataType], kind: str = "mysql") -> pa.Table:
    """The events as rows, in this order; a column that an event lacks is null."""
    payload = pa.Table.from_pylist(
        [{c: e.row.get(c) for c in columns} for e in events], pa.schema(list(columns.items()))
    )
    return payload.append_column(pa.field(METADATA, METADATA_TYPE), metadata_of(events, payload, kind))


def metadata_of(events: Sequence[Event], payload: pa.Table, kind: str = "mysql") -> pa.Array:
    rows = [_metadata(event, kind) for event in events]
    plain = pa.Table.from_pylist(rows, pa.schema(list(METADATA_TYPE)))
    columns = {name: payload.column(name).combine_chunks() for name in payload.column_names}
    numbers, bad = sequence_numbers(kind, plain, row_hash(columns, payload.num_rows))
    assert not bad, bad
    given = pa.array([event.number for event in events], pa.string())
    numbers = pa.compute.coalesce(given, numbers)
    at = plain.schema.get_field_index("change_sequence_number")
    plain = plain.set_column(at, plain.schema.field(at), numbers)
    return pa.StructArray.from_arrays([c.combine_chunks() for c in plain.columns], fields=list(METADATA_TYPE))


def _metadata(event: Event, kind: str) -> dict[str, Any]:
    ms = START_MS + event.sec * 1000
    place: dict[str, Any] = {}
    if not event.backfill:
        place = {"log_file": event.file, "log_position": event.at} if kind == "mysql" else dict(event.source)
    return {
        "uuid": event.uuid,
        "source_timestamp": ms,
        "read_timestamp": ms + event.read_ms,
        "change_type": event.change,
        "is_deleted": event.change in DELETES,
        "is_backfill": event.backfill,
        "schema_key": event.schema,
        "read_method": event.method,
        "source": {"table": "orders", "tx_id": event.tx, "row_id": event.row_id, **place},
    }
