"""A route's records that are set aside, as rows for the quarantine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.engine.messages.chunks import GONE, WriterSchema
from distributary.engine.messages.stored_changes import value_message
from distributary.engine.messages.task_spec import MessageSpec
from distributary.errors import Reason
from distributary.schemas.formats import FORMATS
from distributary.tables.quarantine import REJECTED_SCHEMA


@dataclass(frozen=True)
class Refused:
    """Records of one writer, none of which is decoded."""

    writer: WriterSchema
    records: pa.RecordBatch
    reason: Reason
    detail: str


def refused_rows(route: str, refused: Sequence[Refused], spec: MessageSpec) -> pa.Table:
    """Rows of whole writers, all at once: whoever makes up a schema id for each record makes as many writers."""
    of_row = pa.array(np.repeat(np.arange(len(refused)), [refusal.records.num_rows for refusal in refused]))

    def each(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(of_row)

    records = pa.Table.from_batches([refusal.records for refusal in refused])
    header = each([_header(refusal.writer, spec) for refusal in refused], pa.binary())
    filled = {
        "route": pa.repeat(route, len(of_row)),
        "reason": each([refusal.reason.value for refusal in refused], pa.string()),
        "detail": each([refusal.detail for refusal in refused], pa.string()),
        "schema_id": each([_schema_id(refusal.writer) for refusal in refused], pa.int32()),
        "level": pa.repeat("payload", len(of_row)),
        "value": pc.binary_join_element_wise(header, records.column("payload"), pa.scalar(b"", pa.binary())),
    }
    return _table(filled, records).combine_chunks()  # the payloads last: together they may be more than an array holds


def _header(writer: WriterSchema, spec: MessageSpec) -> bytes | None:
    """What stood before a payload; None where there was none to stand before."""
    if _schema_id(writer) is None:
        return None
    if not spec.payload_framed:
        return b""
    empty = pa.array([b""], pa.binary())
    header: bytes = FORMATS[spec.payload_format].frame_all(writer[0], value_message(writer[1]), empty)[0].as_py()
    return header


def _schema_id(writer: WriterSchema) -> int | None:
    return None if writer[0] == GONE[0] else writer[0]


def rejected_rows(
    route: str,
    writer: WriterSchema,
    records: pa.RecordBatch,
    positions: Any,
    reason: Reason | Sequence[Reason],
    detail: str | Sequence[str],
    spec: MessageSpec,
) -> pa.Table:
    """Quarantine rows for `positions` of `records`, with one reason and detail for all or one each.

    `value` is the payload as the envelope held it, so that a replay reads it anew.
    """
    records_taken = records.take(pa.array(positions, pa.int64()))
    schema_id, value = _schema_id(writer), records_taken.column("payload")
    if schema_id is None:
        value = pa.nulls(len(value), pa.binary())
    elif spec.payload_framed:
        value = FORMATS[spec.payload_format].frame_all(schema_id, value_message(writer[1]), value)
    rows = len(value)
    filled = {
        "route": pa.repeat(route, rows),
        "reason": _texts([reason] if isinstance(reason, Reason) else reason, rows),
        "detail": _texts([detail] if isinstance(detail, str) else detail, rows),
        "schema_id": pa.repeat(pa.scalar(schema_id, pa.int32()), rows),
        "level": pa.repeat("payload", rows),
        "value": value,
    }
    return _table(filled, records_taken)


def _texts(words: Sequence[str], rows: int) -> pa.Array:
    return pa.repeat(str(words[0]), rows) if len(words) == 1 else pa.array([str(text) for text in words], pa.string())


def _table(filled: dict[str, pa.Array], records: pa.RecordBatch | pa.Table) -> pa.Table:
    columns = [filled[f.name] if f.name in filled else records.column(f.name) for f in REJECTED_SCHEMA]
    return pa.table(columns, REJECTED_SCHEMA)
