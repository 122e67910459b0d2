"""Trino reads what the pipelines write: `python -m tests.trino_reads FOLDER`. Some minutes; not a part of CI.

A second run in that folder reads the tables of the first.

Each table of a demo and of pipelines of change files (log, merged, history; merged by deletion vectors) is registered
with a real Trino, and its rows are compared with those that DuckDB reads. Then one table for each feature of Delta is
read by every reader of docs/reading.md: what docs/tables.md says of who reads which.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from distributary.spark.session import build_session
from distributary.tables import merge_on_read
from tests.processes import command
from tests.services.trino import QueryFailed, Trino
from tests.shop import change, mysql_table, order
from tests.sparkless import Sparkless

ORDERS = mysql_table()
FEATURES: Mapping[str, tuple[str, str]] = {
    "no feature": ("", ""),
    "deletion vectors": ("delta.enableDeletionVectors = true", ""),
    "change data feed": ("delta.enableChangeDataFeed = true", ""),
    "row tracking": ("delta.enableRowTracking = true", ""),
    "column mapping by name": ("delta.columnMapping.mode = name", ""),
    "column mapping by id": ("delta.columnMapping.mode = id", ""),
    "type widening": ("delta.enableTypeWidening = true", "ALTER TABLE {} ALTER COLUMN n TYPE BIGINT"),
    "in-commit timestamps": ("delta.enableInCommitTimestamps = true", ""),
    "checkpoints of version 2": ("delta.checkpointPolicy = v2, delta.checkpointInterval = 2", ""),
    "liquid clustering": ("", "ALTER TABLE {} CLUSTER BY (name)"),
}
"""Feature -> properties of a new table, and what is done to it after its first rows."""


def main() -> int:
    """The exit code: 1 where Trino reads something else than DuckDB."""
    folder = Path(sys.argv[1]).resolve()
    lake = folder / "lake"
    addresses = {feature: lake / "features" / named(feature) for feature in FEATURES}
    if not lake.exists():
        print("writing the tables", flush=True)
        games(folder / "demo", lake)
        shops(lake)
        features(addresses)
    print("starting Trino", flush=True)
    with Trino(folder / "trino", lake) as trino:
        print(f"Trino {trino.rows('SELECT version()')[0][0]}", flush=True)
        tables = sorted(log.parent for log in lake.rglob("_delta_log") if "features" not in log.parts)
        wrong = [str(table) for table in tables if not is_same(trino, lake, table)]
        readers: dict[str, Callable[[Path], list[tuple[Any, ...]]]] = {
            "Trino": lambda uri: [
                tuple(row) for row in trino.rows(f"SELECT n, name FROM {registered(trino, lake, uri)}")
            ],
            **READERS,
        }
        print(f"| | {' | '.join(readers)} |\n|---|{'---|' * len(readers)}")
        for feature, uri in addresses.items():
            print(f"| {feature} | {' | '.join(verdict(read, uri) for read in readers.values())} |", flush=True)
    print(f"{len(tables)} tables, {len(wrong)} differ: {', '.join(wrong) or 'none'}")
    return 1 if wrong or not tables else 0


# -- the tables ------------------------------------------------------------------------------------------------


def games(folder: Path, lake: Path) -> None:
    """Append tables, of the demo: structs, times, columns that came later."""
    subprocess.run(command("demo", "games", "--dir", folder), check=True, stdout=subprocess.DEVNULL, timeout=300)
    shutil.copytree(folder / "lake", lake / "games")


def shops(lake: Path) -> None:
    """Log, merged and history tables, merged in both ways; of the second, rows are marked however small the file is."""
    merge_on_read.TINY_BYTES = 0
    for merge in ("copy_on_write", "merge_on_read"):
        tables = {"root": str(lake / merge), "merge": merge, "history": "{database}_{table}_history"}
        shop = Sparkless(lake.parent / f"shop_{merge}", tables=tables, source={"max_files_per_batch": 1})
        shop.send(*(change(ORDERS, "INSERT", order(n, "new"), 100 + n) for n in range(500)))
        shop.run()
        paid = [change(ORDERS, "UPDATE", order(n, "paid"), 1000 + n, sec=70) for n in range(0, 40, 2)]
        gone = [change(ORDERS, "DELETE", order(n, "new"), 2000 + n, sec=70) for n in range(1, 40, 4)]
        shop.send(*paid, *gone)
        shop.run()
    if not list((lake / "merge_on_read" / "shop_orders").glob("**/deletion_vector*")):
        raise AssertionError("no row of a merged table is marked by a deletion vector")


def features(addresses: Mapping[str, Path]) -> None:
    spark = build_session("trino reads", conf={"spark.sql.shuffle.partitions": "2"})
    for feature, uri in addresses.items():
        make(spark, feature, uri)
    spark.stop()


def make(spark: SparkSession, feature: str, uri: Path) -> None:
    """A table of 300 rows of which 100 were deleted and 10 changed, in several commits."""
    properties, then = FEATURES[feature]
    table = f"delta.`{uri}`"
    given = ", ".join("'{}' = '{}'".format(*one.split(" = ")) for one in properties.split(", ") if one)
    spark.sql(f"CREATE TABLE {table} (n INT, name STRING) USING delta {f'TBLPROPERTIES ({given})' if given else ''}")
    if then:
        spark.sql(then.format(table))
    for begin in (0, 150):
        spark.sql(f"INSERT INTO {table} SELECT id + {begin}, concat('name ', id % 7) FROM range(150)")
    spark.sql(f"DELETE FROM {table} WHERE n % 3 = 0")
    spark.sql(f"UPDATE {table} SET name = 'changed' WHERE n BETWEEN 100 AND 114")


WANTED = sorted((n, "changed" if 100 <= n <= 114 else f"name {n % 150 % 7}") for n in range(300) if n % 3)


# -- who reads them ----------------------------------------------------------------------------------------------


def registered(trino: Trino, lake: Path, uri: Path) -> str:
    """The table's name in Trino."""
    location = uri.relative_to(lake).as_posix()
    trino.register(named(location), location)
    return f"delta.lake.{named(location)}"


