"""Both hops of `layout: two_hop` as one thing that runs and stops.

    source -> hop 1 (`bronze.ingest`) -> bronze -> hop 2, a fan-out of one stream or of shares -> tables

Each stream has a checkpoint of its own, and bronze stands between the hops: whatever befalls one stream, the others
need not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.errors import BadInput
from distributary.running.bronze.bronze_table import HOP_1
from distributary.running.bronze.ingest import Ingest
from distributary.running.report import RunReport
from distributary.running.short_runs import is_short
from distributary.running.stream import Progress, Run, session_of
from distributary.running.stream import run as run_stream
from distributary.state.cleaning import at_work
from distributary.state.ledger import Ledger
from distributary.tables.store import Store

BOTH = (1, 2)


class HopThread(Protocol):
    """Something that runs in a thread of its own."""

    def go(self, once: bool) -> Any: ...

    def stop(self) -> None: ...


class TwoHop:
    """One run of both hops, or of one of them, in this process."""

    def __init__(
        self,
        config: Pipeline,
        spark: SparkSession,
        progress: Progress,
        hops: Collection[int] = BOTH,
        *,
        force: bool = False,
    ) -> None:
        progress_lock = threading.Lock()

        def tell(report: BatchReport) -> None:
            with progress_lock:
                progress(report)

        self.config = config
        self.ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
        self.first = Ingest(config, spark, tell) if 1 in hops else None
        self.second = Run(config, spark, tell, force=force) if 2 in hops else None
        self._stopping = threading.Event()

    @property
    def query(self) -> StreamingQuery | None:
        """Hop 1's, once it has begun."""
        return None if self.first is None else self.first.query

    def go(self, once: bool) -> RunReport:
        """Run to the end (`once`: hop 1 first, so that hop 2 finds all), or until `stop`. Raises as a hop does."""
        nothing = RunReport(self.config.pipeline, 0, 0, 0, 0, 0, ())
        once = self.config.trigger.ends(once)
        if self.first is not None:
            self.first.begin()
        if self.first is not None and self.second is not None and not once:
            return _together(self.first, self.second, self.stop)
        if self.first is not None:
            self.first.go(once)
        if self.second is None or self._stopping.is_set():
            return nothing
        return self.second.go(once)

    def stop(self) -> None:
        """End both after the batches that are being written. From any thread but a batch's."""
        self._stopping.set()
        for hop in (self.first, self.second):
            if hop is not None:
                hop.stop()


def _together(first: Ingest, second: Run, stop: Callable[[], None]) -> RunReport:
    """Both at once. When one ends with an error, the other ends after its batch."""
    errors: list[BaseException] = []
    reports: list[RunReport] = []

    def work(hop: HopThread, keep: Callable[[Any], None]) -> None:
        try:
            keep(hop.go(once=False))
        except BaseException as e:
            errors.append(e)
            stop()

    first_thread = threading.Thread(target=work, args=(first, lambda _: None), name="hop 1")
    second_thread = threading.Thread(target=work, args=(second, reports.append), name="hop 2")
    for thread in (first_thread, second_thread):
        thread.start()
    for thread in (first_thread, second_thread):
        thread.join()
    if errors:
        raise errors[0]
    return reports[0]


def run(
    config: Pipeline,
    *,
    hops: Collection[int] = BOTH,
    once: bool = False,
    progress: Progress = lambda _: None,
    handle: Callable[[TwoHop | Run], None] = lambda _: None,
    force: bool = False,
    alone: bool = False,
) -> RunReport:
    """Run a pipeline of any layout. Of two hops, each has a lock of its own: they may run in two processes. `force`:
    take a first batch also where no record of it can be read. `alone`: as of a run of one stream.

    Raises BadInput (layout declarative), AlreadyRunning, CleanUnfinished, CheckpointLost, and what a
    run of one stream raises.
    """
    if config.is_declarative:
        # Never by itself as another layout: that would write every row again.
        raise BadInput(detail=f"pipeline {config.pipeline} has layout declarative: distributary pipeline run FILE")
    if config.bronze_table is None:
        return run_stream(config, once=once, progress=progress, handle=handle, force=force, alone=alone)
    store = Store.of(config.tables)
    with ExitStack() as locks:
        if 1 in hops:
            locks.enter_context(at_work(config, store, HOP_1))
        if 2 in hops:
            locks.enter_context(at_work(config, store))
        spark = session_of(config, short_lived=alone and is_short(config, once))
        running = TwoHop(config, spark, progress, hops, force=force)
        handle(running)
        return running.go(once)
