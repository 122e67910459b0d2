"""A second, simple way from a log to its merged table, for checks: a loop over the log's rows, one key at a time.

Slow beside `reduce_rows`, and sharing nothing with it but the sequence numbers, so that the two can be held against
each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.datastream.model import METADATA
from distributary.datastream.sequence import OrderSettings, standing

_FIELDS = ("change_sequence_number", "change_type", "is_deleted", "is_backfill", "source_timestamp")
PATHS = tuple(f"{METADATA}.{n}" for n in (*_FIELDS, "source.row_id", "source.tx_id"))
"""What the fold reads of an event beside its key."""

Key = tuple[Any, ...]


@dataclass(slots=True)
class Winner:
    """The newest event of a key so far."""

    place: str
    number: str
    deleted: bool
    change_type: str | None
    row_id: str | None
    tx_id: str | None
    source_ms: int


class Fold:
    """Takes the log's rows in any order. `winners`: the newest event of each key."""

    def __init__(self, keys: Sequence[str], settings: OrderSettings) -> None:
        self.keys = tuple(keys)
        self.settings = settings
        self.winners: dict[Key, Winner] = {}
        self._rows: dict[tuple[str, str | None], Key] = {}
        self._orphans: list[Winner] = []

    def add(self, rows: pa.Table) -> None:
        """`rows`: the key columns and `PATHS`, named so."""
        places = _places(rows, self.settings)
        keys = list(zip(*(map(comparable, rows.column(k).to_pylist()) for k in self.keys), strict=True))
        columns = [rows.column(f"{METADATA}.{n}").to_pylist() for n in (*_FIELDS, "source.row_id", "source.tx_id")]
        for place, key, *event in zip(places, keys, *columns, strict=True):
            number, kind, deleted, _, source_ms, row_id, tx_id = event
            found = Winner(place, number, bool(deleted), kind, row_id, tx_id, source_ms or 0)
            if row_id is not None and found.deleted and all(value is None for value in key):
                self._orphans.append(found)
                continue
            if row_id is not None:
                self._rows[row_id, tx_id] = key
            self._meet(key, found)

    def finish(self) -> int:
        """Bring in the deletes that name a row by its ROWID only; how many name one that no event had."""
        unknown = 0
        for orphan in self._orphans:
            key = self._rows.get((orphan.row_id or "", orphan.tx_id))
            if key is None:
                unknown += 1
            else:
                self._meet(key, orphan)
        self._orphans = []
        return unknown

    def _meet(self, key: Key, event: Winner) -> None:
        held = self.winners.get(key)
        if held is None or _holds_over(event, held):
            self.winners[key] = event


def _holds_over(event: Winner, held: Winner) -> bool:
    """Is `event` the newer one? In Oracle, one that leaves a key gives way to another row that takes it in the same
    transaction, whatever their places."""
    same = event.tx_id is not None and event.tx_id == held.tx_id
    others = event.row_id is not None and held.row_id is not None and event.row_id != held.row_id
    if same and others and (event.change_type == "UPDATE-DELETE") != (held.change_type == "UPDATE-DELETE"):
        return held.change_type == "UPDATE-DELETE"
    return event.place > held.place


def _places(rows: pa.Table, settings: OrderSettings) -> list[str]:
    """The place of each event in true order, with the settings of this moment."""
    numbers = rows.column(f"{METADATA}.change_sequence_number").combine_chunks()
    if not settings:
        return list(numbers.to_pylist())
    time = rows.column(f"{METADATA}.source_timestamp").combine_chunks()
    backfill = rows.column(f"{METADATA}.is_backfill").combine_chunks()
    return [bytes(n).decode() for n in np.asarray(standing(numbers, time, backfill, settings)).tolist()]


def comparable(value: Any) -> Any:
    """Floats as the merge compares them: one zero, one NaN."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def merged_state(rows: Iterable[pa.Table], keys: Sequence[str], deleted: str) -> Mapping[Key, tuple[str, bool]]:
    """Key -> (sequence number, deleted) of a merged table's rows."""
    found: dict[Key, tuple[str, bool]] = {}
    for part in rows:
        names = zip(*(map(comparable, part.column(k).to_pylist()) for k in keys), strict=True)
        numbers = part.column(f"{METADATA}.change_sequence_number").to_pylist()
        gone = pc.fill_null(part.column(deleted), False).to_pylist()
        found.update({key: (number, dead) for key, number, dead in zip(names, numbers, gone, strict=True)})
    return found
