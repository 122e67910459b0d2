"""What the product's processes and folders hold over time: by /proc, the JVM's log of collections, `run --json`."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

MIB = 2**20
KINDS = ("driver", "jvm", "workers")
FLAT = 1.05
"""Memory of the last quarter over that of the second, at most."""
STEADY = 1.2
"""Of what a batch takes."""
SETTLED_MIN = 15.0
"""A life shorter than this is no measure of growth: half of it is warming up."""
_COLLECTION = re.compile(r"\[([\d.]+)s\].*Pause .*?(\d+)M->(\d+)M\((\d+)M\)")


class Family:
    """The product's process with its JVM and its workers. `cpu`: seconds of all that were ever seen."""

    def __init__(self, pid: int) -> None:
        self._own = psutil.Process(pid)
        self._spent: dict[tuple[int, float], float] = {}

    def sample(self) -> dict[str, Any]:
        """MiB of resident memory by kind, and of what is mapped from no file; CPU seconds; how many processes."""
        held = dict.fromkeys(KINDS, 0.0)
        own = dict.fromkeys(KINDS, 0.0)
        count = descriptors = threads = 0
        for process in self._processes():
            try:
                with process.oneshot():
                    kind = self._kind(process)
                    memory, times = process.memory_info(), process.cpu_times()
                    held[kind] += memory.rss / MIB
                    own[kind] += (memory.rss - memory.shared) / MIB
                    self._spent[process.pid, process.create_time()] = times.user + times.system
                    descriptors, threads = descriptors + process.num_fds(), threads + process.num_threads()
                    count += 1
            except psutil.Error:
                continue
        rounded = {f"{kind}_mib": round(held[kind], 1) for kind in KINDS}
        rounded |= {f"{kind}_own_mib": round(own[kind], 1) for kind in KINDS}
        rounded["all_mib"] = round(sum(held.values()), 1)
        rounded["all_own_mib"] = round(sum(own.values()), 1)
        return {
            **rounded,
            "cpu_sec": round(sum(self._spent.values()), 2),
            "processes": count,
            "descriptors": descriptors,
            "threads": threads,
        }

    def jvm(self) -> dict[str, float]:
        """The JVM's id and when it began, in seconds since 1970; zeros before that."""
        for process in self._processes():
            with suppress(psutil.Error):
                if self._kind(process) == "jvm":
                    return {"jvm_pid": process.pid, "jvm_began": process.create_time()}
        return {"jvm_pid": 0, "jvm_began": 0.0}

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._own, *self._own.children(recursive=True)]
        except psutil.Error:
            return []

    def _kind(self, process: psutil.Process) -> str:
        if process.pid == self._own.pid:
            return "driver"
        try:
            return "jvm" if process.name() == "java" else "workers"
        except psutil.Error:
            return "workers"


def folder_sizes(folder: Path) -> dict[str, float]:
    """Files and MiB below a folder that others write to meanwhile."""
    files = size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(root, name)).st_size
                files += 1
            except OSError:
                continue
    return {"files": files, "mib": round(size / MIB, 1)}


def batches(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Those that `run --json` told of, in their order; a line that a kill has cut is left out."""
    found = []
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("kind") == "batch":
            at = datetime.fromisoformat(told["at"]).timestamp()
            found.append(
                {
                    "at": at,
                    "batch": told["batch"],
                    "rows": told["rows_in"],
                    "tables": told["tables"],
                    "seconds": told["seconds"].get("total", 0.0),
                    "parked": len(told["parked"]),
                }
            )
    return found


def collections(lines: Iterable[str], began: float) -> list[tuple[float, int]]:
    """(When, MiB of the heap that were left) of each pause of the JVM's collector, as `-Xlog:gc` has it."""
    matches = (_COLLECTION.match(line) for line in lines)
    return [(began + float(match[1]), int(match[3])) for match in matches if match]


def quarters(
    samples: Sequence[dict[str, Any]], told: Sequence[dict[str, Any]], heap: Sequence[tuple[float, int]]
) -> list[dict[str, Any]]:
    """A life in four equal stretches of time. `samples`: of one life, with `at`."""
    begin, end = samples[0]["at"], samples[-1]["at"]
    found = []
    for number in range(4):
        first, last = (begin + (end - begin) * part / 4 for part in (number, number + 1))
        within = [one for one in samples if first <= one["at"] <= last]
        done = [one for one in told if first <= one["at"] <= last]
        left = [mib for at, mib in heap if first <= at <= last]
        rows = sum(one["rows"] for one in done)
        cpu = within[-1]["cpu_sec"] - within[0]["cpu_sec"] if within else 0.0
        quarter: dict[str, Any] = {"minutes": round((last - first) / 60, 1), "batches": len(done), "rows": rows}
        for name in (*(f"{kind}_mib" for kind in (*KINDS, "all")), "all_own_mib", "descriptors", "threads"):
            quarter[name] = round(statistics.mean(one[name] for one in within), 1) if within else 0.0
        quarter["heap_least_mib"] = min(left, default=0)
        quarter["batch_sec"] = round(statistics.median(one["seconds"] for one in done), 3) if done else 0.0
        quarter["cpu_sec_a_batch"] = round(cpu / max(1, len(done)), 3)
        quarter["cpu_sec_a_million_rows"] = round(cpu / rows * 1e6, 2) if rows else 0.0
        found.append(quarter)
    return found


def grown(found: Sequence[dict[str, Any]], name: str) -> float:
    """The last quarter over the second: 1 is flat. The first one warms up."""
    before = found[1][name]
    return round(found[3][name] / before, 3) if before else 0.0


def growth(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`grown` of all that is asked about."""
    names = (*(f"{kind}_mib" for kind in (*KINDS, "all")), "all_own_mib", "heap_least_mib", "descriptors", "threads")
    return {name: grown(found, name) for name in (*names, "batch_sec", "cpu_sec_a_batch")}


def not_flat(found: Sequence[dict[str, Any]]) -> list[str]:
    """What grew, in words; nothing for a life that is too short to say."""
    if sum(quarter["minutes"] for quarter in found) < SETTLED_MIN:
        return []
    grew = growth(found)
    bounds = {"all_mib": FLAT, "cpu_sec_a_batch": STEADY}
    return [
        f"{name} of the last quarter is {grew[name]} of the second"
        for name, most in bounds.items()
        if grew[name] > most
    ]
