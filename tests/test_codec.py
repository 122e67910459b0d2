"""Files of change events are packed closer than others, and every reader has the same rows of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distributary.changes.digits import WIDTH
from distributary.tables.codec import packing
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy
from distributary.tables.merge import SMALL_BYTES
from distributary.tables.merge_files import FILE_BYTES
from distributary.tables.snapshot import Snapshot, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests import extent

MANY = 3000
"""Rows from which on a file's columns are judged one by one."""


def events(numbers: list[str | None], metadata: str = "datastream_metadata") -> pa.Table:
    kind = pa.struct([("change_sequence_number", pa.string()), ("object", pa.string())])
    structs = pa.array([{"change_sequence_number": n, "object": "shop_orders"} for n in numbers], kind)
    return pa.table({"id": pa.array(range(len(numbers)), pa.int64()), metadata: structs})


def hexadecimal(number: int) -> str:
    return f"{number * 0x9E3779B97F4A7C15:0{WIDTH}x}"[-WIDTH:]


def sequence_column(path: Path) -> Any:
    group = pq.read_metadata(path).row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    return next(c for c in columns if c.path_in_schema.endswith(".change_sequence_number"))


@pytest.mark.parametrize("metadata", ["datastream_metadata", "_change"])
def test_numbers_of_events_leave_out_what_the_one_before_had(tmp_path: Path, metadata: str) -> None:
    rows = events([hexadecimal(n) for n in range(MANY)], metadata)
    file = write_data_file(str(tmp_path), rows, Store())
    column = sequence_column(tmp_path / file.path)
    assert (column.compression, "DELTA_BYTE_ARRAY" in column.encodings) == ("ZSTD", True)
    assert file.path.endswith(".zstd.parquet")
    old = tmp_path / "old.parquet"
    pq.write_table(rows, old, compression="snappy")
    assert file.size < old.stat().st_size / 2


def test_rows_of_messages_are_packed_as_before(tmp_path: Path) -> None:
    rows = pa.table({"id": range(MANY), "origin": pa.array([{"offset": n} for n in range(MANY)])})
    file = write_data_file(str(tmp_path), rows, Store())
    assert pq.read_metadata(tmp_path / file.path).row_group(0).column(0).compression == "SNAPPY"
    assert file.path.endswith(".snappy.parquet")


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=20), st.integers(0).map(hexadecimal)), min_size=1, max_size=50),
    st.sampled_from([1, MANY]),
)
@settings(
    max_examples=extent.either(15, 150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_reader_has_the_same_numbers_in_the_same_order(
    tmp_path: Path, numbers: list[str | None], times: int
) -> None:
    rows = events((numbers * (times // len(numbers) + 1))[: max(times, len(numbers))])
    path = tmp_path / write_data_file(str(tmp_path), rows, Store()).path
    assert pq.read_table(path).equals(rows)
    assert pl.read_parquet(path).to_dicts() == rows.to_pylist()
    query = f"from '{path}' order by datastream_metadata.change_sequence_number nulls first, id"
    by_duckdb = duckdb.sql(f"select id, datastream_metadata.change_sequence_number as n {query}").to_arrow_table()
    plain = [(row["datastream_metadata"]["change_sequence_number"], row["id"]) for row in rows.to_pylist()]
    in_order = sorted(plain, key=lambda row: (row[0] is not None, (row[0] or "").encode(), row[1]))
    assert [(row["n"], row["id"]) for row in by_duckdb.to_pylist()] == in_order
    path.unlink()


def test_compaction_leaves_files_of_changes_as_small(tmp_path: Path) -> None:
    parts = [events([hexadecimal(n * 10 + part) for n in range(MANY)]) for part in range(2)]
    table = Table(str(tmp_path), Store())
    for number, rows in enumerate(parts):
        table.append(rows.schema, [table.write(rows)], Txn("a", number), Policy())
    snapshot = Snapshot.open(str(tmp_path), Store())
    assert snapshot is not None
    snapshot.compact()
    (path,) = DeltaTable(str(tmp_path)).file_uris()
    assert sequence_column(Path(path)).compression == "ZSTD"
    query = "select datastream_metadata['change_sequence_number'] as n from t"
    found = QueryBuilder().register("t", DeltaTable(str(tmp_path))).execute(query)
    wanted = sorted(hexadecimal(n * 10 + part) for n in range(MANY) for part in range(2))
    assert sorted(pa.table(found.read_all()).column("n").to_pylist()) == wanted


def test_a_full_file_of_narrow_rows_is_not_taken_for_a_small_one() -> None:
    """Small ones are written anew together, once there are some: packed as close as they are, full ones must not be."""
    count = 20_000
    tails = np.random.default_rng(1).integers(0, 2**62, count).tolist()
    metadata = {
        "change_sequence_number": pa.array([f"{n // 1000:0{WIDTH - 16}x}{tail:016x}" for n, tail in enumerate(tails)]),
        **{name: pa.repeat(name * 8, count) for name in ("object", "stream_name", "schema_key", "read_method", "uuid")},
    }
    struct = pa.StructArray.from_arrays(list(metadata.values()), names=list(metadata))
    rows = pa.table({"id": pa.array(range(count), pa.int64()), "datastream_metadata": struct})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, **packing(rows.schema, ["datastream_metadata.object"]))
    assert sink.tell() * FILE_BYTES / rows.nbytes > SMALL_BYTES


@pytest.mark.spark
def test_spark_has_the_same_numbers(spark: Any, tmp_path: Path) -> None:
    rows = events([None if n % 7 == 0 else hexadecimal(n) for n in range(MANY)])
    path = write_data_file(str(tmp_path), rows, Store()).path
    found = spark.read.parquet(str(tmp_path / path)).orderBy("id").toArrow()
    assert found.to_pylist() == rows.to_pylist()
