"""What it costs to keep deleted keys in a table beside the merged one, batch after batch."""

from __future__ import annotations

from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.merges import Side, events
from bench.result import Case, Result
from bench.workload import Place, WrongRows
from distributary.changes.model import METADATA
from distributary.tables.merge_rows import DELETED, MergeRules

NOTE = (
    "Batches of changes to random keys of one table of ten columns, some of them deletes, one after the other, in one "
    "process; CPU seconds of a batch, median. Ours: `tables.tombstones: beside`. Other: `in_table`, the default. At "
    "the end both have the same living rows."
)
SHARES = (0.02, 0.3)


def run(place: Place) -> Result:
    batches = place.size(40, 4)
    cases = [_case(place, rows, share, batches) for rows in place.size((20_000, 200_000), (1_000,)) for share in SHARES]
    return Result("tombstones_beside", NOTE, tuple(cases))


def _case(place: Place, rows: int, share: float, batches: int) -> Case:
    folder = place.root / f"{rows} {share}"
    sides = (
        Side(str(folder / "beside"), MergeRules(beside=True)),
        Side(str(folder / "in table"), MergeRules()),
    )
    base = events(np.arange(rows), 0, 1)
    for side in sides:
        side.merge(base, 0)
        side.seconds.clear()
    for number in range(1, batches + 1):
        rng = np.random.default_rng(number)
        ids = rng.choice(rows, 500, replace=False)
        new = _some_deleted(events(ids, number * 10**6 + rows, number), rng.random(len(ids)) < share)
        # Whoever is second finds the machine as the first has left it.
        for side in sides if number % 2 else sides[::-1]:
            side.merge(new, number)
    ours_rows, other_rows = (side.rows(f"not {DELETED}") for side in sides)
    if not ours_rows.equals(other_rows):
        raise WrongRows("the two tables do not have the same living rows")
    ours, other = (median(side.seconds) for side in sides)
    return Case(f"500 changes of {rows:,} rows, {share:.0%} deletes", "s of CPU", ours, other)


def _some_deleted(rows: pa.Table, deleted: np.ndarray) -> pa.Table:
    metadata = rows.column(METADATA).combine_chunks()
    names = metadata.type.names
    columns = {name: metadata.field(name) for name in names}
    columns["is_deleted"] = pa.array(deleted)
    columns["change_type"] = pc.if_else(pa.array(deleted), "DELETE", columns["change_type"])
    struct = pa.StructArray.from_arrays(list(columns.values()), fields=list(metadata.type))
    return rows.set_column(rows.column_names.index(METADATA), METADATA, struct)
