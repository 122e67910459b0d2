"""A table's files read one by one, also of tables that delta-rs's own readers refuse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.tables.files import TableFiles, file_names, read_file
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _files(path: Path | str) -> TableFiles:
    return TableFiles(Snapshot(str(path), Store()))


def _rows(files: TableFiles, *paths: str) -> list[tuple[object, ...]]:
    pieces = [piece for name in files.names for piece in files.read(name, paths)]
    table = pa.concat_tables(pieces, promote_options="permissive")
    return sorted(zip(*(table.column(p).to_pylist() for p in paths), strict=True), key=str)


def test_names_are_decoded_as_the_log_encodes_them(tmp_path: Path) -> None:
    table = tmp_path / "a table"
    write_deltalake(table, pa.table({"a": [1, 2], "p": ["a b", "c%d"]}), partition_by=["p"])
    names = file_names(Snapshot(str(table), Store()))
    assert len(names) == 2 and all((table / name).is_file() for name in names)
    assert sum(_files(table).rows(name) for name in names) == 2


def test_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    write_deltalake(tmp_path, pa.table({"a": [2], "s": [{"x": 5}]}), mode="append", schema_mode="merge")
    files = _files(tmp_path)
    assert files.has("s.x") and not files.has("s.y") and not files.has("a.x")
    assert _rows(files, "a", "s.x", "s.y") == [(1, None, None), (2, 5, None)]
    assert _rows(files, "nothing") == [(None,), (None,)]


def test_rows_inside_a_null_struct_are_null(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"s": pa.array([{"x": 5}, None], pa.struct([("x", pa.int64())]))}))
    assert _rows(_files(tmp_path), "s.x") == [(5,), (None,)]


def test_text_comes_as_text_from_files_that_delta_rs_rewrote(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1, 2], "t": ["x", "y"]}))
    DeltaTable(str(tmp_path)).delete("a = 1")
    files = _files(tmp_path)
    (piece,) = (piece for name in files.names for piece in files.read(name, ["t"]))
    assert piece.column("t").type in (pa.string(), pa.large_string())


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(read_file(str(tmp_path), "gone.parquet", ["a"], Store()))


_TABLE = """
CREATE TABLE delta.`{path}` (id int, s struct<x:bigint>) USING delta
TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = '{mapping}')
"""


@pytest.mark.spark
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_deleted_rows_are_left_out_and_mapped_columns_are_found(
    spark: SparkSession, tmp_path: Path, mapping: str
) -> None:
    spark.sql(_TABLE.format(path=tmp_path, mapping=mapping))
    spark.sql(f"INSERT INTO delta.`{tmp_path}` SELECT int(id), named_struct('x', id * 10) FROM range(0, 6, 1, 1)")
    spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id IN (0, 3)")
    files = _files(tmp_path)
    assert [files.rows(name) for name in files.names] == [4]
    assert _rows(files, "id", "s.x") == [(1, 10), (2, 20), (4, 40), (5, 50)]


@pytest.mark.spark
def test_a_widened_table_is_read_though_delta_rs_refuses_to(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` (a int) USING delta TBLPROPERTIES ('delta.enableTypeWidening'='true')")
    spark.sql(f"INSERT INTO delta.`{tmp_path}` VALUES (1)")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}` ALTER COLUMN a TYPE bigint")
    spark.sql(f"INSERT INTO delta.`{tmp_path}` VALUES (5000000000)")
    assert _rows(_files(tmp_path), "a") == [(1,), (5000000000,)]
