"""Deletes that name a row by its ROWID only (Oracle): the end of an insert that was rolled back.

LogMiner may give changes before they are committed; a rollback then gives the opposite, and of a rolled-back insert
that is a DELETE without a key (Datastream, "Oracle as a source"; DataflowTemplates#4232). Its key is that of an event
with the same ROWID and transaction: in the same batch, in the merged table, or in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.key_text import in_type
from distributary.changes.model import METADATA, metadata_in
from distributary.changes.reduce import has_row_ids
from distributary.engine.changes.key_columns import key_types, paths_of, whole
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot

_ROW_ID, _TX_ID = f"{METADATA}.source.row_id", f"{METADATA}.source.tx_id"


def split(rows: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """(rows with a key, deletes that have none but a ROWID)."""
    metadata = rows.column(metadata_in(rows.column_names)).combine_chunks()
    if not has_row_ids(metadata):
        return rows, rows.slice(0, 0)
    row_ids = pc.struct_field(metadata, ["source", "row_id"])
    lost = pc.and_(pc.fill_null(pc.struct_field(metadata, "is_deleted"), False), pc.is_valid(row_ids))
    for key in keys:
        lost = pc.and_(lost, pc.is_null(rows.column(key)).combine_chunks())
    return rows.filter(pc.invert(lost)), rows.filter(lost)


def resolve(
    orphans: pa.Table, rows: pa.Table, keys: Sequence[str], tables: Sequence[Snapshot]
) -> tuple[pa.Table, pa.Table]:
    """(orphans with their keys, orphans whose row nobody knows). `tables`: where to look after `rows`, in this order.

    Raises TableFault, OSError.
    """
    resolved: list[pa.Table] = []
    unresolved = orphans
    places = [iter([_lookup(rows, keys)]), *(_parts(table, keys) for table in tables)]
    for place in places:
        for lookup in place:
            if not unresolved.num_rows:
                break
            row_of = _match(unresolved, lookup)
            if (row_of >= 0).any():
                resolved.append(
                    _with_keys(
                        unresolved.filter(pa.array(row_of >= 0)), lookup.take(pa.array(row_of[row_of >= 0])), keys
                    )
                )
                unresolved = unresolved.filter(pa.array(row_of < 0))
    return pa.concat_tables(resolved) if resolved else orphans.slice(0, 0), unresolved


def _lookup(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    metadata = rows.column(METADATA).combine_chunks()
    ids = {
        _ROW_ID: pc.struct_field(metadata, ["source", "row_id"]),
        _TX_ID: pc.struct_field(metadata, ["source", "tx_id"]),
    }
    lookup = pa.table({**{key: rows.column(key) for key in keys}, **ids})
    return lookup.filter(pc.is_valid(lookup.column(_ROW_ID)))


def _parts(table: Snapshot, keys: Sequence[str]) -> Iterator[pa.Table]:
    columns = table.schema
    types, paths = key_types(columns, keys), paths_of(columns.names, keys)
    for piece in TableFiles(table).read_all([*paths, _ROW_ID, _TX_ID]):
        lookup = whole(piece.filter(pc.is_valid(piece.column(_ROW_ID))), types)
        lookup = lookup.filter(pc.is_valid(lookup.column(keys[0])))
        if lookup.num_rows:
            yield lookup


def _match(orphans: pa.Table, lookup: pa.Table) -> np.ndarray:
    """The place in `lookup` of each orphan's row; -1 for none. Another transaction's row is another row.

    What is held beside the two is in proportion to the orphans, however many rows are known.
    """
    metadata = orphans.column(METADATA).combine_chunks()
    rows, transactions = (pc.struct_field(metadata, ["source", name]) for name in ("row_id", "tx_id"))
    named = lookup.column(_ROW_ID).cast(rows.type)
    indices = np.flatnonzero(pc.is_in(named, value_set=rows).to_numpy(zero_copy_only=False))
    few = lookup.select([_ROW_ID, _TX_ID]).take(pa.array(indices))
    pairs = zip(few.column(_ROW_ID).to_pylist(), few.column(_TX_ID).to_pylist(), indices.tolist(), strict=True)
    places = {(row, transaction): number for row, transaction, number in pairs}
    orphan_ids = zip(rows.to_pylist(), transactions.to_pylist(), strict=True)
    return np.array([places.get(pair, -1) for pair in orphan_ids], np.int64)


def _with_keys(orphans: pa.Table, matches: pa.Table, keys: Sequence[str]) -> pa.Table:
    for key in keys:
        index = orphans.column_names.index(key)
        orphans = orphans.set_column(
            index, orphans.schema.field(index), in_type(matches.column(key), orphans.schema.field(index).type)
        )
    return orphans
