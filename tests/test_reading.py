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
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from distributary.tables.carried import carry_forward
from distributary.tables.commits import APPEND, commit_text, put_commit
from distributary.tables.evolve import Policy, evolve
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
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


@pytest.mark.parametrize("merge", ["copy_on_write", "merge_on_read"])
def test_every_reader_counts_living_rows_where_tombstones_lie_beside(
    tmp_path: Path, extension: Path, merge: str
) -> None:
    shop = Sparkless(tmp_path, tables={"tombstones": "beside", "merge": merge})
    shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 + n) for n in (1, 2, 3)))
    shop.run()
    shop.send(
        change(ORDERS, "DELETE", order(2, "new"), 201, sec=70), change(ORDERS, "DELETE", order(9, "x"), 202, sec=70)
    )
    shop.run()
    table = str(shop.root / "lake" / "shop_orders")
    with duckdb.connect() as database:
        database.load_extension(str(extension))
        assert database.sql(f"SELECT count(*) FROM delta_scan('{table}')").fetchall() == [(2,)]
    assert pl.scan_delta(table).select(pl.len()).collect().item() == 2
    assert (DeltaTable(table).count(), len(DeltaTable(table).to_pandas())) == (2, 2)


def test_every_reader_sees_the_same_log_with_nulls_before_a_column_came(shop: Sparkless, extension: Path) -> None:
    wanted = [(1, "new", None), (1, "paid", None), (2, "new", None), (2, "new", None), (3, None, None), (4, "new", "x")]
    for reader, found in rows(shop, extension):
        assert sorted(found, key=str) == sorted(wanted, key=str), reader


@pytest.fixture
def carried(tmp_path: Path) -> str:
    """A table of which the log has a checkpoint that was carried forward, and no commit before it."""
    uri, store = str(tmp_path / "carried"), Store()
    rows = pa.table({"n": pa.array([1, None], pa.int64()), "part": [{"word": "ä"}, None]})
    table = Table(uri, store, Owner("p", "r"))
    table.commit(None, evolve(None, [rows.schema], Policy()), [table.write(rows)], Txn("s", 0))
    Snapshot(uri, store).checkpoint()
    for version in (1, 2):
        text = commit_text(version - 1, Txn("s", version), [table.write(rows)], rows=2, about=APPEND)
        assert put_commit(uri, store, version, text)
        assert carry_forward(uri, version, store)
    for version in (0, 1):
        for left in (Path(uri) / "_delta_log").glob(f"{version:020d}.*"):
            left.unlink()
    return uri


CARRIED = [(1, "ä"), (None, None)] * 3


def test_readers_without_a_jvm_begin_at_a_checkpoint_that_was_carried_forward(carried: str, extension: Path) -> None:
    with duckdb.connect() as database:
        database.load_extension(str(extension))
        found = database.sql(f"SELECT n, part.word FROM delta_scan('{carried}')").fetchall()
    polars = pl.scan_delta(carried).select("n", pl.col("part").struct.field("word")).collect().rows()
    arrow = DeltaTable(carried).to_pyarrow_table().select(["n", "part"]).flatten().to_pydict()
    for read in (found, polars, list(zip(*arrow.values(), strict=True))):
        assert sorted(read, key=str) == sorted(CARRIED, key=str)


@pytest.mark.spark
def test_spark_begins_at_a_checkpoint_that_was_carried_forward_and_writes_on(carried: str, spark: SparkSession) -> None:
    found = spark.read.format("delta").load(carried).select("n", "part.word").collect()
    assert sorted(map(tuple, found), key=str) == sorted(CARRIED, key=str)
    spark.sql(f"DELETE FROM delta.`{carried}` WHERE n = 1")
    assert DeltaTable(carried).to_pyarrow_table().column("n").to_pylist() == [None] * 3
    assert DeltaTable(carried).transaction_version("s") == 2
