"""Which files were taken already: 16 bytes a file, asked a page at a time.

A file is known by its path. What it was when it was taken (size, and the store's tag of its content, or its time where
there is no such tag) tells whether it has changed since. Both are kept as 64-bit hashes that mean nothing outside this
process; the file ledger is what lasts. Should two paths ever share a hash, the second one is a changed file: it is
taken too, only its attempt counts from the first one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RECENT = 1 << 16
"""Files held in a dictionary before they are sorted in among the others."""

_Words = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file at the source. `path`: its whole address. `folder`: where it is, relative to the source's root.

    `size` in bytes, `mtime_ms` in milliseconds since 1970. `etag`: the store's tag of the content, "" where there is
    none (local folders).
    """

    path: str
    size: int
    mtime_ms: int
    folder: str = ""
    etag: str = ""


class KnownFiles:
    """The files that were taken. `unseen` may be asked by one thread while another one adds."""

    def __init__(self) -> None:
        self._base: tuple[_Words, _Words] = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._recent: dict[int, int] = {}
        self._attempts: dict[int, int] = {}

    def __len__(self) -> int:
        """Files known; those of the last 65,536 that were known before count twice."""
        return len(self._base[0]) + len(self._recent)

    @property
    def nbytes(self) -> int:
        """Memory of the sorted part."""
        return self._base[0].nbytes + self._base[1].nbytes

    def unseen(self, refs: Sequence[FileRef]) -> list[FileRef]:
        """Those of `refs` that are new or have changed, in the same order."""
        if not refs:
            return []
        # The dictionary first: what moves from there to the base in between is then found in either.
        recent = self._recent
        keys = [hash(ref.path) for ref in refs]
        states = [_state(ref) for ref in refs]
        base, before = self._base
        words = np.array(keys, np.int64)
        places = _places(base, words)
        is_known = (
            (base[places] == words) & (before[places] == np.array(states, np.int64))
            if len(base)
            else np.zeros(len(refs), bool)
        )
        for n, key in enumerate(keys) if recent else ():
            if key in recent:
                is_known[n] = recent[key] == states[n]
        return [refs[n] for n in np.flatnonzero(~is_known).tolist()]

    def attempts(self, ref: FileRef) -> int:
        """How often this path was taken."""
        key = hash(ref.path)
        if key in self._attempts:
            return self._attempts[key]
        if key in self._recent:
            return 1
        base = self._base[0]
        index = int(np.searchsorted(base, np.int64(key)))
        return int(index < len(base) and int(base[index]) == key)

    def add(self, refs: Iterable[FileRef], attempts: Iterable[int]) -> None:
        """These files were taken; `attempts`: for which time each. The newest attempt of a path counts."""
        for ref, attempt in zip(refs, attempts, strict=True):
            if self._is_newest(key := hash(ref.path), attempt):
                self._recent[key] = _state(ref)
        if len(self._recent) >= RECENT:
            self._sort_in(self._recent)
            # Not cleared: `unseen` may be at it.
            self._recent = {}

    def load(self, entries: Iterable[tuple[FileRef, int]]) -> None:
        """As `add`, for all the (file, attempt) that a ledger holds."""
        states: dict[int, int] = {}
        for ref, attempt in entries:
            if self._is_newest(key := hash(ref.path), attempt):
                states[key] = _state(ref)
            # As many as are there already: sorting in costs the whole base each time.
            if len(states) >= max(RECENT, len(self._base[0])):
                self._sort_in(states)
                states.clear()
        self._sort_in(states)

    def _is_newest(self, key: int, attempt: int) -> bool:
        newest = self._attempts.get(key, 1)
        if attempt > 1 and attempt >= newest:
            self._attempts[key] = attempt
        return attempt >= newest

    def _sort_in(self, newer: dict[int, int]) -> None:
        keys = np.fromiter(newer.keys(), np.int64, len(newer))
        states = np.fromiter(newer.values(), np.int64, len(newer))
        base, before = self._base
        # `unique` keeps the first of equal keys: the new one.
        merged, first = np.unique(np.concatenate([keys, base]), return_index=True)
        self._base = (merged, np.concatenate([states, before])[first])


def _places(base: _Words, words: _Words) -> _Words:
    """Where each word is in `base`, if it is."""
    # In ascending order the search goes through memory once: half the time where `base` is larger than a cache.
    order = np.argsort(words)
    places = np.empty(len(words), np.int64)
    places[order] = np.searchsorted(base, words[order])
    places[places == len(base)] = 0
    return places


def _state(ref: FileRef) -> int:
    return hash((ref.size, ref.etag or ref.mtime_ms))
