"""A pipeline's real stream, held between two batches: what a batch costs from its trigger to the next one's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Queue
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

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
