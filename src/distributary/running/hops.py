"""Both hops of `layout: two_hop` as one thing that runs and stops, and the shapes that hop 2 can have.

    source -> hop 1 (`bronze.ingest`) -> bronze -> hop 2: one fan-out stream, or a streaming query per route -> tables

Each stream has a checkpoint of its own, and bronze stands between the hops: whatever befalls one stream, the others
need not know. In the shape `per_route` a query that fails rests and starts again while the others go on (`supervisor`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.errors import BadInput, DistributaryError, Exit, Outage, SourceMissing, StreamsFailed, without_stack
from distributary.names import route_of
from distributary.running.bronze.ingest import Ingest
from distributary.running.bronze.table import HOP_1, open_bronze, route_keys
from distributary.running.pipeline import Progress, Run, RunReport, session_of
from distributary.running.pipeline import run as run_stream
from distributary.shares import Share
from distributary.sources.bronze_rows import UNROUTED
from distributary.state.cleaning import at_work
from distributary.state.layout import claim_layout
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary.supervisor.child import Child, Stream
from distributary.supervisor.pipeline_board import StateBoard
from distributary.supervisor.policy import Ending, RestartPolicy, is_lasting
from distributary.supervisor.supervise import Edges, Supervisor
from distributary.tables.store import Store

BOTH = (1, 2)


class Part(Protocol):
    """Something that runs in a thread of its own."""

    def go(self, once: bool) -> Any: ...

    def stop(self) -> None: ...


class TwoHop:
    """One run of both hops, or of one of them, in this process."""

    def __init__(self, config: Pipeline, spark: SparkSession, progress: Progress, hops: Collection[int] = BOTH) -> None:
        told = threading.Lock()

        def tell(report: BatchReport) -> None:
            with told:
                progress(report)

        self.config = config
        self.ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
        self.first = Ingest(config, spark, tell) if 1 in hops else None
        self.second: Run | PerRoute | None = None
        if 2 in hops:
            per_route = config.hop.shape == "per_route"
            self.second = PerRoute(config, spark, tell) if per_route else Run(config, spark, tell)
        self._stopping = threading.Event()

    @property
    def query(self) -> StreamingQuery | None:
        """Hop 1's, once it has begun."""
        return None if self.first is None else self.first.query

    def go(self, once: bool) -> RunReport:
        """Run to the end (`once`: hop 1 first, so that hop 2 finds all), or until `stop`. Raises as a hop does."""
        nothing = RunReport(self.config.pipeline, 0, 0, 0, 0, 0, ())
        once = once or self.config.trigger.mode == "once"
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
        for part in (self.first, self.second):
            if part is not None:
                part.stop()


def _together(first: Ingest, second: Run | PerRoute, stop: Callable[[], None]) -> RunReport:
    """Both at once. When one ends with an error, the other ends after its batch."""
    errors: list[BaseException] = []
    reports: list[RunReport] = []

    def work(part: Part, keep: Callable[[Any], None]) -> None:
        try:
            keep(part.go(once=False))
        except BaseException as e:
            errors.append(e)
            stop()

    one = threading.Thread(target=work, args=(first, lambda _: None), name="hop 1")
    two = threading.Thread(target=work, args=(second, reports.append), name="hop 2")
    for thread in (one, two):
        thread.start()
    for thread in (one, two):
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
) -> RunReport:
    """Run a pipeline of any layout. Of two hops, each has a lock of its own: they may run in two processes.

    Raises BadInput (layout declarative), AlreadyRunning, CleanUnfinished, CheckpointLost, StreamsFailed, and
    what a run of one stream raises.
    """
    if config.layout == "declarative":
        # Never by itself as another layout: that would write every row again.
        raise BadInput(detail=f"pipeline {config.pipeline} has layout declarative: distributary pipeline run FILE")
    if config.layout != "two_hop":
        return run_stream(config, once=once, progress=progress, handle=handle)
    store = Store.of(config.tables)
    with ExitStack() as held:
        if 1 in hops:
            held.enter_context(at_work(config, store, HOP_1))
        if 2 in hops:
            held.enter_context(at_work(config, store))
        running = TwoHop(config, session_of(config), progress, hops)
        handle(running)
        return running.go(once)


# -- a query per route ---------------------------------------------------------------------------------------


@dataclass
class _Query:
    """One route's streaming query in a thread, as a child of the supervisor."""

    run: Run
    once: bool
    slot: threading.Semaphore
    reports: list[BatchReport] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.run.progress = self._took(self.run.progress)
        self.result: RunReport | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._go, name=f"query of {self.run.config.route_key}", daemon=True)
        self._thread.start()

    def _took(self, progress: Progress) -> Progress:
        def took(report: BatchReport) -> None:
            self.reports.append(report)
            progress(report)

        return took

    def _go(self) -> None:
        try:
            if not self.once:
                self.result = self.run.go(once=False)
                return
            with self.slot:
                self.result = self.run.go(once=True)
        except BaseException as e:
            self.error = e

    def said(self) -> list[dict[str, Any]]:
        found = []
        while self.reports:
            found.append({"kind": "batch", **asdict(self.reports.pop(0))})
        return found

    def ending(self) -> Ending | None:
        if self._thread.is_alive():
            return None
        if self.error is None:
            parked = self.result is not None and self.result.parked
            return Ending(int(Exit.ATTENTION if parked else Exit.OK), reported=True)
        code, condition = Exit.ATTENTION, type(self.error).__name__
        if isinstance(self.error, DistributaryError):
            code, condition = self.error.exit_code, self.error.condition
        return Ending(int(code), without_stack(self.error)[:2000], condition, is_lasting(self.error))

    def terminate(self) -> None:
        threading.Thread(target=self.run.stop, name="stop", daemon=True).start()

    def kill(self) -> None:
        if self.run.query is not None:
            self.run.query.stop()


