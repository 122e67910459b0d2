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


class Tally:
    """`files`: events by file; `repeated`: how often one came again; `strange`: rows that name no event of a file."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.repeated = 0
        self.strange = 0
        self._seen: dict[str, npt.NDArray[np.uint8]] = {}

    def add(self, file: pa.ChunkedArray, number: pa.ChunkedArray) -> None:
        """Rows by their file (text) and their number in it (integer)."""
        known = pc.and_(pc.is_valid(file), pc.fill_null(pc.less(number, MOST_EVENTS), False))
        known = pc.and_(known, pc.fill_null(pc.greater_equal(number, 0), False))
        self.strange += len(known) - (pc.sum(known).as_py() or 0)
        named = file.filter(known).combine_chunks().dictionary_encode()
        numbers = np.asarray(number.filter(known).to_numpy(), np.int64)
        codes = np.asarray(named.indices.to_numpy(zero_copy_only=False), np.int64)
        order = np.argsort(codes, kind="stable")
        begins = np.searchsorted(codes[order], np.arange(len(named.dictionary) + 1))
        for name, begin, end in zip(named.dictionary.to_pylist(), begins[:-1], begins[1:], strict=True):
            self.files[name] += int(end - begin)
            self.repeated += self._meet(name, numbers[order[begin:end]])

    def missing(self, name: str, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which events of a file were not counted."""
        seen = self._seen.get(name, np.zeros(0, np.uint8))
        inside = numbers < 8 * len(seen)
        known = np.zeros(len(numbers), bool)
        known[inside] = (seen[numbers[inside] >> 3] & _BITS[numbers[inside] & 7]) != 0
        return numbers[~known]

    def _meet(self, name: str, numbers: npt.NDArray[np.int64]) -> int:
        """How many of them were there, or are there twice."""
        if not len(numbers):
            return 0
        once = np.unique(numbers)
        at, bit = once >> 3, _BITS[once & 7]
        seen = self._seen.get(name, np.zeros(0, np.uint8))
        if len(seen) <= at[-1]:
            seen = np.concatenate([seen, np.zeros(int(at[-1]) + 1 - len(seen), np.uint8)])
        again = int(np.count_nonzero(seen[at] & bit))
        np.bitwise_or.at(seen, at, bit)
        self._seen[name] = seen
        return len(numbers) - len(once) + again
