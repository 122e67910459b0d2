"""What a batch of Spark's sink did, into the pipeline's ledger: by it `status`, `verify` and `clean` know its tables.

Written last, under the batch's transaction: until then the batch's rows are pending for `verify`, and a batch that
comes again after a crash is written here too, once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import Reason
from distributary.sink.sink_options import SinkOptions
from distributary.sink.written import WrittenFiles
from distributary.state.ledger import Entry, Ledger
from distributary.tables.files import read_file
from distributary.tables.snapshot import Snapshot, Txn

PARKED = "parked-"
"""What the ids of rows say that were set aside when their batch ended, not by a task."""
_COLUMNS = ("route", "reason", "detail")


@dataclass
class _Aside:
    """Rows of one route that were set aside: by reason, and why its table was parked."""

    reasons: Counter[str] = field(default_factory=Counter)
    parked: str | None = None


def record(options: SinkOptions, txn: Txn, written: WrittenFiles, parked: Mapping[str, str]) -> None:
    """Enter a batch, all of whose commits are made; nothing happens when it is in the ledger already. `parked`: routes
    whose rows were set aside when the batch ended, and why. Raises TableFault, OSError."""
    if options.keeps_books:
        # What earlier batches did is not read: each batch ends in a process of its own.
        Ledger(options.state, options.name, options.store, entries=()).record(
            txn.app_id, txn.version, entries(options, txn, written, parked), {}
        )


def entries(options: SinkOptions, txn: Txn, written: WrittenFiles, parked: Mapping[str, str]) -> list[Entry]:
    """A row for each route, and last the batch's own. Raises TableFault, OSError."""
    aside_of, rows_of = _set_aside(options, txn, written), {}
    for route, parts in written.by_route().items():
        rows = sum(route_files.rows for route_files in parts)
        if route in parked:
            aside = aside_of.setdefault(route, _Aside())
            aside.reasons[Reason.TABLE_PARKED.value] += rows
            aside.parked = parked[route]
        else:
            rows_of[route] = rows, sum(file.size for route_files in parts for file in route_files.files)
    own = aside_of.pop(None, _Aside())
    route_entries = [
        _entry(options, txn, route, *rows_of.get(route, (0, 0)), aside_of.get(route, _Aside()))
        for route in sorted({*rows_of, *(r for r in aside_of if r is not None)})
    ]
    bad = own.reasons.total()
    last = Entry(
        txn.app_id,
        txn.version,
        None,
        rows_in=bad,
        rows_quarantined=bad,
        reasons=own.reasons,
        tombstones=written.tombstones,
        excluded=written.excluded,
    )
    return [*route_entries, last]


def _entry(options: SinkOptions, txn: Txn, route: str, rows: int, size: int, aside: _Aside) -> Entry:
    bad = aside.reasons.total()
    state = "parked" if aside.parked is not None else "written" if rows else "empty"
    return Entry(
        txn.app_id,
        txn.version,
        route,
        table=options.target(route).uri if rows else None,
        state=state,
        rows_in=rows + bad,
        rows_written=rows,
        rows_quarantined=bad,
        bytes_written=size,
        reasons=aside.reasons,
        error=aside.parked,
        failures=int(state == "parked"),
        # The next batch tries the table again: nobody rests between batches that Spark makes.
        retry_at=int(time.time() * 1e6) if state == "parked" else None,
    )


def _set_aside(options: SinkOptions, txn: Txn, written: WrittenFiles) -> dict[str | None, _Aside]:
    """Of the rows that tasks have set aside."""
    aside_of: dict[str | None, _Aside] = {}
    for piece in _pieces(options, txn, written):
        for row in piece.to_pylist():
            aside = aside_of.setdefault(row["route"], _Aside())
            aside.reasons[row["reason"]] += 1
            if row["reason"] == Reason.TABLE_PARKED:
                aside.parked = row["detail"]
    return aside_of


def _pieces(options: SinkOptions, txn: Txn, written: WrittenFiles) -> list[pa.Table]:
    uri, store = options.quarantine, options.store
    try:
        return [piece for file in written.quarantine for piece in read_file(uri, file.path, [*_COLUMNS], store)]
    except FileNotFoundError:
        # An earlier attempt has committed them, and the quarantine was compacted since.
        table = Snapshot.open(uri, store)
        if table is None:
            raise
        mine = (pc.field("stream") == txn.app_id) & (pc.field("batch") == txn.version)
        at_the_end = pc.match_substring(pc.field("id"), f"-{txn.version}-{PARKED}")
        return [table.dataset().to_table([*_COLUMNS], filter=mine & ~at_the_end)]