class PerRoute:
    """Hop 2 as a streaming query for each partition of bronze. New partitions get theirs while it runs."""

    def __init__(
        self, config: Pipeline, spark: SparkSession, progress: Progress, policy: RestartPolicy | None = None
    ) -> None:
        self.config = config
        self.spark = spark
        self.progress = progress
        self.store = Store.of(config.tables)
        self.policy = policy
        self.queries: dict[str, _Query] = {}
        self._done: list[_Query] = []
        self._slots = threading.BoundedSemaphore(config.hop.at_once)
        self._stopping = threading.Event()
        self._supervisor: Supervisor | None = None

    def go(self, once: bool) -> RunReport:
        """Run the queries to their end (`once`), or until `stop`.

        Raises StreamsFailed when a query was left failing, or the outage that befell all of them.
        """
        claim_layout(self.config, self.store)
        policy = RestartPolicy(tries=0, probe_sec=None) if once else self.policy or RestartPolicy(first_rest_sec=1.0)
        edges = Edges(launch=lambda stream: self._launch(stream, once))
        board = StateBoard(self.config.state_root, self.store)
        supervisor = Supervisor([], board, policy, edges, open_ended=not once)
        self._supervisor = supervisor
        with only_run(self.config.state_root, self.config.pipeline, "supervisor"):
            for stream in self._new():
                supervisor.add(stream)
            if self._stopping.is_set():
                supervisor.stop()
            looking = threading.Thread(target=self._look, args=(supervisor,), name="new routes", daemon=True)
            if not once:
                looking.start()
            supervisor.run()
        return self._report(supervisor)

    def stop(self) -> None:
        """End all queries after the batches that are being written."""
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.stop()

    def _launch(self, stream: Stream, once: bool) -> Child:
        if (before := self.queries.get(stream.name)) is not None:
            self._done.append(before)
        run = Run(self.config.for_route_key(stream.name), self.spark, self.progress)
        self.queries[stream.name] = _Query(run, once, self._slots)
        return self.queries[stream.name]

    def _new(self) -> Iterator[Stream]:
        """Streams for partitions that have none yet. Raises SourceMissing."""
        table = open_bronze(self.config, self.store)
        if table is None:
            what = "bronze table yet. Hop 1 makes it: distributary run FILE, or run FILE --hop 1"
            raise SourceMissing(source=self.config.bronze_path, what=what)
        share, known = self.config.share, set(self.queries)
        for key in route_keys(table):
            if key not in known and (share is None or _owns(share, key)):
                yield Stream(key, (), Path("-"))

    def _look(self, supervisor: Supervisor) -> None:
        while not self._stopping.wait(self.config.hop.look_every):
            try:
                found = list(self._new())
            except (DistributaryError, OSError):
                continue  # the store is away: looked for again
            known = {record.name for record in supervisor.records}
            for stream in found:
                if stream.name not in known:
                    supervisor.add(stream)

    def _report(self, supervisor: Supervisor) -> RunReport:
        total = RunReport(self.config.pipeline, 0, 0, 0, 0, 0, ())
        for query in [*self._done, *self.queries.values()]:
            found = query.run.report
            total = replace(
                total,
                batches=total.batches + found.batches,
                rows_in=total.rows_in + found.rows_in,
                rows_written=total.rows_written + found.rows_written,
                rows_quarantined=total.rows_quarantined + found.rows_quarantined,
                tombstones=total.tombstones + found.tombstones,
                already=total.already + found.already,
            )
        results = [q.result for q in self.queries.values() if q.result is not None]
        failed = {key: q.error for key, q in self.queries.items() if q.error is not None}
        outages = [e for e in failed.values() if isinstance(e, Outage)]
        if outages and len(outages) == len(failed) == len(self.queries):
            raise outages[0]
        if failed:
            first = sorted(failed)[0]
            about = {"count": len(failed), "of": len(self.queries), "first": first, "detail": failed[first]}
            raise StreamsFailed(pipeline=self.config.pipeline, **about)
        return replace(total, parked=tuple(sorted({route for r in results for route in r.parked})))


def _owns(share: Share, key: str) -> bool:
    """A name that was cut does not give its route back: all shares agree to go by the name itself."""
    return share.owns(None) if key == UNROUTED else share.owns(route_of(key) or key)
