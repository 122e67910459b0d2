"""An invented history of several databases, and the truth: what their tables hold in the end.

Changes come in the order in which the databases made them, with everything that makes that order hard to see from the
events: ties, key swaps, statements that began early and ended late, rows that a backfill read while they changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from distributary.changes.model import Kind
from distributary_simulate.changes.history_tables import key_row, new_row, tables_of
from distributary_simulate.changes.live_table import Key, LiveTable
from distributary_simulate.changes.model import Change, Column, Row, Table
from distributary_simulate.changes.source_logs import LOGS, SourceLog
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.changes.unified import DOUBLE, INTEGER, LONG, STRING, decimal, varchar
from distributary_simulate.errors import SimulationInvalid

START_MS: Final = 1_767_225_600_000
"""2026-01-01T00:00:00Z, where a history begins unless told otherwise."""
BACKFILL_ROWS: Final = 8
_WIDER: Final = {"INTEGER": LONG, "FLOAT": DOUBLE}


@dataclass(frozen=True)
class HistoryPlan:
    """What to invent. The same plan gives the same changes.

    initial_rows: per table, older than its log: only a backfill shows them.
    backfill: each table is backfilled once, in chunks, while it changes. Tables without a key are not.
    changes_per_sec: of the databases' clock, all tables together.
    schema_changes: one per so many transactions, on a random table; 0: none.
    single_key_updates: PostgreSQL writes one UPDATE for a key update, so the old key stays in any merged table.
    """

    tables: tuple[Table, ...] = field(default_factory=tables_of)
    seed: int = 0
    start_ms: int = START_MS
    initial_rows: int = 20
    backfill: bool = True
    changes_per_sec: float = 20.0
    schema_changes: int = 60
    single_key_updates: bool = False

    def __post_init__(self) -> None:
        routes = [(table.kind, table.route) for table in self.tables]
        if not routes or len(set(routes)) < len(routes):
            raise SimulationInvalid(what="tables", detail="give at least one, and each once")
        if self.changes_per_sec <= 0 or self.initial_rows < 0:
            raise SimulationInvalid(what="plan", detail="changes_per_sec must be over 0, initial_rows 0 or more")


@dataclass
class _Task:
    """A backfill under way: it began at `started_ms` and has read the keys up to `last`."""

    live: LiveTable
    started_ms: int
    last: Key | None = None


class History:
    """Goes on for as long as it is asked to; `truth` is that of all changes handed out so far."""

    def __init__(self, plan: HistoryPlan | None = None) -> None:
        self.plan = plan or HistoryPlan()
        self.now_ms = self.plan.start_ms
        self._choices = random.Random(self.plan.seed)
        logs: dict[tuple[Kind, str], SourceLog] = {}
        self._tables: list[LiveTable] = []
        self._number: dict[str, int] = {}
        self._extra = 0
        self._transactions = 0
        for table in self.plan.tables:
            source = (table.kind, table.database)
            log = logs.setdefault(source, LOGS[table.kind](random.Random(f"{self.plan.seed} {source}")))
            self._tables.append(LiveTable(table, log, single_key_updates=self.plan.single_key_updates))
        self._groups = [
            (log, [live for live in self._tables if (live.table.kind, live.table.database) == source])
            for source, log in logs.items()
        ]
        for live in self._tables:
            for _ in range(self.plan.initial_rows if live.table.keys and self.plan.backfill else 0):
                live.put(self._new(live))
        self._waiting = [live for live in self._tables if live.table.keys] if self.plan.backfill else []
        self._tasks: list[_Task] = []

    def changes(self, count: int) -> Iterator[Change]:
        """At least `count` more changes, in true order; whole transactions, whole chunks of a backfill."""
        count_made = 0
        while count_made < count:
            for change in self._step():
                count_made += 1
                yield change

    def finish(self) -> Iterator[Change]:
        """What the backfills still have to read. From here on the changes explain the whole truth."""
        while self._waiting or self._tasks:
            self._begin_backfill()
            yield from self._chunk(self._tasks[0])

    def truth(self) -> dict[str, TableTruth]:
        """Route -> the table as its database has it now."""
        return {live.table.route: TableTruth(live.table, tuple(live)) for live in self._tables}

    # -- one step -----------------------------------------------------------------------------------------------

    def _step(self) -> list[Change]:
        dice = self._choices.random()
        if dice < 0.02 and self._waiting:
            self._begin_backfill()
        elif dice < 0.1 and self._tasks:
            return self._chunk(self._choices.choice(self._tasks))
        self._transactions += 1
        if self.plan.schema_changes and self._transactions % self.plan.schema_changes == 0:
            self._change_schema(self._choices.choice(self._tables))
        return self._transaction()

    def _transaction(self) -> list[Change]:
        log, tables = self._choices.choice(self._groups)
        changes: list[Change] = []
        for statement in range(self._choices.choice((1, 1, 1, 2, 4))):
            if not statement:
                log.begin(self.now_ms)
            log.statement()
            changes += self._statement(self._choices.choice(tables), log)
        self.now_ms += round(self._choices.expovariate(self.plan.changes_per_sec) * 1000 * max(1, len(changes)))
        return [*changes[:-1], replace(changes[-1], last=True)]

    def _statement(self, live: LiveTable, log: SourceLog) -> list[Change]:
        if not live.table.keys or len(live) < 3:
            return live.insert(self._new(live), self.now_ms)
        kinds = _STATEMENTS if live.table.kind is not Kind.MONGODB else _DOCUMENT_STATEMENTS
        make = self._choices.choices([make for make, _ in kinds], [weight for _, weight in kinds])[0]
        return make(self, live, log)

    def _insert(self, live: LiveTable, log: SourceLog) -> list[Change]:
        rows = self._choices.choice((1, 1, 3))
        return [change for _ in range(rows) for change in live.insert(self._new(live), self.now_ms)]

    def _update(self, live: LiveTable, log: SourceLog) -> list[Change]:
        keys = live.some(self._choices.choice((1, 1, 3)), self._choices)
        return [change for key in keys for change in live.update(key, self._changed(live, key), self.now_ms)]

    def _delete(self, live: LiveTable, log: SourceLog) -> list[Change]:
        return live.delete(live.some(1, self._choices)[0], self.now_ms)

    def _move(self, live: LiveTable, log: SourceLog) -> list[Change]:
        """One row to a free key."""
        key = live.some(1, self._choices)[0]
        return live.move([(key, {**live.row(key), **self._free_key(live)})], self.now_ms)

    def _shift(self, live: LiveTable, log: SourceLog) -> list[Change]:
        """`SET id = id + 1`: rows move up to the next one's key, the last one's first, all in one statement."""
        keys = live.some(self._choices.randint(2, 4), self._choices)
        names = live.table.keys
        free = self._free_key(live)
        target = [dict(zip(names, key, strict=True)) for key in keys[1:]] + [free]
        moves = [(key, {**live.row(key), **new}) for key, new in zip(keys, target, strict=True)]
        return live.move(moves[::-1], self.now_ms)

    def _swap(self, live: LiveTable, log: SourceLog) -> list[Change]:
        """Two rows change keys: Oracle in one statement, which checks keys at its end; others by way of a third."""
        first_key, second_key = live.some(2, self._choices)
        names = live.table.keys
        key_one, key_two = (dict(zip(names, key, strict=True)) for key in (first_key, second_key))
        if live.table.kind is Kind.ORACLE:
            return live.move(
                [(first_key, {**live.row(first_key), **key_two}), (second_key, {**live.row(second_key), **key_one})],
                self.now_ms,
            )
        between = self._free_key(live)
        away = live.table.key_of(between)
        changes = live.move([(first_key, {**live.row(first_key), **between})], self.now_ms)
        log.statement()
        changes += live.move([(second_key, {**live.row(second_key), **key_one})], self.now_ms)
        log.statement()
        return changes + live.move([(away, {**live.row(away), **key_two})], self.now_ms)

    def _burst(self, live: LiveTable, log: SourceLog) -> list[Change]:
        """Insert, update, delete and insert again of one key, in one transaction."""
        row = self._new(live)
        key = live.table.key_of(row)
        changes = live.insert(row, self.now_ms)
        log.statement()
        changes += live.update(key, self._changed(live, key), self.now_ms)
        log.statement()
        changes += live.delete(key, self.now_ms)
        log.statement()
        return changes + live.insert(new_row(live.table, row, self._choices), self.now_ms)

    def _undone(self, live: LiveTable, log: SourceLog) -> list[Change]:
        """Oracle's rollback; MongoDB's update of a document that is gone; elsewhere a plain delete."""
        if live.table.kind is Kind.ORACLE:
            return live.rolled_back_insert(self._new(live), self.now_ms)
        key = live.some(1, self._choices)[0]
        if live.table.kind is Kind.MONGODB:
            return live.vanished_update(key, self.now_ms)
        return live.delete(key, self.now_ms)

    # -- rows and schemas ---------------------------------------------------------------------------------------

    def _new(self, live: LiveTable) -> Row:
        return new_row(live.table, self._free_key(live), self._choices)

    def _free_key(self, live: LiveTable) -> Row:
        """A key that no row has: a new one, or one that was given up before."""
        route, table = live.table.route, live.table
        if not table.keys:
            return {}
        highest = self._number.get(route, 0)
        for _ in range(2):
            again = key_row(table, self._choices.randint(0, highest))
            if highest and self._choices.random() < 0.4 and table.key_of(again) not in live:
                return again
        self._number[route] = highest + 1
        key = key_row(table, highest + 1)
        return key if table.key_of(key) not in live else self._free_key(live)

    def _changed(self, live: LiveTable, key: Key) -> Row:
        """The row of `key` with some other values; now and then an update that changes nothing."""
        row = {**live.row(key)}
        new = new_row(live.table, {name: row[name] for name in live.table.keys}, self._choices)
        names = [column.name for column in live.table.columns]
        changed = names if live.table.kind is Kind.MONGODB else self._choices.sample(names, len(names) // 2)
        return {**row, **{name: new[name] for name in changed if name not in live.table.toast}}

    def _change_schema(self, live: LiveTable) -> None:
        """Add a column, drop an added one, or widen one. Rows keep their values, so no event tells of it."""
        table = live.table
        if table.kind is Kind.MONGODB:
            return
        added = [column for column in table.columns if column.name.lower().startswith("extra_")]
        # A key stays as it is, and a dropped column's name does not come back: both are other stories.
        wide = [c for c in table.columns if c.name not in table.keys and _wider(c) is not None]
        dice = self._choices.random()
        if dice < 0.3 and added:
            dropped = self._choices.choice(added)
            live.table = table.with_columns(tuple(c for c in table.columns if c is not dropped))
        elif dice < 0.6 and wide:
            old = self._choices.choice(wide)
            live.table = table.with_columns(tuple(_wider(c) or c if c is old else c for c in table.columns))
        else:
            self._extra += 1
            name = f"extra_{self._extra}"
            kind = self._choices.choice((INTEGER, STRING, decimal(9, 2)))
            new = Column(name.upper() if table.kind is Kind.ORACLE else name, kind)
            live.table = table.with_columns((*table.columns, new))

    # -- backfills ----------------------------------------------------------------------------------------------

    def _begin_backfill(self) -> None:
        if self._waiting:
            self._tasks.append(_Task(self._waiting.pop(0), self.now_ms))

    def _chunk(self, task: _Task) -> list[Change]:
        keys = task.live.keys_after(task.last, BACKFILL_ROWS)
        if len(keys) < BACKFILL_ROWS:
            self._tasks.remove(task)
        else:
            task.last = keys[-1]
        return task.live.backfill(keys, task.started_ms, self.now_ms)


def _wider(column: Column) -> Column | None:
    """The column with the next wider type, where there is one that every reader must follow."""
    kind = column.type
    if kind.name == "DECIMAL" and kind.precision <= 36:
        return Column(column.name, decimal(kind.precision + 2, kind.scale))
    if kind.name == "VARCHAR":
        return Column(column.name, varchar(kind.length * 2))
    return Column(column.name, _WIDER[kind.name]) if kind.name in _WIDER else None


_Make = Callable[[History, LiveTable, SourceLog], list[Change]]
_STATEMENTS: Final[tuple[tuple[_Make, int], ...]] = (
    (History._insert, 30),
    (History._update, 36),
    (History._delete, 12),
    (History._move, 6),
    (History._shift, 4),
    (History._swap, 4),
    (History._burst, 4),
    (History._undone, 4),
)
# A document's _id never changes.
_DOCUMENT_STATEMENTS: Final = tuple(
    (make, weight) for make, weight in _STATEMENTS if make not in (History._move, History._shift, History._swap)
)
