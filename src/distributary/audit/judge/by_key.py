"""The events and the rows of one table, side by side by key, on the local disk: in memory is one key at a time."""

from __future__ import annotations

import marshal
import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import groupby
from types import TracebackType
from typing import Any, NamedTuple, Self

from distributary.audit.judge.change_events import Meta
from distributary.scratch import Scratch

_CACHE_KB = 16_384


class KeyEvent(NamedTuple):
    """`alike`: a number that rows with the same values share."""

    meta: Meta
    file: str
    row: int
    alike: int


class Row(NamedTuple):
    """A row of a merged table; `meta`: of the event that it says it is of. `beside`: of the table of its tombstones."""

    meta: Meta
    deleted: bool
    alike: int
    beside: bool = False


class ByKey:
    """`event` and `row` put in, `every_key` gives back. Keys are ASCII texts."""

    def __init__(self) -> None:
        self._folder = Scratch("keys")
        self._db = sqlite3.connect(self._folder.folder / "keys", isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KB}", "temp_store=FILE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE events (key TEXT, meta BLOB, file TEXT, row INTEGER, alike INTEGER)")
        self._db.execute("CREATE TABLE rows (key TEXT, meta BLOB, deleted INTEGER, alike INTEGER, beside INTEGER)")
        self._db.execute(
            "CREATE TABLE doubts (file TEXT, row INTEGER, key TEXT, PRIMARY KEY (file, row)) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE kept (key TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._db.close()
        self._folder.close()

    def add_events(self, events: Iterable[tuple[str, KeyEvent]]) -> None:
        rows = ((key, marshal.dumps(tuple(e.meta)), e.file, e.row, e.alike) for key, e in events)
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)

    def add_rows(self, rows: Iterable[tuple[str, Row]]) -> None:
        records = ((key, marshal.dumps(tuple(r.meta)), r.deleted, r.alike, r.beside) for key, r in rows)
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", records)

    def every_event(self) -> Iterator[tuple[str, KeyEvent]]:
        for key, *rest in self._db.execute("SELECT * FROM events"):
            yield key, _event(rest)

    def every_key(self) -> Iterator[tuple[str, list[KeyEvent], list[Row]]]:
        """(key, its events, its rows), in the order of the keys."""
        events = ((key, True, _event(rest)) for key, *rest in self._db.execute("SELECT * FROM events ORDER BY key"))
        rows = ((key, False, _row(rest)) for key, *rest in self._db.execute("SELECT * FROM rows ORDER BY key"))
        for key, group in groupby(merge(events, rows, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
            of_key = list(group)
            yield key, [e for _, is_event, e in of_key if is_event], [r for _, is_event, r in of_key if not is_event]  # type: ignore[misc]

    # -- keys of which the values are to be looked at -------------------------------------------------------------

    def doubt(self, key: str, events: Iterable[KeyEvent]) -> None:
        """Does the row of this key have the values of one of these events? `doubted` gives them by event."""
        self._db.executemany("INSERT OR IGNORE INTO doubts VALUES (?, ?, ?)", ((e.file, e.row, key) for e in events))
        self._db.execute("INSERT OR IGNORE INTO kept VALUES (?, NULL)", (key,))

    def is_doubted(self, key: str) -> bool:
        return self._db.execute("SELECT 1 FROM kept WHERE key = ?", (key,)).fetchone() is not None

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        self._db.execute("UPDATE kept SET row = ? WHERE key = ?", (pickle.dumps(dict(row)), key))

    def doubted(self, file: str) -> dict[int, tuple[str, Mapping[str, Any]]]:
        """Events of a file: number -> (key, the row that is kept of it)."""
        doubts = self._db.execute(
            "SELECT d.row, d.key, k.row FROM doubts d JOIN kept k ON k.key = d.key WHERE d.file = ? AND k.row NOT NULL",
            (file,),
        )
        return {row: (key, pickle.loads(body)) for row, key, body in doubts}

    def settle(self, key: str) -> None:
        """The row is right."""
        self._db.execute("DELETE FROM kept WHERE key = ?", (key,))

    def unsettled(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM kept WHERE row NOT NULL").fetchone()[0])


def _event(columns: list[Any]) -> KeyEvent:
    meta, file, row, alike = columns
    return KeyEvent(Meta(*marshal.loads(meta)), file, row, alike)


def _row(columns: list[Any]) -> Row:
    meta, deleted, alike, beside = columns
    return Row(Meta(*marshal.loads(meta)), bool(deleted), alike, bool(beside))
