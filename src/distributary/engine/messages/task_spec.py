"""What the driver and its tasks say to each other: task specs one way, outcomes the other. Plain values, both
pickle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

import pyarrow as pa

from distributary.changes.model import CHANGE, Kind, SourceTable
from distributary.config import Tables
from distributary.config.source_keys import RecordKey
from distributary.engine.apart import detail_of
from distributary.engine.changes.table_settings import Named
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.engine.decisions import TaskSpec
from distributary.errors import KeysSwitched, Reason
from distributary.names import beside_ours
from distributary.schemas.row_sql import RowSql
from distributary.steps import Steps, finished
from distributary.tables.datafile import DataFile, writing_data_file
from distributary.tables.engines import policy_of
from distributary.tables.evolve import Evolution, Policy, evolve
from distributary.tables.merge_rows import DELETED
from distributary.tables.merge_tip import MergeTip
from distributary.tables.quarantine import ORIGIN_FIELDS
from distributary.tables.snapshot import Owner, Snapshot, columns_of
from distributary.tables.store import join
from distributary.tables.table import Table
from distributary.tables.wide import KEY, packed, partition, seen_by, within
from distributary.tables.widening import evolve_table

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


WRITTEN_AT = pa.field("written_at", pa.timestamp("us", tz="UTC"))
"""A field more of `ORIGIN`, where the settings ask for it (`tables.written_at`)."""


def payload_columns(columns: pa.Schema) -> pa.Schema:
    """A writer schema's columns; none may take the origin's name."""
    return renamed(columns, (ORIGIN,))


def renamed(columns: pa.Schema, ours: Collection[str]) -> pa.Schema:
    """Columns beside ours."""
    names = beside_ours(columns.names, ours)
    return pa.schema([f.with_name(name) for f, name in zip(columns, names, strict=True)])


def fingerprint(payload: bytes) -> str:
    """A record's payload, as `MessageSpec.killed` and the journal have it."""
    return blake2b(payload, digest_size=16).hexdigest()


def killing(records: pa.Array, killed: Mapping[str, str]) -> dict[int, str]:
    """Positions of the records (binary) that end their reader, and the detail with which they are set aside."""
    prints = map(fingerprint, records.to_pylist()) if killed else ()
    return {n: detail_of(killed[record_print]) for n, record_print in enumerate(prints) if record_print in killed}


def of_route(route: str) -> SourceTable:
    """A route whose messages are events, as what its changes are of."""
    return SourceTable(Kind.MESSAGES, "", "", route)


