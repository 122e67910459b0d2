"""Records that end the process which reads them: found one by one, each tried in a process of its own.

Such a record is known by its bytes, wherever it comes again: the driver writes it into the journal, and the decoder
never sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa

from distributary.engine.apart import killers
from distributary.engine.messages.chunks import RECORD_SCHEMA, Groups
from distributary.engine.messages.decode import decode, fit
from distributary.engine.messages.orders import Orders, fingerprint
from distributary.engine.messages.pieces import Chunks, cut_pieces
from distributary.schemas.registry.compile import CompiledSchema
from distributary.scratch import Scratch
from distributary.tables.datafile import write_data_file
from distributary.tables.store import Store

PARTS = 32
"""Into so many parts a piece is cut that ends its process: 65,536 records take four processes to find one."""

Trial = list[tuple[Groups, bytes]]


def find_killers(
    route: str, chunks: Chunks, orders: Orders, schemas: Mapping[int, CompiledSchema]
) -> Iterator[tuple[str, str]]:
    """(fingerprint, signal) of the records of a route that end the process which decodes and writes them."""
    raw = orders.raw_nested_indexes
    yield from _search(route, list(cut_pieces(chunks, schemas, raw_nested_indexes=raw)), orders, schemas)


def _search(
    route: str, pieces: list[Chunks], orders: Orders, schemas: Mapping[int, CompiledSchema]
) -> Iterator[tuple[str, str]]:
    trials = [[(groups, records.serialize().to_pybytes()) for groups, records in piece] for piece in pieces]
    for number, how in killers(partial(_try, route=route, orders=orders, schemas=schemas), trials).items():
        parts = list(_parts(pieces[number]))
        if len(parts) == 1:
            [(_, records)] = parts[0]
            yield fingerprint(records.column("payload")[0].as_py()), how
        else:
            yield from _search(route, parts, orders, schemas)


def _parts(piece: Chunks) -> Iterator[Chunks]:
    rows = sum(records.num_rows for _, records in piece)
    step = -(-rows // PARTS)
    for groups, records in piece:
        [(schema_id, message, _)] = groups
        for begin in range(0, records.num_rows, step):
            part = records.slice(begin, step)
            yield [([[schema_id, message, part.num_rows]], part)]


def _try(trial: Trial, route: str, orders: Orders, schemas: Mapping[int, CompiledSchema]) -> None:
    """All that is done to a route's records by code that is not ours, but for the commit."""
    chunks = [(groups, pa.ipc.read_record_batch(pa.py_buffer(body), RECORD_SCHEMA)) for groups, body in trial]
    fitted = fit(route, decode(route, chunks, orders, schemas), None, orders)
    with Scratch("trial") as folder:
        write_data_file(str(folder), fitted.table, Store())
