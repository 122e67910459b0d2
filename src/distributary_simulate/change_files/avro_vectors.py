"""Avro's encoding for many records at once: each field is a matrix of bytes, one row per record, and how many count.

Joined side by side and masked, the matrices are the records' bytes, one record after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from distributary_simulate.change_files.avro_encoding import append_block, header, varint

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHUNK_ROWS: Final = 2_500
"""Records that are joined at once: the matrices stay in the processor's cache."""


@dataclass(frozen=True)
class Field:
    """bytes: (rows, width); one row stands for all where the field is constant. lengths: bytes that count per row."""

    bytes: Bytes
    lengths: Ints

    def rows(self, first: int, last: int) -> Field:
        return self if len(self.bytes) == 1 else Field(self.bytes[first:last], self.lengths[first:last])


def constant(value: bytes) -> Field:
    return Field(np.frombuffer(value, np.uint8).reshape(1, -1), np.array([len(value)], np.int64))


def text(value: str) -> bytes:
    """One string, encoded."""
    body = value.encode()
    return varint(len(body)) + body


def longs(values: Ints, prefix: bytes = b"") -> Field:
    """int and long values. prefix: stands before each, such as a union's branch."""
    zigzag = ((values << 1) ^ (values >> 63)).astype(np.uint64)
    width = max(1, -(-int(zigzag.max()).bit_length() // 7)) if len(values) else 1
    out = np.empty((len(values), len(prefix) + width), np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    lengths = np.full(len(values), len(prefix) + 1, np.int64)
    for byte in range(width):
        rest = zigzag >> np.uint64(7 * (byte + 1))
        goes_on = rest > 0
        out[:, len(prefix) + byte] = (zigzag >> np.uint64(7 * byte) & np.uint64(0x7F)).astype(np.uint8) | goes_on * 0x80
        if byte + 1 < width:
            lengths += goes_on
    return Field(out, lengths)


def doubles(values: np.ndarray[Any, np.dtype[np.float64]], prefix: bytes = b"") -> Field:
    return _fixed(values.astype("<f8").view(np.uint8).reshape(len(values), 8), prefix)


def big_endian(values: Ints, width: int, prefix: bytes = b"") -> Field:
    """Integers as `width` bytes of two's complement, the most significant first: the bytes of a decimal."""
    return _fixed(values.astype(">i8").view(np.uint8).reshape(len(values), 8)[:, 8 - width :], prefix)


def choices(values: Sequence[bytes], picked: Ints) -> Field:
    """For each row one of a few encoded values."""
    width = max(map(len, values))
    table = np.zeros((len(values), width), np.uint8)
    for index, value in enumerate(values):
        table[index, : len(value)] = np.frombuffer(value, np.uint8)
    return Field(table[picked], np.array([len(value) for value in values], np.int64)[picked])


def digits(values: Ints, count: int, base: int = 10) -> Field:
    """Numbers as text of exactly `count` digits."""
    powers = base ** np.arange(count - 1, -1, -1, dtype=np.int64)
    characters = (values[:, None] // powers % base + ord("0")).astype(np.uint8)
    return Field(characters, np.full(len(values), count, np.int64))


def file_of(schema_text: str, fields: Sequence[Field], rows: int, sync: bytes, block_bytes: int) -> bytes:
    """A container file of `rows` records whose fields these are, in order."""
    out = bytearray(header(schema_text, sync))
    for first in range(0, rows, CHUNK_ROWS):
        last = min(rows, first + CHUNK_ROWS)
        body, ends = _joined([field.rows(first, last) for field in fields], last - first)
        begin = count = 0
        for row in range(last - first):
            count += 1
            if ends[row] - begin >= block_bytes or row + 1 == last - first:
                append_block(out, body[begin : ends[row]], count, sync)
                begin, count = ends[row], 0
    return bytes(out)


def _joined(fields: Sequence[Field], rows: int) -> tuple[memoryview, list[int]]:
    """The records' bytes, and where each ends."""
    width = sum(field.bytes.shape[1] for field in fields)
    matrix, counts = np.empty((rows, width), np.uint8), np.empty((rows, width), np.bool_)
    lengths, column = np.zeros(rows, np.int64), 0
    for field in fields:
        span = slice(column, column + field.bytes.shape[1])
        matrix[:, span] = field.bytes
        counts[:, span] = np.arange(field.bytes.shape[1]) < field.lengths[:, None]
        lengths += field.lengths
        column = span.stop
    return memoryview(matrix[counts].tobytes()), np.cumsum(lengths).tolist()


def _fixed(values: Bytes, prefix: bytes) -> Field:
    out = np.empty((len(values), len(prefix) + values.shape[1]), np.uint8)
    out[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    out[:, len(prefix) :] = values
    return Field(out, np.full(len(values), out.shape[1], np.int64))
