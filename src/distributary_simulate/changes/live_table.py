"""An invented table that lives: its rows as the database has them, and the events that changing them leaves behind."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from distributary.changes.model import Kind
from distributary_simulate.changes.model import CDC_METHOD, Change, Row, Table, backfill_change
from distributary_simulate.changes.source_logs import SourceLog

Key = tuple[Any, ...]


class LiveTable:
    """Rows by key, in a list too, so that a random one costs the same however many there are.

    table: with the schema of this moment. single_key_updates: PostgreSQL writes a key update as one UPDATE of the new
    key, and nothing about the old one, as its WAL does.
    """

    def __init__(self, table: Table, log: SourceLog, *, single_key_updates: bool = False) -> None:
        self.table = table
        self._log = log
        self._single = single_key_updates
        self._rows: dict[Key, Row] = {}
        self._ids: dict[Key, str] = {}
        self._order: list[Key] = []
        self._place: dict[Key, int] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Row]:
        """All rows, with the columns of this moment."""
        names = [column.name for column in self.table.columns]
        return ({name: row.get(name) for name in names} for row in self._rows.values())

    def row(self, key: Key) -> Row:
        return self._rows[key]

    def some(self, count: int, choices: random.Random) -> list[Key]:
        """Up to `count` different keys."""
        return choices.sample(self._order, min(count, len(self._order)))

    def keys_after(self, last: Key | None, count: int) -> list[Key]:
        """The next `count` keys in order, as a backfill reads them."""
        return sorted(key for key in self._rows if last is None or key > last)[:count]

    # -- changes without events: rows that were there before the log began ------------------------------------

    def put(self, row: Row) -> Key:
        """Add a row. Raises ValueError where its key is taken: no history writes over a row."""
        self._made += 1
        # Without a key, rows are told apart by the order in which they came.
        key = self.table.key_of(row) or (self._made,)
        if key in self._rows:
            raise ValueError(f"{self.table.route}: {key} is taken")
        self._add(key, row, f"AAAE5SAAEAAA{self._made:06X}")
        return key

    # -- changes ----------------------------------------------------------------------------------------------

    def insert(self, row: Row, seen_ms: int) -> list[Change]:
        key = self.put(row)
        self._log.row()
        return [self._event("INSERT", row, key, seen_ms)]

    def update(self, key: Key, new: Row, seen_ms: int) -> list[Change]:
        """Give the row of `key` other values, its key unchanged."""
        old, self._rows[key] = self._rows[key], new
        self._log.row()
        kind = "UPDATE-INSERT" if self.table.kind is Kind.MYSQL else "UPDATE"
        unchanged = [name for name in self.table.toast if old.get(name) == new.get(name)]
        return [self._event(kind, {**new, **dict.fromkeys(unchanged)}, key, seen_ms)]

    def move(self, moves: Sequence[tuple[Key, Row]], seen_ms: int) -> list[Change]:
        """Give rows new keys: (old key, new row) of each. In one statement: the keys are free again at its end."""
        rows_taken = [(self._rows[old], self._ids[old]) for old, _ in moves]
        for old, _ in moves:
            self._remove(old)
        changes: list[Change] = []
        for (_, new), (before, row_id) in zip(moves, rows_taken, strict=True):
            key = self.table.key_of(new)
            self._add(key, new, row_id)
            self._log.row()
            if self._single:
                changes.append(self._event("UPDATE", new, key, seen_ms))
                continue
            # Oracle does not mark the old row's event as a delete.
            changes.append(self._event("UPDATE-DELETE", before, key, seen_ms, self.table.kind is not Kind.ORACLE))
            changes.append(self._event("UPDATE-INSERT", new, key, seen_ms))
        return changes

    def delete(self, key: Key, seen_ms: int) -> list[Change]:
        row = self._rows[key]
        self._log.row()
        change = self._event("DELETE", self._deleted(row), key, seen_ms, True)
        self._remove(key)
        return [change]

    def rolled_back_insert(self, row: Row, seen_ms: int) -> list[Change]:
        """Oracle: an insert that was read before its transaction rolled back, and its undoing: a delete by ROWID."""
        inserted = self.insert(row, seen_ms)
        key = self.table.key_of(row)
        self._log.row()
        undone = self._event("DELETE", dict.fromkeys(row), key, seen_ms, True)
        self._remove(key)
        return [*inserted, undone]

    def vanished_update(self, key: Key, seen_ms: int) -> list[Change]:
        """MongoDB: an update whose document was gone before it could be looked up: no data, then the delete."""
        self._log.row()
        update = self._event("UPDATE", {**self._rows[key], "data": None}, key, seen_ms)
        return [update, *self.delete(key, seen_ms)]

    def backfill(self, keys: Iterable[Key], started_ms: int, seen_ms: int) -> list[Change]:
        """The rows as they are now, read by a task that began at `started_ms`."""
        return [
            backfill_change(self.table, self._shown(self._rows[key]), self._log.backfill(started_ms, self._ids[key]),
                            seen_ms)
            for key in keys
        ]  # fmt: skip

    # -- ------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, row: Row, key: Key, seen_ms: int, is_deleted: bool = False) -> Change:
        position = self._log.position(self._ids[key])
        return Change(
            self.table, kind, is_deleted, self._shown(row), position, CDC_METHOD[self.table.kind], seen_ms, False
        )

    def _shown(self, row: Row) -> Mapping[str, Any]:
        return {column.name: row.get(column.name) for column in self.table.columns}

    def _deleted(self, row: Row) -> Row:
        # PostgreSQL's WAL has the key of a deleted row only, under the default replica identity; MongoDB as well.
        if self.table.kind in (Kind.POSTGRESQL, Kind.MONGODB):
            return {name: value if name in self.table.keys else None for name, value in row.items()}
        return row

    def _add(self, key: Key, row: Row, row_id: str) -> None:
        self._rows[key], self._ids[key], self._place[key] = row, row_id, len(self._order)
        self._order.append(key)

    def _remove(self, key: Key) -> None:
        del self._rows[key], self._ids[key]
        place, last = self._place.pop(key), self._order.pop()
        if last != key:
            self._order[place], self._place[last] = last, place
