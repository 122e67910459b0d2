"""How much memory the merge of a large backfill takes, and how much of it the worker keeps."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pyarrow.parquet as pq

from bench.backfills import backfilled, logged
from bench.measure import MIB
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
    "table's rows are counted."
)
PART = 500_000
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
    return Result(
        "merge_memory",
        NOTE,
        (
            Case(f"{label}, peak", "MiB", peak / MIB, goal=1024, goal_of="ours", details=details),
            Case(f"{label}, kept afterwards", "MiB", kept / MIB, goal=256, goal_of="ours"),
        ),
    )


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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    kept = own.memory_info().rss
    return peak - before, kept - before, time.monotonic() - began, time.process_time() - cpu
