"""What an event says of itself, and which of two events of one key is the newer: the documented rules, stated once more
over plain numbers (docs/datastream.md, "The tables"). `change_sequence_number` plays no part in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from distributary.audit.judge.likeness import moment
from distributary.audit.judge.plain_values import Moment
from distributary.audit.judge.raw_files import RawEvent

HOUR_MS = int(timedelta(hours=1).total_seconds() * 1000)
_DELETES = ("DELETE", "UPDATE-DELETE")


class Meta(NamedTuple):
    """The metadata of an event, in one form for files of all formats and for rows of a table. Times in ms."""

    route: str
    uuid: str
    source_ms: int | None
    read_ms: int | None
    change_type: str
    deleted: bool
    backfill: bool
    log_file: str
    log_position: int | None
    scn: int | None
    rs_id: str
    ssn: int | None
    row_id: str
    lsn: str
    tx_id: str
    sort_keys: tuple[str, ...]
    read_method: str = ""

    @property
    def identity(self) -> str:
        """What two records of one event have in common, and no other event has."""
        return "|".join(map(str, (self.uuid, self.source_ms, self.read_ms, self.change_type, *_position(self))))


def of_file(event: RawEvent) -> Meta:
    """As the file says it. Raises ValueError, TypeError for what is no metadata."""
    top, source = event.top, event.source
    table = _text(source.get("table")) or _text(source.get("collection")) or _text(top.get("object"))
    method, change = _text(top.get("read_method")), _text(source.get("change_type"))
    return Meta(
        ".".join(filter(None, (_text(source.get("database")), _text(source.get("schema")), table))),
        _text(top.get("uuid")),
        _millis(top.get("source_timestamp")),
        _millis(top.get("read_timestamp")),
        change,
        change in _DELETES or _flag(source.get("is_deleted")),
        change == "READ" or "backfill" in (read_method := method.lower()) or "dump" in read_method,
        _text(source.get("log_file")) or _text(source.get("binlog_file")),
        _number(source.get("log_position"), source.get("binlog_position")),
        _number(source.get("scn")),
        _text(source.get("rs_id")),
        _number(source.get("ssn")),
        _text(source.get("row_id")),
        _text(source.get("lsn")),
        _text(source.get("tx_id")),
        _sort_keys(top.get("sort_keys")),
        method,
    )


def of_row(metadata: Mapping[str, Any]) -> Meta:
    """As a table's struct `datastream_metadata` keeps it."""
    source = metadata.get("source") or {}
    top = {
        name: metadata.get(name) for name in ("uuid", "source_timestamp", "read_timestamp", "read_method", "sort_keys")
    }
    inner = {**source, "change_type": metadata.get("change_type"), "is_deleted": metadata.get("is_deleted")}
    meta = of_file(RawEvent(0, top, inner, {}))
    return meta if metadata.get("read_method") else meta._replace(backfill=bool(metadata.get("is_backfill")))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number(*values: Any) -> int | None:
    return next((int(value) for value in values if value is not None and value != ""), None)


def _flag(value: Any) -> bool:
    return value.lower() == "true" if isinstance(value, str) else bool(value)


def _millis(value: Any) -> int | None:
    if isinstance(value, str):
        value = int(value) if value.lstrip("-").isdigit() else Moment(_known(moment(value), value))
    if value is None:
        return None
    return value // 1000 if isinstance(value, Moment) else int(value)


def _known(micros: int | None, text: str) -> int:
    if micros is None:
        raise ValueError(f"{text!r} is no time")
    return micros


def _sort_keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    items = [next((v for v in i.values() if v is not None), None) if isinstance(i, Mapping) else i for i in value]
    return tuple(map(_text, items))


def are_halves(took: str, left: str, method: str) -> bool:
    """May the two be halves of updates of keys? Debezium does not always say of a delete and an insert that they are
    one."""
    if method.startswith("debezium"):
        return took in ("INSERT", "UPDATE-INSERT") and left in _DELETES
    return (took, left) == ("UPDATE-INSERT", "UPDATE-DELETE")


# -- order -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What settings say of a table's order. `kind`: the database. `epochs`, `repairs`: times in ms, sorted."""

    kind: str
    epochs: Sequence[int] = ()
    repairs: Sequence[int] = ()

    def place(self, event: Meta) -> tuple[Any, ...]:
        """Where an event stands among all of its table: a greater place is a newer event."""
        time, upsert = max(0, event.source_ms or 0), not event.deleted
        generation = bisect_right(self.repairs, time if event.backfill else time + HOUR_MS)
        counter = event.uuid[-8:] if re.fullmatch("[0-9a-fA-F]{8}", event.uuid[-8:]) else "0"
        reading_order = (max(0, event.read_ms or 0), int(counter, 16), upsert)
        epoch = bisect_right(self.epochs, time)
        if event.backfill and self.kind != "oracle":
            return (generation, epoch, False, time, *reading_order)
        return (generation, epoch, not event.backfill, *self._position(event, time), *reading_order)

    def _position(self, event: Meta, time: int) -> tuple[Any, ...]:
        match self.kind:
            case "mysql":
                # The rows of one binlog event: when, and in which reading, they were read; then their counter.
                uuid = event.uuid.replace("-", "").lower()
                reading = uuid[:7] if re.fullmatch("[0-9a-f]{32}", uuid) else ""
                return (*mysql_position(event), max(0, event.read_ms or 0), reading)
            case "oracle":
                return (event.scn or 0, _hex(event.rs_id), event.ssn or 0, time)
            case "postgresql" | "sqlserver":
                return (_hex(event.lsn), time)
            case "mongodb":
                keys = [int(key) if key.isdigit() else None for key in (*event.sort_keys[:2], "", "")][:2]
                if keys[0] is None or keys[0] >= 10**11:
                    return divmod(time, 1000)[0], time % 1000 * 10**6
                return keys[0], keys[1] or 0
            case _:
                return (time,)

    def gives_way(self, event: Meta, best: Meta) -> bool:
        """Oracle checks keys at the end of a statement: a row that leaves a key loses to another that an update gave
        it to."""
        if self.kind != "oracle" or not are_halves(best.change_type, event.change_type, event.read_method):
            return False
        return bool(event.tx_id and event.tx_id == best.tx_id and event.row_id and best.row_id) and (
            event.row_id != best.row_id
        )

    def newest(self, events: Sequence[Meta]) -> list[int]:
        """Which of a key's events are the newest: several where nothing tells them apart."""
        places = [self.place(event) for event in events]
        ranked = sorted(range(len(events)), key=places.__getitem__)
        newest = ranked[:1]
        for number in ranked[1:]:
            if not self.gives_way(events[number], events[newest[0]]):
                newest = [*newest, number] if places[number] == places[newest[0]] else [number]
        return newest


def mysql_position(event: Meta) -> tuple[int, int]:
    """(number of the binlog file, position in it): `mysql-bin.1000000` is newer than `mysql-bin.999999`."""
    file, position = event.log_file.strip(), event.log_position
    if (not file or position is None) and len(event.sort_keys) > 2:
        file = file or event.sort_keys[1].strip()
        position = int(event.sort_keys[2] or 0) if position is None else position
    match = re.search(r"\d+$", file)
    return int(match[0]) if match else 0, max(0, position or 0)


def _position(event: Meta) -> tuple[Any, ...]:
    return (event.log_file, event.log_position, event.scn, event.rs_id, event.ssn, event.lsn, event.tx_id, event.row_id)


def _hex(text: str) -> list[int]:
    """The parts of an LSN or an RS_ID as numbers."""
    return [int(digits, 16) for digits in re.split("[:/.]", text.strip()) if digits]
