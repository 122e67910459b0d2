"""A real PostgreSQL, from its WAL to the merged tables.

While a writer changes rows and columns, its WAL is read into files of gzipped JSON lines with their `.schema` files,
and the pipeline over them is killed at random moments. The writer goes on for 20 seconds;
DISTRIBUTARY_TEST_WRITER_SEC asks for more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from tests.living_database import live, living_rows, shop_of
from tests.services.postgres import Postgres
from tests.source_rows import differences, interval

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(1800)]


def select(postgres: Postgres, database: str, table: str) -> list[dict[str, Any]]:
    options = "-c timezone=UTC -c intervalstyle=iso_8601"
    with psycopg.connect(postgres.url(database), row_factory=dict_row, options=options) as connection:
        # As a timedelta, a month would be so many days.
        connection.adapters.register_loader("interval", TextLoader)
        return list(connection.execute(f"SELECT * FROM {table}").fetchall())


def with_intervals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{n: interval(v) if n == "online" and v is not None else v for n, v in row.items()} for row in rows]


def test_after_kills_and_schema_changes_the_merged_tables_are_what_select_shows(postgres: Postgres, lake: Path) -> None:
    with postgres.database() as name:
        shop = shop_of(lake)
        told = live(shop, postgres.url(name), ("jsonl.gz",), seed=5, schema_files=True)
        assert told.formats == ("jsonl.gz",)
        assert told.kills >= 3 and told.written.schema_changes
        for table in ("users", "orders"):
            rows = select(postgres, name, table)
            merged = living_rows(shop, f"public.{table}")
            assert rows and differences(with_intervals(rows), with_intervals(merged)) == []
    assert shop.quarantined() == []
    shop.check()
