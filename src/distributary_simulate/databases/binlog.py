"""Changes of a real MySQL or MariaDB, from its binlog; and its rows, for backfills and for the truth.

The server must log whole rows with their columns' names: binlog_format=ROW, binlog_row_image=FULL,
binlog_row_metadata=FULL (MariaDB 10.5, MySQL 8.0.14). A table's columns are then those of the moment of the change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import QueryEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, RowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from distributary.changes.model import Kind
from distributary.errors import SourceDown
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Row, Table, backfill_change
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.databases.mysql_columns import MySqlColumn
from distributary_simulate.databases.servers import Server
from distributary_simulate.errors import SimulationInvalid

_NEEDED: Final = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_EVENTS: Final = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, TableMapEvent, QueryEvent, XidEvent)
CHUNK_ROWS: Final = 500


@dataclass(frozen=True, order=True)
class BinlogPosition:
    """The end of a transaction: file name, and byte in it."""

    file: str
    position: int

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"

    @classmethod
    def parse(cls, text: str) -> BinlogPosition:
        file, _, position = text.rpartition(":")
        return cls(file, int(position))


def connect(server: Server) -> pymysql.Connection[Any]:
    """In UTC, strict about nothing. Raises SourceDown."""
    try:
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            database=server.database,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00', sql_mode = ''",
        )
    except pymysql.err.OperationalError as error:
        raise SourceDown(source=str(server), detail=error.args[-1]) from error


def _open(**settings: Any) -> pymysql.Connection[Any]:
    # The decoder says `db`, which the driver deprecates.
    return pymysql.connect(**{"database" if name == "db" else name: value for name, value in settings.items()})


class Binlog:
    """The changes of one database of a server. now_ms: the reader's clock."""

    def __init__(
        self, server: Server, *, server_id: int = 0, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.server = server
        # Two readers with one id drive each other away.
        self._id = server_id or 1_000_000 + os.getpid()
        self._now_ms = now_ms
        self._tables: dict[tuple[str, tuple[MySqlColumn, ...], tuple[str, ...]], _Known] = {}

    def end(self) -> BinlogPosition:
        """Where the log ends now. Raises SourceDown."""
        with closing(connect(self.server)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            file, position, *_ = cursor.fetchone() or ("", 0)
        return BinlogPosition(file, position)

    def transactions(self, start: BinlogPosition) -> Iterator[tuple[list[Change], BinlogPosition]]:
        """All changes of each whole transaction behind `start`, and its end; ends where the log ends now.

        Only these ends are places to start from: in the middle of a statement the names of its columns are missed, and
        the rest of it is lost.
        """
        settings = {"host": self.server.host, "port": self.server.port, "user": self.server.user}
        stream = BinLogStreamReader(
            connection_settings={**settings, "password": self.server.password, "charset": "utf8mb4"},
            server_id=self._id,
            log_file=start.file,
            log_pos=start.position,
            resume_stream=True,
            blocking=False,
            only_events=list(_EVENTS),
            only_schemas=[self.server.database],
            pymysql_wrapper=_open,
            enable_logging=False,
        )
        with closing(stream):
            changes: list[Change] = []
            for event in stream:
                if isinstance(event, RowsEvent):
                    changes += self._changes(event, stream.log_file)
                # A commit; or a statement that commits by itself, such as DDL. Truncating leaves no event behind.
                elif isinstance(event, XidEvent) or (isinstance(event, QueryEvent) and event.query != "BEGIN"):
                    yield _ended(changes), BinlogPosition(stream.log_file, event.packet.log_pos)
                    changes = []

    def tables(self) -> list[Table]:
        """All tables of the database, as they are now."""
        with closing(connect(self.server)) as connection:
            return [table for table, _ in self._catalog(connection)]

    def backfill(self, route: str, started_ms: int, chunk_rows: int = CHUNK_ROWS) -> Iterator[list[Change]]:
        """The rows of a table with a key, chunk after chunk, each as it is when its chunk is read."""
        with closing(connect(self.server)) as connection:
            for table, columns in self._catalog(connection):
                if table.route == route:
                    for rows in _chunks(connection, table, columns, chunk_rows):
                        yield [backfill_change(table, row, _backfilled(started_ms), self._now_ms()) for row in rows]

    def truth(self) -> dict[str, TableTruth]:
        """What every table holds now; right if nobody writes meanwhile."""
        with closing(connect(self.server)) as connection:
            return {
                table.route: TableTruth(table, tuple(_rows(columns, _select(connection, table, columns))))
                for table, columns in self._catalog(connection)
            }

    def _changes(self, event: Any, log_file: str) -> Iterator[Change]:
        known_table = self._known(event)
        time_ms = event.timestamp * 1000
        end = event.packet.log_pos
        position = Position({"log_file": log_file, "log_position": end}, (time_ms, log_file, end), time_ms)
        seen_ms = self._now_ms()

        def change(kind: str, row: Row) -> Change:
            is_deleted = kind in ("DELETE", "UPDATE-DELETE")
            return Change(known_table.table, kind, is_deleted, row, position, CDC_METHOD[Kind.MYSQL], seen_ms, False)

        for row in event.rows:
            if isinstance(event, UpdateRowsEvent):
                before, after = known_table.row(row, "before_"), known_table.row(row, "after_")
                if known_table.table.key_of(before) != known_table.table.key_of(after):
                    yield change("UPDATE-DELETE", before)
                yield change("UPDATE-INSERT", after)
            else:
                yield change("INSERT" if isinstance(event, WriteRowsEvent) else "DELETE", known_table.row(row, ""))

    def _known(self, event: Any) -> _Known:
        columns = tuple(MySqlColumn.of_table_map(column) for column in event.columns)
        keys = event.primary_key
        names = (keys,) if isinstance(keys, str) and keys else tuple(keys)
        known_table = self._tables.get((event.table, columns, names))
        if known_table is None:
            known_table = _Known(_table(event.schema, event.table, columns, names), columns)
            self._tables[(event.table, columns, names)] = known_table
        return known_table

    def check(self) -> None:
        """Raises SimulationInvalid where the server does not log what is needed."""
        names = ", ".join(f"'{name}'" for name in _NEEDED)
        with closing(connect(self.server)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
            settings = dict(cursor.fetchall())
        wrong = [f"{name}={want}" for name, want in _NEEDED.items() if settings.get(name, "").upper() != want]
        if wrong:
            raise SimulationInvalid(what=str(self.server), detail=f"the server must run with {', '.join(wrong)}")

    def _catalog(self, connection: pymysql.Connection[Any]) -> list[tuple[Table, tuple[MySqlColumn, ...]]]:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(
                "SELECT c.table_name AS table_name, c.column_name AS column_name, data_type AS data_type, "
                "column_type AS column_type, numeric_precision AS numeric_precision, numeric_scale AS numeric_scale, "
                "character_octet_length AS character_octet_length, k.ordinal_position AS key_position "
                "FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name) "
                "LEFT JOIN information_schema.key_column_usage k ON k.table_schema = c.table_schema "
                "AND k.table_name = c.table_name AND k.column_name = c.column_name "
                "AND k.constraint_name = 'PRIMARY' WHERE c.table_schema = %s AND table_type = 'BASE TABLE' "
                "ORDER BY c.table_name, c.ordinal_position",
                [self.server.database],
            )
            rows = list(cursor.fetchall())
        tables = []
        for name in dict.fromkeys(row["table_name"] for row in rows):
            column_rows = [row for row in rows if row["table_name"] == name]
            # As a table map has them: the key's columns in the order of the table.
            keys = tuple(row["column_name"] for row in column_rows if row["key_position"] is not None)
            columns = tuple(MySqlColumn.of_catalog(row) for row in column_rows)
            tables.append((_table(self.server.database, name, columns, keys), columns))
        return tables


@dataclass(frozen=True)
class _Known:
    """A table as a table map shows it."""

    table: Table
    columns: tuple[MySqlColumn, ...]

    def row(self, row: dict[str, Any], image: str) -> Row:
        values, reasons = row[f"{image}values"], row[f"{image}none_sources"]
        return {c.name: c.value(values[c.name], reasons.get(c.name, "")) for c in self.columns}


def _table(database: str, name: str, columns: tuple[MySqlColumn, ...], keys: tuple[str, ...]) -> Table:
    return Table(Kind.MYSQL, database, "", name, tuple(Column(c.name, c.unified) for c in columns), keys)


def _ended(changes: list[Change]) -> list[Change]:
    return [*changes[:-1], replace(changes[-1], last=True)] if changes else []


def _backfilled(started_ms: int) -> Position:
    time_ms = started_ms // 1000 * 1000
    return Position({"log_file": "", "log_position": 0}, (time_ms, "", 0), time_ms)


def _chunks(
    connection: pymysql.Connection[Any], table: Table, columns: tuple[MySqlColumn, ...], chunk_rows: int
) -> Iterator[list[Row]]:
    """In the order of the key; each chunk begins behind the last row of the one before."""
    keys = ", ".join(_quoted(key) for key in table.keys)
    places = [index for index, column in enumerate(columns) if column.name in table.keys]
    last: list[Any] = []
    while True:
        condition = f"WHERE ({keys}) > ({', '.join(['%s'] * len(last))}) " if last else ""
        values = _select(connection, table, columns, f"{condition}ORDER BY {keys} LIMIT {chunk_rows}", last)
        if values:
            yield _rows(columns, values)
        if len(values) < chunk_rows:
            return
        last = [values[-1][place] for place in places]


def _select(
    connection: pymysql.Connection[Any],
    table: Table,
    columns: tuple[MySqlColumn, ...],
    rest: str = "",
    values: list[Any] | None = None,
) -> list[tuple[Any, ...]]:
    selected = ", ".join(column.select for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {selected} FROM {_quoted(table.name)} {rest}", values or None)
        return list(cursor.fetchall())


def _rows(columns: tuple[MySqlColumn, ...], values: list[tuple[Any, ...]]) -> list[Row]:
    return [{c.name: c.value(value) for c, value in zip(columns, row, strict=True)} for row in values]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
