"""What the driver decides for a batch's routes before the tasks run, and the rule for too many new tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import pyarrow as pa

from distributary.tables.snapshot import Txn
from distributary.tables.store import Store
from distributary.tables.tip import Tip


@dataclass(frozen=True)
class Decision:
    """What the driver decided for one route.

    `append`, of the table that rows are appended to:
    - `own`: the task that owns the route commits it.
    - `files`: several tasks write files, or another engine needs them; the driver commits.
    - `counted`: the rows are in it already (by engine `spark`, or by an earlier attempt); the task only counts, and
      keeps bad rows aside.
    - `parked`: it is not tried; `why` says so, all rows are kept aside.
    - `refused`: likewise, of a route that is to have no table.

    `merge`, of events: `now`, in the same task; `rows`: by the driver, out of the files; `later`: out of the log;
    `parked`. `schema`: the columns that rows are fitted into, where the driver has settled them. `no_table`: why no
    table is made of the route where it has none yet.
    """

    append: Literal["own", "files", "counted", "parked", "refused"] = "own"
    merge: Literal["now", "rows", "later", "parked"] = "now"
    schema: pa.Schema | None = None
    why: str = ""
    no_table: str = ""

    def shared(self) -> Decision:
        """Of a route of events that several tasks write."""
        if self.append != "own":
            return self
        return replace(self, append="files", merge="rows" if self.merge == "now" else self.merge)

    @property
    def is_closed(self) -> bool:
        """Does the route's table get no row of this batch?"""
        return self.append in ("parked", "refused")


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What a batch's tasks are told to do, whatever its rows are: plain values that ship to any task.

    `decisions`: by route; a route without one is `own`. `tips`: what is known of the tables that rows are appended to,
    as the batch before left them. `killed`: what ends the process that reads it, and how. `read_sec`: CPU time that
    reading a piece of the batch may take.
    """

    pipeline: str
    stream: str
    batch: int
    store: Store
    quarantine: str
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    tips: Mapping[str, Tip] = field(default_factory=dict)
    killed: Mapping[str, str] = field(default_factory=dict)
    read_sec: float = 300

    @property
    def app(self) -> str:
        """The stream as its commits name it."""
        return self.stream

    @property
    def txn(self) -> Txn:
        return Txn(self.app, self.batch)

    def decision(self, route: str) -> Decision:
        return self.decisions.get(route, Decision())

    def deciding(self, decisions: Mapping[str, Decision]) -> Self:
        """With other decisions for these routes."""
        return replace(self, decisions={**self.decisions, **decisions})

    def anew(self) -> Self:
        """For an attempt after another, which may have committed: only an opened table shows its transactions."""
        return replace(self, tips={})


def too_many(new: Sequence[str], most: int, noun: str, already_new: int = 0) -> dict[str, str]:
    """The routes of which no table is made, and why: those of `new`, the most important first, beyond `most` for one
    batch. `noun`: how these routes are called. `already_new`: new ones that the batch has taken up already."""
    why = f"the batch has {already_new + len(new):,} {noun}; tables.max_new_tables allows {most:,}"
    return dict.fromkeys(new[max(0, most - already_new) :], why)
