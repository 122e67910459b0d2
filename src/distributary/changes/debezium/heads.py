"""What a message says beside the row: of which table it is, what was done, when, and where it stands in the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from distributary.changes.debezium.positions import KINDS, Parts, place_by_offset, place_of
from distributary.changes.metadata import TRUNCATE
from distributary.changes.model import Kind, SourceTable
from distributary.errors import Reason

CHANGES = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ", "t": TRUNCATE}
WITHOUT_SCHEMA = frozenset({"mysql", "mariadb", "mongodb"})
SNAPSHOTS = frozenset({"true", "first", "first_in_data_collection", "last_in_data_collection", "last", "incremental"})
NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"

NO_DOCUMENT = "the message does not hold the row as it is after the change"
NO_PLACE = "a TRUNCATE, and only by its place in the source's log could it be told which rows are older"
FLAT_FIELDS = frozenset(
    {
        "op",
        "deleted",
        "db",
        "schema",
        "table",
        "collection",
        "connector",
        "name",
        "version",
        "snapshot",
        "sequence",
        "ts_ms",
        "ts_us",
        "ts_ns",
        "transaction_id",
        "file",
        "pos",
        "row",
        "gtid",
        "server_id",
        "lsn",
        "txId",
        "xmin",
        "commit_lsn",
        "change_lsn",
        "event_serial_no",
        "scn",
        "commit_scn",
        "rs_id",
        "ssn",
        "row_id",
        "redo_thread",
        "ord",
    }
)
"""What ExtractNewRecordState may be asked to add to a row."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the messages of a pipeline are made.

    `flattened`: by ExtractNewRecordState, the row itself is the message and what it keeps of the change has names that
    begin with `prefix`. `by_offset`: the order of messages in their partition is that of the changes; else the
    positions in the source's log are. `placeholder`: stands where a value was not logged since it did not change.
    `in_files`: they are lines of files, and events of change files are what is made of them (`in_words_of_files`).
    """

    flattened: bool = False
    by_offset: bool = False
    placeholder: str = "__debezium_unavailable_value"
    prefix: str = "__"
    in_files: bool = False


PLAIN = Form()


class Record(NamedTuple):
    """Where a message was found. `headers`: their names."""

    topic: str
    partition: int
    offset: int
    time_ms: int | None = None
    headers: frozenset[str] = frozenset()


class Message(NamedTuple):
    """One message; `value` None: a tombstone."""

    record: Record
    key: bytes | None
    value: bytes | None


class Unusable(Exception):
    """A message that can't be used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(detail)


class Head(NamedTuple):
    table: SourceTable
    change_type: str
    deleted: bool
    backfill: bool
    source_ms: int | None
    read_ms: int | None
    place: Parts
    offset: int
    uuid: str
    topic: str
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeHeader:
    """The change of one message, as far as it is not the row. `source`: as the message has it."""

    op: str
    source: Mapping[str, Any]
    time_ms: int | None = None
    transaction: str = ""


