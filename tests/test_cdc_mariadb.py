"""A real MariaDB, from its binlog to the merged tables.

While a writer changes rows and columns, its binlog is read into files, first avro, then parquet, and the pipeline over
them is killed at random moments. The writer goes on for 20 seconds;
DISTRIBUTARY_TEST_WRITER_SEC asks for more.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.living_database import live, living_rows, shop_of
from tests.services.mariadb import MariaDb
from tests.source_rows import differences

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(1800)]


def select(mariadb: MariaDb, database: str, table: str) -> list[dict[str, Any]]:
    with closing(mariadb.connect(database)) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM {table}")
        return [
            # The driver gives a day that there is not as text.
            {name: None if value == "0000-00-00" else value for name, value in row.items()}
            for row in cursor.fetchall()
        ]


def test_after_kills_and_schema_changes_the_merged_tables_are_what_select_shows(mariadb: MariaDb, lake: Path) -> None:
    with mariadb.database() as name:
        shop = shop_of(lake)
        told = live(shop, mariadb.url(name), ("avro", "parquet"), seed=3)
        assert told.formats == ("avro", "parquet")
        assert told.kills >= 3 and told.written.schema_changes
        for table in ("users", "orders"):
            rows = select(mariadb, name, table)
            merged = living_rows(shop, f"{name}.{table}")
            assert rows and differences(rows, merged) == []
    assert shop.quarantined() == []
    shop.check()
