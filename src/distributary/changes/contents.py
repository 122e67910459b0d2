"""A change file's bytes to rows, whatever its format; and the first event of one, to know whose it is.

The first bytes say what a file is, not its name: somebody's `.json` may be zipped and somebody's `.gz` may not be.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from distributary.avro.schema import NULL, Record, solid
from distributary.changes.avro_files import AvroFile, first_avro, read_avro
from distributary.changes.json_files import read_json
from distributary.changes.metadata import Rows
from distributary.changes.model import BadEvent, Reading
from distributary.changes.parquet_files import read_parquet
from distributary.errors import FileBroken, Reason

GZIP = b"\x1f\x8b"
AVRO = b"Obj\x01"
PARQUET = b"PAR1"
MARK = b"\xef\xbb\xbf"
"""The byte order mark that some tools put before UTF-8."""
BODY = ("source_metadata", "payload")
FIRST_BYTES = 1 << 20
"""What is unpacked at first to find the first event of a zipped file."""
MEMBER_BYTES, LEAST_BYTES = 1 << 16, 64
"""What a member of a zipped file is given at first, the most and the least."""


def read_rows(
    body: pa.Buffer, path: str, reading: Reading, schema_text: str | None, bad: list[BadEvent]
) -> Iterator[Rows]:
    """All rows of a file, in runs of one schema; what can't be read is added to `bad`. An empty file has none.

    Raises:
        FileBroken: nothing of it can be read.
    """
    packed, most = body, reading.max_unpacked_bytes
    body, fault = unzipped(packed, most)
    if body is not packed and body.size > most:
        detail = f"it has more than {most:,} bytes when it is unpacked (source.max_unpacked_bytes)"
        raise FileBroken(path=path, detail=detail)
    format_ = _format(body, path, reading)
    if format_ == "avro":
        file = read_avro(body, path, most=most)
        bad += file.bad
        yield from avro_rows(file)
    elif format_ == "parquet":
        yield from read_parquet(body, path, bad, most)
    elif format_ == "json":
        yield from read_json(body.to_pybytes().removeprefix(MARK), path, reading, schema_text, bad)
    if fault:
        last = max((event.row for event in bad), default=0)
        bad.append(BadEvent(last, Reason.FILE_BROKEN, f"its gzip data {fault}; what came before is read", b""))


def first_row(body: pa.Buffer, path: str, reading: Reading) -> Rows | None:
    """The first event of a file, of which `body` may be only the beginning (Parquet: the whole). None without one."""
    file_body = body
    body, _ = unzipped(file_body, FIRST_BYTES)
    row = _first(body, path, reading)
    if row is None and body.size > FIRST_BYTES:
        body, _ = unzipped(file_body, reading.max_unpacked_bytes)
        row = _first(body, path, reading)
    return row


def _first(body: pa.Buffer, path: str, reading: Reading) -> Rows | None:
    format_ = _format(body, path, reading)
    bad: list[BadEvent] = []
    if format_ == "avro":
        return next(avro_rows(first_avro(body, path, reading.max_unpacked_bytes)), None)
    if format_ == "parquet":
        row_groups = read_parquet(body, path, bad, reading.max_unpacked_bytes)
        return next((rows.take(np.zeros(1, np.int64)) for rows in row_groups), None)
    if format_ != "json":
        return None
    text = body.to_pybytes().removeprefix(MARK)
    line = next((line for line in text.split(b"\n") if line.strip()), b"")
    for content in (line, text):  # the second is for a file that is one object, or a list, over many lines
        with contextlib.suppress(FileBroken):
            for rows in read_json(content, path, reading, None, []):
                return rows.take(np.zeros(1, np.int64))
    return None


def avro_rows(file: AvroFile) -> Iterator[Rows]:
    source = solid(file.schema.field("source_metadata") or NULL)
    payload = solid(file.schema.field("payload") or NULL)
    for stored_part in file.stored:
        columns = dict(zip(file.schema.names, stored_part.columns.flatten(), strict=True))
        stored = zip(payload.fields, columns["payload"].flatten(), strict=True) if isinstance(payload, Record) else ()
        names = source.names if isinstance(source, Record) else ()
        metadata = columns["source_metadata"].flatten() if names else ()
        yield Rows(
            np.arange(stored_part.row, stored_part.row + len(stored_part.columns), dtype=np.int64),
            {name: array for name, array in columns.items() if name not in BODY},
            dict(zip(names, metadata, strict=True)),
            [(field.name, field.node, array) for field, array in stored],
        )


def _format(body: pa.Buffer, path: str, reading: Reading) -> str:
    if reading.format != "auto" or not body.size:
        return reading.format if body.size else ""
    head = body.slice(0, min(body.size, 4_096)).to_pybytes()
    if head.startswith(AVRO):
        return "avro"
    if head.startswith(PARQUET):
        return "parquet"
    text = head.removeprefix(MARK).lstrip()
    if text[:1] in (b"{", b"[") or not text:
        return "json"
    if path.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz")):
        return "json"  # a garbled first line is one bad event
    raise FileBroken(path=path, detail="it is neither avro, nor JSON lines, nor Parquet, zipped or not")


def unzipped(body: pa.Buffer, most: int) -> tuple[pa.Buffer, str]:
    """The content, and what is wrong with its end: a cut file gives all that can be unpacked. Of content with more than
    `most` bytes only its beginning, a byte longer than that."""
    if body.size < 2 or body.slice(0, 2).to_pybytes() != GZIP:
        return body, ""
    packed = memoryview(body).cast("B")
    content = bytearray()
    begin, ahead = 0, MEMBER_BYTES
    while packed[begin : begin + 2] == GZIP and len(content) <= most:
        unpacked = len(content)
        try:
            end = _member(packed, begin, ahead, content, most + 1)
        except zlib.error as exc:
            del content[unpacked:]
            content += _until_fault(packed[begin:], most + 1 - unpacked)
            return pa.py_buffer(content), f"is garbled ({exc})"
        if end is None:
            return pa.py_buffer(content), "" if len(content) > most else "is cut"
        # What is given beyond a member's end is copied, so it is to be in proportion to the member.
        begin, ahead = end, min(MEMBER_BYTES, max(LEAST_BYTES, 2 * (end - begin)))
    is_followed = len(content) <= most and bytes(packed[begin:]).strip(b"\0")
    return pa.py_buffer(content), "is followed by something else" if is_followed else ""


def _member(packed: memoryview, begin: int, ahead: int, content: bytearray, most: int) -> int | None:
    """Unpack the member at `begin` behind `content`, which gets `most` bytes at the most; `ahead`: how many bytes it is
    given at first. Its end; None where it has none. Raises zlib.error."""
    member = zlib.decompressobj(wbits=31)
    while begin < len(packed) and len(content) < most:
        part_given = packed[begin : begin + ahead]
        content += member.decompress(part_given, most - len(content))
        begin += len(part_given)
        if member.eof:
            return begin - len(member.unused_data)
        ahead = min(2 * ahead, FIRST_BYTES)
    return None


def _until_fault(data: memoryview, room: int) -> bytes:
    """What a garbled member gives before its fault: unpacked in small steps."""
    member = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    for start in range(0, len(data), 4_096):
        try:
            pieces.append(member.decompress(member.unconsumed_tail + data[start : start + 4_096], max(1, room)))
        except zlib.error:
            break
        room -= len(pieces[-1])
        if room <= 0:
            break
    return b"".join(pieces)
