"""The published rules of change events as a loop over plain values: which event of a key is the newest, what it leaves.

Written from the rules of each source alone (MySQL: file number and position of the binlog; Oracle: SCN, RS_ID, SSN;
PostgreSQL and SQL Server: LSN; MongoDB: cluster time), event after event, and sharing nothing with the
product, so that every way the product has of coming to a merged table can be held against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from distributary.changes.model import Kind
from distributary_simulate.change_files.events import Event

Key = tuple[str | None, ...]
DELETES = ("DELETE", "UPDATE-DELETE")


def is_delete(event: Event) -> bool:
    """The type or the flag: an UPDATE-DELETE of Oracle says that nothing is deleted."""
    return bool(event.change.is_deleted) or event.change.change_type in DELETES


def place(event: Event) -> tuple[Any, ...]:
    """Where an event stands among all events of its table; the greatest is the newest.

    Every change of the log beats every row of a backfill. What shares a place in the log is told apart by when it was
    read and by the counter at the end of the uuid; the beginning of the uuid is one per reading. Of two readings in one
    millisecond any may count, but always the same one.
    """
    change, source = event.change, event.change.position.metadata
    upsert, time = not is_delete(event), change.position.source_ms
    read = (event.read_ms, int(event.uuid.replace("-", "")[-8:], 16))
    if change.is_backfill:
        return (0, source.get("scn", 0) if change.table.kind is Kind.ORACLE else time, time, *read, upsert)
    match change.table.kind:
        case Kind.MYSQL:
            number = int(re.search(r"\d+$", source["log_file"])[0])  # type: ignore[index]
            reading = event.uuid.replace("-", "")[:7]
            return (1, number, source["log_position"], read[0], reading, read[1], upsert, time)
        case Kind.ORACLE:
            return (1, source["scn"], _hex(source["rs_id"]), source["ssn"], time, *read, upsert)
        case Kind.MONGODB:
            return (1, *change.position.sort_keys, *read, upsert)
        case _:
            return (1, _hex(source["lsn"]), time, *read, upsert)


def _hex(text: str) -> list[int]:
    return [int(part, 16) for part in re.split("[:/.]", text.strip())]


def spelling(value: Any) -> str | None:
    """A key's value as text, so that it is the same key in a column of any type: 1, 1.0 and "1"."""
    if isinstance(value, float | Decimal) and value == int(value):
        return str(int(value))
    return None if value is None else str(value)


def is_gone(event: Event) -> bool:
    """An update whose document was gone when it was looked up: its delete follows."""
    change = event.change
    return change.table.kind is Kind.MONGODB and change.change_type == "UPDATE" and change.row["data"] is None


def newest(events: Iterable[Event]) -> dict[Key, Event]:
    """Key -> the event that decides it, of one table's events in any order, each as often as it likes."""
    kept: dict[Key, Event] = {}
    for event in sorted(events, key=place):
        change = event.change
        if is_gone(event):
            continue
        key = tuple(spelling(value) for value in change.table.key_of(change.row))
        before = kept.get(key)
        if before is None or not _gives_way(event, before):
            kept[key] = event
    return kept


def _gives_way(event: Event, before: Event) -> bool:
    """Oracle checks keys at the end of a statement: another row may have taken the key that this one leaves."""
    kinds = (event.change.change_type, before.change.change_type)
    if event.change.table.kind is not Kind.ORACLE or kinds != ("UPDATE-DELETE", "UPDATE-INSERT"):
        return False
    mine, other = event.change.position.metadata, before.change.position.metadata
    return bool(mine["tx_id"] == other.get("tx_id") and mine["row_id"] != other["row_id"])


def living(events: Iterable[Event], columns: Iterable[str]) -> dict[Key, dict[str, Any]]:
    """Key -> the values of `columns`. Every event has its whole row, so a column that the newest one lacks is null."""
    names = list(columns)
    return {
        key: {name: event.change.row.get(name) for name in names}
        for key, event in newest(events).items()
        if not is_delete(event)
    }
