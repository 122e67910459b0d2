"""The binlog of a real MariaDB as changes: every type, every trap of the decoder, every place to start from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pytest

from distributary.errors import SourceDown
from distributary_simulate.changes.model import Change
from distributary_simulate.changes.unified import (
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NUMBER,
    STRING,
    TIME_INTERVAL,
    TIMESTAMP,
    decimal,
)
from distributary_simulate.databases.binlog import Binlog, BinlogPosition
from distributary_simulate.databases.mysql_columns import MySqlColumn
from distributary_simulate.databases.servers import Server, server
from distributary_simulate.databases.workload import Workload, run_workload
from distributary_simulate.errors import SimulationInvalid
from tests.change_order import assert_equal, fold
from tests.services.mariadb import MariaDb

pytestmark = [
    pytest.mark.services,
    # the decoder's, from Python 3.12 on
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcfromtimestamp:DeprecationWarning"),
]

DAY_US = 86_400_000_000


@pytest.fixture
def database(mariadb: MariaDb) -> Iterator[str]:
    with mariadb.database() as name:
        yield name


@pytest.fixture
def place(mariadb: MariaDb, database: str) -> Server:
    return server(mariadb.url(database))


class Session:
    """A connection whose transactions the test ends itself."""

    def __init__(self, mariadb: MariaDb, database: str) -> None:
        self._connection = mariadb.connect(database)
        self._connection.autocommit(False)
        self.run("SET sql_mode = ''")

    def run(self, *statements: str) -> None:
        """One transaction."""
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        self._connection.commit()

    def roll_back(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def session(mariadb: MariaDb, database: str) -> Iterator[Session]:
    with closing(Session(mariadb, database)) as found:
        yield found


def changes_of(binlog: Binlog, start: BinlogPosition) -> list[Change]:
    return [change for changes, _ in binlog.transactions(start) for change in changes]


def short(changes: list[Change], column: str = "id") -> list[tuple[str | None, Any]]:
    return [(change.change_type, change.row[column]) for change in changes]


# column: definition, the value in SQL, type, plain value
COLUMNS: dict[str, tuple[str, str, Any, Any]] = {
    "id": ("INT PRIMARY KEY", "1", INTEGER, 1),
    "tiny": ("TINYINT UNSIGNED", "255", INTEGER, 255),
    "flag": ("BOOL", "TRUE", INTEGER, 1),
    "medium": ("MEDIUMINT", "-8388608", INTEGER, -8_388_608),
    "int_unsigned": ("INT UNSIGNED", "4294967295", LONG, 4_294_967_295),
    "big": ("BIGINT", "-9223372036854775808", LONG, -(2**63)),
    "big_unsigned": ("BIGINT UNSIGNED", "18446744073709551615", NUMBER, "18446744073709551615"),
    "bits": ("BIT(10)", "b'1000000001'", LONG, 513),
    "single": ("FLOAT", "1234567.8", FLOAT, 1234567.75),
    "real": ("DOUBLE", "0.1", DOUBLE, 0.1),
    "amount": ("DECIMAL(30,9)", "-12345678901234567890.5", decimal(30, 9), Decimal("-12345678901234567890.500000000")),
    "short": ("VARCHAR(20)", "'é \\'q\\''", STRING, "é 'q'"),
    "fixed": ("CHAR(5)", "'ab'", STRING, "ab"),
    "long_text": ("TEXT", "'日本'", STRING, "日本"),
    "padded": ("BINARY(4)", "x'0100'", STRING, "01000000"),
    "bytes": ("VARBINARY(9)", "x'00ff'", STRING, "00ff"),
    "blob_": ("BLOB", "x'DEADBEEF'", STRING, "deadbeef"),
    "no_bytes": ("VARBINARY(9)", "''", STRING, ""),
    "choice": ("ENUM('x','y')", "'y'", STRING, "y"),
    "several": ("SET('b','a','c')", "'c,b'", STRING, "b,c"),
    "none_of_them": ("SET('b','a','c')", "''", STRING, ""),
    "day": ("DATE", "'1969-12-31'", TIMESTAMP, -DAY_US),
    "no_day": ("DATE", "'0000-00-00'", TIMESTAMP, None),
    "moment": ("DATETIME(6)", "'2024-02-29 01:02:03.000004'", TIMESTAMP, 1_709_168_523_000_004),
    "no_moment": ("DATETIME", "'0000-00-00 00:00:00'", TIMESTAMP, None),
    "instant": ("TIMESTAMP(3) NULL", "'2024-02-29 01:02:03.123'", TIMESTAMP, 1_709_168_523_123_000),
    "no_instant": ("TIMESTAMP NULL", "'0000-00-00 00:00:00'", TIMESTAMP, None),
    "span": ("TIME", "'-838:59:59'", TIME_INTERVAL, -3_020_399_000_000),
    "year_": ("YEAR", "2155", INTEGER, 2155),
    "no_year": ("YEAR", "0", INTEGER, 0),
    "document": ("JSON", "'{\"a\": [1, null]}'", STRING, '{"a": [1, null]}'),  # MariaDB's JSON is a text
    "odd `name`": ("INT", "NULL", INTEGER, None),
}


def test_every_type_is_the_same_in_an_event_in_a_backfill_and_in_the_truth(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    quoted = ["`" + name.replace("`", "``") + "`" for name in COLUMNS]
    definitions = ", ".join(f"{name} {found[0]}" for name, found in zip(quoted, COLUMNS.values(), strict=True))
    session.run(f"CREATE TABLE t ({definitions})")
    start = binlog.end()
    session.run(
        "SET time_zone = '+00:00'", f"INSERT INTO t VALUES ({', '.join(found[1] for found in COLUMNS.values())})"
    )
    wanted = {name: found[3] for name, found in COLUMNS.items()}
    (change,) = changes_of(binlog, start)
    ((backfilled,),) = binlog.backfill(f"{place.database}.t", 1_700_000_000_123)
    (row,) = binlog.truth()[f"{place.database}.t"].rows
    assert change.row == wanted
    assert backfilled.row == wanted
    assert row == wanted
    types = {name: found[2] for name, found in COLUMNS.items()}
    for table in (change.table, backfilled.table):
        assert {column.name: column.type for column in table.columns} == types
        assert table.keys == ("id",)


def test_an_update_is_one_event_and_a_key_update_two_at_one_position(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    session.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    start = binlog.end()
    session.run("UPDATE t SET v = 9 WHERE id = 1")
    session.run("UPDATE t SET id = id + 1 ORDER BY id DESC")
    session.run("DELETE FROM t WHERE id = 4")
    changes = changes_of(binlog, start)
    assert short(changes) == [
        ("UPDATE-INSERT", 1),
        ("UPDATE-DELETE", 3), ("UPDATE-INSERT", 4), ("UPDATE-DELETE", 2), ("UPDATE-INSERT", 3), ("UPDATE-DELETE", 1),
        ("UPDATE-INSERT", 2),
        ("DELETE", 4),
    ]  # fmt: skip
    assert len({change.position.sort_keys for change in changes[1:7]}) == 1
    assert [change.is_deleted for change in changes] == [False, True, False, True, False, True, False, True]
    assert changes[-1].row == {"id": 4, "v": 3}
    assert changes[0].position.source_ms % 1000 == 0
    assert changes[0].position.metadata["log_position"] < changes[1].position.metadata["log_position"]


def test_a_rollback_leaves_nothing_behind(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    session.run("CREATE TABLE t (id INT PRIMARY KEY)")
    start = binlog.end()
    session.roll_back("INSERT INTO t VALUES (1)")
    session.run("INSERT INTO t VALUES (2)")
    assert short(changes_of(binlog, start)) == [("INSERT", 2)]


def test_reading_goes_on_behind_any_transaction_and_nothing_is_read_twice(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    session.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    start = binlog.end()
    for number in range(4):
        session.run(f"INSERT INTO t SELECT seq, repeat('x', 100) FROM seq_{number * 500 + 1}_to_{number * 500 + 500}")
    whole = list(binlog.transactions(start))
    ids = [change.row["id"] for changes, _ in whole for change in changes]
    assert ids == list(range(1, 2001))
    assert [change.last for changes, _ in whole for change in changes].count(True) == 4
    for changes, end in whole:
        if changes:
            rest = [change.row["id"] for change in changes_of(binlog, end)]
            assert rest == list(range(changes[-1].row["id"] + 1, 2001))
    assert BinlogPosition.parse(str(whole[-1][1])) == whole[-1][1]


def test_reading_crosses_log_files(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    session.run("CREATE TABLE t (id INT PRIMARY KEY)")
    start = binlog.end()
    session.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS")
    session.run("INSERT INTO t VALUES (2)")
    changes = changes_of(binlog, start)
    assert short(changes) == [("INSERT", 1), ("INSERT", 2)]
    files = [str(change.position.metadata["log_file"]) for change in changes]
    assert files[0] == start.file and files[0] < files[1] == binlog.end().file


def test_events_have_the_columns_of_their_own_moment(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    session.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    start = binlog.end()
    session.run(
        "INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD COLUMN b VARCHAR(9)", "INSERT INTO t VALUES (2, 2, 'b')"
    )
    session.run("ALTER TABLE t MODIFY a BIGINT", "UPDATE t SET a = 3 WHERE id = 1")
    session.run("ALTER TABLE t DROP COLUMN a", "DELETE FROM t WHERE id = 1")
    session.run("TRUNCATE TABLE t", "RENAME TABLE t TO other", "INSERT INTO other VALUES (5, 'x')")
    changes = changes_of(binlog, start)  # read after all of it
    assert [(c.table.name, {one.name: one.type for one in c.table.columns}) for c in changes] == [
        ("t", {"id": INTEGER, "a": INTEGER}),
        ("t", {"id": INTEGER, "a": INTEGER, "b": STRING}),
        ("t", {"id": INTEGER, "a": LONG, "b": STRING}),
        ("t", {"id": INTEGER, "b": STRING}),
        ("other", {"id": INTEGER, "b": STRING}),
    ]


def test_keys_of_several_columns_and_tables_without_one(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    start = binlog.end()
    session.run("CREATE TABLE p (b INT, a INT, v INT, PRIMARY KEY (a, b))", "INSERT INTO p VALUES (1, 2, 3)")
    session.run("CREATE TABLE n (v INT)", "INSERT INTO n VALUES (1), (1)")
    session.run("UPDATE p SET v = 4", "UPDATE n SET v = 2 LIMIT 1")
    changes = changes_of(binlog, start)
    assert [(change.table.name, change.change_type, change.table.keys) for change in changes] == [
        ("p", "INSERT", ("b", "a")), ("n", "INSERT", ()), ("n", "INSERT", ()), ("p", "UPDATE-INSERT", ("b", "a")),
        ("n", "UPDATE-INSERT", ()),
    ]  # fmt: skip
    assert [table.keys for table in binlog.tables()] == [(), ("b", "a")]


def test_other_databases_are_not_read(mariadb: MariaDb, place: Server, session: Session) -> None:
    binlog = Binlog(place)
    start = binlog.end()
    with mariadb.database() as other, closing(Session(mariadb, other)) as neighbour:
        neighbour.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        session.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (2)")
        assert short(changes_of(binlog, start)) == [("INSERT", 2)]


def test_a_backfill_comes_in_chunks_in_the_order_of_the_key(place: Server, session: Session) -> None:
    session.run("CREATE TABLE t (a DATE, b INT, PRIMARY KEY (a, b))")
    session.run("INSERT INTO t SELECT '2024-01-01' + INTERVAL seq DIV 10 DAY, seq MOD 10 FROM seq_0_to_24")
    chunks = list(Binlog(place).backfill(f"{place.database}.t", 1_700_000_000_999, 10))
    assert [len(chunk) for chunk in chunks] == [10, 10, 5]
    keys = [(change.row["a"], change.row["b"]) for chunk in chunks for change in chunk]
    assert keys == sorted(set(keys))
    position = chunks[0][0].position
    assert (position.source_ms, position.metadata) == (1_700_000_000_000, {"log_file": "", "log_position": 0})
    assert chunks[0][0].is_backfill


def test_what_a_concurrent_writer_does_folds_to_what_the_database_holds(place: Server) -> None:
    run_workload(place, Workload(rows=30, seconds=None, transactions=20, rate=0))
    binlog = Binlog(place)
    position = binlog.end()
    work = Workload(seconds=None, transactions=300, rate=0, schema_changes=40, seed=1)
    writer = threading.Thread(target=run_workload, args=(place, work))
    writer.start()
    changes: list[Change] = []
    for table in binlog.tables():
        for chunk in binlog.backfill(table.route, time.time_ns() // 1_000_000, 7):
            changes += chunk
    while True:
        is_last = not writer.is_alive()
        for found, end in binlog.transactions(position):
            changes += found
            position = end
        if is_last:
            break
        time.sleep(0.05)
    assert len(changes) > 600
    assert_equal(fold(changes), binlog.truth())


def test_a_server_that_does_not_log_names_is_refused(place: Server, session: Session) -> None:
    binlog = Binlog(place)
    binlog.check()
    session.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        with pytest.raises(SimulationInvalid) as caught:
            binlog.check()
    finally:
        session.run("SET GLOBAL binlog_row_metadata = FULL")
    assert caught.value.parameters["detail"] == "the server must run with binlog_row_metadata=FULL"


def test_a_server_that_is_away_is_an_outage() -> None:
    with pytest.raises(SourceDown) as caught:
        Binlog(server("mysql://cdc:secret@127.0.0.1:1/shop")).end()
    assert "secret" not in str(caught.value)


# -- what MariaDB does not have ---------------------------------------------------------------------------------------


def test_mysqls_json_is_decoded_and_written_as_text() -> None:
    column = MySqlColumn("j", "json")
    assert column.value({b"a": [1, b"x", Decimal("1.5")]}) == '{"a": [1, "x", 1.5]}'
    assert column.value('{"a": 1}') == '{"a": 1}'


def test_geometry_has_no_value() -> None:
    assert MySqlColumn("g", "geometry").value(b"\x00") is None
