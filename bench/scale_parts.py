"""What the driver and the store hold for each table, batch and file: the constants of docs/scale.md."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, WrongRows, say
from distributary.state.ledger import Entry, Ledger, read_entries, totals
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Snapshot, Txn, columns_of
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip, append_on_tip

NOTE = (
    "Milliseconds of CPU time in one process, and bytes, of what the driver and the stores hold. The ledger: a batch "
    "with so many routes is entered, read at the start of a run, and folded with the one before it. A checkpoint: of a "
    "table of so many data files. The last case: what a stream knows of a table between two batches."
)
STORE = Store()
STREAM = "00000000-0000-0000-0000-000000000000"
COLUMNS = 16


def run(place: Place) -> Result:
    cases: list[Case] = []
    for routes in place.size((1_000, 10_000, 100_000), (3, 5)):
        cases += _ledger(place.part(f"ledger-{routes}"), routes)
    for files in place.size((10, 1_000, 10_000), (2, 4)):
        cases.append(_checkpoint(place.part(f"checkpoint-{files}"), files))
    cases.append(_tip(place.part("tip")))
    return Result("scale_parts", NOTE, tuple(cases))


def _ledger(place: Place, routes: int) -> list[Case]:
    ledger = Ledger(str(place.root), "bench", STORE)
    entries = [_entry(number) for number in range(routes)]
    entries.append(Entry(STREAM, 0, None))
    record = _ms(lambda: ledger.record(STREAM, 0, entries, {}))
    size = sum(file.stat().st_size for file in Path(ledger.uri).glob("*.parquet"))
    found: list[Entry] = []
    read = _ms(lambda: found.extend(totals(read_entries(str(place.root), STORE)).values()))
    if len(found) != routes + 1:
        raise WrongRows(f"{len(found)} entries, not {routes + 1}")
    ledger.record(STREAM, 1, [replace(entry, batch=1) for entry in entries], {})
    fold = _ms(ledger.compact)
    say(f"{routes} routes: {record:.0f} ms to enter, {read:.0f} to read, {fold:.0f} to fold two batches")
    label = f"ledger, {routes:,} routes"
    return [
        Case(f"{label}, entered", "ms", record, details={"bytes a route": size / routes}),
        Case(f"{label}, read", "ms", read),
        Case(f"{label}, two batches folded", "ms", fold),
    ]


def _entry(number: int) -> Entry:
    rows = 100 + number % 7
    return Entry(
        STREAM,
        0,
        f"route {number}",
        table=f"/data/lake/route_{number}",
        state="written",
        rows_in=rows,
        rows_written=rows,
        schema_ids={number: rows},
        decoders={number: "ptars"},
        newest=1_790_000_000_000_000 + number,
        bytes_written=75 * rows,
    )


def _checkpoint(place: Place, files: int) -> Case:
    uri = str(place.root / "table")
    table, rows = Table(uri, STORE, Owner("bench", "t")), _rows(1)
    evolution = evolve(columns_of(table.open()), [rows.schema], Policy())
    file = write_data_file(uri, rows, STORE)
    table.commit(None, evolution, [replace(file, path=f"{n}-{file.path}") for n in range(files)], Txn(STREAM, 0))
    if (snapshot := Snapshot.open(uri, STORE)) is None:
        raise WrongRows("no table")
    took = _ms(lambda: snapshot.checkpoint(drop_expired=True))
    (written,) = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    commit = Path(uri, "_delta_log", f"{0:020}.json").stat().st_size
    say(f"{files} files: a checkpoint in {took:.1f} ms, {written.stat().st_size} bytes")
    details = {"bytes": written.stat().st_size, "bytes of a file's line in the log": commit / files}
    return Case(f"checkpoint, {files:,} files", "ms", took, details=details)


def _tip(place: Place) -> Case:
    uri, rows = str(place.root / "table"), _rows(100)
    evolution = evolve(None, [rows.schema], Policy())
    file = write_data_file(uri, rows, STORE)
    Table(uri, STORE, Owner("bench", "t")).commit(None, evolution, [file], Txn(STREAM, 0))
    tip = Tip.of(0, rows.schema, Txn(STREAM, 0))
    while not tip.leads(uri, STORE):
        tip = tip.after(Txn(STREAM, tip.version + 1))
    if tip.version == 0 and not append_on_tip(uri, tip, [write_data_file(uri, rows, STORE)], Txn(STREAM, 1), STORE):
        raise WrongRows("no commit on the tip")
    commit = Path(uri, "_delta_log", f"{1:020}.json")
    details = {"bytes of a commit": commit.stat().st_size} if commit.exists() else {}
    return Case("what is known of a table of 16 columns", "bytes", float(len(pickle.dumps(tip))), details=details)


def _rows(count: int) -> pa.Table:
    return pa.table({f"column_{number}": range(count) for number in range(COLUMNS)})


def _ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)
