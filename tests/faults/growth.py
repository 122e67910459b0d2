"""A run of many small batches, by the command line: what its processes and folders hold at each tenth of them."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from distributary.config import RegistryConfig
from distributary.schemas.registry import open_registry
from tests.chaos.messages import ENVELOPE
from tests.chaos.wire import block, framed, text, whole
from tests.processes import SMALL_SPARK, command

ROUTES = 20
ROWS_A_BATCH = 100
EVENT = 'syntax = "proto3"; message Event { int64 number = 1; string player = 2; }'
MEMORY = ("python", "jvm", "workers")


def growth(folder: Path, batches: int) -> dict[str, Any]:
    """Run so many batches of 20 routes. `samples`: MiB, descriptors, threads, files and seconds a batch, over time."""
    folder.mkdir(parents=True)
    file, temporary = _pipeline(folder, batches), folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (folder / "run.log").open("wb") as log:
        process = psutil.Popen(command("run", file, "--once"), stdout=log, stderr=log, env=environment)
        samples = _watch(process, folder, batches)
    found = {name: _rows(folder / "lake" / name) for name in _routes()}
    wanted = dict.fromkeys(_routes(), batches * ROWS_A_BATCH // ROUTES)
    return {
        "batches": batches,
        "rows": sum(found.values()),
        "exit": process.wait(),
        "lost": sum(max(0, wanted[name] - found[name]) for name in wanted),
        "doubled": sum(max(0, found[name] - wanted[name]) for name in wanted),
        "samples": samples,
        "grown": {name: grown(samples, name) for name in samples[0]} if len(samples) >= 3 else {},
    }


def _routes() -> list[str]:
    return [f"route_{number:02d}" for number in range(ROUTES)]


def _rows(table: Path) -> int:
    numbers = DeltaTable(table).to_pyarrow_table(columns=["number"]).column("number").to_pylist()
    # A row that came twice shows as one too many, one in place of another as one too few.
    return len(numbers) if len(set(numbers)) == len(numbers) else 2 * len(numbers)


def _pipeline(folder: Path, batches: int) -> Path:
    registry = open_registry(RegistryConfig(path=str(folder / "registry")))
    envelope = registry.register("events-value", ENVELOPE).schema.id
    event = registry.register("event-value", EVENT).schema.id
    routes = _routes()
    for batch in range(batches):
        first = batch * ROWS_A_BATCH
        numbers = range(first, first + ROWS_A_BATCH)
        values = [
            framed(
                envelope,
                text(1, routes[n % ROUTES])
                + whole(2, event)
                + block(3, framed(event, whole(1, n + 1) + text(2, f"p{n}"))),
            )
            for n in numbers
        ]
        columns = {
            "value": pa.array(values, pa.binary()),
            "topic": pa.repeat("events", ROWS_A_BATCH),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), ROWS_A_BATCH),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array(numbers, pa.timestamp("us", tz="UTC")),
        }
        write_deltalake(str(folder / "source"), pa.table(columns), mode="append")
    file = folder / "pipeline.yaml"
    source = {"type": "delta", "path": str(folder / "source"), "max_files_per_batch": 1}
    keys = {
        "pipeline": "growth",
        "source": source,
        "registry": {"path": str(folder / "registry")},
        "tables": {"root": str(folder / "lake")},
        "state": str(folder / "state"),
        "trigger": "once",
        "spark": SMALL_SPARK,
    }
    file.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return file


def _watch(process: psutil.Popen, folder: Path, batches: int) -> list[dict[str, Any]]:
    """A sample at each tenth of the batches, until the process ends."""
    commits = folder / "state" / "checkpoint" / "commits"
    samples: list[dict[str, Any]] = []
    due, before, began = batches // 10, 0, time.monotonic()
    while process.poll() is None:
        done = max((int(name) + 1 for name in _names(commits) if name.isdecimal()), default=0)
        if done >= due:
            now = time.monotonic()
            spent = {"batch": done, "seconds_a_batch": round((now - began) / (done - before), 3)}
            samples.append({**spent, **_held(process), **_files(folder)})
            due, before, began = done + batches // 10, done, now
        time.sleep(0.2)
    return samples


def _held(process: psutil.Popen) -> dict[str, int]:
    """Of the driver, its JVM and its workers: resident MiB; descriptors and threads of all."""
    family = [process, *process.children(recursive=True)]
    found = dict.fromkeys(("python", "jvm", "workers", "descriptors", "threads", "processes"), 0)
    for one in family:
        try:
            kind = "python" if one.pid == process.pid else "jvm" if one.name() == "java" else "workers"
            found[kind] += one.memory_info().rss >> 20
            found["descriptors"] += one.num_fds()
            found["threads"] += one.num_threads()
            found["processes"] += 1
        except psutil.NoSuchProcess:
            continue
    return found


def _files(folder: Path) -> dict[str, int]:
    """How many files lie in each folder that a run has for itself, and in a table's log."""
    state = folder / "state"
    places = {
        "checkpoint": state / "checkpoint",
        "plans": state / "plans",
        "ledger": state / "ledger",
        "temporary": folder / "tmp",
        "log_of_a_table": folder / "lake" / _routes()[0] / "_delta_log",
    }
    return {f"files_{name}": sum(len(files) for _, _, files in os.walk(place)) for name, place in places.items()}


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


BOUNDED = {"python": 1.35, "jvm": 1.35, "workers": 1.25, "descriptors": 1.2, "threads": 1.25, "processes": 1.15}
BOUNDED |= {"files_checkpoint": 1.1, "files_plans": 1.1, "files_temporary": 1.5}
"""Of `grown`, at most. The driver's memory has steps: it reads the ledger, of up to 40,000 rows, whenever it is folded.
The ledger's files and the commits of tables go by time, not by number (docs/reliability.md)."""


def grown(samples: list[dict[str, Any]], name: str) -> float:
    """The last third of the samples over the second: 1 is flat. The first third warms up."""
    third = max(1, len(samples) // 3)
    middle = statistics.mean(one[name] for one in samples[third : 2 * third])
    return round(statistics.mean(one[name] for one in samples[2 * third :]) / middle, 2) if middle else 0.0


def is_flat(found: dict[str, Any]) -> bool:
    """Nothing was lost or doubled, it ended well, and nothing that is bounded grows."""
    samples = found["samples"]
    if found["lost"] or found["doubled"] or found["exit"] or len(samples) < 6:
        return False
    return all(grown(samples, name) <= most for name, most in BOUNDED.items())
