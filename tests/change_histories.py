"""Short random histories of one table, as a database would have lived and logged them: the truth and its events.

Written apart from the product's order: each kind of source says what the published rules of its log are, and the rows
that the database ends with are the answer. Keys are few, so that almost every event meets another of its key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.events import Event

KEYS = 5
KINDS = ("mysql", "oracle", "postgresql", "sqlserver")


@dataclass
class Database:
    """A table `id`, `value`, and all that was logged or backfilled of it, in true order."""

    kind: str
    random: Random
    rows: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    _ids: dict[int, str] = field(default_factory=dict)
    _place: int = 0
    _second: int = 0
    _written: int = 0
    _transaction: int = 0

    def __post_init__(self) -> None:
        """Some rows are older than the log; only a backfill tells of them."""
        for key in range(self.random.randrange(KEYS)):
            self._set(key, self._value(), f"row {key}")

    def live(self, statements: int) -> None:
        """So many statements, with a backfill somewhere among them."""
        moment = self.random.randrange(statements + 1)
        for number in range(statements + 1):
            if number == moment or self.random.random() < 0.1:
                self._backfill()
            self._statement()

    def _statement(self) -> None:
        # Statements of one transaction, transactions of one second: both are the normal case.
        if self.random.random() < 0.6:
            self._transaction += 1
            self._second += self.random.choice((0, 0, 1))
        key, other = self.random.sample(range(KEYS), 2)
        choices = [self._put, self._delete, self._move, self._shift]
        if self.kind == "oracle":
            choices.append(self._swap)
        if self.kind == "mysql":
            choices.append(self._there_and_back)
        self.random.choice(choices)(key, other)

    # -- statements ----------------------------------------------------------------------------------------

    def _put(self, key: int, _: int) -> None:
        change = ("UPDATE-INSERT" if self.kind == "mysql" else "UPDATE") if key in self.rows else "INSERT"
        self._set(key, self._value(), self._ids.get(key) or f"row {self._written}")
        self._log([(change, key, self.rows[key], self._ids[key])])

    def _delete(self, key: int, _: int) -> None:
        if key in self.rows:
            self._log([("DELETE", key, self.rows.pop(key), self._ids.pop(key))])

    def _move(self, key: int, other: int) -> None:
        if key in self.rows and other not in self.rows:
            self._log(list(self._moves({key: other})))

    def _swap(self, key: int, other: int) -> None:
        """Possible in one statement where keys are checked at its end."""
        if key in self.rows and other in self.rows:
            self._log(list(self._moves({key: other, other: key})))

    def _there_and_back(self, key: int, other: int) -> None:
        """A row that leaves its key and comes back, in one binlog event (a stored function can do that)."""
        if key in self.rows and other not in self.rows:
            held, again = self.rows[key], self._value()
            row_id = self._ids[key]
            self._set(key, again, row_id)
            moves = [("UPDATE-DELETE", key, held), ("UPDATE-INSERT", other, held)]
            moves += [("UPDATE-DELETE", other, held), ("UPDATE-INSERT", key, again)]
            self._log([(*move, row_id) for move in moves])

    def _shift(self, _: int, __: int) -> None:
        """`UPDATE t SET id = id + 1`, from the top but in Oracle, which goes through the rows as they lie."""
        keys = sorted(self.rows, reverse=self.kind != "oracle")
        if keys:
            self._log(list(self._moves({key: key + 1 for key in keys})))

    def _moves(self, moves: dict[int, int]) -> Iterator[tuple[str, int, str, str]]:
        # Oracle: a key that changes hands twice in one transaction cannot be told out of order (reduce.py).
        self._transaction += 1
        taken = {new: (self.rows.pop(old), self._ids.pop(old)) for old, new in moves.items()}
        for old, new in moves.items():
            value, row_id = taken[new]
            yield "UPDATE-DELETE", old, value, row_id
            yield "UPDATE-INSERT", new, value, row_id
        for new, (value, row_id) in taken.items():
            self._set(new, value, row_id)

    def _set(self, key: int, value: str, row_id: str) -> None:
        self.rows[key], self._ids[key] = value, row_id

    def _value(self) -> str:
        self._written += 1
        return f"value {self._written}"

    # -- the log -------------------------------------------------------------------------------------------

    def _log(self, changes: Sequence[tuple[str, int, str, str]]) -> None:
        """One statement's changes."""
        self._place += 1
        for number, (change, key, value, row_id) in enumerate(changes):
            if self.kind != "mysql":
                self._place += 1
            sec = self._time()
            event = Event(
                {"id": key, "value": value},
                self._place,
                change,
                sec,
                file=f"bin.{999998 + self._place // 7}",
                tx=f"tx {self._transaction}",
                row_id=row_id if self.kind == "oracle" else None,
                # A read batch has one time, and counts its rows in binary digits.
                uuid=f"{'0' * 24}{len(self.events) % 256:08b}",
                read_ms=(1000 - sec + len(self.events) // 256) * 1000,
                source=self._source(number),
            )
            self.events.append(event)

    def _time(self) -> int:
        # A binlog event has the time at which its statement began.
        return self.random.randrange(100) if self.kind == "mysql" else self._second + len(self.events) // 256

    def _source(self, number: int) -> dict[str, Any]:
        at = self._place
        if self.kind == "oracle":
            return {"scn": 100 + at // 9, "rs_id": f" 0x000004.{at:08x}.0010 ", "ssn": 0}
        if self.kind == "postgresql":
            return {"lsn": f"{16 + at // 9:X}/{at:X}"}
        if self.kind == "sqlserver":
            # All rows of a transaction share the place of its commit.
            return {"lsn": f"00000025:{self._transaction:08x}:0003"}
        return {}

    def _backfill(self) -> None:
        for key, value in self.rows.items():
            row_id = self._ids[key] if self.kind == "oracle" else None
            source = {"scn": 100 + self._place // 9} if self.kind == "oracle" else {}
            self.events.append(
                Event(
                    {"id": key, "value": value}, 0, "INSERT", self._second, backfill=True, row_id=row_id, source=source
                )
            )


def delivered(events: Sequence[Event], random: Random) -> list[list[Event]]:
    """The events as they may come: each once or more, in any order, cut into batches anywhere."""
    out = [event for event in events for _ in range(random.choice((1, 1, 1, 2)))]
    if random.random() < 0.8:
        random.shuffle(out)
    batches: list[list[Event]] = [[]]
    for event in out:
        if batches[-1] and random.random() < 0.3:
            batches.append([])
        batches[-1].append(event)
    if random.random() < 0.3:
        batches.append(random.choice(batches))
    return batches
