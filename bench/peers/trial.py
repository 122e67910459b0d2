"""What each peer goes through: loads, a steady trickle, kills, and three things that its tables do not know yet."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psutil

from bench.measure import MIB, Meter
from bench.peers.lakes import Lake
from bench.peers.peer import Job, Peer, Running
from bench.peers.records import Feed
from bench.workload import say

LOOK_SEC = 0.2
SAMPLE_SEC = 0.25
SETTLE_SEC = 3.0
"""Until what was on its way has come too, as the books of a batch whose rows are visible."""
NEW = "brandnew"
"""A kind that no peer was told of."""


@dataclass(frozen=True)
class Size:
    """`load`: records of a load. `few`: of what is new. `patience`, `short`: seconds that are waited for rows."""

    kinds: int = 20
    load: int = 20_000
    rate: int = 200
    steady_sec: float = 15.0
    kills: int = 2
    few: int = 20
    patience: float = 300.0
    short: float = 40.0


QUICK = Size(kinds=3, load=90, rate=30, steady_sec=1.0, kills=1, few=3, patience=120.0, short=30.0)


class Ended(Exception):
    """A peer's process ended, or its rows did not come, where it should have worked."""


class Watch:
    """How many rows of the kinds are visible in the tables, looked at from outside again and again."""

    def __init__(self, lake: Lake, kinds: tuple[str, ...]) -> None:
        self._lake, self._kinds = lake, {*kinds, NEW}
        self.seen: list[tuple[float, int]] = []
        self.look()

    def look(self) -> int:
        total = sum(rows for table, rows in self._lake.rows().items() if table in self._kinds)
        self.seen.append((time.monotonic(), total))
        return total

    def until(self, rows: int, seconds: float, going_on: Callable[[], bool]) -> bool:
        """Whether so many are visible in time, or before the peer stopped working."""
        end = time.monotonic() + seconds
        while self.look() < rows:
            if time.monotonic() > end or not going_on():
                return self.look() >= rows
            time.sleep(LOOK_SEC)
        return True


