"""The events of a change file on the local disk, by their number in the file: in memory is one at a time, and 16 bytes
for each."""

from __future__ import annotations

import os
import pickle
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile

from distributary.audit.judge.change_events import Meta
from distributary.audit.judge.raw_files import RawEvent

_BUFFER = 1 << 20


class SpilledEvents(Mapping[int, tuple[Meta, RawEvent]]):
    """Filled by `add`, in the order of the file; once `done`, several threads may read it. The space is given back with
    the object. Raises OSError for a full disk."""

    def __init__(self) -> None:
        self._file = TemporaryFile(prefix="distributary-events-", buffering=_BUFFER)  # noqa: SIM115 (for its life)
        weakref.finalize(self, self._file.close)
        self._numbers = array("q")
        self._ends = array("q", [0])

    def add(self, meta: Meta, event: RawEvent) -> None:
        """`event`: stands behind all that were added."""
        body = pickle.dumps((tuple(meta), event.row, event.top, event.source, event.payload), pickle.HIGHEST_PROTOCOL)
        self._file.write(body)
        self._numbers.append(event.row)
        self._ends.append(self._ends[-1] + len(body))

    def done(self) -> None:
        self._file.flush()

    def __getitem__(self, number: int) -> tuple[Meta, RawEvent]:
        index = bisect_left(self._numbers, number)
        if index == len(self._numbers) or self._numbers[index] != number:
            raise KeyError(number)
        begin, end = self._ends[index], self._ends[index + 1]
        meta, *event = pickle.loads(os.pread(self._file.fileno(), end - begin, begin))
        return Meta(*meta), RawEvent(*event)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
