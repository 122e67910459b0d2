"""Records that end the process which reads them, found in processes apart.

Such a record is known by its bytes, wherever it comes again: the driver writes it into the journal, and its reader
never sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from distributary.engine.apart import Apart, killers
from distributary.engine.messages.chunks import RECORD_SCHEMA, Cut, Groups
from distributary.engine.messages.decode import decode, fit
from distributary.engine.messages.demux import row_origin, split_values
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.pieces import Chunks, cut_pieces
from distributary.engine.messages.stored_changes import ids_of
from distributary.engine.messages.task_spec import MessageSpec, fingerprint
from distributary.schemas.registry.compile import CompiledSchema
from distributary.scratch import Scratch
from distributary.tables.datafile import write_data_file
from distributary.tables.store import Store

Packed = list[tuple[Groups, bytes]]
"""`Chunks` as they go to another process."""


def find_killers(
    route: str, chunks: Chunks, spec: MessageSpec, schemas: Mapping[int, CompiledSchema], apart: Apart
) -> Iterator[tuple[str, str]]:
    """(fingerprint, how) of the records of a route that end the process which decodes and writes them."""
    for piece in cut_pieces(chunks, schemas, raw_nested_indexes=spec.raw_nested_indexes):
        for [(schema_id, message, _)], records in piece:
            own_schema = {id: schemas[id] for id in ids_of([(schema_id, message)]) if id in schemas}
            work = partial(_write, route=route, spec=spec, schemas=own_schema)
            cut = partial(_packed, schema_id, message, records)
            for position, how in killers(work, cut, records.num_rows, apart).items():
                yield fingerprint(records.column("payload")[position].as_py()), how


def find_envelope_killers(values: pa.Array, reader: EnvelopeReader, apart: Apart) -> dict[str, str]:
    """Fingerprint -> how, of the source values (binary, none null) that end the process which opens them."""
    work = partial(_open, reader=replace(reader, share=None))
    how_of = killers(work, lambda begin, end: values.slice(begin, end - begin).to_pylist(), len(values), apart)
    return {fingerprint(values[position].as_py()): how for position, how in how_of.items()}


def packed(chunks: Chunks) -> Packed:
    return [(groups, records.serialize().to_pybytes()) for groups, records in chunks]


def unpacked(chunks: Packed) -> Chunks:
    return [(groups, pa.ipc.read_record_batch(pa.py_buffer(body), RECORD_SCHEMA)) for groups, body in chunks]


def _packed(schema_id: int, message: str, records: pa.RecordBatch, begin: int, end: int) -> Packed:
    return packed([([[schema_id, message, end - begin]], records.slice(begin, end - begin))])


def _write(records: Packed, route: str, spec: MessageSpec, schemas: Mapping[int, CompiledSchema]) -> None:
    """All that is done to a route's records by code that is not ours, but for the commit."""
    fitted = fit(route, decode(route, unpacked(records), spec, schemas), None, spec)
    with Scratch("trial") as folder:
        write_data_file(str(folder), fitted.table, Store())


def _open(values: list[bytes], reader: EnvelopeReader) -> None:
    """All that is done to envelopes by code that is not ours."""
    window = pa.table({"value": pa.array(values, pa.binary())})
    origin = row_origin(window, reader)
    split_values(window.column("value").combine_chunks(), origin, reader, Cut(0, 0), lambda *_: None)