def named(text: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in text)


def by_duckdb(query: str) -> list[tuple[Any, ...]]:
    (package,) = duckdb_extension_delta.__path__
    (file,) = Path(package).rglob("delta.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as database:
        database.load_extension(str(file))
        return database.sql(query).fetchall()


def by_deltalake(uri: Path) -> list[tuple[Any, ...]]:
    found = QueryBuilder().register("t", DeltaTable(str(uri))).execute("SELECT n, name FROM t").read_all()
    return [(row["n"], row["name"]) for row in pa.table(found).to_pylist()]


READERS: Mapping[str, Callable[[Path], list[tuple[Any, ...]]]] = {
    "DuckDB": lambda uri: by_duckdb(f"SELECT n, name FROM delta_scan('{uri}')"),
    "Polars": lambda uri: pl.scan_delta(str(uri)).select("n", "name").collect().rows(),
    "deltalake, its SQL": by_deltalake,
    "pandas, by deltalake": lambda uri: list(
        DeltaTable(str(uri)).to_pandas(columns=["n", "name"]).itertuples(index=False, name=None)
    ),
}


def verdict(read: Callable[[Path], list[tuple[Any, ...]]], uri: Path) -> str:
    try:
        found = sorted(read(uri))
    except Exception as error:  # a reader that refuses the table does so by an error of its own
        return f"refuses: {' '.join(str(error).split())[:120]}"
    return "right" if found == WANTED else f"**wrong**: {len(found)} rows"


def is_same(trino: Trino, lake: Path, uri: Path) -> bool:
    """Does Trino read what DuckDB reads? Says so."""
    schema = pa.schema(DeltaTable(str(uri)).schema().to_arrow())
    ours, theirs = zip(*(pair for field in schema for pair in leaves(f'"{field.name}"', field.type)), strict=True)
    place = uri.relative_to(lake)
    wanted = by_duckdb(f"SELECT {', '.join(theirs)} FROM delta_scan('{uri}')")
    try:
        found = [tuple(row) for row in trino.rows(f"SELECT {', '.join(ours)} FROM {registered(trino, lake, uri)}")]
    except QueryFailed as failed:
        print(f"{place}: Trino says {failed}", flush=True)
        return False
    same = sorted(found, key=repr) == sorted(wanted, key=repr)
    print(f"{place}: {len(found)} rows, {len(ours)} values each, {'the same' if same else 'OTHERS'}", flush=True)
    if not same:
        pairs = zip(sorted(found, key=repr), sorted(wanted, key=repr), strict=False)
        print(next((f"  {one}\n  {other}" for one, other in pairs if one != other), f"  {len(wanted)} by DuckDB"))
    return same


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    """The plain values of a column, as Trino and as DuckDB are asked for them so that both say them in one form."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from leaves(f'{path}."{field.name}"', field.type)
    elif pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_large_list(kind):
        yield f"cardinality({path})", f"{'cardinality' if pa.types.is_map(kind) else 'len'}({path})"
    elif pa.types.is_timestamp(kind):
        # Trino rounds Delta's times to the millisecond.
        yield f"to_unixtime({path})", f"round(epoch_us({path}) / 1000) / 1000"
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield f"to_hex({path})", f"hex({path})"
    elif pa.types.is_date(kind) or pa.types.is_decimal(kind):
        yield f"CAST({path} AS VARCHAR)", f"CAST({path} AS VARCHAR)"
    else:
        yield path, path


if __name__ == "__main__":
    sys.exit(main())
