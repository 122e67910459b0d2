"""Which rows of the quarantine are in a table already: their commit seemed to fail, though it had come through."""

from __future__ import annotations

import pyarrow as pa

from distributary.errors import Reason
from distributary.tables.snapshot import Snapshot


def committed(rows: pa.Table, route: str, table: Snapshot | None) -> pa.Array:
    """Of rows that were kept aside because a table of the route failed: is the commit of their batch in this one?"""
    txns = set() if table is None else table.txns(route)
    columns = (rows.column(n).to_pylist() for n in ("reason", "stream", "batch"))
    return pa.array(
        [
            reason == Reason.TABLE_PARKED and (stream, batch) in txns
            for reason, stream, batch in zip(*columns, strict=True)
        ],
        pa.bool_(),
    )
