"""Changes of a real PostgreSQL, from its WAL by the plugin wal2json; and its rows, for backfills and for the truth.

The server must run with wal_level=logical. Needs the role's REPLICATION right (or a superuser) and, for a table without
a primary key, a REPLICA IDENTITY.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import psycopg
from psycopg import sql

from distributary.changes.model import Kind
from distributary.errors import SourceDown
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Row, Table, backfill_change
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.databases import postgresql_columns
from distributary_simulate.databases.servers import Server

CHUNK_ROWS: Final = 500
PEEK_CHANGES: Final = 5_000
"""Of one look into the log; a transaction is never cut."""
_OPTIONS: Final = [
    part
    for name in ("include-lsn", "include-timestamp", "include-pk", "include-xids", "include-typmod")
    for part in (name, "1")
]
_NOTHING: Final = sql.SQL("")
_COLUMNS: Final = """
SELECT n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = ANY (i.indkey), false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_t'
ORDER BY n.nspname, c.relname, a.attnum
"""


def connect(server: Server) -> psycopg.Connection[tuple[Any, ...]]:
    """In UTC. Raises SourceDown."""
    try:
        return psycopg.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password or None,
            dbname=server.database,
            autocommit=True,
            options="-c timezone=UTC -c intervalstyle=postgres -c datestyle=ISO -c extra_float_digits=1",
        )
    except psycopg.OperationalError as error:
        raise SourceDown(source=str(server), detail=str(error).strip().splitlines()[0]) from error


@dataclass(frozen=True)
class _Known:
    """A table and the names of its columns' types."""

    table: Table
    types: dict[str, str]


class Wal:
    """The changes of one database. The server keeps the position, as a replication slot.

    single_key_updates: a key update is one UPDATE, as the WAL has it, not a pair, as the documentation has it; the old
        key then stays in any merged table.
    look_up_large: large values that an update left alone are not in the log: read them from the table, where they may
        be newer than the update, instead of showing null. now_ms: the reader's clock.
    """

    def __init__(
        self,
        server: Server,
        *,
        slot: str = "distributary_simulate",
        single_key_updates: bool = False,
        look_up_large: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.server = server
        self.slot = slot
        self._single = single_key_updates
        self._look_up = look_up_large
        self._now_ms = now_ms
        self._tables: dict[tuple[str, str], _Known] = {}

    def open(self) -> None:
        """Make the slot where there is none: changes from now on are kept for it. Raises SourceDown."""
        with connect(self.server) as connection, suppress(psycopg.errors.DuplicateObject):
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [self.slot])

    def close(self) -> None:
        """Drop the slot, so that the server keeps no log for it."""
        with connect(self.server) as connection, suppress(psycopg.errors.UndefinedObject):
            connection.execute("SELECT pg_drop_replication_slot(%s)", [self.slot])

    def transactions(self) -> Iterator[tuple[list[Change], str]]:
        """All changes of each whole transaction that is not confirmed yet, and the LSN to confirm it by."""
        query = "SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, %s, 'format-version', '2', "
        query += ", ".join(["%s"] * len(_OPTIONS)) + ")"
        with connect(self.server) as connection:
            lines = connection.execute(query, [self.slot, PEEK_CHANGES, *_OPTIONS]).fetchall()
            changes: list[Change] = []
            for (text,) in lines:
                # As decimals: a numeric of thirty digits is a JSON number here.
                message = json.loads(text, parse_float=Decimal)
                if message["action"] == "C":
                    yield [*changes[:-1], *(replace(last, last=True) for last in changes[-1:])], message["nextlsn"]
                    changes = []
                elif message["action"] in "IUD":  # T, a truncate, leaves no event behind
                    changes += self._changes(message, connection)

    def confirm(self, lsn: str) -> None:
        """Everything up to here is safe; the server may forget it."""
        with connect(self.server) as connection:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", [self.slot, lsn])

    def tables(self) -> list[Table]:
        """All tables of the database, as they are now."""
        with connect(self.server) as connection:
            return [known_table.table for known_table in self._catalog(connection)]

    def backfill(self, route: str, started_ms: int, chunk_rows: int = CHUNK_ROWS) -> Iterator[list[Change]]:
        """The rows of a table with a key, chunk after chunk, each as it is when its chunk is read."""
        position = Position({"tx_id": None, "lsn": None}, (started_ms, ""), started_ms)
        with connect(self.server) as connection:
            for known_table in self._catalog(connection):
                if known_table.table.route == route:
                    for rows in _chunks(connection, known_table, chunk_rows):
                        yield [backfill_change(known_table.table, row, position, self._now_ms()) for row in rows]

    def truth(self) -> dict[str, TableTruth]:
        """What every table holds, in one snapshot."""
        with connect(self.server) as connection:
            connection.autocommit = False
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            return {
                known_table.table.route: TableTruth(
                    known_table.table, tuple(_rows(known_table, _texts(connection, known_table)))
                )
                for known_table in self._catalog(connection)
            }

    def _changes(self, message: dict[str, Any], connection: psycopg.Connection[Any]) -> Iterator[Change]:
        known_table = self._known(message, connection)
        time_ms = _commit_ms(message["timestamp"])
        lsn = message["lsn"]
        position = Position({"tx_id": message["xid"], "lsn": lsn}, (time_ms, lsn), time_ms)
        seen_ms = self._now_ms()

        def change(kind: str, row: Row, is_deleted: bool = False) -> Change:
            return Change(
                known_table.table, kind, is_deleted, row, position, CDC_METHOD[Kind.POSTGRESQL], seen_ms, False
            )

        old, new = _row(known_table, message.get("identity", ())), _row(known_table, message.get("columns", ()))
        if message["action"] == "U" and self._look_up:
            new = {**new, **_looked_up(connection, known_table, message)}
        if message["action"] == "D":
            yield change("DELETE", old, True)
        elif message["action"] == "I":
            yield change("INSERT", new)
        elif old and known_table.table.key_of(old) != known_table.table.key_of(new) and not self._single:
            yield change("UPDATE-DELETE", old, True)
            yield change("UPDATE-INSERT", new)
        else:
            yield change("UPDATE", new)

    def _known(self, message: dict[str, Any], connection: psycopg.Connection[Any]) -> _Known:
        """The table as the event shows it. Events that show a part of it (a delete's key; an update without the large
        values that it left alone) are of the table that was seen last."""
        place = (message["schema"], message["table"])
        shown = {column["name"]: column["type"] for column in message.get("columns", ())}
        known_table = self._tables.get(place)
        if known_table is None or (shown and shown != known_table.types):
            # Values that an update left alone are not shown; columns that are gone are neither. The catalog knows.
            now = {(k.table.schema, k.table.name): k for k in self._catalog(connection)}.get(place)
            is_part = now is not None and shown.items() <= now.types.items() and message["action"] != "I"
            keys = tuple(key["name"] for key in message.get("pk", ()))
            known_table = now if now is not None and is_part else _of(*place, shown, keys)
            self._tables[place] = known_table
        return known_table

    def _catalog(self, connection: psycopg.Connection[Any]) -> list[_Known]:
        rows = connection.execute(_COLUMNS).fetchall()
        known_tables = []
        for place in dict.fromkeys((schema, name) for schema, name, *_ in rows):
            column_rows = [row[2:] for row in rows if row[:2] == place]
            # As events have them: the key's columns in the order of the table.
            keys = tuple(name for name, _, is_key in column_rows if is_key)
            known_tables.append(_of(*place, {name: kind for name, kind, _ in column_rows}, keys))
        return known_tables


