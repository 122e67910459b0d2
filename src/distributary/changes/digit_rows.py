"""Texts of one width as matrices of bytes, a row each, and the digits of numbers and uuids as such."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digits import ZERO, Bytes

_DASHES = (8, 13, 18, 23)
_LOWER = np.zeros(256, np.uint8)
"""Of each byte the lower-case hex digit that it is, else 0."""
_LOWER[np.frombuffer(b"0123456789abcdefABCDEF", np.uint8)] = np.frombuffer(b"0123456789abcdefabcdef", np.uint8)
_PAIRS = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), np.uint16)


def fixed(texts: pa.Array, digits: int) -> Bytes:
    """Texts of `digits` characters each, as a matrix of bytes."""
    rows = len(texts)
    if not rows:
        return np.empty((0, digits), np.uint8)
    offsets, data = texts.buffers()[1:]
    begin = np.frombuffer(offsets, np.int32)[texts.offset]
    return np.frombuffer(data, np.uint8, rows * digits, begin).reshape(rows, digits)


def hex_digits(values: npt.NDArray[Any], digits: int) -> Bytes:
    """The last `digits` hex digits of each value."""
    big = np.ascontiguousarray(values.astype(">u8")).view(np.uint8).reshape(len(values), 8)
    return _PAIRS[big].view(np.uint8).reshape(len(values), 16)[:, 16 - digits :]


def texts_of(digits: Bytes) -> pa.Array:
    rows, width = digits.shape
    kind = np.int32 if rows * width < 2**31 else np.int64
    offsets = pa.py_buffer(np.arange(0, (rows + 1) * width, width, dtype=kind))
    text_type = pa.string() if kind is np.int32 else pa.large_string()
    return pa.Array.from_buffers(text_type, rows, [None, offsets, pa.py_buffer(np.ascontiguousarray(digits))])


def uuid_parts(uuids: pa.Array) -> tuple[Bytes, Bytes]:
    """Of each uuid the first seven digits, if it is one, and the last eight, which count the rows of a reading. Lower
    case; zeros where they are no digits."""
    if (digits := _usual_digits(uuids)) is not None:
        reading, counter = digits[:, :7], digits[:, -8:]
        is_uuid, is_number = (np.all(matches, axis=1, keepdims=True) for matches in (digits, counter))
        return np.where(is_uuid, reading, ZERO), np.where(is_number, counter, ZERO)
    plain = pc.replace_substring(uuids, "-", "")
    starts = pc.if_else(
        pc.match_substring_regex(plain, "^[0-9a-fA-F]{32}$"), pc.utf8_slice_codeunits(plain, 0, 7), None
    )
    ends = pc.utf8_slice_codeunits(uuids, -8)
    counters = pc.if_else(pc.match_substring_regex(ends, "^[0-9a-fA-F]{8}$"), ends, None)
    return _lower(starts, 7), _lower(counters, 8)


def _usual_digits(uuids: pa.Array) -> Bytes | None:
    """32 of each, lower case, 0 in place of what is none, where all have one of the usual forms: 8-4-4-4-12, or without
    dashes. None where some have not."""
    if not len(uuids) or uuids.null_count:
        return None
    width = pc.binary_length(uuids[0]).as_py()
    if width not in (32, 36) or not pc.all(pc.equal(pc.binary_length(uuids), width)).as_py():
        return None
    texts = fixed(uuids, width)
    if width == 36 and not (texts[:, _DASHES] == ord("-")).all():
        return None
    return _LOWER[texts if width == 32 else np.delete(texts, _DASHES, axis=1)]


def _lower(texts: pa.Array, digits: int) -> Bytes:
    return fixed(pc.fill_null(pc.ascii_lower(texts), "0" * digits), digits)
