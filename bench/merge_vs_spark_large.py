"""Changes to one large merged table: our merge inside a task against Spark's MERGE with all cores."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np

from bench.measure import MIB, Meter
from bench.merges import MergedTables, Work, check_same, events, save, spark_merge_all
from bench.result import Case, Result
from bench.workload import SPARK_TUNED, Place, say, session

NOTE = (
    "Seconds to merge changes to random keys of one large table, median. Ours: engine `task`, one task, which rewrites "
    "two files at a time. Other: Spark's MERGE, guarded by the same sequence, with all cores. Memory: the peak of "
    "Spark's Python workers, in MiB. At the end both sides' tables are compared."
)
PART = 500_000


def run(place: Place) -> Result:
    rows, changes = place.size((5_000_000, 100_000), (1_000, 100))
    rounds = place.size(3, 1)
    spark = session(heap="4g", **SPARK_TUNED)
    ours, other = str(place.root / "ours"), str(place.root / "other")
    part = min(PART, rows)
    merged = MergedTables(spark)
    for number in range(rows // part):
        ids = np.arange(number * part, (number + 1) * part)
        path = save(events(ids, number * part, number), place.root / "base.parquet")
        for kept, uri in ((merged, ours), (MergedTables(spark), other)):
            kept.merge([Work(uri, path)], number)
    Path(place.root / "base.parquet").unlink()
    seconds: tuple[list[float], list[float]] = ([], [])
    memory = []
    for number in range(rounds + 1):
        ids = np.random.default_rng(number).choice(rows, changes, replace=False)
        path = save(events(ids, (number + 10) * 10**7, number), place.root / f"changes-{number}.parquet")
        with Meter() as meter:
            mine = merged.merge([Work(ours, path)], number + 1000)
        theirs = spark_merge_all(spark, [Work(other, path)], 1)
        say(f"ours {mine:.2f} s, other {theirs:.2f} s")
        if number:
            seconds[0].append(mine)
            seconds[1].append(theirs)
            memory.append(meter.usage.workers / MIB)
    check_same([ours], [other])
    details = {"all ours": seconds[0], "all other": seconds[1], "peak of the workers, MiB": round(max(memory))}
    label = f"{changes:,} changes into {rows:,} rows"
    case = Case(label, "s", median(seconds[0]), median(seconds[1]), goal=3, details=details)
    return Result("merge_vs_spark_large", NOTE, (case,))
