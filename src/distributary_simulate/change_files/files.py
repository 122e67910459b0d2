"""Files of events: their names, and their bytes as avro, JSON lines or parquet."""

from __future__ import annotations

import gzip
import hashlib
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import pyarrow.parquet as pq

from distributary_simulate.change_files.avro_encoding import SYNC_BYTES, container
from distributary_simulate.change_files.events import Event, EventSchema

Format = Literal["avro", "jsonl", "jsonl.gz", "parquet"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
Extra = Literal["", "duplicate", "truncated", "garbage", "empty"]


@dataclass(frozen=True)
class EventFile:
    """Events of one table, one schema, one minute and one read method.

    extra: not empty: the file is one that a fault added; its events (if any) are in another file too.
    keep: the share of the bytes that is written. body: these bytes instead of events.
    """

    schema: EventSchema
    folder: str
    events: tuple[Event, ...]
    read_method: str
    extra: Extra = ""
    keep: float = 1.0
    body: bytes | None = None

    def encoded(self, format_: Format) -> bytes:
        body = _encoded(self, format_) if self.body is None else self.body
        return body if self.keep >= 1 else body[: int(len(body) * self.keep)]

    @property
    def can_be_read(self) -> bool:
        return self.extra in ("", "duplicate")


def minute_folder(object_: str, source_ms: int) -> str:
    """`object/yyyy/mm/dd/hh/mm`, in UTC."""
    return f"{object_}/{datetime.fromtimestamp(source_ms // 1000, UTC):%Y/%m/%d/%H/%M}"


def file_name(file: EventFile, worker: int, number: int, format_: Format) -> str:
    """`<schema_key>_<read_method>_<int>_<n>_<n>.<extension>`; the int follows from the schema and the first event."""
    first = file.events[0].uuid if file.events else str(number)
    hashed = hashlib.sha256(f"{file.schema.key} {first}".encode()).digest()
    return f"{file.schema.key}_{file.read_method}_{int.from_bytes(hashed[:4]) >> 1}_{worker}_{number}.{format_}"


def _encoded(file: EventFile, format_: Format) -> bytes:
    schema = file.schema
    if format_ == "avro":
        # Derived, not drawn: the same events give the same bytes.
        sync = hashlib.sha256((file.events[0].uuid + schema.key).encode()).digest()[:SYNC_BYTES]
        return container(schema.text, map(schema.avro, file.events), sync)
    if format_ == "parquet":
        out = io.BytesIO()
        pq.write_table(schema.arrow(list(file.events)), out)
        return out.getvalue()
    lines = "".join(f"{schema.line(event)}\n" for event in file.events).encode()
    return gzip.compress(lines, 6, mtime=0) if format_ == "jsonl.gz" else lines
