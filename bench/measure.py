"""Seconds, CPU seconds and memory of this process and all that it started: the JVM and Spark's Python workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import psutil

SAMPLE_SEC = 0.1
MIB = 2**20

Kind = Literal["driver", "jvm", "workers"]


@dataclass(frozen=True)
class Heap:
    """The JVM's heap in bytes: `used` by objects (garbage too), `held` of the system's memory."""

    used: int
    held: int


@dataclass
class Usage:
    """Peaks in bytes of resident memory. Shared pages of forked workers count once per worker, so peaks are upper
    bounds. `over_heap`: the peak of all processes together, less what the JVM's heap held at that moment."""

    wall_sec: float = 0.0
    cpu_sec: float = 0.0
    cpu_by_kind: dict[str, float] = field(default_factory=dict)
    driver: int = 0
    jvm: int = 0
    workers: int = 0
    total: int = 0
    over_heap: int = 0
    heap_used: int = 0
    heap_held: int = 0

    def memory_mib(self) -> dict[str, int]:
        """Peaks in MiB, for a result's details."""
        names = ("driver", "jvm", "workers", "total", "over_heap", "heap_used", "heap_held")
        return {f"{name}_mib": round(getattr(self, name) / MIB) for name in names}


@dataclass
class Meter:
    """Samples the process tree while it is entered; `usage` is complete after the exit.

    `apart`: pids whose trees are not ours to count (a broker, a producer). `heap`: asks the JVM, where there is one.
    `root`: the pid of another tree than this process's own. A process that lives for less than a sample's interval
    is not seen. `every`: seconds between two samples; a sample costs some ms of CPU, so where no peak is asked for,
    none between begin and end is best.
    """

    every: float = SAMPLE_SEC
    apart: Collection[int] = ()
    root: int | None = None
    heap: Callable[[], Heap] | None = None
    usage: Usage = field(default_factory=Usage)
    _first: dict[int, float] = field(default_factory=dict)
    _last: dict[int, float] = field(default_factory=dict)
    _kinds: dict[int, Kind] = field(default_factory=dict)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._own = psutil.Process(self.root)
        self._sample(begin=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.usage.wall_sec = time.monotonic() - self._began
        self._done.set()
        self._thread.join()
        self._sample()
        for pid, cpu in self._last.items():
            spent = cpu - self._first[pid]
            self.usage.cpu_sec += spent
            kind = self._kinds[pid]
            self.usage.cpu_by_kind[kind] = self.usage.cpu_by_kind.get(kind, 0.0) + spent

    def _run(self) -> None:
        while not self._done.wait(self.every):
            self._sample()

    def _sample(self, begin: bool = False) -> None:
        resident: dict[Kind, int] = {"driver": 0, "jvm": 0, "workers": 0}
        for process in _tree(self._own, self.apart):
            try:
                with process.oneshot():
                    kind = _kind(process, self._own)
                    resident[kind] += process.memory_info().rss
                    times = process.cpu_times()
            except psutil.Error:
                continue
            cpu = times.user + times.system
            self._first.setdefault(process.pid, cpu if begin else 0.0)
            self._last[process.pid] = cpu
            self._kinds[process.pid] = kind
        self._keep(resident)

    def _keep(self, resident: dict[Kind, int]) -> None:
        usage, total = self.usage, sum(resident.values())
        heap = self.heap() if self.heap else Heap(0, 0)
        usage.driver = max(usage.driver, resident["driver"])
        usage.jvm = max(usage.jvm, resident["jvm"])
        usage.workers = max(usage.workers, resident["workers"])
        usage.total = max(usage.total, total)
        usage.over_heap = max(usage.over_heap, total - heap.held)
        usage.heap_used = max(usage.heap_used, heap.used)
        usage.heap_held = max(usage.heap_held, heap.held)


def _tree(own: psutil.Process, apart: Collection[int]) -> list[psutil.Process]:
    found = [own]
    for process in found:
        try:
            found.extend(child for child in process.children() if child.pid not in apart)
        except psutil.Error:
            continue
    return found


def _kind(process: psutil.Process, own: psutil.Process) -> Kind:
    if process.pid == own.pid:
        return "driver"
    return "jvm" if process.name() == "java" else "workers"


def peak_memory() -> int:
    """Bytes of resident memory that this process has held at most. By /proc, for `getrusage` also has what the process
    held that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def heap_of(spark: Any) -> Callable[[], Heap]:
    """A reader of the heap of this session's JVM."""
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()

    def read() -> Heap:
        held = int(runtime.totalMemory())
        return Heap(held - int(runtime.freeMemory()), held)

    return read


def live_heap(spark: Any) -> int:
    """Bytes that objects of this session's JVM still need, after a full collection."""
    spark.sparkContext._jvm.java.lang.System.gc()
    return heap_of(spark)().used
