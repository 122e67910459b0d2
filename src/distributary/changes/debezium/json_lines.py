"""Files of Debezium's messages in JSON, a message a line, as the sinks of Kafka Connect write them: each line is the
value of a record, or a record with its key (`{"key": ..., "value": ...}`, these as they are or as texts).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pyarrow as pa

from distributary.changes.contents import MARK, unzipped
from distributary.changes.debezium.heads import Form, Message, Record
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.message_fields import FIELDS, UNDECODABLE
from distributary.changes.model import BadEvent, FileEvents, Reading, SourceTable
from distributary.errors import FileBroken, Reason

IN_FILES = Form(in_files=True)
_OF_VALUES = {"op", "payload", "schema"}


def read_lines(body: pa.Buffer, path: str, reading: Reading) -> FileEvents:
    """Every event of a file; numbers are those of its lines that are not blank. Raises FileBroken."""
    content, fault = unzipped(body, reading.max_unpacked_bytes)
    if content.size > max(body.size, reading.max_unpacked_bytes):
        most = f"{reading.max_unpacked_bytes:,} bytes"
        raise FileBroken(path=path, detail=f"it has more than {most} when it is unpacked (source.max_unpacked_bytes)")
    lines = _lines(content)
    events = read_messages([_message(line, path, row) for row, line in enumerate(lines)], reading, IN_FILES)
    if fault:
        detail = f"its gzip data {fault}; what came before is read"
        events.bad.append(BadEvent(len(lines), Reason.FILE_BROKEN, detail, b""))
    return events


def first_table(body: pa.Buffer, path: str, reading: Reading) -> SourceTable | None:
    """Whose the first change of a file is, of which `body` may be only the beginning."""
    content, _ = unzipped(body, reading.max_unpacked_bytes)
    for row, line in enumerate(_lines(content)):
        events = read_messages([_message(line, path, row)], replace(reading, columns={}), IN_FILES).events
        if events:
            return events[0].table
    return None


def _lines(content: pa.Buffer) -> list[bytes]:
    return [line for line in content.to_pybytes().removeprefix(MARK).split(b"\n") if line.strip()]


def _message(line: bytes, path: str, row: int) -> Message:
    place = Record(path, 0, row)
    try:
        fields = FIELDS.decode(line)
    except UNDECODABLE:
        return Message(place, None, line)
    if "value" not in fields or fields.keys() & _OF_VALUES:
        return Message(place, None, line)
    return Message(place, _body(fields.get("key")), _body(fields["value"]))


def _body(token: msgspec.Raw | None) -> bytes | None:
    """A key or a value as the bytes that its record had."""
    body = b"null" if token is None else bytes(token)
    if body.startswith(b'"'):
        body = msgspec.json.decode(body, type=str).encode()
    return None if body == b"null" else body
