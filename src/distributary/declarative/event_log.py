"""Spark's pipeline events are sentences; here they are values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_FLOW = re.compile(r"Flow '?(?P<flow>[^']+?)'? (?:is|has|was) (?P<state>[A-Z]+)\b", re.DOTALL)
_RUN = re.compile(r"Run is (?P<state>[A-Z]+)")

RUN_DONE = "COMPLETED"
UNDER_WAY = ("STARTING", "RUNNING")


@dataclass(frozen=True)
class Event:
    """`dataset`: the flow's target without catalog and database; None for the run as a whole. `state`: as Spark says
    it (QUEUED, STARTING, RUNNING, COMPLETED, FAILED, SKIPPED, EXCLUDED, STOPPED); None for other news."""

    at: datetime
    text: str
    dataset: str | None = None
    state: str | None = None

    def to_json(self) -> dict[str, Any]:
        time = self.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"kind": "event", "at": time, "dataset": self.dataset, "state": self.state, "text": self.text}


def read_event(text: str, moment: datetime) -> Event:
    """The event in Spark's sentence."""
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    if (flow := _FLOW.match(text)) is not None:
        return Event(moment, text, dataset_of(flow["flow"]), flow["state"])
    if (run := _RUN.match(text)) is not None:
        return Event(moment, text, None, run["state"])
    return Event(moment, text)


def dataset_of(name: str) -> str:
    """`catalog.database.table` (parts maybe in backticks) without what is in front of the table."""
    return name.rpartition(".")[2].strip("`")
