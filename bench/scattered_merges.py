"""Few changes all over a large merged table, batch after batch: merge on read against copy on write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.measure import MIB
from bench.merges import Side, events
from bench.result import Case, Result
from bench.workload import Place, WrongRows, say
from distributary.tables.datafile import write_data_file
from distributary.tables.merge_rows import MergeRules
from distributary.tables.store import Store

NOTE = (
    "Batches of changes to random keys of one large table, one after the other, in one process; CPU seconds. Ours: "
    "`tables.merge: merge_on_read`. Other: `copy_on_write`, the default. Written: all bytes of new files, of the log "
    "too, for each byte of the changes as a Parquet file. Late batches against early ones: medians of windows of as "
    "many batches. At the end both tables are compared with the changes."
)
PART = 500_000


@dataclass
class Sized(Side):
    """`sizes`: of the files of its folder, as last seen; `written`: bytes of new ones, of each batch."""

    sizes: dict[str, int] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)

    def merge(self, rows: pa.Table, batch: int) -> None:
        super().merge(rows, batch)
        now = {str(path): path.stat().st_size for path in Path(self.uri).rglob("*") if path.is_file()}
        self.written.append(sum(size for path, size in now.items() if path not in self.sizes))
        self.sizes = now

    @property
    def folder(self) -> int:
        return sum(self.sizes.values())


def run(place: Place) -> Result:
    rows, changes = place.size((1_000_000, 500), (60_000, 50))
    batches, compared, window = place.size((200, 10, 20), (12, 4, 3))
    sides = Sized(str(place.root / "read"), MergeRules(on_read=True)), Sized(str(place.root / "write"), MergeRules())
    base = [events(np.arange(begin, min(begin + PART, rows)), begin, begin) for begin in range(0, rows, PART)]
    for side in sides:
        for number, part in enumerate(base):
            side.merge(part, number)
        side.written, side.seconds = [], []
    table = sides[0].folder
    notes = dict(zip(*(pa.concat_tables(base)[name].to_pylist() for name in ("id", "note")), strict=True))
    own = 0
    for number in range(batches):
        ids = np.random.default_rng(number).choice(rows, changes, replace=False)
        new = events(ids, (number + 10) * 10**7, number)
        own = own or write_data_file(str(place.root / "own"), new, Store()).size
        for side in sides if number < compared else sides[:1]:
            side.merge(new, number + 1000)
        if number == compared - 1:
            _check(sides[1], {**notes, **_notes(new)})
        notes |= _notes(new)
        if number % 20 == 19:
            say(f"{number + 1}: {median(sides[0].seconds[-window:]):.3f} s, {sides[0].folder / MIB:.0f} MiB")
    _check(sides[0], notes)
    return Result("scattered_merges", NOTE, _cases(sides, own * batches, own * compared, table, window))


def _notes(rows: pa.Table) -> dict[int, str]:
    return dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))


def _check(side: Sized, notes: dict[int, str]) -> None:
    found = side.rows()
    if found["id"].to_pylist() != sorted(notes) or found["note"].to_pylist() != [notes[n] for n in sorted(notes)]:
        raise WrongRows(f"{side.uri} does not hold the changes")


def _cases(sides: tuple[Sized, Sized], own: int, own_other: int, table: int, window: int) -> tuple[Case, ...]:
    read, write = sides
    late, early = median(read.seconds[-window:]), median(read.seconds[window // 2 : window // 2 + window])
    about = {"changes, KiB a batch": round(own / len(read.seconds) / 1024), "table, MiB": round(table / MIB)}
    folder = {"folder, MiB": round(read.folder / MIB), "folder of the other, MiB": round(write.folder / MIB)}
    ratios = sum(read.written) / own, sum(write.written) / own_other
    return (
        Case("bytes written for a byte of changes", "times", *ratios, goal=20, goal_of="ours", details=about),
        Case("a batch", "s of CPU", median(read.seconds), median(write.seconds)),
        Case("late batches against early ones", "times", late / early, goal=1.2, goal_of="ours"),
        Case("the folder against its table", "times", read.folder / table, goal=3, goal_of="ours", details=folder),
    )
