"""A number per row that says what is in it: the last tie-break between events that are alike in all else.

The same values give the same number on every machine and in every run. It is no defence against anybody who wants two
rows to collide, and need not be: equal numbers of unequal rows only mean that the tie stays one.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]

PRIME = np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(29)
ABSENT = np.uint64(0xA24BAED4963EE407)
LONG_BYTES = 256
"""Texts above this length: a round for every eight bytes would make all rows wait for the longest of them."""


def row_hash(columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """One uint64 per row over all columns, their order included."""
    total = np.full(count, PRIME, np.uint64)
    for array in columns.values():
        total = _mix(total ^ _column(array))
    return pa.array(total)


def _mix(words: Words) -> Words:
    words = words * PRIME
    return words ^ (words >> SHIFT)


def _column(array: pa.Array) -> Words:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        words = _texts(array)
    elif pa.types.is_boolean(kind):
        words = array.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    elif pa.types.is_decimal128(kind):
        pair = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
        words = pair[:, 0] ^ _mix(pair[:, 1])
    elif pa.types.is_primitive(kind):
        width = kind.bit_width // 8
        stored = np.frombuffer(array.buffers()[1], np.dtype(f"<u{width}"))[array.offset : array.offset + len(array)]
        words = stored.astype(np.uint64)
    elif pa.types.is_null(kind):
        return np.full(len(array), ABSENT, np.uint64)
    else:
        words = _texts(pa.array([None if value is None else repr(value) for value in array.to_pylist()], pa.string()))
    if array.null_count:
        words = np.where(array.is_valid().to_numpy(zero_copy_only=False), words, ABSENT)
    return words


def _texts(array: pa.Array) -> Words:
    """Over the bytes of each text, eight at a time and all rows together; long ones each by a hash in C."""
    count = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1].astype(np.int64)
    sizes = offsets[1:] - offsets[:-1]
    body = array.buffers()[2]
    data = np.concatenate([np.frombuffer(body, np.uint8) if body else np.zeros(0, np.uint8), np.zeros(8, np.uint8)])
    words = np.ndarray((len(data) - 7,), np.dtype("<u8"), buffer=data.data, strides=(1,))
    total = sizes.astype(np.uint64)
    for row in np.flatnonzero(sizes > LONG_BYTES).tolist():
        digest = blake2b(data[offsets[row] : offsets[row + 1]].data, digest_size=8).digest()
        total[row] = int.from_bytes(digest, "little")
    rows = np.flatnonzero(sizes <= LONG_BYTES)
    places, bytes_left = offsets[:-1][rows], sizes[rows]
    while True:
        some = bytes_left > 0
        if not some.any():
            return total
        if not some.all():
            places, bytes_left, rows = places[some], bytes_left[some], rows[some]
        word = words[places]
        short = bytes_left < 8
        if short.any():
            bits = np.where(short, bytes_left, 8).astype(np.uint64) << np.uint64(3)
            word = np.where(short, word & ((np.uint64(1) << bits) - np.uint64(1)), word)
        total[rows] = _mix(total[rows] ^ word)
        places, bytes_left = places + 8, bytes_left - 8
