"""The avro container: header, blocks, codecs. What is whole is given, what is cut or garbled is said.

An upload may be cut and a file may have a garbled tail. The blocks before the fault are good, since each ends in the
file's sync marker; so they are given, and the fault is described (apache/spark#22611: a reader that skips the whole
file in silence).
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from distributary.errors import FileBroken

MAGIC = b"Obj\x01"
SYNC = 16
MOST_UNPACKED = 512 << 20
"""Bytes that one file may unpack to, where nobody says another number."""
STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """`count` events in `data[start:end]`; the first one is event `row` of the file."""

    row: int
    count: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Container:
    """`data` holds all blocks, and at least 16 readable bytes behind the last one."""

    schema: str
    data: pa.Buffer
    blocks: tuple[Block, ...]
    fault: str


class _Cut(Exception):
    pass


def open_container(body: pa.Buffer, path: str, most: int = MOST_UNPACKED) -> Container:
    """Reads the header and finds the blocks, which may unpack to `most` bytes together.

    Raises:
        FileBroken: no avro file, or a codec that is not known.
    """
    view = memoryview(body).cast("B")
    schema, codec, position, sync = _opened(view, path)
    blocks, fault = _blocks(view, position, sync)
    if codec != "null":
        return _unpacked(view, schema, blocks, fault, CODECS[codec], most)
    return Container(schema, _padded(body, blocks), tuple(blocks), fault)


def open_beginning(body: pa.Buffer, path: str, most: int = MOST_UNPACKED) -> Container:
    """The first block, or as much of it as `body` has; no block where there is none, or where a packed one is cut.

    Raises:
        FileBroken: no avro file, a header longer than `body`, or a codec that is not known.
    """
    view = memoryview(body).cast("B")
    schema, codec, position, _ = _opened(view, path)
    try:
        count, start = _long(view, position)
        size, start = _long(view, start)
    except _Cut:
        return Container(schema, pa.py_buffer(bytes(SYNC)), (), "")
    block = Block(0, max(count, 0), start, min(start + max(size, 0), len(view)))
    if codec != "null":
        return _unpacked(view, schema, [block], "", CODECS[codec], most)
    return Container(schema, body, (block,), "")


def _opened(view: memoryview, path: str) -> tuple[str, str, int, bytes]:
    """Schema text, codec, place of the first block, sync marker."""
    if bytes(view[:4]) != MAGIC:
        raise FileBroken(path=path, detail="it does not begin as an avro file does (Obj 1)")
    try:
        header, position = _header(view, 4)
        sync = bytes(view[position : position + SYNC])
        if len(sync) < SYNC:
            raise _Cut
        schema = header["avro.schema"].decode()
    except (_Cut, KeyError, UnicodeDecodeError) as exc:
        raise FileBroken(path=path, detail="its avro header is cut or garbled") from exc
    codec = header.get("avro.codec", b"null").decode(errors="replace")
    if codec != "null" and codec not in CODECS:
        codecs = ", ".join(["null", *sorted(CODECS)])
        raise FileBroken(path=path, detail=f"its codec {codec!r} is not known; known are {codecs}")
    return schema, codec, position + SYNC, sync


def _blocks(view: memoryview, position: int, sync: bytes) -> tuple[list[Block], str]:
    blocks: list[Block] = []
    row = 0
    while position < len(view):
        try:
            count, start = _long(view, position)
            size, start = _long(view, start)
        except _Cut:
            return blocks, f"the file ends inside the head of block {len(blocks)}, at byte {position}"
        end = start + size
        if count < 0 or size < 0 or end + SYNC > len(view):
            return blocks, f"block {len(blocks)}, at byte {position}, is cut or garbled"
        if view[end : end + SYNC] != sync:
            return blocks, f"block {len(blocks)}, at byte {position}, does not end in the file's sync marker"
        if count:
            blocks.append(Block(row, count, start, end))
        row += count
        position = end + SYNC
    return blocks, ""


class BlockTooLarge(Exception):
    """What is packed has more bytes than it may."""


def _unpacked(view: memoryview, schema: str, blocks: list[Block], fault: str, unpack: Unpack, most: int) -> Container:
    bodies: list[bytes] = []
    unpacked: list[Block] = []
    position = 0
    for number, block in enumerate(blocks):
        try:
            body = unpack(bytes(view[block.start : block.end]), most - position)
        except Exception as exc:  # each codec's library has errors of its own
            why = _too_large(most) if isinstance(exc, BlockTooLarge) else str(exc)
            fault = f"block {number} cannot be unpacked: {why}" + (f"; {fault}" if fault else "")
            break
        bodies.append(body)
        unpacked.append(Block(block.row, block.count, position, position + len(body)))
        position += len(body)
    return Container(schema, pa.py_buffer(b"".join([*bodies, bytes(SYNC)])), tuple(unpacked), fault)


def _too_large(most: int) -> str:
    return f"the file has more than {most:,} bytes when it is unpacked (source.max_unpacked_bytes)"


def _padded(body: pa.Buffer, blocks: list[Block]) -> pa.Buffer:
    """Behind each whole block stands its sync marker, so nothing has to be copied."""
    return body if blocks else pa.py_buffer(bytes(SYNC))


def _snappy(block: bytes, most: int) -> bytes:
    """Raw snappy, then the CRC-32 of what comes out (avro specification, "snappy")."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise BlockTooLarge
    data: bytes = pa.decompress(block[:-4], decompressed_size=size, codec="snappy", asbytes=True)
    if zlib.crc32(data) != int.from_bytes(block[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return data


def _zstandard(block: bytes, most: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        while piece := stream.read(STEP):
            size += len(piece)
            if size > most:
                raise BlockTooLarge
            pieces.append(piece)
    return b"".join(pieces)


def _deflate(block: bytes, most: int) -> bytes:
    return _whole(zlib.decompressobj(-15), block, most)


def _whole(unpacker: Any, block: bytes, most: int) -> bytes:
    """All that a block unpacks to. Raises TooLarge: more than `most` bytes; ValueError: it is cut."""
    data: bytes = unpacker.decompress(block, most + 1)
    if len(data) > most:
        raise BlockTooLarge
    if not unpacker.eof:
        raise ValueError("it is cut")
    return data


Unpack = Callable[[bytes, int], bytes]
CODECS: dict[str, Unpack] = {
    "deflate": _deflate,
    "snappy": _snappy,
    "zstandard": _zstandard,
    "bzip2": lambda block, most: _whole(bz2.BZ2Decompressor(), block, most),
    "xz": lambda block, most: _whole(lzma.LZMADecompressor(), block, most),
}


def _header(view: memoryview, position: int) -> tuple[dict[str, bytes], int]:
    entries: dict[str, bytes] = {}
    while True:
        count, position = _long(view, position)
        if count == 0:
            return entries, position
        if count < 0:
            _, position = _long(view, position)
        for _ in range(abs(count)):
            key, position = _bytes(view, position)
            entries[key.decode()], position = _bytes(view, position)


def _bytes(view: memoryview, position: int) -> tuple[bytes, int]:
    size, position = _long(view, position)
    if size < 0 or position + size > len(view):
        raise _Cut
    return bytes(view[position : position + size]), position + size


def _long(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(view) or shift > 63:
            raise _Cut
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
