"""The loop that keeps streams running. One thread; every stream is a process, so none can hold up another."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from distributary.errors import Exit
from distributary.state.streams import StreamRecord, StreamState
from distributary.supervisor.child import Child, Process, Stream
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


class Board(Protocol):
    """Where others see the streams and ask for a new start of one."""

    def show(self, records: Sequence[StreamRecord]) -> None: ...

    def requests(self) -> set[str]: ...


@dataclass(frozen=True)
class Change:
    """A stream's record before and after something happened to it."""

    before: StreamRecord
    after: StreamRecord


@dataclass
class Edges:
    """What reaches out of the loop; tests put their own in. `now`: seconds since 1970. `chance`: from 0 to 1."""

    launch: Callable[[Stream], Child] = Process
    now: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    pause: Callable[[float], None] | None = None
    changed: Callable[[Change], None] = lambda _: None
    batch: Callable[[str, Mapping[str, Any]], None] = lambda *_: None


@dataclass
class _Supervised:
    stream: Stream
    record: StreamRecord
    child: Child | None = None


@dataclass
class Supervisor:
    """Runs `streams` until each is over, or until `stop`."""

    streams: Sequence[Stream]
    board: Board
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
        return [one.record for one in self._all]

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
        return all(is_over(one.record) for one in self._all)

    def tick(self) -> None:
        """Look at every stream once."""
        now = self.edges.now()
        asked = self._requests()
        for one in self._all:
            if one.record.name in asked:
                self._set(one, requested(one.record, now))
            if one.child is None and is_due(one.record, now):
                self._start(one, now)
            elif one.child is not None:
                self._look(one, one.child, now)
        self._show()

    def _start(self, one: _Supervised, now: float) -> None:
        try:
            one.child = self.edges.launch(one.stream)
        except OSError as e:
            self._set(one, self._ended(one.record, Ending(int(Exit.ENVIRONMENT), f"it could not be started: {e}"), now))
            return
        self._set(one, started(one.record, one.child.pid, now))

    def _look(self, one: _Supervised, child: Child, now: float) -> None:
        # First whether it has ended: what it said before is then all there.
        ending = child.ending()
        for line in child.said():
            if line.get("kind") == "batch":
                self._set(one, progressed(one.record, line, now))
                self._tell(self.edges.batch, one.record.name, line)
        if ending is not None:
            one.child = None
            self._set(one, self._ended(one.record, ending, now))

    def _ended(self, record: StreamRecord, ending: Ending, now: float) -> StreamRecord:
        return ended(record, ending, now, self.policy, self.edges.chance())

    # -- the end -------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Ask all to stop in the same moment, wait for them together, end what is still there."""
        begun = self.edges.now()
        for one in self._all:
            if one.child is not None:
                one.child.terminate()
        while any(one.child is not None for one in self._all):
            now = self.edges.now()
            late = self._kill or now >= begun + self.policy.grace_sec
            for one in self._all:
                if one.child is not None:
                    self._see_off(one, one.child, now, late)
            self._pause(TICK_SEC)
        for one in self._all:
            if one.record.state == StreamState.WAITING:
                self._set(one, stopped(one.record, 0, self.edges.now()))

    def _see_off(self, one: _Supervised, child: Child, now: float, late: bool) -> None:
        if late:
            child.kill()
        if (ending := child.ending()) is None:
            return
        for line in child.said():
            if line.get("kind") == "batch":
                self._set(one, progressed(one.record, line, now))
        one.child = None
        record = stopped(one.record, ending.code, now)
        self._set(one, replace(record, error=ending.error) if ending.error else record)

    # -- others --------------------------------------------------------------------------------------------

    def _set(self, one: _Supervised, record: StreamRecord) -> None:
        change = Change(one.record, record)
        one.record = record
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
