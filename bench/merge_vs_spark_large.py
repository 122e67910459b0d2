"""Changes to one large merged table: our merge inside a task against Spark's MERGE with all cores."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from bench.measure import MIB, Meter
from bench.merges import MergedTables, Work, check_same, events, save, spark_merge_all
from bench.result import Case, Result
from bench.workload import SPARK_TUNED, Place, say, session

NOTE = (
    "Seconds to merge changes to random keys of one large table, median. Ours: engine `task`, one task. Other: Spark's "
    "MERGE, guarded by the same sequence, with all cores. Copy on write: both write the files anew, ours two at a "
    "time. Merge on read: ours with `tables.merge: merge_on_read`, Spark with `delta.enableDeletionVectors`: both mark "
    "the rows in deletion vectors. Memory: the peak of Spark's Python workers, in MiB; CPU: seconds of each side's "
    "rounds, of all processes. At the end both sides' tables are compared."
)
PART = 500_000
WAYS = {"copy on write": 3, "merge on read": 20}
"""And the ratio that each must reach."""


def run(place: Place) -> Result:
    rows, changes = place.size((5_000_000, 100_000), (20_000, 400))
    rounds = place.size(2, 1)
    spark = session(heap="4g", **SPARK_TUNED)
    base = _base(spark, place.root, rows)
    cases = []
    for way, goal in WAYS.items():
        folder = place.root / way.replace(" ", "_")
        ours, other = (str(shutil.copytree(base, folder / side)) for side in ("ours", "other"))
        if on_read := way == "merge on read":
            table = f"ALTER TABLE delta.`{other}`"
            spark.sql(f"{table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        case = _merged(spark, Work(ours, "", on_read), other, rows, changes, rounds)
        cases.append(Case(f"{way}: {changes:,} changes into {rows:,} rows", "s", goal=goal, **case))
        shutil.rmtree(folder)
    return Result("merge_vs_spark_large", NOTE, tuple(cases))


def _base(spark: SparkSession, root: Path, rows: int) -> Path:
    """The table before any change."""
    base, part = root / "base", min(PART, rows)
    merged = MergedTables(spark)
    for number in range(rows // part):
        ids = np.arange(number * part, (number + 1) * part)
        path = save(events(ids, number * part, number), root / "base.parquet")
        merged.merge([Work(str(base), path)], number)
    return base


def _merged(spark: SparkSession, ours: Work, other: str, rows: int, changes: int, rounds: int) -> dict[str, Any]:
    """Both sides' figures, as a case has them; the first round is to warm up."""
    merged = MergedTables(spark)
    seconds: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    memory = []
    for number in range(rounds + 1):
        ids = np.random.default_rng(number).choice(rows, changes, replace=False)
        path = save(events(ids, (number + 10) * 10**7, number), Path(ours.uri).with_name(f"changes-{number}.parquet"))
        with Meter() as mine:
            our_sec = merged.merge([replace(ours, changes=path)], number + 1000)
        with Meter() as theirs:
            other_sec = spark_merge_all(spark, [Work(other, path)], 1)
        say(f"ours {our_sec:.2f} s, other {other_sec:.2f} s")
        if number:
            for kept, pair in ((seconds, (our_sec, other_sec)), (cpu, (mine.usage.cpu_sec, theirs.usage.cpu_sec))):
                kept[0].append(pair[0])
                kept[1].append(pair[1])
            memory.append(mine.usage.workers / MIB)
    check_same([ours.uri], [other])
    details = {
        "all ours": seconds[0],
        "all other": seconds[1],
        "CPU ours": cpu[0],
        "CPU other": cpu[1],
        "peak of the workers, MiB": round(max(memory)),
    }
    return {"ours": median(seconds[0]), "other": median(seconds[1]), "details": details}
