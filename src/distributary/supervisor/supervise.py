"""The loop that keeps streams running. One thread; every stream is a process, so none can hold up another."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from distributary.backoff import any_chance
from distributary.errors import Exit
from distributary.state.streams import StreamRecord, StreamState
from distributary.supervisor.child import Child, Process, SupervisedStream
from distributary.supervisor.policy import (
    Ending,
    RestartPolicy,
    ended,
    is_due,
    is_over,
    is_well,
    progressed,
    requested,
    started,
    stopped,
)

log = logging.getLogger(__name__)

TICK_SEC = 0.2
WRITE_SEC = 5.0
"""So often the board is written though nothing but numbers has changed."""


class StreamBoard(Protocol):
    """Where others see the streams and ask for a new start of one."""

    def show(self, records: Sequence[StreamRecord]) -> None: ...

    def requests(self) -> set[str]: ...


@dataclass(frozen=True)
class StreamChange:
    """A stream's record before and after something happened to it."""

    before: StreamRecord
    after: StreamRecord


@dataclass
class Edges:
    """What reaches out of the loop; tests put their own in. `now`: seconds since 1970. `chance`: from 0 to 1."""

    launch: Callable[[SupervisedStream], Child] = Process
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = any_chance
    pause: Callable[[float], None] | None = None
    changed: Callable[[StreamChange], None] = lambda _: None
    batch: Callable[[str, Mapping[str, Any]], None] = lambda *_: None


@dataclass
class _Supervised:
    stream: SupervisedStream
    record: StreamRecord
    child: Child | None = None


@dataclass
class Supervisor:
    """Runs `streams` until each is over, or until `stop`."""

    streams: Sequence[SupervisedStream]
    board: StreamBoard
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    edges: Edges = field(default_factory=Edges)

    def __post_init__(self) -> None:
        self._all = [_Supervised(stream, StreamRecord(stream.name, log=str(stream.log))) for stream in self.streams]
        self._stopping = threading.Event()
        self._kill = False
        self._shown_at = 0.0
        self._shown: list[StreamRecord] = []

    @property
    def stopping(self) -> bool:
        """Has somebody asked it to stop?"""
        return self._stopping.is_set()

    @property
    def records(self) -> list[StreamRecord]:
        return [supervised.record for supervised in self._all]

    def run(self) -> Exit:
        """Returns OK when every stream ended well or was stopped while well, ATTENTION otherwise."""
        try:
            while not self._stopping.is_set() and not self._is_over():
                self.tick()
                self._pause(TICK_SEC)
        finally:
            self._end_all()
            self._show(force=True)
        return Exit.OK if all(is_well(record) for record in self.records) else Exit.ATTENTION

    def stop(self) -> None:
        """End all streams with a grace. Safe in a signal handler. A second call ends them at once."""
        self._kill = self._stopping.is_set()
        self._stopping.set()

    def _is_over(self) -> bool:
        return all(is_over(supervised.record) for supervised in self._all)

    def tick(self) -> None:
        """Look at every stream once."""
        now = self.edges.now()
        asked_for = self._requests()
        for supervised in self._all:
            if supervised.record.name in asked_for:
                self._set(supervised, requested(supervised.record, now))
            if supervised.child is None and is_due(supervised.record, now):
                self._start(supervised, now)
            elif supervised.child is not None:
                self._look(supervised, supervised.child, now)
        self._show()

    def _start(self, supervised: _Supervised, now: float) -> None:
        try:
            supervised.child = self.edges.launch(supervised.stream)
        except OSError as e:
            self._set(
                supervised,
                self._ended(supervised.record, Ending(int(Exit.ENVIRONMENT), f"it could not be started: {e}"), now),
            )
            return
        self._set(supervised, started(supervised.record, supervised.child.pid, now))

    def _look(self, supervised: _Supervised, child: Child, now: float) -> None:
        # First whether it has ended: what it said before is then all there.
        ending = child.ending()
        for line in child.said():
            if line.get("kind") == "batch":
                self._set(supervised, progressed(supervised.record, line, now))
                self._tell(self.edges.batch, supervised.record.name, line)
        if ending is not None:
            supervised.child = None
            self._set(supervised, self._ended(supervised.record, ending, now))

    def _ended(self, record: StreamRecord, ending: Ending, now: float) -> StreamRecord:
        return ended(record, ending, now, self.policy, self.edges.chance())

    # -- the end -------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Ask all to stop in the same moment, wait for them together, end what is still there."""
        begun = self.edges.now()
        for supervised in self._all:
            if supervised.child is not None:
                supervised.child.terminate()
        while any(supervised.child is not None for supervised in self._all):
            now = self.edges.now()
            late = self._kill or now >= begun + self.policy.grace_sec
            for supervised in self._all:
                if supervised.child is not None:
                    self._see_off(supervised, supervised.child, now, late)
            self._pause(TICK_SEC)
        for supervised in self._all:
            if supervised.record.state == StreamState.WAITING:
                self._set(supervised, stopped(supervised.record, 0, self.edges.now()))

    def _see_off(self, supervised: _Supervised, child: Child, now: float, late: bool) -> None:
        if late:
            child.kill()
        if (ending := child.ending()) is None:
            return
        for line in child.said():
            if line.get("kind") == "batch":
                self._set(supervised, progressed(supervised.record, line, now))
        supervised.child = None
        record = stopped(supervised.record, ending.code, now)
        self._set(supervised, replace(record, error=ending.error) if ending.error else record)

    # -- others --------------------------------------------------------------------------------------------

    def _set(self, supervised: _Supervised, record: StreamRecord) -> None:
        change = StreamChange(supervised.record, record)
        supervised.record = record
        if change.before.state != record.state or change.before.failures != record.failures:
            self._tell(self.edges.changed, change)

    def _tell(self, listener: Callable[..., None], *arguments: Any) -> None:
        """A listener's fault is no stream's fault."""
        try:
            listener(*arguments)
        except Exception as e:
            log.warning("a listener of the supervisor failed: %s: %s", type(e).__name__, e)

    def _requests(self) -> set[str]:
        try:
            return self.board.requests()
        except Exception as e:
            log.warning("requests cannot be read: %s: %s", type(e).__name__, e)
            return set()

    def _show(self, force: bool = False) -> None:
        records, now = self.records, self.edges.now()
        news = [(r.state, r.failures, r.pid) for r in records] != [(r.state, r.failures, r.pid) for r in self._shown]
        if not (force or news or (records != self._shown and now >= self._shown_at + WRITE_SEC)):
            return
        self._shown, self._shown_at = records, now
        try:
            self.board.show(records)
        except Exception as e:
            log.warning("the state of the streams cannot be written: %s: %s", type(e).__name__, e)

    def _pause(self, seconds: float) -> None:
        if self.edges.pause is not None:
            self.edges.pause(seconds)
        elif self._stopping.is_set():
            time.sleep(seconds)
        else:
            self._stopping.wait(seconds)
