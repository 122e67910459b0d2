"""How much memory large merges take: of a backfill, and of changes all over a large table."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from bench.backfills import backfilled, logged
from bench.measure import MIB, peak_memory
from bench.merges import Work, events, merge_one, save
from bench.result import Case, Result
from bench.workload import Place, WrongRows, count, in_child, say
from distributary.changes.model import Kind, SourceTable
from distributary.config.writing import Tables
from distributary.engine.changes.key_columns import key_types
from distributary.engine.changes.merging import MergeWork, merge_files
from distributary.engine.changes.table_settings import Named
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.spark.session import WORKER_ENV
from distributary.tables.datafile import DataFile, write_data_file
from distributary.tables.store import Store

NOTE = (
    "One backfill of a narrow table of four columns, merged out of its log, as a worker of Spark's does it, with the "
    "same settings of its memory. Over what the process has when it has imported all. At the end the merged "
    "table's rows are counted. Then changes to random keys of a table of ten columns, one row in a hundred, in one "
    "process each: ours by `merge_on_read`, other by `copy_on_write`, which writes the whole table anew."
)
PART = 500_000
LARGE = ((2_000_000, 20_000_000), (20_000,))
"""Rows of the tables into which changes are merged: memory should not depend on them."""
SOURCE = SourceTable(Kind.MYSQL, "shop", "", "orders")


def run(place: Place) -> Result:
    rows = place.size(10_000_000, 20_000)
    log = str(place.root / "orders_log")
    # Only its files: no stream is behind it.
    files = [_log_file(log, begin, min(begin + PART, rows)) for begin in range(0, rows, PART)]
    size = sum(file.size for file in files)
    say(f"log of {size / MIB:.0f} MiB")
    # A process reads it as it begins.
    with patch.dict(os.environ, WORKER_ENV):
        peak, kept, seconds, cpu = in_child(merge_all, str(place.root), [f.path for f in files])
    if count(str(place.root / "orders")) != rows:
        raise WrongRows("the merged table lacks rows")
    merged = sum(path.stat().st_size for path in (place.root / "orders").glob("*.parquet"))
    details = {"log, MiB": round(size / MIB), "table, MiB": round(merged / MIB), "s": seconds, "s of CPU": cpu}
    label = f"merge of {rows:,} rows"
    cases = [
        Case(f"{label}, peak", "MiB", peak / MIB, goal=1024, goal_of="ours", details=details),
        Case(f"{label}, kept afterwards", "MiB", kept / MIB, goal=256, goal_of="ours"),
    ]
    cases += [_scattered(place.part(f"scattered-{rows}").root, rows) for rows in place.size(*LARGE)]
    return Result("merge_memory", NOTE, tuple(cases))


def _scattered(root: Path, rows: int) -> Case:
    """Changes all over a table: first all its files are written anew, then rows of them are marked."""
    uri, part, changes = str(root / "t"), min(PART, rows), rows // 100
    block = events(np.arange(part), 0, 0)
    for number in range(rows // part):
        ids = pa.array(np.arange(number * part, (number + 1) * part))
        merge_one(Work(uri, save(block.set_column(0, "id", ids), root / "base.parquet")), number, None)
    say(f"a table of {rows:,} rows")
    found = {}
    for number, on_read in enumerate((False, True)):
        ids = np.random.default_rng(number).choice(rows, changes, replace=False)
        path = save(events(ids, (number + 1) * 10**9, number), root / "changes.parquet")
        with patch.dict(os.environ, WORKER_ENV):
            found[on_read] = in_child(merge_apart, Work(uri, path, on_read), number + 1000)
        say(f"on read {on_read}: {found[on_read]}")
    if count_living(uri) != rows:
        raise WrongRows("the merged table has other rows")
    ours, other = found[True], found[False]
    details = {"s": ours[1], "s of CPU": ours[2], "s, other": other[1], "s of CPU, other": other[2]}
    label = f"{changes:,} changes into {rows:,} rows, peak"
    return Case(label, "MiB", ours[0] / MIB, other[0] / MIB, goal=1024, goal_of="ours", details=details)


def merge_apart(work: Work, batch: int) -> tuple[int, float, float]:
    """Bytes of memory at the peak; seconds, and of CPU."""
    own = psutil.Process()
    before, began, cpu = own.memory_info().rss, time.monotonic(), time.process_time()
    merge_one(work, batch, None)
    peak = peak_memory()
    return peak - before, time.monotonic() - began, time.process_time() - cpu


def count_living(uri: str) -> int:
    rows = QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT count(*) AS n FROM t").read_all()
    return int(pa.table(rows)["n"][0].as_py())


def _log_file(log: str, begin: int, end: int) -> DataFile:
    return write_data_file(log, logged(backfilled(np.arange(begin, end), begin), f"{begin}.avro", 0), Store())


def merge_all(root: str, files: list[str]) -> tuple[int, int, float, float]:
    """Bytes of memory at the peak, and kept; seconds, and of CPU."""
    tables = Tables(root=root, log="{table}_log", merged="{table}")
    spec = ChangeSpec(
        pipeline="bench",
        stream="bench",
        batch=0,
        store=Store(),
        quarantine=f"{root}/quarantine",
        named=Named(tables),
        parts=f"{root}/parts",
    )
    columns = pq.read_schema(Path(root) / "orders_log" / files[0])
    work = MergeWork(
        SOURCE,
        ("id",),
        f"{root}/orders_log",
        tuple(files),
        0,
        key_types=key_types(columns, ("id",)),
    )
    own = psutil.Process()
    before, began, cpu = own.memory_info().rss, time.monotonic(), time.process_time()
    outcome = merge_files(work, spec)
    if outcome.merge is None or outcome.merge.state != "merged":
        raise WrongRows(f"{outcome}")
    peak = peak_memory()
    kept = own.memory_info().rss
    return peak - before, kept - before, time.monotonic() - began, time.process_time() - cpu
