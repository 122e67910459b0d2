"""docs/reading.md: its lines, as they stand there, read what the pipeline wrote."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reading.md"
ORDERS = mysql_table()
LIVING = [(1, "paid"), (3, None), (4, "new")]
BLOCKS = dict(
    re.findall(r"^## (\S+)\n[^`#]*(?:`[^`]+`[^`#]*)*```python\n(.*?)```", PAGE.read_text("utf-8"), re.M | re.S)
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Sparkless:
    """Three batches: an update, a delete, a null, and a column that comes later."""
    shop = Sparkless(tmp_path_factory.mktemp("reading"), source={"max_files_per_batch": 1})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 + n) for n in (1, 2)))
    shop.run()
    shop.send(
        change(ORDERS, "UPDATE", order(1, "paid"), 200, sec=70),
        change(ORDERS, "DELETE", order(2, "new"), 201, sec=70),
        change(ORDERS, "INSERT", order(3, None), 202, sec=70),
    )
    shop.run()
    wider = mysql_table(columns={**{c.name: c.type for c in ORDERS.columns}, "note": ORDERS.columns[1].type})
    shop.send(change(wider, "INSERT", {**order(4, "new"), "note": "x"}, 300, sec=140))
    shop.run()
    return shop


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """DuckDB's delta extension where `INSTALL` would have put it; returns its file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (package,) = duckdb_extension_delta.__path__
    (file,) = Path(package).rglob("delta.duckdb_extension")
    platform = duckdb.execute("PRAGMA platform").fetchall()[0][0]
    folder = tmp_path / ".duckdb" / "extensions" / f"v{duckdb.__version__}" / platform
    folder.mkdir(parents=True)
    return Path(shutil.copy(file, folder))


def printed(name: str, shop: Sparkless, monkeypatch: pytest.MonkeyPatch, capsys: Any, **names: object) -> object:
    monkeypatch.chdir(shop.root)
    capsys.readouterr()
    exec(compile(BLOCKS[name], f"{PAGE.name}, {name}", "exec"), dict(names))
    return ast.literal_eval(capsys.readouterr().out)


def test_every_reader_of_the_page_with_lines_is_tried_here() -> None:
    assert set(BLOCKS) == {"Spark", "DuckDB", "Polars", "pandas"}


@pytest.mark.spark
def test_spark_reads_the_living_rows(
    shop: Sparkless, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Spark's own folder is where its process began.
    block = BLOCKS["Spark"].replace('"lake/', f'"{shop.root}/lake/')
    monkeypatch.setitem(BLOCKS, "Spark", block)
    assert printed("Spark", shop, monkeypatch, capsys, spark=spark) == LIVING


@pytest.mark.parametrize("reader", ["DuckDB", "Polars", "pandas"])
def test_a_reader_without_a_jvm_reads_the_living_rows(
    reader: str, shop: Sparkless, extension: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(reader, shop, monkeypatch, capsys) == LIVING


def rows(shop: Sparkless, extension: Path) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Reader -> id, status, note of the log table's events."""
    table = str(shop.root / "lake" / "shop_orders_log")
    with duckdb.connect() as database:
        database.load_extension(str(extension))
        yield "DuckDB", database.sql(f"SELECT id, status, note FROM delta_scan('{table}')").fetchall()
    yield "Polars", pl.scan_delta(table).select("id", "status", "note").collect().rows()
    frame = DeltaTable(table).to_pandas(columns=["id", "status", "note"])
    yield "pandas", list(frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None))


def test_every_reader_sees_the_same_log_with_nulls_before_a_column_came(shop: Sparkless, extension: Path) -> None:
    wanted = [(1, "new", None), (1, "paid", None), (2, "new", None), (2, "new", None), (3, None, None), (4, "new", "x")]
    for reader, found in rows(shop, extension):
        assert sorted(found, key=str) == sorted(wanted, key=str), reader
