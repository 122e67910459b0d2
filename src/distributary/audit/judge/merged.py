"""Is a merged table what its events say: one row for each key that they name, the newest event's, with its values?"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from distributary.audit.judge.by_key import ByKey, KeyEvent, Row
from distributary.audit.judge.change_events import HOUR_MS, Meta, Order, of_row
from distributary.audit.judge.likeness import Names, bases, moment, names_of, unlike
from distributary.audit.judge.plain_values import Moment, nothing, spelled

RECONCILED = "reconcile:"
"""`_origin.file` of deletes that `reconcile` has made begins so: they come from no file."""
Values = Mapping[str, Any]
"""The payload of an event, or the payload columns of a row."""


class SourceEvent(NamedTuple):
    """An event: where it is, and what it says. `key`: its key as texts; None: `values` have it."""

    file: str
    row: int
    meta: Meta
    values: Values
    key: Sequence[str | None] | None = None


@dataclass(frozen=True)
class MergedRules:
    """What a merged table is to be judged by.

    `purged_until`: source time (ms) before which tombstones may be gone. `silent`: what the newest event does not say
    may be what an older one said.
    """

    keys: Sequence[str]
    order: Order
    purged_until: int | None = None
    silent: bool = False


@dataclass
class MergedJudge:
    """Takes a table's events and rows in any order, then says what is wrong (`verdict`, `problems`).

    `partly`: events of the table may be gone; then a row that is newer than all that are known is `unjudged`.
    """

    rules: MergedRules
    held: ByKey
    names: Names
    orphans: list[Meta] = field(default_factory=list)
    emptied: list[Meta] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    partly: bool = False
    unjudged: int = 0

    def take_events(self, events: Iterable[SourceEvent]) -> None:
        """Events that are to be in the table."""
        self.held.add_events(self._keyed(events))

    def _keyed(self, events: Iterable[SourceEvent]) -> Iterator[tuple[str, KeyEvent]]:
        for file, row, meta, values, spelt in events:
            key = self._key_of(values) if spelt is None else spelt
            if meta.change_type == "TRUNCATE":
                self.emptied = [max((*self.emptied, meta), key=self.rules.order.place)]
            elif meta.deleted and meta.row_id and all(key_value is None for key_value in key):
                self.orphans.append(meta)
            else:
                yield json.dumps(key), KeyEvent(meta, file, row, alike(values))

    def _key_of(self, values: Values) -> list[str | None]:
        """JSON files write times as texts: by the table's column a text is known to be one."""
        key = key_of(values, self.rules.keys)
        for n, (name, text) in enumerate(zip(self.rules.keys, key, strict=True)):
            if (
                any(column in self.names.times for column in self.names.of(name))
                and (micros := moment(text)) is not None
            ):
                key[n] = spelled(Moment(micros))
        return key

    def take_rows(self, rows: Iterable[tuple[Mapping[str, Any], bool, Values]]) -> None:
        """(metadata, is it a tombstone, values) of the table's rows."""
        self.held.add_rows(
            (json.dumps(key_of(values, self.rules.keys)), Row(of_row(metadata), deleted, alike(values)))
            for metadata, deleted, values in rows
        )

    def take_tombstones(self, rows: Iterable[tuple[Mapping[str, Any], Values]]) -> None:
        """(metadata, key) of the rows of the table beside: they count where the table itself has no row of their key,
        for a key that was there again has left its tombstone."""
        self.held.add_rows(
            (json.dumps(key_of(values, self.rules.keys)), Row(of_row(metadata), True, 0, True))
            for metadata, values in rows
        )

    def verdict(self) -> bool:
        """Judge each key into `found`; True where values of rows are still to be looked at (`kept_rows`, `look_at`)."""
        self._find_orphans()
        doubts = False
        for key, events, rows in self.held.every_key():
            doubts |= self._judge(key, events, rows)
        return doubts

    def _judge(self, key: str, events: Sequence[KeyEvent], rows: Sequence[Row]) -> bool:
        """True where the values are in doubt."""
        rows = [row for row in rows if not row.beside] or rows
        if len(rows) > 1:
            self.found["rows of the merged table have a key that is there already"] += len(rows) - 1
        if not events and not self.partly:
            self.found["rows of the merged table have a key that no event has"] += 1
            return False
        newest = self._newest(events) if events else []
        if self.partly and self._is_beyond(rows, newest):
            self.unjudged += 1
            return False
        living = [row for row in rows if not row.deleted]
        meta = newest[0].meta
        if meta.deleted:
            purged = self.rules.purged_until is not None and (meta.source_ms or 0) < self.rules.purged_until
            self.found["deleted keys have a living row in the merged table"] += bool(living)
            self.found["deleted keys have no row in the merged table, by which an older event is known"] += (
                not rows and not purged
            )
            return False
        if not living:
            problem = "are deleted in the merged table" if rows else "are missing from the merged table"
            self.found[f"keys {problem}"] += 1
            return False
        if living[0].meta.identity not in {event.meta.identity for event in newest}:
            self.found["rows of the merged table are not the newest event of their key"] += 1
            return False
        if living[0].alike in {event.alike for event in newest}:
            return False
        self.held.doubt(key, newest)
        return True

    def _newest(self, events: Sequence[KeyEvent]) -> list[KeyEvent]:
        """A delete that `reconcile` made holds over what came before the backfill that no longer showed the row."""
        from_files = [e for e in events if not e.file.startswith(RECONCILED)]
        by_reconcile = [e for e in events if e.file.startswith(RECONCILED)]
        newest = (
            [from_files[n] for n in self.rules.order.newest([e.meta for e in from_files])]
            if from_files
            else by_reconcile
        )
        place = self.rules.order.place
        if self.emptied and place(newest[0].meta) < place(self.emptied[0]):
            newest = [KeyEvent(self.emptied[0], "", -1, 0)]
        since = max((e.meta.source_ms or 0 for e in by_reconcile), default=0)
        return by_reconcile if by_reconcile and (newest[0].meta.source_ms or 0) < since - HOUR_MS else newest

    def _is_beyond(self, rows: Sequence[Row], newest: Sequence[KeyEvent]) -> bool:
        """Is the key's row of an event that is newer than all that are known?"""
        if not rows or not newest:
            return bool(rows)
        place = self.rules.order.place
        return any(place(row.meta) > place(newest[0].meta) for row in rows)

    def _find_orphans(self) -> None:
        """Deletes by ROWID: the key is that of an event of the same row and transaction."""
        if not self.orphans:
            return
        orphan_ids = {(meta.row_id, meta.tx_id) for meta in self.orphans}
        key_at = {
            (e.meta.row_id, e.meta.tx_id): key
            for key, e in self.held.every_event()
            if (e.meta.row_id, e.meta.tx_id) in orphan_ids
        }
        keyed = [
            (key_at[meta.row_id, meta.tx_id], meta) for meta in self.orphans if (meta.row_id, meta.tx_id) in key_at
        ]
        self.held.add_events((key, KeyEvent(meta, "", -1, 0)) for key, meta in keyed)

    # -- values ------------------------------------------------------------------------------------------------------

    def kept_rows(self, rows: Iterable[Values]) -> None:
        """The table's rows once more: those that are in doubt are kept."""
        for values in rows:
            key = json.dumps(key_of(values, self.rules.keys))
            if self.held.is_doubted(key):
                self.held.keep(key, values)

    def look_at(self, file: str, events: Iterable[tuple[int, Values]]) -> None:
        """Events of a file once more, by number: a row that has the values of one is right."""
        doubted = self.held.doubted(file)
        for number, values in events if doubted else ():
            if number in doubted:
                key, row = doubted[number]
                if unlike(plain_names(values), row, self.names, silent=self.rules.silent) is None:
                    self.held.settle(key)

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        unsettled = self.held.unsettled()
        self.found["rows of the merged table do not have the values of their newest event"] += unsettled
        return [f"{count} {text}" for text, count in self.found.items() if count]


def key_of(values: Values, keys: Sequence[str]) -> list[str | None]:
    """The key as texts: a value may be in a column beside its own, which has its type."""
    names = names_of(tuple(values))
    return [next((spelled(values[c]) for c in names.of(key) if values[c] is not None), None) for key in keys]


def plain_names(values: Values) -> dict[str, Any]:
    """A row's values by the field that they are of."""
    names = {name.lower() for name in values}
    plain: dict[str, Any] = {}
    for name, value in values.items():
        base = _base(name)
        base = base if base.lower() in names else name
        if plain.get(base) is None:
            plain[base] = value
    return plain


def alike(values: Values) -> int:
    """A number that rows with the same values share, whatever the types of their columns."""
    spelled_values = sorted(
        (_base(name).lower(), spelled(value)) for name, value in values.items() if not nothing(value)
    )
    text = repr(spelled_values).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)


@lru_cache(4096)
def _base(column: str) -> str:
    return bases(column)[-1]
