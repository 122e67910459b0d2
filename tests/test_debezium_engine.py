"""Debezium's own engine on a real MariaDB and a real PostgreSQL: what is left of its messages is what SELECT shows;
of the PostgreSQL by way of a real broker and a pipeline.

A writer changes rows and columns while the engine takes its snapshot and follows the log; the engine is killed on the
way, so that changes come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from distributary.changes.debezium.heads import Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.model import METADATA, Reading
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.config import Pipeline
from distributary.kinds import kind_of as open_pipeline
from distributary.running.stream import run
from distributary_simulate.databases.servers import server
from distributary_simulate.databases.workload import Workload, run_workload
from tests.conftest import needed
from tests.services.debezium import Debezium, MariaDbAsMySql
from tests.services.kafka import Kafka
from tests.services.mariadb import MariaDb
from tests.services.postgres import Postgres
from tests.services.registry import Registry
from tests.source_rows import differences
from tests.test_cdc_mariadb import select as select_mariadb
from tests.test_cdc_postgres import select as select_postgres
from tests.test_cdc_postgres import with_intervals
from tests.test_debezium_avro import AvroShop
from tests.test_debezium_topics import judged

pytestmark = [pytest.mark.services]
SECONDS = 6
END = "that is the end"


@pytest.fixture(scope="module")
def mariadb_as_mysql(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with needed():
        found = MariaDbAsMySql(tmp_path_factory.mktemp("mariadb-as-mysql"))
    with found:
        yield found


def followed(
    url: str,
    folder: Path,
    execute: Callable[[str], None],
    registry: str | None = None,
    last: Sequence[str] = (),
    **settings: str,
) -> list[Message]:
    """What the engine says of a database in which rows and columns change, killed on the way. `last`: statements before
    the end. `registry`: with it, in Avro."""
    place = server(url)
    run_workload(place, Workload(rows=40, seconds=None, rate=0, transactions=1, schema_changes=0, seed=1))
    with needed():
        engine = Debezium(
            folder, url, {name.replace("_", "."): value for name, value in settings.items()}, registry=registry
        )
    with engine, ThreadPoolExecutor(1) as pool:
        # A snapshot that is killed is taken anew, and in it one table may have what was written long after another; and
        # the connector for MySQL may not come up again where it was killed at a change of columns. So neither is.
        writer = pool.submit(run_workload, place, Workload(rows=0, seconds=SECONDS, rate=60, schema_changes=0, seed=2))
        engine.wait_for_stream()
        kills = 0
        while not (writer.done() and kills):
            wait([writer], 2)
            engine.kill()
            engine.start()
            kills += 1
        writer.result()
        assert run_workload(place, Workload(rows=0, seconds=2, rate=60, schema_changes=30, seed=3)).schema_changes
        execute("UPDATE users SET id = id + 100000 WHERE id % 7 = 0")
        for statement in last:
            execute(statement)
        execute(f"INSERT INTO orders (id, note) VALUES (7777777, '{END}')")
        engine.wait_for(END)
    return engine.messages()


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


def executing(url: str) -> Callable[[str], None]:
    """What runs a statement in a PostgreSQL."""

    def execute(statement: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)

    return execute


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


def test_messages_in_avro_become_tables_that_are_what_select_shows(
    postgres: Postgres, registry_server: Registry, tmp_path: Path
) -> None:
    """By Apicurio's converter, framed as Confluent's are. One table is emptied by TRUNCATE near the end."""
    with postgres.database() as name:
        execute = executing(postgres.url(name))
        settings = {"interval_handling_mode": "string", "skipped_operations": "none"}
        api = registry_server.url.replace("ccompat/v7", "registry/v2")
        messages = followed(postgres.url(name), tmp_path / "engine", execute, api, ["TRUNCATE orders"], **settings)
        shop = AvroShop(tmp_path, registry=registry_server.url)
        Random(3).shuffle(messages)
        for half in (messages[::2], messages[1::2]):
            shop.take(half)
        for table in ("users", "orders"):
            rows = [with_bytes(row) for row in select_postgres(postgres, name, table)]
            left = with_intervals(shop.living(f"{name}_public_{table}"))
            assert rows and differences(with_intervals(rows), left)[:5] == []
        assert [row["note"] for row in shop.living(f"{name}_public_orders")] == [END]
        assert (shop.quarantined(), judged(shop, messages).problems) == ([], ())


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_topics_of_a_postgresql_become_tables_that_are_what_select_shows(
    postgres: Postgres, kafka: Kafka, lake: Path
) -> None:
    with postgres.database() as name:
        execute = executing(postgres.url(name))
        prefix = f"srv-{name}"
        settings = {"interval_handling_mode": "string", "topic_prefix": prefix}
        messages = followed(postgres.url(name), lake / "engine", execute, **settings)
        for topic in sorted({message.record.topic for message in messages}):
            kafka.create_topic(topic, 3)
        config = pipeline(kafka, lake, prefix)
        half = len(messages) // 2
        send(kafka, messages[:half])
        planned = open_pipeline(config, lake / "changes.yaml").plan()
        report = run(config, once=True)
        assert (planned.rows_in, planned.rows_quarantined) == (report.rows_in, 0)
        send(kafka, messages[half:])
        run(config, once=True)
        for table in ("users", "orders"):
            rows = [with_bytes(row) for row in select_postgres(postgres, name, table)]
            merged = DeltaTable(f"{config.tables.root}/{name}_public_{table}").to_pyarrow_table().to_pylist()
            left = [row for row in merged if not row["_deleted"]]
            assert rows and differences(with_intervals(rows), with_intervals(left))[:5] == []
        found = open_pipeline(config, lake / "changes.yaml").verify(deep=True)
        assert (found.problems, found.rows_quarantined, found.rows_lost) == ((), 0, 0)


def pipeline(kafka: Kafka, lake: Path, prefix: str) -> Pipeline:
    source = {"bootstrap_servers": kafka.bootstrap_servers, "topic_pattern": f"{prefix}[.].*"}
    return Pipeline.model_validate(
        {
            "pipeline": "changes",
            "source": {"type": "kafka", **source},
            "envelope": "debezium",
            "payload": {"format": "json"},
            "tables": {"root": str(lake / "tables")},
        }
    )


def send(kafka: Kafka, messages: Sequence[Message]) -> None:
    producer = Producer(kafka.client())
    for message in messages:
        producer.produce(message.record.topic, key=message.key, value=message.value)
    assert producer.flush(30) == 0


def with_bytes(row: dict[str, Any]) -> dict[str, Any]:
    """Of a text of bits, as the driver has it, the bytes."""
    bits = row.get("flags")
    return row if bits is None else {**row, "flags": int(bits, 2).to_bytes(2)}
