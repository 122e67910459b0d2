"""Hop 2 in one driver: one stream over more and more routes, against a streaming query per route."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Queue
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from bench.measure import Meter, heap_of
from bench.result import Case, Result
from bench.stream import LONGEST_BATCH_SEC, HeldStream, Timed, written
from bench.workload import Place, Workload, WrongRows, check_games, in_child, say, session
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.running import hops
from distributary.running.hops import PerRoute

NOTE = (
    "Seconds of a warm round of hop 2, median of the rounds: every route gets 30 new rows of the bronze table that "
    "hop 1 has made, and all are in their tables. Ours: `hop.shape: fanout`, one stream. Other: our own "
    "`hop.shape: per_route`, a streaming query per route, all in one driver. Decoding, commits and ledger are the same "
    "code, so the difference is the shape. Streams run on, and are held while hop 1 fills bronze. Each case in a "
    "process of its own. Memory in MiB. The knee: so many queries in one driver before a route costs a quarter more "
    "than with fewer."
)
KNEE = 1.25
ALL_FILES = 100_000
"""So that a round is one batch: bronze has a file per route and round, and Delta's own limit is 1,000 files a batch."""
MANY = 1000
"""Routes from which on a round is long, and alike enough, for two of them."""


def run(place: Place) -> Result:
    rows = place.size(30, 20)
    both, one = place.size((10, 20, 40, 80), (3,)), place.size((300, 1000, 3000), (6,))
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for shape, counts in (("per_route", both), ("fanout", (*both, *one))):
        for routes in counts:
            part = place.part(f"{shape}-{routes}")
            rounds = place.size(3 if routes < MANY else 2, 1)
            found[shape, routes] = in_child(measure, part, shape, routes, rows, rounds)
            say(f"{shape}, {routes} routes: {found[shape, routes]['seconds']:.2f} s a round")
    knee = _knee({routes: found["per_route", routes]["seconds"] for routes in both})
    cases = [_case(routes, found, {"knee": f"{knee} queries"} if not n else {}) for n, routes in enumerate(both)]
    return Result("hop2_shapes", NOTE, (*cases, *(_case(routes, found, {}) for routes in one)))


def _knee(seconds: dict[int, float]) -> int:
    """The most queries at which a route costs at most a quarter more than at the cheapest size before it."""
    best, knee = float("inf"), min(seconds)
    for routes in sorted(seconds):
        each = seconds[routes] / routes
        if each > KNEE * best:
            break
        best, knee = min(best, each), routes
    return knee


def _case(routes: int, found: dict[tuple[str, int], dict[str, Any]], more: dict[str, Any]) -> Case:
    ours, other = found["fanout", routes], found.get(("per_route", routes))
    details = {**more, **{f"ours {key}": ours[key] for key in ("memory", "cpu s", "all")}}
    if other is not None:
        details |= {f"other {key}": other[key] for key in ("memory", "cpu s", "all")}
    seconds = None if other is None else other["seconds"]
    return Case(f"{routes} routes", "s", ours["seconds"], seconds, details=details)


def measure(place: Place, shape: str, routes: int, rows: int, rounds: int) -> dict[str, Any]:
    """One shape at one size, in this process."""
    work = Workload(place.root, routes)
    spark = session()
    keys = {"hop": {"shape": shape, "look_every": 3600.0}, "bronze": {"max_files_per_batch": ALL_FILES}}
    config = work.config("ours", work.delta_source(), layout="two_hop", **keys)
    bronze = _Bronze(work, config, rows)
    bronze.feed()
    held = HeldStream(spark, config) if shape == "fanout" else _HeldQueries(spark, config, routes)
    found = []
    with held as streams:
        for number in range(rounds + 1):
            timed = written(streams.batch(bronze.feed, Meter(heap=heap_of(spark))), routes * rows)
            if number:
                found.append((timed.wall_sec, timed.usage))
    check_games(config, rows * bronze.rounds, work.names)
    largest = max((usage for _, usage in found), key=lambda usage: usage.total)
    names = ("driver_mib", "jvm_mib", "workers_mib", "total_mib", "heap_used_mib")
    seconds = [wall for wall, _ in found]
    return {
        "seconds": median(seconds),
        "all": seconds,
        "cpu s": median(usage.cpu_sec for _, usage in found),
        "memory": {k: v for k, v in largest.memory_mib().items() if k in names},
    }


class _Bronze:
    """The bronze table, filled by hop 1 itself, a batch a round."""

    def __init__(self, work: Workload, config: Pipeline, rows: int) -> None:
        self.work, self.config, self.rows = work, config, rows
        self.rounds = 0

    def feed(self) -> None:
        self.work.feed_delta(self.rows, start=self.rounds * self.rows)
        hops.run(self.config, hops=(1,), once=True)
        self.rounds += 1


class _HeldQueries:
    """A query per route, each held after its batch until the next round. As `HeldStream`, for all of them."""

    def __init__(self, spark: SparkSession, config: Pipeline, routes: int) -> None:
        self.routes = routes
        self._reports: Queue[BatchReport | BaseException] = Queue()
        self._gates: dict[str, threading.Semaphore] = {}
        self._queries = PerRoute(config, spark, self._hold)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _HeldQueries:
        self._thread.start()
        self._round()
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self._gates.values():
            gate.release(1_000)
        self._queries.stop()
        self._thread.join(120)

    def batch(self, feed: Callable[[], None], meter: Meter) -> Timed:
        """Feed, let every query take one batch, and time it."""
        feed()
        with meter:
            began = time.monotonic()
            for gate in self._gates.values():
                gate.release()
            report = self._round()
            seconds = time.monotonic() - began
        return Timed(seconds, meter.usage, report)

    def _round(self) -> BatchReport:
        """The sum of one batch of each query."""
        total: BatchReport | None = None
        for _ in range(self.routes):
            report = self._reports.get(timeout=LONGEST_BATCH_SEC)
            if isinstance(report, BaseException):
                raise report
            if total is not None:
                kept = total.rows_quarantined + report.rows_quarantined
                rows = total.rows_written + report.rows_written
                report = replace(report, rows_written=rows, rows_quarantined=kept)
            total = report
        assert total is not None
        return total

    def _hold(self, report: BatchReport) -> None:
        gate = self._gates.setdefault(report.stream, threading.Semaphore(0))
        self._reports.put(report)
        gate.acquire()

    def _run(self) -> None:
        try:
            self._queries.go(once=False)
            ended: BaseException = WrongRows("the queries ended by themselves")
        except BaseException as e:
            ended = e
        self._reports.put(ended)
