"""What a change data capture source emits: tables, their columns, and one record per changed row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from distributary.changes.model import Kind
from distributary_simulate.changes.unified import Unified

Row = Mapping[str, Any]
"""A whole row: column -> plain value, see `unified`."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Unified


@dataclass(frozen=True)
class Table:
    """A table as it is at one moment; a schema change makes another value.

    database, schema: empty where the source has none (MySQL has no schema, PostgreSQL's events name no database).
    keys: names of the key columns, in the order of the key; empty: no key.
    replication_index: SQL Server: the keys stand in the field of this name, not in primary_keys.
    toast: PostgreSQL: columns that an UPDATE which leaves them alone shows as null.
    """

    kind: Kind
    database: str
    schema: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    replication_index: bool = False
    toast: tuple[str, ...] = ()

    @property
    def route(self) -> str:
        return ".".join(name for name in (self.database, self.schema, self.name) if name)

    @property
    def object(self) -> str:
        """The name of the table's folder: schema (MySQL, MongoDB: database), `_`, table."""
        return f"{self.schema or self.database}_{self.name}"

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[key] for key in self.keys)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def with_columns(self, columns: tuple[Column, ...]) -> Table:
        return replace(self, columns=columns)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a change stands in its source's log.

    metadata: the fields of source_metadata that only this kind has (log_file, lsn, scn, ...), without keys and
        change type.
    sort_keys: as a stream of today writes them.
    source_ms: the event's source_timestamp, as exact as that source gives it.
    """

    metadata: Mapping[str, Any]
    sort_keys: tuple[str | int, ...]
    source_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """One changed row, or one row of a backfill.

    table: the table with the schema that the event is written with.
    change_type: as the source spells it; None: the source gives none.
    row: the payload. A value may be None where the source does not give it (an Oracle rollback: all are).
    seen_ms: when the reader saw it, on the reader's clock.
    last: it ends a transaction; a reader may stop behind it.
    """

    table: Table
    change_type: str | None
    is_deleted: bool | None
    row: Row
    position: Position
    read_method: str
    seen_ms: int
    last: bool = True

    @property
    def is_backfill(self) -> bool:
        return "backfill" in self.read_method


CDC_METHOD = {
    Kind.MYSQL: "mysql-cdc-binlog",
    Kind.ORACLE: "oracle-cdc-logminer",
    Kind.POSTGRESQL: "postgresql-cdc",
    Kind.SQLSERVER: "sqlserver-cdc",
    Kind.MONGODB: "cdc",
}
BACKFILL_METHOD = {
    Kind.MYSQL: "mysql-backfill-fulldump",
    Kind.ORACLE: "oracle-backfill",
    Kind.POSTGRESQL: "postgresql-backfill",
    Kind.SQLSERVER: "sqlserver-backfill",
    Kind.MONGODB: "backfill",
}


def backfill_change(table: Table, row: Row, position: Position, seen_ms: int) -> Change:
    """The event of a row that a backfill read."""
    kind = "READ" if table.kind is Kind.MONGODB else "INSERT"
    return Change(table, kind, False, row, position, BACKFILL_METHOD[table.kind], seen_ms)
