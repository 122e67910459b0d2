"""Changes to many small merged tables: our merge inside tasks against Spark's MERGE, a job per table."""

from __future__ import annotations

from statistics import median

import numpy as np

from bench.merges import MergedTables, Work, check_same, events, save, spark_merge_all
from bench.result import Case, Result
from bench.workload import SPARK_TUNED, Place, say, session

NOTE = (
    "Seconds to merge a batch of changes into each of the tables, median; tables exist, workers are there and the JVM "
    "has merged before. Ours: one Spark job whose tasks read the changes from Parquet, reduce them to one per key and "
    "merge, and know what they left behind in the batch before. "
    "Other: Spark's MERGE, guarded by the same sequence, a job per table in 8 threads, from the same Parquet files, "
    "which hold one change per key already. At the end both sides' tables are compared."
)
THREADS = 8


def run(place: Place) -> Result:
    tables, rows, changes = place.size((100, 10_000, 500), (3, 100, 10))
    rounds = place.size(2, 1)
    spark = session(**SPARK_TUNED)
    base = events(np.arange(rows), 0, 0)
    path = save(base, place.root / "base.parquet")
    ours = [str(place.root / "ours" / f"t{n}") for n in range(tables)]
    other = [str(place.root / "other" / f"t{n}") for n in range(tables)]
    merged = MergedTables(spark)
    for kept, uris in ((merged, ours), (MergedTables(spark), other)):
        kept.merge([Work(uri, path) for uri in uris], 0)
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(1, rounds + 2):
        files = []
        for table in range(tables):
            ids = np.random.default_rng(number * tables + table).choice(rows, changes, replace=False)
            files.append(save(events(ids, number * 10**6, table), place.root / "changes" / f"{number}-{table}.parquet"))
        mine = merged.merge([Work(*pair) for pair in zip(ours, files, strict=True)], number)
        theirs = spark_merge_all(spark, [Work(*pair) for pair in zip(other, files, strict=True)], THREADS)
        say(f"{tables} tables: ours {mine:.2f} s, other {theirs:.2f} s")
        if number > 1:
            seconds[0].append(mine)
            seconds[1].append(theirs)
    check_same(ours, other)
    label = f"{tables} tables of {rows:,} rows, {changes} changes each"
    details = {"all ours": seconds[0], "all other": seconds[1]}
    case = Case(label, "s", median(seconds[0]), median(seconds[1]), goal=60, details=details)
    return Result("merge_vs_spark_small", NOTE, (case,))
