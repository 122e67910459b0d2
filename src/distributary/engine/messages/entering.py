"""Which writers have a row that enters their route's table: only these have a say in its columns.

A task sees that in what it has decoded (`decode.fit`). Where the columns are decided before the tasks write (several of
them share the route, or engine `spark` writes it), the driver asks first. A writer's rows are tried until one enters,
so that of a healthy schema only a few are decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from distributary.engine.messages.chunks import WriterSchema
from distributary.engine.messages.decode import decode, fit
from distributary.engine.messages.pieces import FEW_ROWS, Chunks
from distributary.engine.messages.task_spec import MessageSpec
from distributary.schemas.registry.compile import CompiledSchema

FIRST_ROWS = 64
"""So many are tried first, and four times as many each time that none of them enters."""


def entering(
    route: str, chunks: Chunks, columns: pa.Schema | None, spec: MessageSpec, schemas: Mapping[int, CompiledSchema]
) -> Iterator[WriterSchema]:
    """The writers among `chunks` of whom a row enters a table of these columns (None: there is none yet)."""
    writers: set[WriterSchema] = set()
    for groups, records in chunks:
        begin = 0
        for schema_id, message, rows in groups:
            writer = (schema_id, message)
            group_records = records.slice(begin, rows)
            begin += rows
            if writer not in writers and _enters(route, writer, group_records, columns, spec, schemas):
                writers.add(writer)
                yield writer


def _enters(
    route: str,
    writer: WriterSchema,
    records: pa.RecordBatch,
    columns: pa.Schema | None,
    spec: MessageSpec,
    schemas: Mapping[int, CompiledSchema],
) -> bool:
    begin, size = 0, FIRST_ROWS
    while begin < records.num_rows:
        sample = records.slice(begin, size)
        decoded = decode(route, [([[*writer, sample.num_rows]], sample)], spec, schemas)
        if decoded.broken is not None or fit(route, decoded, columns, spec).rows:
            return True
        begin, size = begin + size, min(4 * size, FEW_ROWS)
    return False
