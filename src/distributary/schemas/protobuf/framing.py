"""The Confluent wire header of a protobuf record, read and written in this one place.

    00 | schema id, 4 bytes big-endian | message indexes | body

The message indexes say which message of the schema file the body is: a count and then one index per nesting
level, each a zigzag varint. The path `[0]`, by far the most frequent, is abbreviated to the single byte `00`.
Source: docs.confluent.io, "Wire format"; the traps are those of `confluent-kafka-python#926` (plain instead
of zigzag varints) and `risingwavelabs/risingwave#14773` (the header has no fixed length).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

MAGIC: Final = 0
ID_BYTES: Final = 5
"""Magic byte and schema id: what precedes the message indexes."""
MAX_DEPTH: Final = 32
"""Longest index path. protoc refuses messages nested deeper; a crafted count must not allocate memory."""
MAX_INDEX: Final = 2**31 - 1
VARINT_BYTES: Final = 5
WORD_BYTES: Final = 8

FINE, TOO_SHORT, BAD_MAGIC, UNKNOWN_SCHEMA_ID, BAD_INDEX = range(5)
"""Places in `_REASONS`: what is wrong with a row, as a number while all rows are looked at."""
_REASONS = pa.array([None, Reason.TOO_SHORT, Reason.BAD_MAGIC, Reason.UNKNOWN_SCHEMA_ID, Reason.BAD_INDEX], pa.string())


@dataclass(frozen=True, slots=True)
class Frames:
    """Headers of a batch of records, as columns. All arrays are as long as the input.

    A null record (a tombstone) is null in all four columns: it has no header and nothing is wrong with it.
    """

    schema_id: pa.Int32Array
    """Writer schema id; null where there is no good header."""
    index: pa.StringArray
    """Message index path as text: "0", "2", "0.1"; null where there is no good header."""
    body: pa.BinaryArray
    """The serialised message (empty is a valid one, all defaults); null where there is no good header."""
    reason: pa.StringArray
    """`Reason` id: TOO_SHORT, BAD_MAGIC, BAD_INDEX or UNKNOWN_SCHEMA_ID (a negative id); null where fine."""


def frame(schema_id: int, body: bytes, index: Sequence[int] = (0,)) -> bytes:
    """Put the header in front of a serialised message.

    Raises:
        ValueError: the id or an index is negative, or the path is empty or deeper than `MAX_DEPTH`.
    """
    if schema_id < 0 or not 0 < len(index) <= MAX_DEPTH or min(index) < 0:
        raise ValueError(f"no header for schema id {schema_id} and message index path {list(index)}")
    path = b"\0" if tuple(index) == (0,) else b"".join(map(_zigzag, (len(index), *index)))
    return struct.pack(">bi", MAGIC, schema_id) + path + body


def frame_all(schema_id: int, index: str, bodies: pa.Array) -> pa.Array:
    """Put one header in front of each of the messages; a null stays one. `index`: the path as text, as "0.1"."""
    header = pa.scalar(frame(schema_id, b"", [int(step) for step in index.split(".")]), pa.binary())
    return pc.binary_join_element_wise(header, bodies, pa.scalar(b"", pa.binary()))


def split_frames(values: pa.BinaryArray, *, legacy_varints: bool = False, indexes: bool = True) -> Frames:
    """Split framed records into schema id, message index path and body.

    Args:
        values: framed records; null is a tombstone.
        legacy_varints: read the indexes as plain varints, as confluent-kafka-python up to 1.7 wrote them.
            Never guessed: `02 00 01` is valid in both forms and means different things.
        indexes: the header has message indexes; without, the body begins behind the schema id (`schemas.header`).

    A header that ends too early is TOO_SHORT; another first byte than 0 (raw protobuf, a GUID header)
    is BAD_MAGIC; a negative or oversized count or index is BAD_INDEX.
    """
    count = len(values)
    present = ~np.asarray(values.is_null()) if values.null_count else np.ones(count, bool)
    start, data = _offsets(values)
    begin, end = start[:-1], start[1:]
    fault = np.full(count, FINE, np.int8)
    long_enough = present & (end - begin >= ID_BYTES + indexes)
    fault[present & ~long_enough] = TOO_SHORT
    header = _first_bytes(data, begin)
    framed = long_enough & (header & 0xFF == MAGIC)
    fault[long_enough & ~framed] = BAD_MAGIC
    schema_id = (header >> np.uint64(8)).astype(np.uint32).byteswap().view(np.int32)
    fault[framed & (schema_id < 0)] = UNKNOWN_SCHEMA_ID

    good = framed & (schema_id >= 0)
    body_at = begin + ID_BYTES + indexes
    index: Any = pa.repeat(pa.scalar("0"), count)
    longer = good & (header >> np.uint64(8 * ID_BYTES) & 0xFF != 0)
    if indexes and longer.any():
        paths = _Paths(data, begin[longer] + ID_BYTES, end[longer], zigzag=not legacy_varints)
        index = pc.replace_with_mask(index, pa.array(longer), paths.text())
        body_at[longer], fault[longer] = paths.at, paths.fault()
        good[longer] = ~(paths.short | paths.bad)
    return Frames(
        schema_id=pa.array(schema_id, pa.int32(), mask=~good),
        index=index if good.all() else pc.if_else(pa.array(good), index, None),
        body=_bodies(values, start, body_at, good),
        reason=_REASONS.take(pa.array(fault)) if fault.any() else pa.nulls(count, pa.string()),
    )


def _zigzag(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _offsets(values: pa.BinaryArray) -> tuple[Ints, NDArray[np.uint8]]:
    """Offsets (length n + 1, into the data) and the data; copes with sliced arrays."""
    _, offsets, data = values.buffers()
    count = len(values)
    if offsets is None or offsets.size == 0:
        return np.zeros(count + 1, np.int64), np.zeros(0, np.uint8)
    start = np.frombuffer(offsets, np.int32, count + 1, values.offset * 4).astype(np.int64)
    return start, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def _first_bytes(data: NDArray[np.uint8], begin: Ints) -> NDArray[np.uint64]:
    """The eight bytes from each place on, the first one lowest; beyond the data's end, anything.

    One unaligned read a row: byte by byte it takes seven times as long.
    """
    if len(data) < WORD_BYTES:
        data = np.concatenate((data, np.zeros(WORD_BYTES, np.uint8)))
    words: NDArray[np.uint64] = np.ndarray((len(data) - WORD_BYTES + 1,), "<u8", data, strides=(1,))
    word_places = np.minimum(begin, len(words) - 1)
    behind = (8 * np.minimum(begin - word_places, WORD_BYTES - 1)).astype(np.uint64)
    return words[word_places] >> behind


def _bodies(values: pa.BinaryArray, start: Ints, body_at: Ints, good: Bools) -> pa.BinaryArray:
    """Cut every row in two by doubling the offsets, and take the bodies: one copy, any header length."""
    count = len(good)
    cuts = np.empty(2 * count + 1, np.int32)
    cuts[0::2] = start
    cuts[1::2] = np.where(good, body_at, start[:-1])
    halves = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(cuts), values.buffers()[2] or pa.py_buffer(b"")]
    )
    return halves.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64), mask=~good))


class _Paths:
    """Index paths that are not in the one-byte form, read level by level over all rows at once."""

    def __init__(self, data: NDArray[np.uint8], begin: Ints, end: Ints, *, zigzag: bool) -> None:
        self.at = begin.copy()
        """Where each row is read next; after the last level this is where the body starts."""
        self.short = np.zeros(len(begin), bool)
        self.bad = np.zeros(len(begin), bool)
        self._data, self._end, self._zigzag = data, end, zigzag
        self._count = self._next(np.ones(len(begin), bool), limit=MAX_DEPTH)
        self._levels: list[Ints] = []
        for level in range(int(self._count.max(initial=0))):
            self._levels.append(self._next(self._count > level, limit=MAX_INDEX))

    def fault(self) -> NDArray[np.int8]:
        """What is wrong with each row, as its place in `_REASONS`."""
        fault = np.where(self.short, TOO_SHORT, FINE).astype(np.int8)
        fault[self.bad] = BAD_INDEX
        return fault

    def text(self) -> pa.StringArray:
        """Paths as "2" or "0.1"; a count of 0 in more than one byte is still [0]."""
        empty = self._count == 0
        columns = []
        for level, values in enumerate(self._levels or [np.zeros(len(self.at), np.int64)]):
            absent = (self._count <= level) & ~(empty & (level == 0))
            columns.append(pa.array(values, pa.int64(), mask=absent).cast(pa.string()))
        return pc.binary_join_element_wise(*columns, ".", null_handling="skip")

    def _next(self, row_mask: Bools, limit: int) -> Ints:
        """Read one varint in every wanted row that has had no fault; 0 elsewhere."""
        value = np.zeros(len(self.at), np.int64)
        open_rows = np.flatnonzero(row_mask & ~self.short & ~self.bad)
        for byte in range(VARINT_BYTES):
            over = self.at[open_rows] >= self._end[open_rows]
            self.short[open_rows[over]] = True
            open_rows = open_rows[~over]
            bytes_read = self._data[self.at[open_rows]].astype(np.int64)
            self.at[open_rows] += 1
            value[open_rows] |= (bytes_read & 0x7F) << (7 * byte)
            open_rows = open_rows[bytes_read > 0x7F]
        self.bad[open_rows] = True
        if self._zigzag:
            value = (value >> 1) ^ -(value & 1)
        self.bad |= (value < 0) | (value > limit)
        value[self.bad | self.short] = 0
        return value