@dataclass(frozen=True, kw_only=True)
class MessageSpec(TaskSpec):
    """What a batch's tasks are told to do. `killed`: records by `fingerprint`. `refused`: schema ids, and why their
    rows are kept aside. `wide`: address of the one table of all routes (`tables.wide`), where there is one."""

    tables: Tables
    payload_framed: bool
    raw_nested_indexes: bool
    null_out_of_range: bool = False
    has_key_schemas: bool = False
    """Have records' keys schemas of their own (`stored_changes`)?"""
    refused: Mapping[int, tuple[Reason, str]] = field(default_factory=dict)
    payload_format: str = "protobuf"
    names: Mapping[str, str] = field(default_factory=dict)
    """Of routes whose table is not called what the pipeline file says (`table_names`)."""
    wide: str | None = None
    named: Named | None = None
    """The tables of routes whose rows are events; None where there are no such."""
    record_key: RecordKey | None = None
    merge_tips: Mapping[str, MergeTip] = field(default_factory=dict)
    parts: str = ""

    def has_events(self, route: str) -> bool:
        """Are the route's rows events, which are merged (`engine.messages.events`)?"""
        return self.named is not None and self.named.takes(route)

    def log(self, route: str) -> str | None:
        """Address of the log of a route whose rows are events; None where there is none."""
        return self.named.log(of_route(route)) if self.named is not None and self.named.takes(route) else None

    def all_of(self, route: str) -> list[str]:
        """Addresses of all tables of a route: of events its log, its merged table and its history, as far as there are
        such."""
        if self.named is None or not self.named.takes(route):
            return [self.table(route)]
        return self.named.all_of(of_route(route))

    def only_merging(self) -> Self:
        """For events that are in their log already."""
        tables = self.tables.model_copy(update={"log": None})
        return self if self.named is None else replace(self, named=replace(self.named, tables=tables))

    def for_changes(self) -> ChangeSpec:
        """The same, for the routes of events."""
        assert self.named is not None
        return ChangeSpec(
            pipeline=self.pipeline,
            stream=self.stream,
            batch=self.batch,
            store=self.store,
            quarantine=self.quarantine,
            decisions=self.decisions,
            tips=self.tips,
            read_sec=self.read_sec,
            named=self.named,
            parts=self.parts,
            merge_tips=self.merge_tips,
        )

    def anew(self) -> Self:
        return replace(super().anew(), merge_tips={})

    def table(self, route: str) -> str:
        if self.wide is not None:
            return self.wide
        if self.named is not None and (address := self.named.table(route)) is not None:
            return address
        return join(self.tables.root, self.name(route))

    def name(self, route: str) -> str:
        """The folder of the route's table."""
        return self.names.get(route) or self.tables.table_name(route)

    def target(self, route: str) -> Table:
        """The route's table, as it must be."""
        if self.wide is not None:
            properties = self.tables.properties
            return Table(self.wide, self.store, Owner(self.pipeline, ""), properties, partitioned_by=(KEY,))
        return Table.of_route(self.table(route), self.store, Owner(self.pipeline, route), self.tables)

    def columns(self, route: str, table: Snapshot | None) -> pa.Schema | None:
        """The route's table as the route sees it; None where it has none of its rows yet."""
        return self.seen(route, columns_of(table))

    def seen(self, route: str, schema: pa.Schema | None) -> pa.Schema | None:
        """As `columns`, of a table with this schema: to read that of a wide table takes as long as it is wide."""
        return schema if self.wide is None else seen_by(route, schema, ORIGIN)

    def write(self, route: str, rows: pa.Table) -> DataFile:
        """Write rows (`columns`) as one file of the route's table. Raises OSError."""
        return finished(self.writing(route, rows))

    def writing(self, route: str, rows: pa.Table) -> Steps[DataFile]:
        """`write`, step by step."""
        if self.wide is None:
            return (yield from writing_data_file(self.table(route), rows, self.store))
        file = yield from writing_data_file(self.wide, packed(route, rows, ORIGIN), self.store)
        return replace(file, partition=partition(route))

    def row_sql(self, route: str) -> RowSql:
        """What the route's rows should be, and which columns are written."""
        return RowSql.of(self.tables, route)

    @property
    def origin_type(self) -> pa.DataType:
        """That of `ORIGIN`."""
        return pa.struct([*ORIGIN_TYPE, WRITTEN_AT]) if self.tables.written_at else ORIGIN_TYPE

    def policy(self, route: str) -> Policy:
        return policy_of(self.tables, route)

    def evolve(
        self, route: str, table: Snapshot | None, schema: pa.Schema | None, new: Sequence[pa.Schema]
    ) -> Evolution:
        """The columns of the route's table, as the route sees them (`schema`), once rows of the schemas `new` are in
        it. Without `table`, as it is open, no column that is there gets another type."""
        policy = self.policy(route)
        if schema is not None and {CHANGE, DELETED} <= set(schema.names) and not self.has_events(route):
            detail = "holds the newest message of each key, and tables.keys gives it none now"
            raise KeysSwitched(route=route, table=self.table(route), detail=detail)
        if table is None:
            return evolve(schema, new, replace(policy, can_widen=False))
        places: dict[str, Any] = {} if self.wide is None else {"partitioned_by": [KEY], "within": within(route)}
        return evolve_table(table, schema, new, policy, **places)
