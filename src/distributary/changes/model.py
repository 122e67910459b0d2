"""What a change file holds, in one form for every source and format. The nouns of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pyarrow as pa

from distributary.changes.casts import NAMED, named_type
from distributary.changes.digits import CHANGE as CHANGE
from distributary.changes.digits import METADATA as METADATA
from distributary.changes.digits import metadata_in as metadata_in
from distributary.errors import Reason


class Kind(StrEnum):
    """The database at the other end; it decides the order of events and what a key is."""

    MYSQL = "mysql"
    ORACLE = "oracle"
    POSTGRESQL = "postgresql"
    SQLSERVER = "sqlserver"
    MONGODB = "mongodb"
    GENERIC = "generic"
    MESSAGES = "messages"
    """No database: messages with keys, in the order of `changes.message_order`."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table (MongoDB: collection) of a source. A part that the source does not have, or does not tell, is ""."""

    kind: Kind
    database: str
    schema: str
    table: str

    @property
    def route(self) -> str:
        """`database.schema.table` without the parts that are not known."""
        return ".".join(name for name in (self.database, self.schema, self.table) if name)


def known_one(left: SourceTable, right: SourceTable) -> SourceTable:
    """Of two names of one route the one that says which database it is, if one of them does."""
    return right if left.kind is Kind.GENERIC else left


@dataclass(frozen=True)
class Reading:
    """How files are read; the same for all files of a pipeline.

    `columns` gives columns another type than their file says: {"shop.orders.born": "date"}, by route and column, or by
    "*.column" for every route. `out_of_range` is what becomes of times that no Delta reader can hold (PostgreSQL's
    infinity): null, or the event is set aside. `json_bytes` is the encoding of BYTES in JSON files, `text_bytes` that
    of binary columns that a source writes as text (MySQL: hex), used where `columns` asks for binary. `json_numbers`
    is the type of JSON numbers with a fraction where no schema file says better. `max_unpacked_bytes`: what a file may
    have when it is unpacked. `csv_null`, `csv_delimiter`: what stands for null in CSV, and between values. `order` goes
    to the sequence as is.

    Raises:
        ValueError: a column's type, or that of numbers, is none.
    """

    kind: Kind | None = None
    written_by: Literal["datastream", "debezium", "dms"] = "datastream"
    format: Literal["auto", "avro", "json", "parquet"] = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    out_of_range: Literal["null", "reject"] = "null"
    wide_decimals: Literal["string", "decimal"] = "string"
    json_bytes: Literal["base64", "hex"] = "base64"
    text_bytes: Literal["hex", "base64"] = "hex"
    json_numbers: str = "string"
    max_unpacked_bytes: int = 512 << 20
    csv_null: str = "NULL"
    csv_delimiter: str = ","
    order: Any = None

    def __post_init__(self) -> None:
        for key, name in (*self.columns.items(), ("json_numbers", self.json_numbers)):
            if named_type(name) is None:
                raise ValueError(f"{key}: {name!r} is no column type; types are {', '.join(NAMED)} and decimal(p,s)")

    def wanted(self, route: str, column: str) -> str | None:
        """The type that the settings ask for, if they do."""
        if not self.columns:
            return None
        return self.columns.get(f"{route}.{column}") or self.columns.get(f"*.{column}")


@dataclass(frozen=True)
class Events:
    """Events of one source table, one schema and one list of key columns, in the order of the file.

    `rows` has the payload's columns and behind them the struct column `datastream_metadata`, or `_change`. `keys` are
    spelt as in the payload; () where the table has no key. `numbers` is each event's number in its file, from 0.
    `typed`: something says what types the columns have at the source; nothing does of JSON without a `.schema` file.
    """

    table: SourceTable
    schema_key: str
    keys: tuple[str, ...]
    rows: pa.Table
    numbers: pa.ChunkedArray
    typed: bool = True

    @property
    def metadata(self) -> pa.ChunkedArray:
        return self.rows.column(self.rows.num_columns - 1)


@dataclass(frozen=True)
class BadEvent:
    """An event that can't be used. `row` is its number in the file; `raw` the event as JSON text, or its bytes."""

    row: int
    reason: Reason
    detail: str
    raw: bytes


@dataclass(frozen=True)
class FileEvents:
    """All of a file. `skipped` counts events that say nothing (MongoDB: an update of a document that is gone);
    `unknown_fields` names metadata that this version does not know; `beyond` counts times that are null since no
    reader can hold them, by `route.column`."""

    events: list[Events]
    bad: list[BadEvent]
    unknown_fields: tuple[str, ...] = ()
    skipped: int = 0
    beyond: Mapping[str, int] = field(default_factory=dict)


SOURCE_TYPE = pa.struct(
    [
        ("database", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("log_file", pa.string()),
        ("log_position", pa.int64()),
        ("scn", pa.int64()),
        ("rs_id", pa.string()),
        ("ssn", pa.int64()),
        ("row_id", pa.string()),
        ("lsn", pa.string()),
        ("tx_id", pa.string()),
    ]
)
MESSAGE_METADATA_TYPE = pa.struct(
    [
        ("source_timestamp", pa.int64()),
        ("change_sequence_number", pa.string()),
        ("is_deleted", pa.bool_()),
        ("is_backfill", pa.bool_()),
        ("schema_key", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
"""Metadata of a message with keys: the fields of change events that mean something for it, and where it was."""
DEBEZIUM = "debezium"
"""How the `read_method` of changes begins that were messages of Debezium, or are read as such."""
METADATA_TYPE = pa.struct(
    [
        ("uuid", pa.string()),
        ("source_timestamp", pa.int64()),
        ("read_timestamp", pa.int64()),
        ("change_sequence_number", pa.string()),
        ("change_type", pa.string()),
        ("is_deleted", pa.bool_()),
        ("is_backfill", pa.bool_()),
        ("sort_keys", pa.list_(pa.string())),
        ("read_method", pa.string()),
        ("stream_name", pa.string()),
        ("object", pa.string()),
        ("schema_key", pa.string()),
        ("source", SOURCE_TYPE),
    ]
)
