"""The figures of one stream, kept from what its ledger records and what Spark says of it. No library, no I/O.

Of many routes only the worst have series of their own (`metrics.routes`); the others are one, `(other)`. A counter
never falls: what a route brings while it has no series of its own is counted for `(other)` for good.
"""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributary.engine.batch import BatchReport
from distributary.metrics.metric_list import BY_NAME, NO_ROUTE, OTHER
from distributary.state.ledger import Entry, is_batch, totals
from distributary.state.refused import is_refused
from distributary.version import __version__

MICROS = 1e6
_IDLE = "Waiting for"
"""So begins what Spark says of a query that has nothing to do."""


@dataclass(frozen=True)
class Sample:
    """One value. `labels`: the metric's own, in its order."""

    name: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class _Route:
    """What is known of a route now. Times in seconds since 1970."""

    state: str = "ok"
    written_at: float | None = None
    newest: float | None = None
    merge_waits: bool = False
    quarantined: int = 0
    rows: int = 0

    def badness(self) -> tuple[bool, bool, int, int]:
        """The greater, the sooner it gets series of its own: parked, refused, bad rows, rows."""
        return self.state == "parked", self.state == "refused", self.quarantined, self.rows


class Board:
    """Called from the stream's threads and read from the servers'."""

    def __init__(self, shown: int, clock: Callable[[], float] = time.time) -> None:
        """`shown`: routes that have series of their own."""
        self._shown_routes = shown
        self._clock = clock
        self._lock = threading.Lock()
        self._routes: dict[str, _Route] = {}
        self._shown: set[str] = set()
        self._counters: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._gauges: dict[tuple[str, tuple[str, ...]], float] = {}
        self._kept: Counter[str] = Counter()
        self._outages = 0
        self._failed: str | None = None
        self._decided = False
        self._idle = False

    # -- what happens --------------------------------------------------------------------------------------

    def begin(self, entries: Iterable[Entry]) -> None:
        """What the ledger holds before the run: states and times, but no counts."""
        every = list(entries)
        with self._lock:
            decided = max((e.finished_at for e in every if e.route is None and is_batch(e.stream)), default=0)
            if decided:
                self._gauges["last_batch_timestamp_seconds", ()] = decided / MICROS
            written = {e.route: e.finished_at for e in every if e.rows_written > 0}
            for route, entry in totals(every).items():
                self._kept.update(entry.reasons)
                if route is not None:
                    board_route = _after(_Route(), entry)
                    written_at = written.get(route)
                    board_route = replace(board_route, written_at=None if written_at is None else written_at / MICROS)
                    self._routes[route] = replace(board_route, quarantined=0, rows=0)
            self._choose()

    def record(self, entries: Sequence[Entry]) -> None:
        """What the ledger has just recorded: a batch, a replay, merges."""
        with self._lock:
            for entry in entries:
                if entry.route is not None:
                    self._routes[entry.route] = _after(self._routes.get(entry.route, _Route()), entry)
            self._choose()
            for entry in entries:
                self._count(entry)

    def batch(self, report: BatchReport, *, has_ledger: bool = True) -> None:
        """A batch was decided. `has_ledger`: `record` is told of its rows; hop 1 has none, and knows no routes."""
        with self._lock:
            self._outages, self._decided = 0, True
            self._gauges["last_batch", ()] = report.batch
            self._gauges["last_batch_timestamp_seconds", ()] = self._clock()
            if report.already:
                return
            self._counters["batches", ()] += 1
            if not has_ledger:
                self._counters["rows_in", (NO_ROUTE,)] += report.rows_in
                self._counters["rows_written", (NO_ROUTE,)] += report.rows_written
            for phase, sec in report.seconds.items():
                self._counters["batch_seconds", (phase,)] += sec  # type: ignore[assignment]
                self._gauges["last_batch_seconds", (phase,)] = sec

    def outage(self, number: int) -> None:
        """So many outages came one after the other."""
        with self._lock:
            self._outages = number

    def failed(self, why: str) -> None:
        """The stream has ended with an error."""
        with self._lock:
            self._failed = why

    def spark(self, progress: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> None:
        """What Spark says of the query: `lastProgress` and `status`."""
        with self._lock:
            self._idle = status is not None and _is_idle(status)
            if status is not None:
                self._gauges["data_available", ()] = float(bool(status.get("isDataAvailable")))
            for name, labels, value in _of_spark(progress or {}):
                self._gauges[name, labels] = value

    # -- health --------------------------------------------------------------------------------------------

    @property
    def healthy(self) -> tuple[bool, str]:
        """Has the stream not failed? And in words."""
        with self._lock:
            return (self._failed is None, self._failed or "the stream runs")

    @property
    def ready(self) -> tuple[bool, str]:
        """Was a batch decided, or is there none to take? And in words."""
        with self._lock:
            if self._failed is not None:
                return False, self._failed
            if self._outages:
                return False, f"{self._outages} outages since the last batch"
            if self._decided:
                return True, "the stream decides its batches"
            return (True, "nothing is waiting at the source") if self._idle else (False, "no batch was decided yet")

    # -- figures -------------------------------------------------------------------------------------------

    def samples(self) -> list[Sample]:
        """All figures as they are now; each has a definition."""
        with self._lock:
            values = {**self._counters, **self._gauges}
            samples = [Sample(name, labels, float(value)) for (name, labels), value in values.items()]
            samples += [Sample(name, labels, value) for name, labels, value in self._now()]
        shown = {*self._shown, OTHER, NO_ROUTE}
        return [s for s in samples if "route" not in BY_NAME[s.name].labels or s.labels[0] in shown]

    def _now(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        yield "up", (), float(self._failed is None)
        yield "outages", (), float(self._outages)
        yield "build_info", (__version__,), 1.0
        yield "routes", (), float(len(self._routes))
        states = Counter({"ok": 0, "parked": 0, "refused": 0})
        states.update(route.state for route in self._routes.values())
        for state, number in states.items():
            yield "tables", (state,), float(number)
        yield "merges_waiting", (), float(sum(route.merge_waits for route in self._routes.values()))
        for reason, rows in self._kept.items():
            yield "quarantine_rows", (reason,), float(max(0, rows))
        for label, routes in self._groups():
            yield "table_parked", (label,), float(sum(route.state == "parked" for route in routes))
            for name, times in (
                ("last_write_timestamp_seconds", [r.written_at for r in routes if r.written_at is not None]),
                ("newest_record_timestamp_seconds", [r.newest for r in routes if r.newest is not None]),
            ):
                if times:
                    yield name, (label,), min(times)

    def _groups(self) -> Iterator[tuple[str, list[_Route]]]:
        others = [route for name, route in self._routes.items() if name not in self._shown]
        # A route may have the name that stands for the others.
        yield from ((name, [self._routes[name]]) for name in self._shown)
        if others:
            yield OTHER, others

    # -- counting ------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Which routes have series of their own: all, or the worst."""
        routes = (name for name in self._routes if name not in (OTHER, NO_ROUTE))
        if len(self._routes) <= self._shown_routes:
            self._shown = set(routes)
        else:
            worst = heapq.nlargest(self._shown_routes, routes, key=lambda name: self._routes[name].badness())
            self._shown = set(worst)

    def _label(self, route: str | None) -> str:
        if route is None:
            return NO_ROUTE
        return route if route in self._shown else OTHER

    def _count(self, entry: Entry) -> None:
        route = self._label(entry.route)
        self._kept.update(entry.reasons)
        for name, rows in (
            ("rows_in", entry.rows_in),
            ("rows_written", entry.rows_written),
            ("bytes_written", entry.bytes_written),
            ("tombstones", entry.tombstones),
        ):
            if rows > 0:
                self._counters[name, (route,)] += rows
        # A replay takes rows away again: the counter is of what was set aside.
        for reason, rows in entry.reasons.items():
            if rows > 0:
                self._counters["rows_quarantined", (route, reason)] += rows
        for change, rows in (("upsert", entry.upserts), ("delete", entry.deletes), ("stale", entry.stale)):
            if rows > 0:
                self._counters["merge_rows", (route, change)] += rows
        if entry.merge_state == "merged" and (entry.upserts or entry.deletes):
            self._counters["merges", ()] += 1
        columns = entry.evolved and not entry.created
        for change, happened in (("created", entry.created), ("columns", columns), ("types", bool(entry.widened))):
            if happened:
                self._counters["table_changes", (route, change)] += 1
        if entry.excluded:
            self._counters["rows_excluded", ()] += entry.excluded
        if entry.state == "written" and entry.rows_written > 0:
            self._counters["commits", (entry.engine,)] += 1


def _after(before: _Route, entry: Entry) -> _Route:
    """A route after one more entry of its own."""
    newest = [
        instant
        for instant in (before.newest, None if entry.newest is None else entry.newest / MICROS)
        if instant is not None
    ]
    return _Route(
        state=_state(before, entry),
        written_at=entry.finished_at / MICROS if entry.rows_written > 0 else before.written_at,
        newest=max(newest, default=None),
        merge_waits=before.merge_waits if entry.merge_state is None else entry.merge_state == "waiting",
        quarantined=before.quarantined + max(0, entry.rows_quarantined),
        rows=before.rows + entry.rows_in,
    )


def _state(before: _Route, entry: Entry) -> str:
    if entry.state == "parked":
        return "parked"
    if is_refused([entry]) and is_batch(entry.stream):
        return "refused"
    if entry.rows_in > 0 or entry.rows_written > 0:
        return "ok"
    # Nothing came for it: it is as it was, except that it is not parked any more.
    return "ok" if before.state == "parked" else before.state


# -- Spark's own figures -----------------------------------------------------------------------------------


def _is_idle(status: Mapping[str, Any]) -> bool:
    waits = str(status.get("message", "")).startswith(_IDLE)
    return waits and not status.get("isDataAvailable") and not status.get("isTriggerActive")


def _of_spark(progress: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """A query's progress, as Spark's `StreamingQueryProgress` has it in JSON."""
    for ours, theirs in (
        ("spark_input_rows_per_second", "inputRowsPerSecond"),
        ("spark_processed_rows_per_second", "processedRowsPerSecond"),
    ):
        value = progress.get(theirs)
        if isinstance(value, int | float) and value == value:
            yield ours, (), float(value)
    for phase, ms in (progress.get("durationMs") or {}).items():
        yield "spark_phase_seconds", (phase,), ms / 1000
    sources = progress.get("sources") or []
    rows = [behind for source in sources if (behind := _rows_behind(source)) is not None]
    if rows:
        yield "source_backlog_rows", (), float(sum(rows))
    for ours, theirs in (
        ("source_backlog_bytes", "numBytesOutstanding"),
        ("source_backlog_files", "numFilesOutstanding"),
    ):
        numbers = [
            value for source in sources if (value := _number((source.get("metrics") or {}).get(theirs))) is not None
        ]
        if numbers:
            yield ours, (), sum(numbers)


def _rows_behind(source: Mapping[str, Any]) -> int | None:
    """Of a source with offsets by topic and partition (Kafka): its newest less those of the batch."""
    read_offsets, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if read_offsets is None or newest is None:
        return None
    return sum(max(0, offset - read_offsets.get(partition, offset)) for partition, offset in newest.items())


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """`{"topic": {"0": 12}}`, as text or as it is; None where it is something else."""
    try:
        offsets = json.loads(value) if isinstance(value, str) else value
        return {(topic, number): int(offset) for topic, ats in offsets.items() for number, offset in ats.items()}
    except (ValueError, AttributeError, TypeError):
        return None


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
