"""What the driver and its tasks say to each other: orders one way, outcomes the other. Plain values, both pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from distributary.config import Tables
from distributary.errors import Reason
from distributary.names import table_name
from distributary.tables.append import Mark
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy
from distributary.tables.quarantine import ORIGIN_FIELDS
from distributary.tables.store import Store, join
from distributary.tables.tip import Tip

ORIGIN = "_origin"
"""The struct column that tells where a row came from. A payload field of that name becomes `_origin__field`."""

ORIGIN_TYPE = pa.struct(
    [
        *ORIGIN_FIELDS,
        pa.field("schema_id", pa.int32()),
        pa.field("envelope_schema_id", pa.int32()),
        pa.field("batch", pa.int64()),
    ]
)

State = Literal["written", "replayed", "empty", "files", "counted", "spark", "failed"]


@dataclass(frozen=True)
class Special:
    """What the driver decided for a route before the tasks run.

    `files`: several tasks write its files, the driver commits them. `counted`: the rows are in the table already (by
    engine `spark`, or by an earlier attempt), the task only counts and keeps bad rows aside. Both fit rows into
    `schema`, which the driver has evolved. `parked`: the table is not tried; `why` says so, all rows are kept aside.
    """

    mode: Literal["files", "counted", "parked"]
    schema: pa.Schema | None = None
    why: str = ""


@dataclass(frozen=True)
class Orders:
    """One batch's orders to its tasks: plain values that ship to any task."""

    pipeline: str
    stream: str
    batch: int
    tables: Tables
    store: Store
    quarantine: str
    payload_framed: bool
    raw_nested_indexes: bool
    special: Mapping[str, Special] = field(default_factory=dict)
    tips: Mapping[str, Tip] = field(default_factory=dict)
    refused: Mapping[int, tuple[Reason, str]] = field(default_factory=dict)

    def table(self, route: str) -> str:
        return join(self.tables.root, table_name(route, self.tables.name))

    @property
    def mark(self) -> Mark:
        return Mark(self.stream, self.batch)

    def policy(self, route: str) -> Policy:
        engine, evolution = self.tables.for_route(route)
        return Policy(evolution.new_column, evolution.type_change, can_widen=engine != "task")


@dataclass
class Outcome:
    """What one task did with one route. Times in microseconds since 1970."""

    route: str
    table: str
    state: State
    rows_in: int = 0
    rows_written: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    schema_ids: dict[int, int] = field(default_factory=dict)
    decoders: dict[int, str] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    created: bool = False
    evolved: bool = False
    error: str | None = None
    store_fault: bool = False
    why_spark: str | None = None
    tip: Tip | None = None