def _of(schema: str, name: str, types: dict[str, str], keys: tuple[str, ...]) -> _Known:
    columns = tuple(Column(column, postgresql_columns.unified(kind)) for column, kind in types.items())
    return _Known(Table(Kind.POSTGRESQL, "", schema, name, columns, keys), types)


def _row(known_table: _Known, columns: Sequence[dict[str, Any]]) -> Row:
    """All columns of the table where there are any; those that the event does not show as None."""
    shown = {column["name"]: column["value"] for column in columns}
    if not shown:
        return {}
    return {
        column.name: postgresql_columns.value(column.type, known_table.types[column.name], shown.get(column.name))
        for column in known_table.table.columns
    }


def _looked_up(connection: psycopg.Connection[Any], known_table: _Known, message: dict[str, Any]) -> Row:
    """The columns that an update does not show, as they are now; none where the row is gone."""
    shown = {column["name"]: column["value"] for column in message["columns"]}
    hidden = known_table.types.keys() - shown.keys()
    if not hidden or not known_table.table.keys:
        return {}
    names = sql.SQL(" AND ").join(
        sql.SQL("{}::text = %s").format(sql.Identifier(key)) for key in known_table.table.keys
    )
    keys = tuple(str(shown[key]) for key in known_table.table.keys)
    rows = _rows(known_table, _texts(connection, known_table, sql.SQL("WHERE {}").format(names), keys))
    return {name: rows[0][name] for name in hidden} if rows else {}


def _commit_ms(text: str) -> int:
    moment = postgresql_columns.value(postgresql_columns.unified("timestamp with time zone"), "", text)
    return int(moment[0] // 1000)


def _chunks(connection: psycopg.Connection[Any], known_table: _Known, chunk_rows: int) -> Iterator[list[Row]]:
    """In the order of the key; each chunk begins behind the last row of the one before."""
    keys = sql.SQL(", ").join(map(sql.Identifier, known_table.table.keys))
    casts = [sql.SQL("%s::" + known_table.types[key]) for key in known_table.table.keys]
    last: tuple[Any, ...] | None = None
    while True:
        condition = sql.SQL("WHERE ({}) > ({}) ").format(keys, sql.SQL(", ").join(casts)) if last else sql.SQL("")
        rest = sql.SQL("{}ORDER BY {} LIMIT {}").format(condition, keys, sql.Literal(chunk_rows))
        texts = _texts(connection, known_table, rest, last)
        if texts:
            yield _rows(known_table, texts)
        if len(texts) < chunk_rows:
            return
        names = list(known_table.types)
        last = tuple(texts[-1][names.index(key)] for key in known_table.table.keys)


def _texts(
    connection: psycopg.Connection[Any],
    known_table: _Known,
    rest: sql.Composable = _NOTHING,
    values: tuple[Any, ...] | None = None,
) -> list[tuple[Any, ...]]:
    """All values as text: the rules for the log's text hold for them."""
    # A cast of CHAR(n) to text drops the blanks at its end; the log has them.
    forms = {True: sql.SQL("textin(bpcharout({}))"), False: sql.SQL("{}::text")}
    selected = sql.SQL(", ").join(
        forms[kind.startswith("character(")].format(sql.Identifier(name)) for name, kind in known_table.types.items()
    )
    place = sql.Identifier(known_table.table.schema, known_table.table.name)
    return connection.execute(sql.SQL("SELECT {} FROM {} {}").format(selected, place, rest), values).fetchall()


def _rows(known_table: _Known, texts: list[tuple[Any, ...]]) -> list[Row]:
    names = list(known_table.types)
    return [
        _row(known_table, [{"name": name, "value": value} for name, value in zip(names, row, strict=True)])
        for row in texts
    ]
