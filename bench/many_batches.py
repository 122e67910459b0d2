"""Batch after batch of one stream: does what a batch costs, and what it leaves behind, stay the same?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import MIB, Meter, live_heap
from bench.result import Case, Result
from bench.stream import HeldStream, written
from bench.workload import Place, Workload, check_games, in_child, say, session

NOTE = (
    "Small batches of one running stream over a Delta source, 8 tables, 20 rows of each in a batch, its tables kept up "
    "by itself. Ours: the median of the last 200 batches; other: of the 200 before the early one that is named. The "
    "memory is resident memory of the driver's Python, and what the JVM's objects need after a full collection, each "
    "at these two moments. State: the files below the state folder, ledger and checkpoint among them. Checked at the "
    "end: each table has the rows of all batches."
)
TABLES, ROWS = 8, 20
BATCHES, EARLY, WINDOW = (5_000, 20), (520, 10), (200, 5)


def run(place: Place) -> Result:
    batches, early_one = place.size(*BATCHES), place.size(*EARLY)
    found = in_child(measure, place, batches, early_one)
    early, late = found["early"], found["late"]
    label = f"batch {batches:,} against batch {early_one:,}"
    details = {"slowest of the last ones": late["slowest"], "slowest before": early["slowest"]}
    return Result(
        "many_batches",
        NOTE,
        (
            Case(f"{label}, CPU", "s of CPU", late["cpu"], early["cpu"], goal=1 / 1.2, details=details),
            Case(f"{label}, time", "s", late["wall"], early["wall"]),
            *(Case(f"{label}, {name}", "MiB", late[name], early[name]) for name in ("driver", "JVM's objects")),
            Case(f"{label}, state", "files", late["files"], early["files"], details={"MiB": late["state_mib"]}),
        ),
    )


def measure(place: Place, batches: int, early_one: int) -> dict[str, dict[str, Any]]:
    work = Workload(place.root, TABLES)
    work.feed_delta(ROWS)
    spark = session()
    config = work.config("ours", work.delta_source())
    state = Path(config.state_root)
    window = place.size(*WINDOW)
    seconds: list[float] = []
    cpu: list[float] = []
    found: dict[str, dict[str, Any]] = {}
    with HeldStream(spark, config) as stream:
        for number in range(1, batches + 1):
            timed = written(stream.batch(lambda: work.feed_delta(ROWS), Meter(every=60)), TABLES * ROWS)
            seconds.append(timed.wall_sec)
            cpu.append(timed.usage.cpu_sec)
            if number in (early_one, batches) or number % 1_000 == 0:
                heap = live_heap(spark) / MIB
                moment = {"driver": timed.usage.driver / MIB, "JVM's objects": heap, **_files(state)}
                moment |= _window(seconds[-window:], cpu[-window:])
                found["early" if number == early_one else "late"] = moment
                say(f"batch {number}: {moment}")
    check_games(config, (batches + 1) * ROWS, work.names)
    return found


def _window(seconds: Sequence[float], cpu: Sequence[float]) -> dict[str, Any]:
    return {"wall": median(seconds), "slowest": max(seconds), "cpu": median(cpu)}


def _files(state: Path) -> dict[str, Any]:
    sizes = [file.stat().st_size for file in state.rglob("*") if file.is_file()]
    return {"files": len(sizes), "state_mib": sum(sizes) / MIB}
