"""A Spark job of two Python tasks that do nothing: what Spark and the way to its workers cost."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, in_child, say
from distributary.spark.session import build_session

NOTE = (
    "Milliseconds of a job of two tasks that give their few rows back, median of the last two thirds. Ours: workers "
    "that acknowledge what they read at once (`pyspark_distributary.worker`). Other: Spark's own, "
    "in a session of its own, with the same modules loaded and kept from Python's search for garbage. "
    "What bounds it: Spark's planning and scheduling, in the JVM."
)
MODULES = {"ours": "pyspark_distributary.worker", "other": "pyspark.worker"}


def run(place: Place) -> Result:
    times = place.size(90, 3)
    took = {side: in_child(measure, module, times) for side, module in MODULES.items()}
    cases = []
    for label in took["ours"]:
        ours, other = (took[side][label] for side in MODULES)
        say(f"{label}: {ours:.0f} and {other:.0f} ms")
        cases.append(Case(label, "ms", ours, other))
    return Result("python_tasks", NOTE, tuple(cases))


def measure(module: str, times: int) -> dict[str, float]:
    """Milliseconds of each kind of job, with workers of `module`."""
    spark = build_session("distributary bench", master="local[2]", conf={"spark.python.worker.module": module})
    frame = spark.range(0, 200, 1, 2).mapInArrow(_same_batches, "id long")
    rows = spark.sparkContext.parallelize(range(2), 2).mapPartitions(_sum)
    found = {
        "`mapInArrow`, collected": _median(frame.toArrow, times),
        "an RDD's `mapPartitions`, collected": _median(rows.collect, times),
    }
    spark.stop()
    return found


def _median(job: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        job()
        took.append(1000 * (time.perf_counter() - began))
    return median(took[times // 3 :])


def _same_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _as_in_a_batch()
    yield from batches


def _sum(rows: Iterable[int]) -> Iterator[int]:
    _as_in_a_batch()
    yield sum(rows)


def _as_in_a_batch() -> None:
    import pyspark_distributary  # noqa: F401

    gc.freeze()
