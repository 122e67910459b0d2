"""The WAL of a real PostgreSQL as changes: every type, key updates, large values, every place to start from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from distributary.errors import SourceDown
from distributary_simulate.changes.model import Change
from distributary_simulate.changes.unified import (
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    INTERVAL,
    JSON,
    LONG,
    NUMBER,
    STRING,
    TIME,
    TIME_TZ,
    TIMESTAMP,
    TIMESTAMP_TZ,
    UNSUPPORTED,
    array,
    decimal,
)
from distributary_simulate.databases import postgresql_columns
from distributary_simulate.databases.postgresql_columns import INFINITY_US, MINUS_INFINITY_US, unified, value
from distributary_simulate.databases.servers import Server, server
from distributary_simulate.databases.wal import Wal
from distributary_simulate.databases.workload import Workload, run_workload
from tests.change_order import assert_equal, fold
from tests.services.postgres import Postgres

pytestmark = pytest.mark.services


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Server]:
    with postgres.database() as name:
        yield server(postgres.url(name))


@pytest.fixture
def run(postgres: Postgres, place: Server) -> Iterator[Session]:
    with closing(Session(postgres.url(place.database))) as session:
        yield session


class Session:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)

    def __call__(self, *statements: str) -> None:
        """One transaction."""
        for statement in statements:
            self._connection.execute(statement.encode())
        self._connection.commit()

    def roll_back(self, statement: str) -> None:
        self._connection.execute(statement.encode())
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


def wal_of(place: Server, **more: Any) -> Wal:
    # slots are the whole server's
    wal = Wal(place, slot=f"slot_{place.database}", **more)
    wal.open()
    return wal


def changes_of(wal: Wal) -> list[Change]:
    return [change for changes, _ in wal.transactions() for change in changes]


def short(changes: list[Change], column: str = "id") -> list[tuple[str | None, Any]]:
    return [(change.change_type, change.row[column]) for change in changes]


# column: definition, the value in SQL, type, plain value
COLUMNS: dict[str, tuple[str, str, Any, Any]] = {
    "id": ("int primary key", "1", INTEGER, 1),
    "flag": ("bool", "true", BOOLEAN, True),
    "small": ("smallint", "-32768", INTEGER, -32_768),
    "big": ("bigint", "9007199254740993", LONG, 9_007_199_254_740_993),
    "single": ("real", "1.2", FLOAT, 1.2000000476837158),
    "double": ("double precision", "0.1", DOUBLE, 0.1),
    "free": ("numeric", "12345678901234567890.123456789", NUMBER, "12345678901234567890.123456789"),
    "amount": ("numeric(10,2)", "-1.5", decimal(10, 2), Decimal("-1.50")),
    "whole": (
        "numeric(30)",
        "123456789012345678901234567890",
        decimal(30, 0),
        Decimal("123456789012345678901234567890"),
    ),
    "price": ("money", "'-1234.50'", NUMBER, "-1234.50"),
    "text_": ("text", "'é \"q\" \\'", STRING, 'é "q" \\'),
    "short": ("varchar(5)", "''", STRING, ""),
    "padded": ("char(5)", "'ab'", STRING, "ab   "),
    "token": ("uuid", "'06962d32-a852-4788-9c12-5bad83da2242'", STRING, "06962d32-a852-4788-9c12-5bad83da2242"),
    "mood": ("mood", "'sad'", STRING, "sad"),
    "address": ("inet", "'10.0.0.1/8'", STRING, "10.0.0.1/8"),
    "bytes": ("bytea", "'\\xdeadbeef'", BYTES, b"\xde\xad\xbe\xef"),
    "no_bytes": ("bytea", "''", BYTES, b""),
    "bits": ("bit(4)", "b'0101'", BYTES, b"0101"),
    "more_bits": ("varbit", "b'01'", BYTES, b"01"),
    "day": ("date", "'1969-12-31'", DATE, -1),
    "old_day": ("date", "'0044-03-15 BC'", DATE, -735_160),
    "no_day": ("date", "'infinity'", DATE, None),
    "clock": ("time", "'01:02:03.5'", TIME, 3_723_500_000),
    "zoned_clock": ("timetz", "'01:02:03-05:30'", TIME_TZ, (3_723_000_000, -19_800_000)),
    "moment": ("timestamp", "'2024-02-29 01:02:03.000004'", TIMESTAMP, 1_709_168_523_000_004),
    "ever": ("timestamp", "'infinity'", TIMESTAMP, INFINITY_US),
    "never": ("timestamp", "'-infinity'", TIMESTAMP, MINUS_INFINITY_US),
    "far": ("timestamp", "'12345-01-01'", TIMESTAMP, 327_403_382_400_000_000),
    "zoned": ("timestamptz", "'2024-02-29 03:02:03.000004+02'", TIMESTAMP_TZ, (1_709_168_523_000_004, 0)),
    "span": ("interval", "'1 year 2 mons 3 days -04:05:06.5'", INTERVAL, (14, 68, -306_500_000)),
    "document": ("json", "'{\"a\":  [1, null]}'", JSON, '{"a":  [1, null]}'),
    "binary_document": ("jsonb", "'{\"a\":  1}'", JSON, '{"a": 1}'),
    "numbers": ("int[]", "'{1,NULL,3}'", array(INTEGER), [1, None, 3]),
    "texts": (
        "text[]",
        "array['a', 'b,c', 'q\"x', null, 'NULL', '', 'back\\slash']",
        array(STRING),
        ["a", "b,c", 'q"x', None, "NULL", "", "back\\slash"],
    ),
    "table_": ("int[][]", "'{{1,2},{3,4}}'", array(INTEGER), [[1, 2], [3, 4]]),
    "from_zero": ("int[]", "'[0:1]={1,2}'", array(INTEGER), [1, 2]),
    "blobs": ("bytea[]", "array['\\x00ff'::bytea]", array(BYTES), [b"\x00\xff"]),
    "moments": ("timestamp[]", "array['1970-01-01 00:00:01'::timestamp]", array(TIMESTAMP), [1_000_000]),
    "empty": ("text[]", "'{}'", array(STRING), []),
    "spot": ("point", "'(1,2)'", UNSUPPORTED, None),
    "range_": ("int4range", "'[1,2)'", UNSUPPORTED, None),
    "odd name": ("int", "null", INTEGER, None),
}


def test_every_type_is_the_same_in_an_event_in_a_backfill_and_in_the_truth(place: Server, run: Session) -> None:
    run("create type mood as enum ('ok', 'sad')")
    columns = ", ".join(f'"{name}" {found[0]}' for name, found in COLUMNS.items())
    run(f"create table t ({columns})")
    wal = wal_of(place)
    run("set timezone = 'UTC'", f"insert into t values ({', '.join(found[1] for found in COLUMNS.values())})")
    wanted = {name: found[3] for name, found in COLUMNS.items()}
    (change,) = changes_of(wal)
    ((backfilled,),) = wal.backfill("public.t", 1_700_000_000_123)
    (row,) = wal.truth()["public.t"].rows
    assert change.row == wanted
    assert backfilled.row == wanted
    assert row == wanted
    types = {name: found[2] for name, found in COLUMNS.items()}
    for table in (change.table, backfilled.table):
        assert {column.name: column.type for column in table.columns} == types
        assert table.keys == ("id",) and table.object == "public_t"


def test_the_plugin_shows_what_is_not_a_number_as_null(place: Server, run: Session) -> None:
    run("create table t (id int primary key, a numeric, b double precision, c real)")
    wal = wal_of(place)
    run("insert into t values (1, 'NaN', 'Infinity', '-Infinity')")
    (change,) = changes_of(wal)
    assert change.row == {"id": 1, "a": None, "b": None, "c": None}
    (row,) = wal.truth()["public.t"].rows
    assert row == {"id": 1, "a": "NaN", "b": float("inf"), "c": float("-inf")}


def test_all_changes_of_a_transaction_have_its_time_and_rise_in_lsn(place: Server, run: Session) -> None:
    run("create table t (id int primary key, v int)")
    wal = wal_of(place)
    run("insert into t values (1, 1), (2, 2)", "update t set v = 3 where id = 1", "delete from t where id = 2")
    ((changes, _),) = wal.transactions()
    assert short(changes) == [("INSERT", 1), ("INSERT", 2), ("UPDATE", 1), ("DELETE", 2)]
    assert len({change.position.source_ms for change in changes}) == 1
    assert len({change.position.metadata["tx_id"] for change in changes}) == 1
    lsns = [int(str(change.position.metadata["lsn"]).split("/")[1], 16) for change in changes]
    assert lsns == sorted(set(lsns))
    assert [change.last for change in changes] == [False, False, False, True]
    assert abs(changes[0].position.source_ms - time.time() * 1000) < 60_000
    assert changes[-1].row == {"id": 2, "v": None} and changes[-1].is_deleted


def test_a_key_update_is_a_pair(place: Server, run: Session) -> None:
    run("create table t (id int primary key, v int)", "insert into t values (1, 5)")
    wal = wal_of(place)
    run("update t set id = 2")
    left, taken = changes_of(wal)
    assert (left.change_type, left.is_deleted, left.row) == ("UPDATE-DELETE", True, {"id": 1, "v": None})
    assert (taken.change_type, taken.is_deleted, taken.row) == ("UPDATE-INSERT", False, {"id": 2, "v": 5})
    assert left.position == taken.position


def test_a_key_update_can_be_one_update_as_the_log_has_it(place: Server, run: Session) -> None:
    run("create table t (id int primary key, v int)", "insert into t values (1, 5)")
    wal = wal_of(place, single_key_updates=True)
    run("update t set id = 2")
    assert short(changes_of(wal)) == [("UPDATE", 2)]


def test_a_large_value_that_an_update_left_alone_is_null(place: Server, run: Session) -> None:
    run("create table t (id int primary key, large text, v int)", "alter table t alter large set storage external")
    wal = wal_of(place)
    run("insert into t values (1, repeat('x', 10000), 1)")
    run("update t set v = 2")
    inserted, updated = changes_of(wal)
    assert len(inserted.row["large"]) == 10_000
    assert updated.row == {"id": 1, "large": None, "v": 2}
    assert updated.table.columns == inserted.table.columns


def test_a_large_value_that_an_update_left_alone_can_be_looked_up(place: Server, run: Session) -> None:
    run("create table t (id int primary key, large text, v int)", "alter table t alter large set storage external")
    run("insert into t values (1, repeat('x', 10000), 1), (2, repeat('y', 10000), 1)")
    wal = wal_of(place, look_up_large=True)
    run("update t set v = 2")
    run("delete from t where id = 2")
    one, gone, _ = changes_of(wal)
    assert one.row == {"id": 1, "large": "x" * 10_000, "v": 2}
    assert gone.row == {"id": 2, "large": None, "v": 2}


def test_events_have_the_columns_of_their_own_moment(place: Server, run: Session) -> None:
    run("create table t (id int primary key, a int)")
    wal = wal_of(place)
    run("insert into t values (1, 1)")
    run("alter table t add b varchar(9)")
    run("update t set b = 'x'")
    run("alter table t alter a type bigint")
    run("insert into t values (2, 2, 'y')")
    run("alter table t drop a")
    run("update t set b = 'z' where id = 2")
    run("truncate t")
    changes = changes_of(wal)  # read after all of it
    assert [{column.name: column.type for column in change.table.columns} for change in changes] == [
        {"id": INTEGER, "a": INTEGER},
        {"id": INTEGER, "a": INTEGER, "b": STRING},
        {"id": INTEGER, "a": LONG, "b": STRING},
        {"id": INTEGER, "b": STRING},
    ]


def test_what_is_not_confirmed_comes_again_and_what_is_confirmed_does_not(place: Server, run: Session) -> None:
    run("create table t (id int primary key)")
    wal = wal_of(place)
    run("insert into t values (1)")
    run("insert into t values (2)", "insert into t values (3)")
    assert short(changes_of(wal)) == [("INSERT", 1), ("INSERT", 2), ("INSERT", 3)]
    (_, first), _ = wal.transactions()
    wal.confirm(first)
    assert short(changes_of(wal)) == [("INSERT", 2), ("INSERT", 3)]
    again = Wal(place, slot=wal.slot)
    again.open()  # it is there: nothing is lost by asking again
    assert short(changes_of(again)) == [("INSERT", 2), ("INSERT", 3)]
    again.close()
    again.close()


def test_a_rollback_leaves_nothing_behind(place: Server, run: Session) -> None:
    run("create table t (id int primary key)")
    wal = wal_of(place)
    run.roll_back("insert into t values (1)")
    assert changes_of(wal) == []


def test_the_first_event_after_a_start_may_be_a_delete(place: Server, run: Session) -> None:
    run("create table t (id int primary key, v int)", "insert into t values (1, 1)")
    wal = wal_of(place)
    run("delete from t")
    (change,) = changes_of(wal)
    assert change.row == {"id": 1, "v": None}


def test_schemas_and_keys_of_several_columns(place: Server, run: Session) -> None:
    run("create schema other", "create table other.t (a int, b text, v int, primary key (b, a))")
    wal = wal_of(place)
    run("insert into other.t values (1, 'x', 1)")
    (change,) = changes_of(wal)
    assert (change.table.route, change.table.keys) == ("other.t", ("a", "b"))
    assert [(table.route, table.keys) for table in wal.tables()] == [("other.t", ("a", "b"))]


def test_a_backfill_comes_in_chunks_in_the_order_of_the_key(place: Server, run: Session) -> None:
    run("create table t (a date, b text, primary key (b, a))")
    run("insert into t select date '2024-01-01' + n / 10, (n % 10)::text from generate_series(0, 24) n")
    chunks = list(Wal(place).backfill("public.t", 1_700_000_000_999, 10))
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    keys = [(change.row["a"], change.row["b"]) for chunk in chunks for change in chunk]
    assert keys == sorted(set(keys))
    assert chunks[0][0].position.source_ms == 1_700_000_000_999 and chunks[0][0].is_backfill


def test_what_a_concurrent_writer_does_folds_to_what_the_database_holds(place: Server) -> None:
    run_workload(place, Workload(rows=30, seconds=None, transactions=20, rate=0))
    wal = wal_of(place)
    work = Workload(seconds=None, transactions=300, rate=0, schema_changes=40, seed=1)
    writer = threading.Thread(target=run_workload, args=(place, work))
    writer.start()
    changes: list[Change] = []
    for table in wal.tables():
        for chunk in wal.backfill(table.route, time.time_ns() // 1_000_000, 7):
            changes += chunk
    while True:
        is_last = not writer.is_alive()
        transactions = list(wal.transactions())  # none, where the writer has yet to commit its first
        changes += [change for found, _ in transactions for change in found]
        if transactions:
            wal.confirm(transactions[-1][1])
        if is_last:
            break
        time.sleep(0.05)
    assert len(changes) > 600
    assert_equal(fold(changes), wal.truth())


def test_a_server_that_is_away_is_an_outage() -> None:
    with pytest.raises(SourceDown) as caught:
        Wal(server("postgresql://cdc:secret@127.0.0.1:1/shop")).tables()
    assert "secret" not in str(caught.value)


def test_a_numeric_of_negative_scale_is_a_number_and_one_that_is_none_is_null() -> None:
    assert unified("numeric(3,-2)") is NUMBER
    assert value(decimal(5, 2), "numeric(5,2)", "NaN") is None
    assert value(array(decimal(5, 2)), "numeric(5,2)[]", "{1.50,NULL}") == [Decimal("1.50"), None]
    assert postgresql_columns.value(JSON, "json", None) is None
