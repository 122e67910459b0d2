"""How much a task decodes at a time. Bytes do not say it: a record of 6 bytes may stand for 1,700 cells.

Memory goes by cells, rows times leaf columns. A route with more of them than one piece holds is the driver's to commit
(`engine.messages.attempt`); its tasks decode, fit and write one piece after the other, a data file each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from distributary.engine.messages.chunks import Groups, WriterSchema
from distributary.engine.messages.stored_changes import value_message
from distributary.errors.border import contained
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import decoder_for
from distributary.schemas.protobuf.columns import MAX_FIELDS

PIECE_CELLS = 1 << 24
"""Cells of a piece: some 100 MB as numbers, and as much again while they are decoded and written."""
FEW_ROWS = PIECE_CELLS // MAX_FIELDS
"""So many rows fit into a piece whatever their schema is."""

Chunks = list[tuple[Groups, pa.RecordBatch]]
"""A route's records, and who wrote them."""

SIDE_BY_SIDE = 16
"""Pieces that are delivered step by step together. More of them are hardly faster (8: a fifth of the CPU time less, 16:
a quarter, 32: 28 %)."""
GROUP_ROWS, GROUP_BYTES = 1 << 15, 8 << 20
"""Rows and bytes of such a group. What they are decoded to may be far more: `steps.unless_large` looks at that."""


def cells_of(groups: Groups, schemas: Mapping[int, CompiledSchema], *, raw_nested_indexes: bool) -> int:
    """Cells that records will have, by their writers."""
    leaves = _Leaves(schemas, raw_nested_indexes)
    return sum(rows * leaves.of((schema_id, message)) for schema_id, message, rows in groups)


def cut_pieces(
    chunks: Iterable[tuple[Groups, pa.RecordBatch]],
    schemas: Mapping[int, CompiledSchema],
    *,
    raw_nested_indexes: bool,
) -> Iterator[Chunks]:
    """The same records in the same order, as many at a time as a piece holds; one at least."""
    leaves = _Leaves(schemas, raw_nested_indexes)
    piece: Chunks = []
    room = PIECE_CELLS
    for groups, records in chunks:
        begin = 0
        for schema_id, message, rows in groups:
            width = leaves.of((schema_id, message))
            rows_left = rows
            while rows_left:
                if room < width and piece:
                    yield piece
                    piece, room = [], PIECE_CELLS
                fitting = max(1, min(rows_left, room // width))
                piece.append(([[schema_id, message, fitting]], records.slice(begin, fitting)))
                begin, rows_left, room = begin + fitting, rows_left - fitting, room - fitting * width
    if piece:
        yield piece


def grouped(pieces: Iterable[tuple[str, Chunks]]) -> Iterator[list[tuple[str, Chunks]]]:
    """The same pieces in the same order, in groups of small ones; a large one is a group by itself."""
    group: list[tuple[str, Chunks]] = []
    rows = size = 0
    for route, piece in pieces:
        more_rows, more = (sum(getattr(records, of) for _, records in piece) for of in ("num_rows", "nbytes"))
        rows, size = rows + more_rows, size + more
        if group and (len(group) == SIDE_BY_SIDE or rows > GROUP_ROWS or size > GROUP_BYTES):
            yield group
            group, rows, size = [], more_rows, more
        group.append((route, piece))
    if group:
        yield group


class _Leaves:
    """Leaf columns of each writer's records."""

    def __init__(self, schemas: Mapping[int, CompiledSchema], raw_nested_indexes: bool) -> None:
        self._schemas, self._raw = schemas, raw_nested_indexes

    def of(self, writer: WriterSchema) -> int:
        schema_id, message = writer
        if schema_id not in self._schemas:
            return 1
        try:
            schema = self._schemas[schema_id]
            message = value_message(message)
            return _count(decoder_for(schema, message, format=schema.format, raw_nested_indexes=self._raw).columns)
        except BaseException as e:
            contained(e)  # its rows are rejected, and say why
            return 1


@lru_cache(maxsize=4096)
def _count(columns: pa.Schema) -> int:
    return max(1, sum(_leaves(field.type) for field in columns))


def _leaves(kind: Any) -> int:
    """A struct counts too: it says for each row whether it is there."""
    if pa.types.is_struct(kind):
        return 1 + sum(_leaves(field.type) for field in kind)
    if pa.types.is_map(kind):
        return 1 + _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_list(kind):
        return 1 + _leaves(kind.value_type)
    return 1
