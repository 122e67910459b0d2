"""Change events and files on their way into the quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.casts import as_json, shown
from distributary.changes.model import BadEvent
from distributary.errors import Reason
from distributary.tables.quarantine import EVENT_REJECTED_SCHEMA

RECORD = "record"
"""The column, on the way only, that says which of a task's records an event was."""


def rejected_file(path: str, reason: Reason, detail: str) -> pa.Table:
    """A file as a whole. It counts as one row: what is in it, nobody could read."""
    values = {"reason": reason.value, "detail": detail, "level": "file", "file": path}
    return pa.Table.from_pylist([values], schema=EVENT_REJECTED_SCHEMA)


def rejected_bad(path: str, events: Sequence[BadEvent]) -> pa.Table:
    """Events that the reader could not use; each with its text as far as it could be read."""
    rows = [
        {
            "reason": event.reason.value,
            "detail": event.detail,
            "level": "event",
            "file": path,
            "row": event.row,
            "value": event.raw,
        }
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_REJECTED_SCHEMA)


def rejected_events(
    route: str,
    origin: pa.StructArray,
    reason: Reason,
    detail: str,
    values: pa.Array | None = None,
    level: str = "event",
    records: pa.Array | None = None,
) -> pa.Table:
    """Events of a route by their origin. Without `values` the file at the source is what keeps their content.
    `records`: which record each was, as one more column (`RECORD`)."""
    rows = len(origin)
    filled = {
        "route": pa.repeat(route, rows),
        "reason": pa.repeat(reason.value, rows),
        "detail": pa.repeat(detail, rows),
        "level": pa.repeat(level, rows),
        "value": pa.nulls(rows, pa.binary()) if values is None else values,
        "file": pc.struct_field(origin, "file"),
        "row": pc.struct_field(origin, "row"),
    }
    columns = [filled[f.name] if f.name in filled else pa.nulls(rows, f.type) for f in EVENT_REJECTED_SCHEMA]
    rejected = pa.table(columns, schema=EVENT_REJECTED_SCHEMA)
    return rejected if records is None else rejected.append_column(RECORD, records)


def as_text(rows: pa.Table) -> pa.Array:
    """Each row as JSON, for people: what stands in a row that no table took. It never fails."""
    arrays = {name: pa.concat_arrays(rows.column(name).chunks or [pa.nulls(0)]) for name in rows.column_names}
    texts = [as_json({name: shown(array, row) for name, array in arrays.items()}) for row in range(rows.num_rows)]
    return pa.array(texts, pa.binary())


def without(rows: pa.Table, in_quarantine: Mapping[str, frozenset[int]]) -> pa.Table:
    """Leave out events that are in the quarantine already: file -> their numbers."""
    if not in_quarantine:
        return rows
    files, numbers = rows.column("file").to_pylist(), rows.column("row").to_pylist()
    keep = [n not in in_quarantine.get(f, ()) for f, n in zip(files, numbers, strict=True)]
    return rows.filter(pa.array(keep, pa.bool_()))