class Trial:
    def __init__(self, peer: Peer, job: Job, size: Size) -> None:
        self._peer, self._job, self._size = peer, job, size
        self._feed = Feed(job.brokers, job.topic)
        self._lake = peer.lake(job)
        self._watch = Watch(self._lake, job.kinds)
        self._running: Running | None = None

    def run(self) -> dict[str, Any]:
        """What was found, phase by phase. A phase that the peer did not get through is the last one, with `ended`."""
        found: dict[str, Any] = {}
        phases = (self._cold, self._warm, self._steady, self._killed, self._new_column, self._new_route, self._bad)
        try:
            for phase in phases:
                name = phase.__name__.removeprefix("_")
                found[name] = phase()
                say(f"{self._peer.name}, {name}: {found[name]}")
        except Ended as ended:
            found["ended"] = {"in": name, "why": str(ended)}
            say(f"{self._peer.name}, {name}: {ended}")
        finally:
            self._stop()
        return found

    # -- loads -----------------------------------------------------------------------------------------------

    def _cold(self) -> dict[str, Any]:
        """The records are there before the process is started."""
        self._feed.send(self._many())
        began = time.monotonic()
        self._start()
        return self._measured(began, lambda: None)

    def _warm(self) -> dict[str, Any]:
        return self._measured(time.monotonic(), lambda: self._feed.send(self._many()))

    def _measured(self, began: float, send: Callable[[], None]) -> dict[str, Any]:
        assert self._running is not None
        before = cpu_of(self._running.pid)
        with Meter(every=SAMPLE_SEC, root=self._running.pid) as meter:
            send()
            self._all_visible(len(self._feed.sent))
            seconds = time.monotonic() - began
        cpu = cpu_of(self._running.pid) - before
        return {"seconds": seconds, "cpu_sec": cpu, "memory_mib": round(meter.usage.total / MIB)}

    def _steady(self) -> dict[str, Any]:
        """Of each record: from its sending until so many rows were visible as had been sent by then."""
        size, before, times = self._size, self._watch.look(), []
        first = len(self._watch.seen)
        kinds = list(self._job.kinds)

        def send() -> None:
            times.extend(self._feed.steadily(kinds, size.rate, size.steady_sec))

        producer = threading.Thread(target=send)
        assert self._running is not None
        spent = cpu_of(self._running.pid)
        producer.start()
        while producer.is_alive():
            self._watch.look()
            time.sleep(LOOK_SEC)
        producer.join()
        self._all_visible(len(self._feed.sent))
        delays = delays_of(times, [(at, total - before) for at, total in self._watch.seen[first:]])
        return {
            "mean_sec": sum(delays) / len(delays),
            "p95_sec": sorted(delays)[int(0.95 * len(delays))],
            "cpu_sec": cpu_of(self._running.pid) - spent,
        }

    # -- kills -----------------------------------------------------------------------------------------------

    def _killed(self) -> dict[str, Any]:
        """SIGKILL at even parts of what a load takes, started again each time; then all ids are counted."""
        began = time.monotonic()
        self._feed.send(self._many())
        self._all_visible(len(self._feed.sent))
        usual, backs = time.monotonic() - began, []
        for number in range(self._size.kills):
            self._feed.send(self._many())
            time.sleep(usual * (number + 1) / (self._size.kills + 1))
            assert self._running is not None
            self._running.kill()
            at = time.monotonic()
            self._start()
            self._watch.until(len(self._feed.sent), self._size.patience, self._going_on)
            backs.append(time.monotonic() - at)
        lost, doubled = self._compared()
        return {"kills": len(backs), "back_sec": backs, "lost": lost, "doubled": doubled}

    def _compared(self) -> tuple[int, int]:
        """Rows that are missing, and rows too many, of all that was sent; after what is on its way has come."""
        time.sleep(SETTLE_SEC)
        ids: Counter[int] = Counter()
        for kind in self._job.kinds:
            table = self._lake.read(kind)
            ids.update(table.column("id").to_pylist() if "id" in table.column_names else [])
        return sum(ids[number] == 0 for number in self._feed.sent), sum(ids.values()) - len(ids)

    # -- what is new -----------------------------------------------------------------------------------------

    def _new_column(self) -> dict[str, Any]:
        kind = self._job.kinds[0]
        come = self._few(kind, extra="something new")
        table = self._lake.read(kind)
        column = next((name for name in table.column_names if name.startswith("extra")), "")
        values = table.num_rows - table.column(column).null_count if column else 0
        return {**come, "column": column, "values": values}

    def _new_route(self) -> dict[str, Any]:
        return self._few(NEW)

    def _bad(self) -> dict[str, Any]:
        """A record that is no JSON, and good ones behind it; once more with what its users set against that."""
        self._feed.send_bad()
        found = self._few(self._job.kinds[1])
        time.sleep(SETTLE_SEC)
        found["kept"] = self._peer.kept_bad(self._job)
        if found["rows"] < self._size.few and self._peer.tolerance:
            before = self._watch.look()
            self._stop()
            self._job = replace(self._job, tolerant=True)
            self._start()
            missing = self._size.few - found["rows"]
            self._watch.until(before + missing, self._size.patience, self._going_on)
            time.sleep(SETTLE_SEC)
            rows = found["rows"] + self._watch.look() - before
            found["tolerant"] = {"rows": rows, "kept": self._peer.kept_bad(self._job)}
        return found

    def _few(self, kind: str, **more: Any) -> dict[str, Any]:
        before, began = self._watch.look(), time.monotonic()
        self._feed.send([kind] * self._size.few, **more)
        come = self._watch.until(before + self._size.few, self._size.short, self._going_on)
        found = {"rows": self._watch.look() - before, "working": self._going_on()}
        if come:
            return {**found, "seconds": time.monotonic() - began}
        assert self._running is not None
        return {**found, "seconds": None, "why": "" if found["working"] else self._running.last_words()}

    # -- the process -----------------------------------------------------------------------------------------

    def _many(self) -> list[str]:
        kinds = self._job.kinds
        return [kinds[number % len(kinds)] for number in range(self._size.load)]

    def _start(self) -> None:
        self._running = Running(self._peer, self._job)

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()

    def _going_on(self) -> bool:
        return self._running is not None and self._running.alive and self._peer.working(self._job)

    def _all_visible(self, rows: int) -> None:
        if not self._watch.until(rows, self._size.patience, self._going_on):
            assert self._running is not None
            seen = self._watch.look()
            state = "it worked on" if self._going_on() else f"it stopped: {self._running.last_words()}"
            raise Ended(f"{seen} of {rows} rows after {self._size.patience:.0f} s at most; {state}")


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and all below it; of those that have ended too, which their parents have waited for."""
    seconds = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def delays_of(sent: list[float], seen: list[tuple[float, int]]) -> list[float]:
    """Seconds from the sending of the n-th record until n rows were visible. Raises ValueError if they never were."""
    delays, looks = [], iter(seen)
    at, total = next(looks, (0.0, 0))
    for number, when in enumerate(sent, 1):
        while total < number:
            found = next(looks, None)
            if found is None:
                raise ValueError(f"{total} of {len(sent)} rows were seen")
            at, total = found
        delays.append(max(0.0, at - when))
    return delays
