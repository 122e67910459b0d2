"""Where a change stands in its source's log, by connector; and the number that a greater one of is the newer event.

Four whole numbers, the first ones weightiest, are a change's place, and the offset of its message decides between
changes of one place:

| connector | place |
|---|---|
| MySQL | number of the binlog file, position, row within the binlog event, offset |
| MariaDB | sequence number of the GTID where there is one, else the file's; position, row, offset |
| PostgreSQL | LSN, commit time |
| SQL Server | commit LSN, change LSN, serial number of the event, commit time |
| Oracle | SCN, RS_ID and SSN, time |
| MongoDB | seconds of the cluster time, its ordinal |
| others | source time |

Within one server's log a key's changes stand in the order in which they took place: who changes a row waits for who has
changed it. So neither the clock nor the order in which messages arrive plays a part, and a message that comes again has
its old place. The offset is the order within a topic's partition; a key has one partition.

A row of a snapshot is older than any change of the log (`changes.sequence`): what came after the read is in the log
itself. Its place is the time of the snapshot.

With `by_offset` nothing but the offset counts, snapshots included: the newest message of a key is the newest. Of
several changes of one message (OpenLogReplicator) the SSN decides.

Source: Debezium documentation, "Change events" of each connector, and messages of Debezium 3.6.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digit_rows import hex_digits, texts_of
from distributary.changes.digits import PREFIX, WIDTH, ZERO
from distributary.changes.model import Kind
from distributary.changes.sequence import OrderSettings, Sequences, file_number

ORIGIN_DIGIT = "8"
KINDS = {
    "mysql": Kind.MYSQL,
    "mariadb": Kind.MYSQL,
    "postgresql": Kind.POSTGRESQL,
    "sqlserver": Kind.SQLSERVER,
    "oracle": Kind.ORACLE,
    "mongodb": Kind.MONGODB,
}
SourceBlock = Mapping[str, Any]
Parts = tuple[int, int, int, int]
_RS_ID = re.compile(r"\s*(?:0x)?([0-9a-fA-F]{1,8})\.([0-9a-fA-F]{1,8})\.([0-9a-fA-F]{1,4})\s*")
_LSN = re.compile(r"\s*([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,4})\s*")
_GTID = re.compile(r"\d+-\d+-(\d+)")
_MOST = 2**63


def place_of(kind: Kind, source: SourceBlock, time_ms: int, offset: int) -> Parts:
    """A change's place. Raises ValueError, in words, where the message does not say it."""
    return _PLACES[kind](source, max(0, time_ms), max(0, offset))


def place_by_offset(source: SourceBlock, offset: int) -> Parts:
    """That of a change by its message, which may hold several: those of OpenLogReplicator have numbers."""
    return offset, _whole(source, "ssn") or 0, 0, 0


def _mysql(source: SourceBlock, time: int, offset: int) -> Parts:
    match = _GTID.fullmatch(str(source.get("gtid") or ""))
    number = int(match[1]) if match else file_number(str(source.get("file") or ""))
    position = _whole(source, "pos")
    if number is None or number >= _MOST or position is None:
        raise ValueError("a MySQL change needs source.file (ending in a number) and source.pos")
    return number, position, _whole(source, "row") or 0, offset


def _postgresql(source: SourceBlock, time: int, offset: int) -> Parts:
    lsn = _whole(source, "lsn")
    if lsn is None:
        raise ValueError("a PostgreSQL change needs source.lsn")
    return lsn >> 32, lsn & 0xFFFF_FFFF, time, 0


def _sqlserver(source: SourceBlock, time: int, offset: int) -> Parts:
    commit, change = (_LSN.fullmatch(str(source.get(name) or "")) for name in ("commit_lsn", "change_lsn"))
    if commit is None:
        raise ValueError("a SQL Server change needs source.commit_lsn of three hex parts: 00000025:00000728:0003")
    digits = "".join(
        "".join(
            field.rjust(width, "0") for field, width in zip(match.groups() if match else "000", (8, 8, 4), strict=True)
        )
        for match in (commit, change)
    )
    digits += f"{(_whole(source, 'event_serial_no') or 0) & 0xFFFF_FFFF:08x}"
    return int(digits[:16], 16), int(digits[16:32], 16), int(digits[32:], 16), time


def _oracle(source: SourceBlock, time: int, offset: int) -> Parts:
    scn = _whole(source, "scn")
    if scn is None:
        raise ValueError("an Oracle change needs source.scn")
    match, ssn = _RS_ID.fullmatch(str(source.get("rs_id") or "")), _whole(source, "ssn") or 0
    if match is None:
        return scn, 0, ssn, time
    if ssn >> 48:
        raise ValueError("an Oracle change's source.ssn has 48 bits at most")
    block = int(match[1].rjust(8, "0") + match[2].rjust(8, "0"), 16)
    return scn, block, (int(match[3], 16) << 48) + ssn, time


def _mongodb(source: SourceBlock, time: int, offset: int) -> Parts:
    if source.get("ts_ms") is None:
        raise ValueError("a MongoDB change needs source.ts_ms and source.ord")
    return time // 1000, _whole(source, "ord") or 0, 0, 0


def _generic(source: SourceBlock, time: int, offset: int) -> Parts:
    if source.get("ts_ms") is None:
        raise ValueError("no source.ts_ms, so its place in the order is unknown")
    return time, 0, 0, 0


_PLACES: dict[Kind, Callable[[SourceBlock, int, int], Parts]] = {
    Kind.MYSQL: _mysql,
    Kind.POSTGRESQL: _postgresql,
    Kind.SQLSERVER: _sqlserver,
    Kind.ORACLE: _oracle,
    Kind.MONGODB: _mongodb,
    Kind.GENERIC: _generic,
}


def _whole(source: SourceBlock, name: str) -> int | None:
    """A whole number, or a text that spells one (Oracle's SCN); None where there is none."""
    value = source.get(name)
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST else None


def sequence(
    kind: str, meta: pa.RecordBatch, payload_hash: pa.Array, settings: OrderSettings | None, *, by_offset: bool = False
) -> Sequences:
    """As `changes.sequence.sequence_numbers`, of events whose `sort_keys` are the four parts of their place and the
    offset of their message.

    prefix | origin | place 64 | source time (MySQL) or offset 12 | 0 8 | upsert 1 | hash of the payload 16
    """
    rows = meta.num_rows
    time = np.maximum(pc.fill_null(meta.column("source_timestamp"), 0).to_numpy(zero_copy_only=False), 0)
    deleted, backfill = (
        np.asarray(meta.column(name).to_numpy(zero_copy_only=False), bool) for name in ("is_deleted", "is_backfill")
    )
    keys = meta.column("sort_keys").flatten().cast(pa.uint64()).to_numpy(zero_copy_only=False).reshape(rows, 5)
    out = np.full((rows, WIDTH), ZERO, np.uint8)
    out[:, :PREFIX] = (settings or OrderSettings()).prefix(time, backfill)
    out[:, PREFIX] = np.where(backfill & (not by_offset), ord("1"), ord(ORIGIN_DIGIT))
    for number in range(4):
        begin = PREFIX + 1 + 16 * number
        out[:, begin : begin + 16] = hex_digits(keys[:, number], 16)
    tie = PREFIX + 65
    out[:, tie : tie + 12] = hex_digits(time if kind == Kind.MYSQL and not by_offset else keys[:, 4], 12)
    out[:, tie + 20] = np.where(deleted, ZERO, ord("1"))
    out[:, tie + 21 :] = hex_digits(payload_hash.cast(pa.uint64()).to_numpy(zero_copy_only=False), 16)
    return Sequences(texts_of(out))
