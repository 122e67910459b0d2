"""What a stream costs to which nothing comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

from bench.result import Case, Result
from bench.workload import CORES, Place, Workload, WrongRows

NOTE = (
    "CPU of a run over a Delta source to which nothing comes, all its processes together: over 60 "
    "seconds, 25 seconds after its only batch. `trigger` as it is by default, every 10 seconds."
)
START_SEC = 200


def run(place: Place) -> Result:
    routes, rest, seconds = place.size((500, 25, 60), (3, 1, 2))
    load = Workload(place.root, routes)
    load.feed_delta(2)
    config = {
        "pipeline": "idle",
        "source": load.delta_source(),
        "registry": {"path": str(place.root / "registry")},
        "tables": {"root": str(place.root / "lake")},
        "spark": {"master": f"local[{CORES}]"},
    }
    file = place.root / "idle.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "distributary", "run", str(file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as stream:
        try:
            _wait(place.root / "lake", routes, stream)
            time.sleep(rest)
            before = _cpu(stream.pid)
            time.sleep(seconds)
            spent = _spent(before, _cpu(stream.pid))
        finally:
            stream.send_signal(signal.SIGTERM)
    share = {kind: 100 * cpu / seconds for kind, cpu in spent.items()}
    label = f"{routes} routes, nothing comes"
    return Result(
        "idle", NOTE, (Case(label, "% of a core", sum(share.values()), goal=2, goal_of="ours", details=share),)
    )


def _wait(lake: Path, routes: int, stream: subprocess.Popen[str]) -> None:
    """Until each route has a table with a commit."""
    for _ in range(START_SEC):
        if sum(1 for _ in lake.glob("*/_delta_log/*0.json")) >= routes:
            return
        if stream.poll() is not None:
            raise WrongRows(stream.stderr.read() if stream.stderr else "it ended")
        time.sleep(1)
    raise WrongRows(f"no {routes} tables after {START_SEC} s")


def _cpu(pid: int) -> dict[tuple[str, int], float]:
    """CPU seconds until now of each process that is there: (what it is, its id)."""
    own = psutil.Process(pid)
    spent: dict[tuple[str, int], float] = {}
    for process in (own, *own.children(recursive=True)):
        kind = "JVM" if process.name() == "java" else "driver" if process == own else "workers"
        times = process.cpu_times()
        spent[kind, process.pid] = times.user + times.system
    return spent


def _spent(before: dict[tuple[str, int], float], after: dict[tuple[str, int], float]) -> dict[str, float]:
    """By kind. Spark ends workers that were idle for a minute: what is gone at the end is not counted."""
    spent: dict[str, float] = {}
    for (kind, pid), cpu in after.items():
        spent[kind] = spent.get(kind, 0.0) + cpu - before.get((kind, pid), 0.0)
    return spent
