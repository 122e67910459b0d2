"""Which events of which files have been counted: a bit each, however many there are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_EVENTS = 1 << 31
"""Of a file. A greater number is none that a reader gave."""

_BITS = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8))


class SeenEvents:
    """`files`: events by file; `repeated`: how often one came again; `strange`: rows that name no event of a file."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.repeated = 0
        self.strange = 0
        self._seen: dict[str, npt.NDArray[np.uint8]] = {}

    def add(self, file: pa.ChunkedArray, number: pa.ChunkedArray) -> None:
        """Rows by their file (text) and their number in it (integer)."""
        is_event = pc.and_(pc.is_valid(file), pc.fill_null(pc.less(number, MOST_EVENTS), False))
        is_event = pc.and_(is_event, pc.fill_null(pc.greater_equal(number, 0), False))
        self.strange += len(is_event) - (pc.sum(is_event).as_py() or 0)
        named = file.filter(is_event).combine_chunks().dictionary_encode()
        numbers = np.asarray(number.filter(is_event).to_numpy(), np.int64)
        codes = np.asarray(named.indices.to_numpy(zero_copy_only=False), np.int64)
        order = np.argsort(codes, kind="stable")
        begins = np.searchsorted(codes[order], np.arange(len(named.dictionary) + 1))
        for name, begin, end in zip(named.dictionary.to_pylist(), begins[:-1], begins[1:], strict=True):
            self.files[name] += int(end - begin)
            self.repeated += self._meet(name, numbers[order[begin:end]])

    def missing(self, name: str, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which events of a file were not counted."""
        bitmap = self._seen.get(name, np.zeros(0, np.uint8))
        inside = numbers < 8 * len(bitmap)
        is_counted = np.zeros(len(numbers), bool)
        is_counted[inside] = (bitmap[numbers[inside] >> 3] & _BITS[numbers[inside] & 7]) != 0
        return numbers[~is_counted]

    def _meet(self, name: str, numbers: npt.NDArray[np.int64]) -> int:
        """How many of them were there, or are there twice."""
        if not len(numbers):
            return 0
        once = np.unique(numbers)
        byte, bit = once >> 3, _BITS[once & 7]
        bitmap = self._seen.get(name, np.zeros(0, np.uint8))
        if len(bitmap) <= byte[-1]:
            bitmap = np.concatenate([bitmap, np.zeros(int(byte[-1]) + 1 - len(bitmap), np.uint8)])
        again = int(np.count_nonzero(bitmap[byte] & bit))
        np.bitwise_or.at(bitmap, byte, bit)
        self._seen[name] = bitmap
        return len(numbers) - len(once) + again
