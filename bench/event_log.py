"""What Spark moved between tasks, by its own event log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

CONF = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
"""Of a session, beside `spark.eventLog.dir`, whose log `ended_tasks` reads."""


@dataclass(frozen=True)
class EndedTask:
    """`at`: seconds since 1970. Bytes of shuffles: what it wrote, what it read, and of that from other executors."""

    at: float
    written: int
    read: int
    from_others: int

    @classmethod
    def of(cls, event: Any) -> Self:
        metrics, info = event["Task Metrics"], event["Task Info"]
        read = metrics["Shuffle Read Metrics"]
        others = read["Remote Bytes Read"]
        written = metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
        return cls(info["Finish Time"] / 1000, written, read["Local Bytes Read"] + others, others)


def ended_tasks(folder: Path) -> Iterator[EndedTask]:
    """Of all applications whose logs lie there, but for tasks that were lost with their executor."""
    for file in sorted(folder.iterdir()):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                yield EndedTask.of(event)


def between(tasks: Sequence[EndedTask], began: float, ended: float) -> list[EndedTask]:
    return [task for task in tasks if began <= task.at <= ended]
