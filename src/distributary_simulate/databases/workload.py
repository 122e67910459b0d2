"""Changes two tables of a real database, users and orders, as an application does: by a seed, at a rate, for a while.

Readers may look on meanwhile. Who begins on a database that has the tables already goes on with their rows.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from distributary.changes.model import Kind
from distributary_simulate.databases.servers import Server

_NAMES: Final = ("Ann", "Bob", "Çem", "Dora", "Émile", "名前", "O'Hara", "")
_STATES: Final = ("new", "paid", "packed", "sent", "returned")
_INTERESTS: Final = ("books", "cats", "code", "tea")
_FIRST_DAY: Final = datetime(2020, 1, 1)

_MYSQL_TABLES: Final = (
    """CREATE TABLE users (
        id INT PRIMARY KEY, name VARCHAR(80) NOT NULL, email VARCHAR(120), age TINYINT UNSIGNED,
        balance DECIMAL(12,2), score DOUBLE, rate FLOAT, is_active BOOL, interests SET('books','cats','code','tea'),
        plan ENUM('free','pro'), token BINARY(8), photo VARBINARY(64), flags BIT(10), points BIGINT UNSIGNED,
        born_on DATE, joined_at DATETIME(6), seen_at TIMESTAMP(3) NULL, online TIME, profile JSON
    )""",
    """CREATE TABLE orders (
        id BIGINT PRIMARY KEY, user_id INT, state VARCHAR(20), total DECIMAL(30,9), note TEXT, placed_at DATETIME,
        is_gift TINYINT(1), parcels SMALLINT
    )""",
)
_POSTGRESQL_TABLES: Final = (
    """CREATE TABLE users (
        id INTEGER PRIMARY KEY, name VARCHAR(80) NOT NULL, email TEXT, age SMALLINT, balance NUMERIC(12,2),
        score DOUBLE PRECISION, rate REAL, is_active BOOLEAN, interests TEXT[], plan CHAR(4), token UUID, photo BYTEA,
        flags BIT(10), points NUMERIC, born_on DATE, joined_at TIMESTAMP, seen_at TIMESTAMPTZ, online INTERVAL,
        profile JSONB
    )""",
    """CREATE TABLE orders (
        id BIGINT PRIMARY KEY, user_id INTEGER, state VARCHAR(20), total NUMERIC(30,9), note TEXT, placed_at TIMESTAMP,
        is_gift BOOLEAN, parcels SMALLINT
    )""",
)


@dataclass(frozen=True)
class Workload:
    """What to do.

    rows: per table, before the changes begin. seconds: how long to go on; None: until `transactions` are done.
    rate: transactions a second, at most; 0: as many as go. transactions: at most so many; None: until time is up.
    schema_changes: one per so many transactions; 0: none.
    """

    rows: int = 100
    seconds: float | None = 60.0
    rate: float = 20.0
    transactions: int | None = None
    schema_changes: int = 200
    seed: int = 0


@dataclass
class Done:
    """Counts of statements that were committed, by what they did."""

    transactions: int = 0
    statements: dict[str, int] = field(default_factory=dict)
    schema_changes: list[str] = field(default_factory=list)

    def count(self, statement: str) -> None:
        self.statements[statement] = self.statements.get(statement, 0) + 1


def run_workload(
    server: Server,
    workload: Workload,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Done:
    """Make the tables where they are missing, fill them, and change them. Raises SourceDown."""
    with closing(_connect(server)) as connection:
        writer = _Writer(connection, server.kind, workload)
        writer.prepare()
        began = clock()
        while not is_stopped():
            transactions_done = writer.done.transactions
            if workload.transactions is not None and transactions_done >= workload.transactions:
                break
            if workload.seconds is not None and clock() - began >= workload.seconds:
                break
            if workload.rate and (early := began + transactions_done / workload.rate - clock()) > 0:
                sleep(early)
            if workload.schema_changes and transactions_done % workload.schema_changes == workload.schema_changes - 1:
                writer.change_schema()
            writer.transaction()
        return writer.done


def _connect(server: Server) -> Any:
    if server.kind is Kind.MYSQL:
        from distributary_simulate.databases import binlog

        connection = binlog.connect(server)
        connection.autocommit(False)
        return connection
    from distributary_simulate.databases import wal

    other = wal.connect(server)
    other.autocommit = False
    return other


class _Writer:
    def __init__(self, connection: Any, kind: Kind, workload: Workload) -> None:
        self.done = Done()
        self._connection = connection
        self._kind = kind
        self._workload = workload
        self._choices = random.Random(workload.seed)
        self._ids: dict[str, list[int]] = {}
        self._next: dict[str, int] = {}
        self._columns: dict[str, list[str]] = {}
        self._extra = 0
        self._pending: list[str] = []

    def prepare(self) -> None:
        tables = _MYSQL_TABLES if self._kind is Kind.MYSQL else _POSTGRESQL_TABLES
        for name, create in zip(("users", "orders"), tables, strict=True):
            self._execute(create.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            self._ids[name] = [row[0] for row in self._execute(f"SELECT id FROM {name} ORDER BY id")]
            self._next[name] = max(self._ids[name], default=0) + 1
            self._read_columns(name)
            for _ in range(self._workload.rows if not self._ids[name] else 0):
                self._insert(name)
        self._connection.commit()

    def transaction(self) -> None:
        """One to four statements; one in twenty transactions changes its mind."""
        before = {name: (list(ids), self._next[name]) for name, ids in self._ids.items()}
        self._pending = []
        for _ in range(self._choices.choice((1, 1, 2, 4))):
            self._statement(self._choices.choice(("users", "orders", "orders")))
        self.done.transactions += 1
        if self._choices.random() < 0.05:
            self._connection.rollback()
            self._ids = {name: ids for name, (ids, _) in before.items()}
            self._pending = ["rollback"]
        else:
            self._connection.commit()
        for statement in self._pending:
            self.done.count(statement)

    def change_schema(self) -> None:
        """Add a column, drop an added one, or make a column wider."""
        name = self._choices.choice(("users", "orders"))
        added = [column for column in self._columns[name] if column.startswith("extra_")]
        dice = self._choices.random()
        if dice < 0.3 and added:
            change = f"DROP COLUMN {self._choices.choice(added)}"
        elif dice < 0.5:
            mysql, postgresql = {
                "users": ("MODIFY name VARCHAR(200) NOT NULL", "ALTER COLUMN age TYPE BIGINT"),
                "orders": ("MODIFY parcels BIGINT", "ALTER COLUMN parcels TYPE BIGINT"),
            }[name]
            change = mysql if self._kind is Kind.MYSQL else postgresql
        else:
            self._extra += 1
            kind = self._choices.choice(("INTEGER", "VARCHAR(40)", "DECIMAL(9,2)"))
            change = f"ADD COLUMN extra_{self._extra}_{self._workload.seed} {kind}"
        self._execute(f"ALTER TABLE {name} {change}")
        self._connection.commit()
        self._read_columns(name)
        self.done.schema_changes.append(f"{name}: {change}")

    def _statement(self, name: str) -> None:
        enough = len(self._ids[name]) > 5
        make = self._choices.choices(
            (self._insert, self._update, self._delete, self._move, self._swap, self._shift, self._again),
            (30, 40, 12, 6, 4, 4, 4) if enough else (1, 0, 0, 0, 0, 0, 0),
        )[0]
        make(name)
        self._pending.append(make.__name__.strip("_"))

    def _insert(self, name: str) -> None:
        number, self._next[name] = self._next[name], self._next[name] + 1
        self._add(name, number)
        self._ids[name].append(number)

    def _update(self, name: str) -> None:
        columns = self._choices.sample(self._columns[name], 3)
        values = [self._value(name, column) for column in columns]
        ids = self._choices.sample(self._ids[name], self._choices.choice((1, 1, 3)))
        places = ", ".join(["%s"] * len(ids))
        changes = ", ".join(f"{column} = %s" for column in columns)
        self._execute(f"UPDATE {name} SET {changes} WHERE id IN ({places})", [*values, *ids])

    def _delete(self, name: str) -> None:
        self._execute(f"DELETE FROM {name} WHERE id = %s", [self._take(name)])

    def _move(self, name: str) -> None:
        old, new = self._take(name), self._next[name]
        self._next[name] += 1
        self._set_id(name, old, new)
        self._ids[name].append(new)

    def _swap(self, name: str) -> None:
        first_id, second_id = self._choices.sample(self._ids[name], 2)
        for old, new in ((first_id, -1), (second_id, first_id), (-1, second_id)):
            self._set_id(name, old, new)

    def _shift(self, name: str) -> None:
        """`id = id + 1` for the highest rows: in MySQL one statement, whose rows leave a key before others take it."""
        highest = sorted(self._ids[name])[-3:]
        if self._kind is Kind.MYSQL:
            self._execute(f"UPDATE {name} SET id = id + 1 WHERE id >= %s ORDER BY id DESC", [highest[0]])
        else:
            for number in reversed(highest):
                self._set_id(name, number, number + 1)
        lower_ids = [number for number in self._ids[name] if number not in highest]
        self._ids[name] = lower_ids + [number + 1 for number in highest]
        self._next[name] = max(self._next[name], highest[-1] + 2)

    def _again(self, name: str) -> None:
        """Delete a row and insert one with its key, in one transaction."""
        number = self._choices.choice(self._ids[name])
        self._execute(f"DELETE FROM {name} WHERE id = %s", [number])
        self._add(name, number)

    def _add(self, name: str, number: int) -> None:
        columns = self._columns[name]
        values = [number, *(self._value(name, column) for column in columns)]
        names = ", ".join(["id", *columns])
        self._execute(f"INSERT INTO {name} ({names}) VALUES ({', '.join(['%s'] * len(values))})", values)

    def _take(self, name: str) -> int:
        return self._ids[name].pop(self._choices.randrange(len(self._ids[name])))

    def _set_id(self, name: str, old: int, new: int) -> None:
        self._execute(f"UPDATE {name} SET id = %s WHERE id = %s", [new, old])

    def _value(self, name: str, column: str) -> Any:
        """A random value; the schema may have grown columns of other names."""
        choose = self._choices
        if column == "name":
            return f"{choose.choice(_NAMES)} {choose.randrange(1000)}"
        if choose.random() < 0.1:
            return None
        if column.startswith("extra_"):
            return str(choose.randrange(1000))
        make = {**_SHARED, **(_MYSQL_ONLY if self._kind is Kind.MYSQL else _POSTGRESQL_ONLY)}[column]
        return make(choose)

    def _read_columns(self, name: str) -> None:
        schema = "DATABASE()" if self._kind is Kind.MYSQL else "current_schema()"
        rows = self._execute(
            "SELECT column_name FROM information_schema.columns "
            f"WHERE table_schema = {schema} AND table_name = %s AND column_name <> 'id' ORDER BY ordinal_position",
            [name],
        )
        self._columns[name] = [row[0] for row in rows]

    def _execute(self, statement: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall()) if cursor.description else []


_Make = Callable[[random.Random], Any]
_SHARED: Final[dict[str, _Make]] = {
    "email": lambda choose: f"user{choose.randrange(1000)}@example.org",
    "age": lambda choose: choose.randint(0, 120),
    "balance": lambda choose: f"{choose.randint(-(10**9), 10**9) / 100:.2f}",
    "score": lambda choose: choose.choice((0.0, 1.1, choose.gauss(0, 1e6))),
    "rate": lambda choose: choose.choice((1.2, 0.5, round(choose.uniform(-99, 99), 3))),
    "born_on": lambda choose: (_FIRST_DAY - timedelta(days=choose.randint(0, 30_000))).date(),
    "joined_at": lambda choose: _FIRST_DAY + timedelta(microseconds=choose.randrange(10**14)),
    "profile": lambda choose: json.dumps({"a": choose.randrange(9), "b": [None, choose.choice(_NAMES)]}),
    "plan": lambda choose: choose.choice(("free", "pro")),
    "user_id": lambda choose: choose.randrange(1000),
    "state": lambda choose: choose.choice(_STATES),
    "total": lambda choose: f"{choose.randrange(10**20)}.{choose.randrange(10**9):09d}",
    "note": lambda choose: choose.choice(("", "ring twice", "é" * choose.randrange(50), "tab\there\nand there")),
    "placed_at": lambda choose: _FIRST_DAY + timedelta(seconds=choose.randrange(10**8)),
    "is_gift": lambda choose: choose.random() < 0.5,
    "is_active": lambda choose: choose.random() < 0.5,
    "parcels": lambda choose: choose.randint(-5, 5),
    "photo": lambda choose: choose.randbytes(choose.randrange(9)),
}
_MYSQL_ONLY: Final[dict[str, _Make]] = {
    "interests": lambda choose: ",".join(one for one in reversed(_INTERESTS) if choose.random() < 0.4),
    # Zeros at the end are what a decoder loses; a day that does not exist is what a driver can't say.
    "token": lambda choose: choose.randbytes(choose.randint(0, 8)),
    "flags": lambda choose: choose.randrange(1024),
    "points": lambda choose: choose.choice((0, 2**64 - 1, choose.randrange(1000))),
    "seen_at": lambda choose: _FIRST_DAY + timedelta(milliseconds=choose.randrange(10**11)),
    "online": lambda choose: choose.choice(("-838:59:59", "838:59:59", f"{choose.randrange(24):02d}:30:00")),
    "born_on": lambda choose: choose.choice(("0000-00-00", "1999-12-31", "2024-02-29")),
}
_POSTGRESQL_ONLY: Final[dict[str, _Make]] = {
    "interests": lambda choose: [choose.choice((*_INTERESTS, None, 'a,"b')) for _ in range(choose.randrange(4))],
    "token": lambda choose: f"{choose.getrandbits(128):032x}",
    "flags": lambda choose: f"{choose.randrange(1024):010b}",
    "points": lambda choose: choose.choice(("0", "12345678901234567890.123456789", "-3.50")),
    "seen_at": lambda choose: f"{_FIRST_DAY + timedelta(milliseconds=choose.randrange(10**11))}+02:00",
    "online": lambda choose: f"{choose.randrange(3)} years {choose.randint(-9, 9)} days -04:05:06.5",
}
