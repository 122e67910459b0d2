"""The place of a message in the history of its key, as one text like that of change events (`changes.sequence`).

    generation and epoch 6 | origin 1 | value 64 | offset 16 | partition 8 | topic 13

`value` is that of the column that is named, 0 where none is: numbers and times as whole numbers of 128 bits whose sign
bit is turned over, so that their digits have their order; floats by their bits, likewise; text by its bytes.
The offset orders what has one value, and everything where no column is named: a key that stays in one partition has the
order of its messages. Of two partitions no offset says which message came first; the order is then that of the numbers,
and the same in every run. Of the topic it is a hash.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.digit_rows import hex_digits, texts_of
from distributary.changes.digits import FIRST_LAYOUT, PREFIX, WIDTH, ZERO, Bytes
from distributary.changes.sequence import Sequences

TEXT_BYTES = 32
"""The longest text that can say which message is newer: as long as any way to write a time."""
_SIGN = np.uint64(1 << 63)
_WIDE = pa.decimal128(38, 0)


def message_numbers(
    value: pa.Array | None, offset: pa.Array, partition: pa.Array, topic: pa.Array, body: pa.Array | None = None
) -> Sequences:
    """Number the messages of one route.

    Args:
        value: the column that says which message is the newer one; None: the offset does.
        offset, partition, topic: where each was; null where the source does not say.
        body: its bytes, which decide in place of the offset where there is none, so that no order of arrival does.

    Raises ValueError for a column of a type that has no order.
    """
    rows = len(offset)
    bad: dict[int, str] = {}
    out = np.full((rows, WIDTH), ZERO, np.uint8)
    out[:, PREFIX] = ord(FIRST_LAYOUT)
    begin = PREFIX + 1
    if value is None:
        _report(bad, offset, "the source gives it no offset: name the column that says which message is newer")
    else:
        _report(bad, value, "it has no value in the column that says which message is newer")
        places = _places(value, bad)
        out[:, begin : begin + places.shape[1]] = places
    begin += 64
    places_in_source = _longs(offset)
    if body is not None and offset.null_count:
        places_in_source = np.where(offset.is_null().to_numpy(zero_copy_only=False), _hashes(body), places_in_source)
    out[:, begin : begin + 16] = hex_digits(places_in_source, 16)
    out[:, begin + 16 : begin + 24] = hex_digits(_longs(partition), 8)
    out[:, begin + 24 :] = _tie(topic)
    return Sequences(texts_of(out), sorted(bad.items()))


def _report(bad: dict[int, str], column: pa.Array, detail: str) -> None:
    for row in np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False)).tolist():
        bad.setdefault(row, detail)


def _places(value: pa.Array, bad: dict[int, str]) -> Bytes:
    kind = value.type
    if pa.types.is_floating(kind):
        for row in np.flatnonzero(pc.fill_null(pc.is_nan(value), False).to_numpy(zero_copy_only=False)).tolist():
            bad.setdefault(row, "NaN in the column that says which message is newer")
        return hex_digits(_of_floats(value), 16)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _of_texts(value, bad)
    if pa.types.is_timestamp(kind):
        value = value.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        value = value.cast(pa.date32()).cast(pa.int32())
    elif not (pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= 0)):
        raise ValueError(
            f"a column of type {kind} cannot say which message is newer: give whole numbers, times, dates, floats or "
            "text"
        )
    return _of_wholes(value)


def _of_wholes(value: pa.Array) -> Bytes:
    """128 bits each, the sign bit turned over."""
    wide = pc.fill_null(value.cast(_WIDE), pa.scalar(0, _WIDE)) if len(value) else value.cast(_WIDE)
    words = np.frombuffer(wide.buffers()[1], np.uint64, 2 * len(wide), 16 * wide.offset).reshape(-1, 2)
    return np.hstack([hex_digits(words[:, 1] ^ _SIGN, 16), hex_digits(words[:, 0], 16)])


def _of_floats(value: pa.Array) -> npt.NDArray[np.uint64]:
    """IEEE 754 bits in the order of the numbers: a negative one's turned over, else the sign bit alone."""
    # -0.0 is 0.0
    numbers = pc.add(pc.fill_null(value.cast(pa.float64()), 0.0), 0.0).to_numpy(zero_copy_only=False)
    bits = np.ascontiguousarray(numbers).view(np.uint64)
    ordered: npt.NDArray[np.uint64] = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return ordered


def _of_texts(value: pa.Array, bad: dict[int, str]) -> Bytes:
    """The bytes of each text, in the order of its characters."""
    letters = np.zeros((len(value), TEXT_BYTES), np.uint8)
    for row, text in enumerate(value.to_pylist()):
        body = (text or "").encode()
        if len(body) > TEXT_BYTES:
            bad.setdefault(row, f"the text that says which message is newer has more than {TEXT_BYTES} bytes")
        letters[row, : len(body[:TEXT_BYTES])] = np.frombuffer(body[:TEXT_BYTES], np.uint8)
    return np.hstack([hex_digits(word, 16) for word in letters.view(">u8").astype(np.uint64).T])


def _tie(topic: pa.Array) -> Bytes:
    coded = topic.dictionary_encode("encode")
    names = [hashlib.blake2b((name or "").encode(), digest_size=8).digest() for name in coded.dictionary.to_pylist()]
    numbers = np.frombuffer(b"".join(names), ">u8").astype(np.uint64)
    return hex_digits(numbers[coded.indices.to_numpy(zero_copy_only=False)], 13)


def _hashes(body: pa.Array) -> npt.NDArray[np.int64]:
    digests = [hashlib.blake2b(payload or b"", digest_size=8).digest() for payload in body.to_pylist()]
    return (np.frombuffer(b"".join(digests), ">u8") >> 1).astype(np.int64)


def _longs(column: Any) -> npt.NDArray[np.int64]:
    """Null as 0."""
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
