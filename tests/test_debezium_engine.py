"""Debezium's own engine on a real MariaDB and a real PostgreSQL: what is left of its messages is what SELECT shows.

A writer changes rows and columns while the engine takes its snapshot and follows the log; the engine is killed on the
way, so that changes come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from distributary.changes.debezium.messages import Message, read_messages
from distributary.changes.model import METADATA, Reading
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary_simulate.databases.servers import server
from distributary_simulate.databases.workload import Workload, run_workload
from tests.conftest import needed
from tests.services.debezium import Debezium, MariaDbAsMySql
from tests.services.mariadb import MariaDb
from tests.services.postgres import Postgres
from tests.source_rows import differences
from tests.test_cdc_mariadb import select as select_mariadb
from tests.test_cdc_postgres import select as select_postgres
from tests.test_cdc_postgres import with_intervals

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]
SECONDS = 6
END = "that is the end"


@pytest.fixture(scope="module")
def mariadb_as_mysql(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with needed():
        found = MariaDbAsMySql(tmp_path_factory.mktemp("mariadb-as-mysql"))
    with found:
        yield found


def followed(url: str, folder: Path, execute: Callable[[str], None], **settings: str) -> list[Message]:
    """What the engine says of a database in which rows and columns change, killed on the way."""
    place = server(url)
    run_workload(place, Workload(rows=40, seconds=None, rate=0, transactions=1, schema_changes=0, seed=1))
    with needed():
        engine = Debezium(folder, url, {name.replace("_", "."): value for name, value in settings.items()})
    with ThreadPoolExecutor(1) as pool:
        engine.start()
        writer = pool.submit(run_workload, place, Workload(rows=0, seconds=SECONDS, rate=60, schema_changes=90, seed=2))
        while not writer.done():
            engine.kill()
            engine.start()
            wait_a_little(writer)
        assert writer.result().schema_changes
    execute("UPDATE users SET id = id + 100000 WHERE id % 7 = 0")
    execute(f"INSERT INTO orders (id, note) VALUES (7777777, '{END}')")
    engine.wait_for(END)
    engine.stop()
    return engine.messages()


def wait_a_little(writer: Any) -> None:
    from concurrent.futures import wait

    wait([writer], 3)


def tables(messages: Sequence[Message]) -> dict[str, list[dict[str, Any]]]:
    """Table -> its living rows, of the messages in a random order."""
    shuffled = list(messages)
    Random(3).shuffle(shuffled)
    found = read_messages(shuffled, Reading())
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    rows: dict[str, list[pa.Table]] = {}
    for events in found.events:
        rows.setdefault(events.table.table, []).append(events.rows)
    return {table: living(pa.concat_tables(parts, promote_options="permissive")) for table, parts in rows.items()}


def living(rows: pa.Table) -> list[dict[str, Any]]:
    newest = reduce_rows(rows, ["id"], OrderSettings()).rows
    return [row for row in newest.to_pylist() if not row[METADATA]["is_deleted"]]


def test_what_is_left_of_a_mariadb_is_what_select_shows(mariadb_as_mysql: MariaDb, tmp_path: Path) -> None:
    with mariadb_as_mysql.database() as name:

        def execute(statement: str) -> None:
            with mariadb_as_mysql.connect(name) as connection, connection.cursor() as cursor:
                cursor.execute(statement)

        messages = followed(
            mariadb_as_mysql.url(name), tmp_path / "engine", execute, bigint_unsigned_handling_mode="precise"
        )
        left = tables(messages)
        for table in ("users", "orders"):
            rows = select_mariadb(mariadb_as_mysql, name, table)
            assert rows and differences(rows, left[table])[:5] == []


def test_what_is_left_of_a_postgresql_is_what_select_shows(postgres: Postgres, tmp_path: Path) -> None:
    with postgres.database() as name:

        def execute(statement: str) -> None:
            with psycopg.connect(postgres.url(name), autocommit=True) as connection:
                connection.execute(statement)

        messages = followed(postgres.url(name), tmp_path / "engine", execute, interval_handling_mode="string")
        left = tables(messages)
        for table in ("users", "orders"):
            rows = [with_bytes(row) for row in select_postgres(postgres, name, table)]
            assert rows and differences(with_intervals(rows), with_intervals(left[table]))[:5] == []


def with_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Of a text of bits, as the driver has it, the bytes."""
    bits = row.get("flags")
    return row if bits is None else {**row, "flags": int(bits, 2).to_bytes(2)}
