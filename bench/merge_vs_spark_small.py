"""Changes to many small merged tables: our merge inside tasks against Spark's MERGE, a job per table."""

from __future__ import annotations

from statistics import median

import numpy as np

from bench.merges import MergedTables, Work, check_same, events, save, spark_merge_all
from bench.result import Case, Result
from bench.workload import SHUFFLE, SPARK_TUNED, Place, say, session

NOTE = (
    "Seconds to merge a batch of changes into each of the tables, median; tables exist, workers and JVM have merged "
    "before (Spark ends workers that idle for a minute, as ours do while the other sides run, so each round merges the "
    "same into tables that don't count first). Ours: one Spark job whose tasks read the changes from Parquet, reduce "
    "them to one per key and merge, and know what they left behind in the batch before. Other: Spark's MERGE, guarded "
    "by the same sequence, a job per table in 8 threads, from the same Parquet files, which hold one change per key "
    "already. At the end all sides' tables are compared."
)
THREADS = 8
PARTITIONS = {"Spark with 4 shuffle partitions": SPARK_TUNED[SHUFFLE], "Spark as shipped": "200"}
"""How the other side is set up; adaptive execution is on in both, as Spark is shipped."""
WARM_UP = "warm-up"


def run(place: Place) -> Result:
    tables, rows, changes = place.size((100, 10_000, 500), (3, 100, 10))
    rounds = place.size(2, 1)
    spark = session(**SPARK_TUNED)
    path = save(events(np.arange(rows), 0, 0), place.root / "base.parquet")
    uris = {side: [str(place.root / side / f"t{n}") for n in range(tables)] for side in (WARM_UP, "ours", *PARTITIONS)}
    seconds: dict[str, list[float]] = {side: [] for side in uris}
    merged = {side: MergedTables(spark) for side in uris}
    for side, kept in merged.items():
        kept.merge([Work(uri, path) for uri in uris[side]], 0)
    for number in range(1, rounds + 2):
        files = []
        for table in range(tables):
            ids = np.random.default_rng(number * tables + table).choice(rows, changes, replace=False)
            files.append(save(events(ids, number * 10**6, table), place.root / "changes" / f"{number}-{table}.parquet"))
        work = {side: [Work(*pair) for pair in zip(uris[side], files, strict=True)] for side in uris}
        found = {side: merged[side].merge(work[side], number) for side in (WARM_UP, "ours")}
        for side, partitions in PARTITIONS.items():
            spark.conf.set(SHUFFLE, partitions)
            found[side] = spark_merge_all(spark, work[side], THREADS)
        say(f"{tables} tables: " + ", ".join(f"{side} {sec:.2f} s" for side, sec in found.items()))
        if number > 1:
            for side, sec in found.items():
                seconds[side].append(sec)
    cases = []
    for side in PARTITIONS:
        check_same(uris["ours"], uris[side])
        label = f"{tables} tables of {rows:,} rows, {changes} changes each; {side}"
        details = {"all ours": seconds["ours"], "all other": seconds[side]}
        cases.append(Case(label, "s", median(seconds["ours"]), median(seconds[side]), goal=80, details=details))
    return Result("merge_vs_spark_small", NOTE, tuple(cases))
