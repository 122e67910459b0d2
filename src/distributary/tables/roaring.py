"""Row numbers as the Delta protocol stores them in a deletion vector: a 64-bit Roaring array.

By the protocol ("Deletion Vector Format") and the Roaring format specification: a magic number, a count, and per upper
half (32 bits) a Roaring bitmap in the portable format, little-endian. We write array and bitset containers; Spark also
writes runs, so all three are read.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.uint64]]
"""Row numbers of a file, ascending, each once."""

MAGIC = 1681511377
_PLAIN, _RUNS = 12346, 12347
_ARRAY_MOST = 4096
"""Values of a container up to which it is an array."""
_NO_OFFSETS = 4
"""Containers below which a bitmap with runs has no table of offsets."""


def encoded(rows: Rows) -> bytes:
    """`rows`: ascending, each once."""
    tops = (rows >> np.uint64(32)).astype(np.uint32)
    keys, begins = np.unique(tops, return_index=True)
    parts = np.split(rows.astype(np.uint32), begins[1:])
    bitmaps = [struct.pack("<I", key) + _bitmap(low_bits) for key, low_bits in zip(keys.tolist(), parts, strict=False)]
    return struct.pack("<IQ", MAGIC, len(keys)) + b"".join(bitmaps)


def decoded(body: bytes) -> Rows:
    """Raises ValueError for what is no such array."""
    try:
        magic, count = struct.unpack_from("<IQ", body)
        if magic != MAGIC:
            raise ValueError(f"it begins with {magic}, not with {MAGIC}")
        at, parts = 12, []
        for _ in range(count):
            (key,) = struct.unpack_from("<I", body, at)
            low, at = _read_bitmap(body, at + 4)
            parts.append(low + (np.uint64(key) << np.uint64(32)))
    except (struct.error, IndexError) as e:
        raise ValueError(f"it ends too early: {e}") from e
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _bitmap(rows: np.ndarray[Any, np.dtype[np.uint32]]) -> bytes:
    keys, begins = np.unique(rows >> np.uint32(16), return_index=True)
    parts = np.split((rows & np.uint32(0xFFFF)).astype("<u2"), begins[1:])
    bodies = [_container(low_bits) for low_bits in parts]
    head = b"".join(
        struct.pack("<HH", key, len(low_bits) - 1) for key, low_bits in zip(keys.tolist(), parts, strict=True)
    )
    first = 8 + 8 * len(bodies)
    offsets = np.cumsum([first, *(len(body) for body in bodies)])[:-1].astype("<u4").tobytes()
    return struct.pack("<II", _PLAIN, len(bodies)) + head + offsets + b"".join(bodies)


def _container(low: np.ndarray[Any, np.dtype[np.uint16]]) -> bytes:
    if len(low) <= _ARRAY_MOST:
        return low.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _read_bitmap(body: bytes, at: int) -> tuple[Rows, int]:
    """(the values, where the bitmap ends)."""
    (cookie,) = struct.unpack_from("<I", body, at)
    runs = np.zeros(0, np.uint8)
    if cookie & 0xFFFF == _RUNS:
        count, at = (cookie >> 16) + 1, at + 4
        flags = (count + 7) // 8
        runs = np.unpackbits(np.frombuffer(body, np.uint8, flags, at), bitorder="little")[:count]
        at += flags
    elif cookie == _PLAIN:
        (count,) = struct.unpack_from("<I", body, at + 4)
        at, runs = at + 8, np.zeros(count, np.uint8)
    else:
        raise ValueError(f"a bitmap in it begins with {cookie}")
    heads = np.frombuffer(body, "<u2", 2 * count, at).reshape(-1, 2)
    at += 4 * count
    if cookie == _PLAIN or count >= _NO_OFFSETS:
        at += 4 * count
    parts = []
    for (key, fewer), is_runs in zip(heads.tolist(), runs.tolist(), strict=True):
        low, at = _read_container(body, at, fewer + 1, is_runs=bool(is_runs))
        parts.append(low + np.uint64(key << 16))
    return (np.concatenate(parts) if parts else np.empty(0, np.uint64)), at


def _read_container(body: bytes, at: int, values: int, *, is_runs: bool) -> tuple[Rows, int]:
    if is_runs:
        (count,) = struct.unpack_from("<H", body, at)
        runs = np.frombuffer(body, "<u2", 2 * count, at + 2).reshape(-1, 2).astype(np.uint64)
        spans = [np.arange(first, first + more + 1, dtype=np.uint64) for first, more in runs.tolist()]
        return (np.concatenate(spans) if spans else np.empty(0, np.uint64)), at + 2 + 4 * count
    if values <= _ARRAY_MOST:
        return np.frombuffer(body, "<u2", values, at).astype(np.uint64), at + 2 * values
    bits = np.unpackbits(np.frombuffer(body, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.uint64), at + 8192
