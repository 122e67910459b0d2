"""A tiny database with one table: transactions, rollbacks, key moves, cascades, truncates, a clock, a log.

    id (the key), ref (the id of another row; rows go with the row that they refer to), n, v

`rows` is what the database holds; `expected` what a reader of its changes can know: a truncate and, in MySQL, a cascade
leave no change behind, so those rows stay until their key is written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

KINDS = ("mysql", "postgresql", "sqlserver", "oracle", "mongodb")
KEYS = 6
START_MS = 1_780_000_000_000

LEAVE = ("DELETE", "UPDATE-DELETE")

Row = dict[str, Any]
Changes = list[tuple[str, Row, str]]
"""(change type, row, row id) of one statement."""


@dataclass(frozen=True)
class Logged:
    """A change as the log has it. `statement`: its number, `server`: how many servers there were before."""

    change: str
    row: Row
    place: dict[str, Any]
    time_ms: int
    row_id: str
    statement: int
    server: int
    backfill: bool = False


@dataclass
class Engine:
    """`hands_on`: transactions of Oracle may hand a key on twice. `epochs`: since when (ms) a log was new. `wide`: `n`
    is a column of 64 bits by now."""

    kind: str
    dice: Random
    hands_on: bool = False
    rows: dict[int, Row] = field(default_factory=dict)
    expected: dict[int, Row] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    wide: bool = False
    _ids: dict[int, str] = field(default_factory=dict)
    _place: int = 1000
    _clock: int = START_MS
    _skew: int = 0
    _made: int = 0
    _statements: int = 0
    _transaction: int = 0
    _server: int = 0

    def live(self, statements: int) -> None:
        """So many transactions, after some rows that are older than the log, and a backfill somewhere."""
        for key in range(self.dice.randrange(KEYS)):
            self._hold(key, self._row(key), f"r{key}")
        moment = self.dice.randrange(statements)
        for number in range(statements):
            if number == moment or self.dice.random() < 0.05:
                self._backfill()
            self._between()
            self._transact()

    def _between(self) -> None:
        """Between transactions time goes by, a clock is set, a column grows, another server takes over."""
        self._clock += self.dice.choice((0, 0, 1, 999, 60_000))
        match self.dice.randrange(60):
            case 0:
                self._skew = self.dice.randint(-1_800_000, 1_800_000)
            case 1:
                self.wide = True
            case 2 if self.kind != "mongodb":
                self._clock += 86_400_000
                self.epochs.append(self._clock)
                self._place, self._server = self.dice.randrange(1000), self._server + 1
            case 3:
                self.rows.clear()  # a truncate
                self._ids.clear()

    def _transact(self) -> None:
        self._transaction += 1
        before = dict(self.rows), dict(self._ids)
        changes: list[Changes] = []
        several = self.dice.choice((1, 1, 2, 3))
        for _ in range(several):
            key, other = self.dice.sample(range(KEYS), 2)
            steps: list[Callable[[int, int], Changes]] = [self._put, self._put, self._delete]
            may_move = self.kind != "oracle" or several == 1 or self.hands_on
            if self.kind != "mongodb" and may_move:
                steps += [self._move, self._shift]
            if self.kind == "mysql":
                steps.append(self._there_and_back)
            if self.kind == "oracle" and may_move:
                steps.append(self._swap)
            found = self.dice.choice(steps)(key, other)
            if found:
                changes.append(found)
        if self.dice.random() < 0.1:
            self.rows, self._ids = before  # rolled back: readers of committed changes see nothing
            return
        for statement in changes:
            self._write(statement)

    # -- statements: what they do, and the changes that they log -----------------------------------------------

    def _row(self, key: int, ref: int | None = None) -> Row:
        self._made += 1
        return {"id": key, "ref": ref, "n": self._made + (2**40 if self.wide else 0), "v": f"v{self._made}"}

    def _hold(self, key: int, row: Row, row_id: str) -> None:
        self.rows[key], self._ids[key] = row, row_id

    def _put(self, key: int, other: int) -> Changes:
        new = key not in self.rows
        ref = other if self.dice.random() < 0.2 and other in self.rows else None
        self._hold(key, self._row(key, ref), self._ids.get(key, f"r{self._made}"))
        return [("INSERT" if new else "UPDATE", self.rows[key], self._ids[key])]

    def _delete(self, key: int, _: int) -> Changes:
        if key not in self.rows:
            return []
        gone = [key]
        for one in gone:
            gone += [k for k, row in self.rows.items() if row["ref"] == one and k not in gone]
        logged = gone[:1] if self.kind == "mysql" else gone  # InnoDB cascades below the binlog
        found = [("DELETE", self.rows[k], self._ids[k]) for k in logged]
        for one in gone:
            del self.rows[one], self._ids[one]
        return found

    def _moves(self, moves: dict[int, int]) -> Changes:
        taken = [(old, new, self.rows.pop(old), self._ids.pop(old)) for old, new in moves.items()]
        found = []
        for _, new, row, row_id in taken:
            moved = {**row, "id": new}
            found += [("UPDATE-DELETE", row, row_id), ("UPDATE-INSERT", moved, row_id)]
            self._hold(new, moved, row_id)
        return found

    def _move(self, key: int, other: int) -> Changes:
        return self._moves({key: other}) if key in self.rows and other not in self.rows else []

    def _shift(self, _: int, __: int) -> Changes:
        """id = id + 1: from the top, but in Oracle, which checks keys at the end, as the rows lie."""
        keys = sorted(self.rows, reverse=True)
        if self.kind == "oracle":
            self.dice.shuffle(keys)
        return self._moves({key: key + 1 for key in keys})

    def _swap(self, key: int, other: int) -> Changes:
        both = key in self.rows and other in self.rows
        return self._moves({key: other, other: key}) if both else []

    def _there_and_back(self, key: int, other: int) -> Changes:
        if key not in self.rows or other in self.rows:
            return []
        row, row_id = self.rows[key], self._ids[key]
        away, back = {**row, "id": other}, self._row(key, row["ref"])
        self._hold(key, back, row_id)
        kinds = ("UPDATE-DELETE", "UPDATE-INSERT") * 2
        return [(kind, image, row_id) for kind, image in zip(kinds, (row, away, away, back), strict=True)]

    # -- the log -----------------------------------------------------------------------------------------------

    def _write(self, changes: Changes) -> None:
        self._statements += 1
        self._place += 1
        began = self._clock + self._skew - (self.dice.randrange(600_000) if self.kind == "mysql" else 0)
        for number, (change, row, row_id) in enumerate(changes):
            half = 1000 if self.kind == "mysql" and change == "UPDATE-INSERT" else 0
            if self.kind == "mysql" and change == "UPDATE":
                change = "UPDATE-INSERT"
            if self.kind in ("postgresql", "oracle", "mongodb") and number:
                self._place += 1
            time = self._since(began + half)
            self.log.append(Logged(change, row, self._position(), time, row_id, self._statements, self._server))
        # Oracle may log that a row takes a key before another one leaves it; elsewhere what is logged last holds.
        in_order = sorted(changes, key=lambda one: one[0] not in LEAVE) if self.kind == "oracle" else changes
        for change, row, _ in in_order:
            self.expected.pop(row["id"], None)
            if change not in LEAVE:
                self.expected[row["id"]] = row

    def _since(self, time: int) -> int:
        return max(time, self.epochs[-1]) if self.epochs else time

    def _position(self) -> dict[str, Any]:
        at = self._place
        match self.kind:
            case "mysql":
                return {"log_file": f"mysql-bin.{999_998 + at // 50 - 20:06d}", "log_position": 4 + at % 50 * 300}
            case "postgresql":
                return {"lsn": f"{16 + at // 64:X}/{at * 97:X}", "tx_id": self._transaction}
            case "sqlserver":
                return {"lsn": f"00000025:{10 * self._server_base() + self._transaction:08x}:0003", "tx_id": "1"}
            case "oracle":
                rs_id = f" 0x{at // 100:06x}.{at:08x}.0010 "
                return {"scn": 5000 + at // 4, "rs_id": rs_id, "ssn": 0, "tx_id": f"{self._server}.{self._transaction}"}
            case _:
                return {"sort_keys": [self._place, 0]}

    def _server_base(self) -> int:
        """A new server's numbers are lower ones."""
        return 100_000 - 200 * self._server

    def _backfill(self) -> None:
        for key, row in self.rows.items():
            self.expected.setdefault(key, row)
            scn = {"scn": 5000 + self._place // 4} if self.kind == "oracle" else {}
            time = self._since(self._clock + self._skew)
            self.log.append(
                Logged("INSERT", row, scn, time, self._ids[key], self._statements, self._server, backfill=True)
            )