def head_of(change_head: ChangeHeader, record: Record, form: Form) -> Head:
    """Raises Unusable."""
    change = CHANGES.get(change_head.op)
    if change is None:
        names = ", ".join(CHANGES)
        raise Unusable(Reason.UNKNOWN_CHANGE_TYPE, f"op is {change_head.op[:40]!r}; known are {names}")
    if change == TRUNCATE and (form.by_offset or form.flattened):
        raise Unusable(Reason.TRUNCATED, NO_PLACE)
    source = change_head.source
    connector = source.get("connector")
    kind = KINDS.get(str(connector), Kind.GENERIC) if connector is not None else kind_by_fields(source)
    table = flat_table(kind, record.topic, form) if form.flattened else source_table(kind, source, form)
    backfill = change == "READ" or str(source.get("snapshot") or "").lower() in SNAPSHOTS
    source_ms = _millis(source.get("ts_ms"))
    if form.by_offset:
        place: Parts = place_by_offset(source, record.offset)
        source_ms = source_ms if source_ms is not None else record.time_ms
    elif backfill:
        place = (max(0, source_ms or 0), 0, 0, 0)
    else:
        try:
            place = place_of(kind, source, source_ms or 0, record.offset)
        except ValueError as exc:
            raise Unusable(Reason.BAD_POSITION, str(exc)) from exc
    if NEW_KEY in record.headers and change == "DELETE":
        change = "UPDATE-DELETE"
    elif OLD_KEY in record.headers and change == "INSERT":
        change = "UPDATE-INSERT"
    return Head(
        table,
        change,
        change in ("DELETE", "UPDATE-DELETE", TRUNCATE),
        backfill,
        source_ms,
        change_head.time_ms if change_head.time_ms is not None else record.time_ms,
        place,
        record.offset,
        f"{record.topic}-{record.partition}-{record.offset}",
        record.topic,
        _kept(source, change_head.transaction),
    )


def kind_by_fields(source: Mapping[str, Any]) -> Kind:
    """Flattened messages say the connector only where they are asked to."""
    names = {name for name, value in source.items() if value is not None}
    if {"file", "pos"} <= names:
        return Kind.MYSQL
    if "commit_lsn" in names:
        return Kind.SQLSERVER
    if "scn" in names:
        return Kind.ORACLE
    if "lsn" in names:
        return Kind.POSTGRESQL
    return Kind.MONGODB if "ord" in names else Kind.GENERIC


def table_names(source: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Database, schema and table of a change, "" for what its source does not have; None where it names no table."""
    get = source.get
    table = get("table") or get("collection")
    if not table:
        return None
    schema = "" if str(get("connector")) in WITHOUT_SCHEMA else get("schema") or ""
    return str(get("db") or ""), str(schema), str(table)


@lru_cache(4_096)
def _source_table(kind: Kind, database: str, schema: str, table: str) -> SourceTable:
    return SourceTable(kind, database, schema, table)


def flat_table(kind: Kind, topic: str, form: Form) -> SourceTable:
    kind = Kind.GENERIC if form.by_offset else kind
    # <prefix>.<database or schema>.<table>, <prefix>.<database>.<schema>.<table>
    first, *rest = (topic.partition(".")[2] or topic).split(".")
    return SourceTable(kind, first, ".".join(rest[:-1]), rest[-1]) if rest else SourceTable(kind, "", "", first)


def source_table(kind: Kind, source: Mapping[str, Any], form: Form) -> SourceTable:
    """The table that a change's source names. Raises Unusable."""
    names = table_names(source)
    if names is None:
        raise Unusable(Reason.NO_SOURCE_TABLE, "source.table (MongoDB: source.collection) does not name its table")
    return _source_table(Kind.GENERIC if form.by_offset else kind, *names)


def _kept(source: Mapping[str, Any], transaction: str) -> dict[str, Any]:
    """What the table keeps of the position, in the fields that change files have too."""
    lsn = source.get("lsn")
    if isinstance(lsn, int):
        lsn = f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"
    row_id, rs_id = source.get("row_id"), source.get("rs_id")
    return {
        "log_file": _text(source.get("file")),
        "log_position": whole_number(source.get("pos")),
        "scn": whole_number(source.get("scn")),
        "rs_id": _text(rs_id),
        "ssn": whole_number(source.get("ssn")),
        "row_id": _text(row_id),
        "lsn": _text(lsn if lsn is not None else source.get("commit_lsn")),
        "tx_id": _text(source.get("txId") or source.get("gtid") or transaction or None),
    }


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def whole_number(value: Any) -> int | None:
    try:
        number = None if value is None else int(value)
    except (TypeError, ValueError):
        return None
    return number if number is not None and abs(number) < 2**63 else None


def _millis(value: Any) -> int | None:
    number = whole_number(value)
    return number if number is not None and abs(number) < 10**14 else None
