"""The events of some transactions out of a log, for keys that rows of them hand on (`changes.handed_on`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.model import METADATA, SourceTable
from distributary.engine.changes.key_columns import KeyTypes, whole
from distributary.engine.changes.log_rows import plain
from distributary.engine.changes.orders import ChangeOrders
from distributary.tables.files import TableFiles
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import Table

_TX_ID = f"{METADATA}.source.tx_id"


def log_of(source: SourceTable, orders: ChangeOrders) -> Snapshot | None:
    """The log table of a source's table, as it is now; None where there is none."""
    uri = orders.named.log(source)
    return None if uri is None else Table(uri, orders.store).open()


def others_of(
    source: SourceTable, orders: ChangeOrders, transactions: Collection[str], like: pa.Table, types: KeyTypes
) -> pa.Table:
    """The events of these transactions that the log has; no row, with the columns of `like`, where it has none.

    Raises TableFault, OSError, ArrowInvalid.
    """
    log = log_of(source, orders)
    found = None if log is None else _events(log, transactions, types)
    return like.schema.empty_table() if found is None else found


def _events(log: Snapshot, transactions: Collection[str], types: KeyTypes) -> pa.Table | None:
    """All columns, with the keys in these types. Of each file the transactions are read first, and whole rows only
    where it has one."""
    found = [whole(plain(rows), types) for rows in _rows(TableFiles(log), transactions)]
    return pa.concat_tables(found, promote_options="permissive") if found else None


def _rows(files: TableFiles, transactions: Collection[str]) -> Iterator[pa.Table]:
    for name in files.names:
        wanted = [_are_in(piece.column(_TX_ID), transactions) for piece in files.read(name, [_TX_ID])]
        mask = np.concatenate(wanted) if wanted else np.zeros(0, bool)
        if not mask.any():
            continue
        begin = 0
        for piece in files.read_whole(name):
            part = mask[begin : begin + piece.num_rows]
            begin += piece.num_rows
            if part.any():
                yield piece.filter(pa.array(part))


def _are_in(column: pa.ChunkedArray, transactions: Collection[str]) -> np.ndarray:
    named = pc.is_in(column.cast(pa.string()), value_set=pa.array(sorted(transactions), pa.string()))
    return np.asarray(named.to_numpy(), bool)
