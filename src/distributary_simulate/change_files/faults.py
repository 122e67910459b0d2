"""What goes wrong on the way from a source to a bucket, by a seed.

No fault loses an event: a damaged file is an extra copy, a late file comes in the end. So the truth of a history is the
right answer with and without them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from distributary.changes.model import Kind
from distributary_simulate.change_files.events import Layout
from distributary_simulate.change_files.files import EventFile
from distributary_simulate.changes.model import Change, Position
from distributary_simulate.errors import SimulationInvalid

#: Layouts of another age that tell as much as today's. Oracle's of 2021-03 tells no keys, so it is chosen by hand only.
_OLD: Final = {Kind.MYSQL: (Layout.Y2021_06, Layout.GTID, Layout.Y2024, Layout.Y2025)}
_SKEW_WINDOW_MS: Final = 60_000
_LATE_BY_FILES: Final = (5, 200)


@dataclass(frozen=True)
class Faults:
    """Shares of all files, but for the last ones.

    duplicates: some of the file's events come again in another file.
    late: the file is held back while others pass it.
    cut: the file comes as two.
    truncated: an extra copy of the file that ends too early.
    garbage: an extra file of random bytes.
    empty: an extra file of no bytes.
    shuffled: rows within files, and the order of files, are shuffled.
    one_backfill_uuid: all rows of a backfill share one uuid.
    skew_ms: clocks step: backfills by up to so much in both directions; MySQL and Oracle, whose order is not by time,
        for whole minutes too.
    old_layouts: MySQL's tables are written in layouts of several ages.
    """

    duplicates: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    truncated: float = 0.0
    garbage: float = 0.0
    empty: float = 0.0
    shuffled: bool = False
    one_backfill_uuid: bool = False
    skew_ms: int = 0
    old_layouts: bool = False

    @classmethod
    def named(cls, text: str) -> Faults:
        """From a list of names, `all` or `none`. Raises SimulationInvalid for a name that is none of them."""
        names = [name.strip() for name in text.split(",") if name.strip()]
        names = [field.name for field in fields(cls)] if names == ["all"] else [n for n in names if n != "none"]
        if unknown := sorted(set(names) - _USUAL.keys()):
            detail = f"{', '.join(unknown)}: allowed are {', '.join(_USUAL)}, all, none"
            raise SimulationInvalid(what="faults", detail=detail)
        chosen: dict[str, Any] = {name: _USUAL[name] for name in names}
        return cls(**chosen)


_USUAL: Final[dict[str, float]] = {
    "duplicates": 0.3,
    "late": 0.2,
    "cut": 0.1,
    "truncated": 0.05,
    "garbage": 0.05,
    "empty": 0.05,
    "shuffled": True,
    "one_backfill_uuid": True,
    "skew_ms": 600_000,
    "old_layouts": True,
}
assert _USUAL.keys() == {field.name for field in fields(Faults)}


class FaultyWay:
    """The way from a writer to the bucket: files go in by `put`, and come out of it and of `finish` as they land."""

    def __init__(self, faults: Faults, seed: str) -> None:
        self.faults = faults
        self._choices = random.Random(f"{seed} files")
        self._seed = seed
        self._held: list[tuple[int, EventFile]] = []
        self._pool: list[EventFile] = []

    def layout(self, change: Change, usual: Layout) -> Layout:
        """The layout of a table's files."""
        old = _OLD.get(change.table.kind)
        if not (self.faults.old_layouts and old):
            return usual
        return random.Random(f"{self._seed} {change.table.route}").choice(old)

    def skewed(self, change: Change) -> Change:
        """The change as a wrong clock tells it."""
        by_time = change.table.kind not in (Kind.MYSQL, Kind.ORACLE)
        if not self.faults.skew_ms or (by_time and not change.is_backfill):
            return change
        position = change.position
        window = change.table.route if change.is_backfill else position.source_ms // _SKEW_WINDOW_MS
        limit = self.faults.skew_ms // 1000
        skew_ms = random.Random(f"{self._seed} {window}").randint(-limit, limit) * 1000
        if change.table.kind is Kind.MONGODB:
            keys = (int(position.sort_keys[0]) + skew_ms // 1000, *position.sort_keys[1:])
        else:
            keys = (int(position.sort_keys[0]) + skew_ms, *position.sort_keys[1:])
        return replace(change, position=Position(position.metadata, keys, position.source_ms + skew_ms))

    def put(self, file: EventFile) -> Iterator[EventFile]:
        """What lands now that this file is whole."""
        for variant in self._variants(file):
            if self._hit(self.faults.late):
                self._held.append((self._choices.randint(*_LATE_BY_FILES), variant))
            else:
                self._pool.append(variant)
        due, self._held = [f for n, f in self._held if n <= 1], [(n - 1, f) for n, f in self._held if n > 1]
        yield from due
        while len(self._pool) > (3 if self.faults.shuffled else 0):
            yield self._pool.pop(self._choices.randrange(len(self._pool)) if self.faults.shuffled else 0)

    def finish(self) -> Iterator[EventFile]:
        """All that is still on its way."""
        rest = self._pool + [file for _, file in self._held]
        self._pool, self._held = [], []
        if self.faults.shuffled:
            self._choices.shuffle(rest)
        yield from rest

    def _variants(self, file: EventFile) -> Iterator[EventFile]:
        events = list(file.events)
        if self.faults.shuffled:
            self._choices.shuffle(events)
        file = replace(file, events=tuple(events))
        if len(events) > 1 and self._hit(self.faults.cut):
            middle = self._choices.randrange(1, len(events))
            yield replace(file, events=file.events[:middle])
            yield replace(file, events=file.events[middle:])
        else:
            yield file
        if self._hit(self.faults.duplicates):
            again = self._choices.sample(events, self._choices.randint(1, len(events)))
            yield replace(file, events=tuple(again), extra="duplicate")
        if self._hit(self.faults.truncated):
            yield replace(file, extra="truncated", keep=self._choices.uniform(0.3, 0.95))
        if self._hit(self.faults.garbage):
            body = self._choices.randbytes(self._choices.randint(1, 400))
            yield replace(file, events=(), extra="garbage", body=body)
        if self._hit(self.faults.empty):
            yield replace(file, events=(), extra="empty", body=b"")

    def _hit(self, share: float) -> bool:
        return share > 0 and self._choices.random() < share
