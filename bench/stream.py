"""A pipeline's real stream, held between two batches: what a batch costs from its trigger to the next one's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Queue
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Meter, Usage
from bench.workload import WrongRows
from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.running.stream import Run

LONGEST_BATCH_SEC = 900.0


@dataclass(frozen=True)
class Timed:
    """One batch of a running stream.

    `wall_sec`: a whole cycle, from the moment the stream may go on (offsets of the batch before are committed, the
    trigger fires, the source is asked) until the batch is in its tables and in the ledger.
    """

    wall_sec: float
    usage: Usage
    report: BatchReport


class HeldStream:
    """Runs a pipeline whose stream waits after each batch, in the callback that reports it, until it is let go.

    with HeldStream(spark, config) as stream:    # the source must have rows for the first batch
        stream.batch(feed)                       # feed() makes the next batch's rows before the clock starts
    """

    def __init__(self, spark: SparkSession, config: Pipeline) -> None:
        self.run = Run(config, spark, self._hold)
        self._reports: Queue[tuple[float, BatchReport | BaseException]] = Queue()
        self._go = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.first = self._next()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The stream goes on by itself from here, finds nothing new, and ends.
        self._go.release(1_000)
        self.run.stop()
        self._thread.join(60)

    def batch(self, feed: Callable[[], None], meter: Meter | None = None) -> Timed:
        """Feed one batch and time it. Raises WrongRows when not exactly one batch came of it, or what ended the run."""
        feed()
        os.sync()  # the batch makes its own files last, and with them whatever the file system has not yet written
        meter = meter or Meter()
        with meter:
            began = time.monotonic()
            self._go.release()
            at, report = self._next()
        return Timed(at - began, meter.usage, report)

    def _next(self) -> tuple[float, BatchReport]:
        at, said = self._reports.get(timeout=LONGEST_BATCH_SEC)
        if isinstance(said, BaseException):
            raise said
        return at, said

    def _hold(self, report: BatchReport) -> None:
        self._reports.put((time.monotonic(), report))
        self._go.acquire()

    def _run(self) -> None:
        try:
            self.run.go(once=False)
            ended: BaseException = WrongRows("the stream ended by itself")
        except BaseException as e:
            ended = e
        self._reports.put((time.monotonic(), ended))


def written(timed: Timed, rows: int) -> Timed:
    """The same batch; raises WrongRows unless it wrote so many rows and kept none aside."""
    report = timed.report
    if report.rows_written != rows or report.rows_quarantined:
        raise WrongRows(f"{report.rows_written} rows written, {report.rows_quarantined} kept aside, not {rows} and 0")
    return timed


Held = Callable[[], None]
"""Called by a query at the end of its batch: returns when the next round begins."""


class HeldQueries:
    """Streaming queries, one for each name, each held after its batch until the next round. `start`: starts one."""

    def __init__(self, names: Iterable[str], start: Callable[[str, Held], StreamingQuery]) -> None:
        self._gates = {name: threading.Semaphore(0) for name in names}
        self._done = threading.Semaphore(0)
        self._queries = [start(name, partial(self._hold, name)) for name in self._gates]

    def round(self) -> float:
        """Let every query go on to its next batch; seconds until the last one has written it."""
        os.sync()
        began = time.monotonic()
        for gate in self._gates.values():
            gate.release()
        self.wait()
        return time.monotonic() - began

    def wait(self) -> None:
        """Until every query has written one more batch. Raises WrongRows."""
        began, waiting = time.monotonic(), len(self._gates)
        while waiting:
            if self._done.acquire(timeout=1.0):
                waiting -= 1
            for query in self._queries:
                if (failed := query.exception()) is not None:
                    raise WrongRows(f"a streaming query failed: {failed}")
            if time.monotonic() - began > LONGEST_BATCH_SEC:
                raise WrongRows(f"{waiting} queries did not end their round in {LONGEST_BATCH_SEC:.0f} s")

    def stop(self) -> None:
        for gate in self._gates.values():
            gate.release(1_000)
        for query in self._queries:
            query.stop()

    def _hold(self, name: str) -> None:
        self._done.release()
        self._gates[name].acquire()
