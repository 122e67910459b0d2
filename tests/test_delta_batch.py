"""The files of a micro-batch, as Spark planned it, hold the very rows that Spark would hand over."""

from __future__ import annotations

import datetime
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from distributary.config import DeltaSource, Envelope, Tables
from distributary.errors import SourceMissing
from distributary.sources.data_files import BatchFiles
from distributary.sources.delta import delta_stream, needed_columns
from distributary.sources.delta_batch import batch_files, store_of_source
from distributary.sources.delta_source import newest_of_table
from distributary.tables.store import Store

pytestmark = pytest.mark.spark

VALUES = Envelope(format="protobuf")
COLUMNS = Envelope(format="columns")
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


class Stream:
    """A stream whose batches are read both ways."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        envelope: Envelope = VALUES,
        optional: frozenset[str] = frozenset(),
        **settings: Any,
    ) -> None:
        self.spark, self.envelope, self.optional = spark, envelope, optional
        self.source = DeltaSource(type="delta", path=str(path), **settings)
        self.found: list[tuple[list[dict[str, Any]], BatchFiles | None]] = []
        self.checkpoint = str(path.parent / f"{path.name}-checkpoint")

    def go(self) -> list[tuple[list[dict[str, Any]], BatchFiles | None]]:
        """The batches since the last call: rows by Spark, and the files."""
        self.found, self.started = [], threading.Event()
        rows = delta_stream(self.spark, self.source, self.envelope, optional=self.optional)
        self.query = rows.writeStream.option("checkpointLocation", self.checkpoint).foreachBatch(self._batch).start()
        self.started.set()
        try:
            self.query.processAllAvailable()
        finally:
            self.query.stop()
        return self.found

    def _batch(self, rows: DataFrame, batch: int) -> None:
        self.started.wait()
        files = batch_files(self.spark, self.query, batch, self.source, self.envelope, Store(), self.optional)
        self.found.append((rows.toArrow().to_pylist(), files))


def rows_of(files: BatchFiles) -> list[dict[str, Any]]:
    return [row for task in range(len(files.tasks)) for batch in files.read(task) for row in batch.to_pylist()]


def counted(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple(sorted(row.items())) for row in rows)


def test_each_batch_is_the_files_that_spark_planned_for_it(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    origin = {"topic": ["t"], "partition": pa.array([1], pa.int32()), "timestamp": [NOON]}
    for n in range(3):
        write_deltalake(path, pa.table({"value": [b"%d" % n], "offset": [n], **origin}), mode="append")
    stream = Stream(spark, path, max_files_per_batch=2)
    first = stream.go()
    assert [len(rows) for rows, _ in first] == [2, 1]
    # From here on by commits; a rewrite of files brings no rows, a new column none of the wanted ones.
    DeltaTable(path).optimize.compact()
    more = pa.table({"value": [b"3"], "offset": [3], **origin, "new": [1]})
    write_deltalake(path, more, mode="append", schema_mode="merge")
    second = stream.go()
    for rows, files in [*first, *second]:
        assert files is not None
        assert counted(rows_of(files)) == counted(rows)
    assert sorted(r["value"] for rows, _ in [*first, *second] for r in rows) == [b"0", b"1", b"2", b"3"]


def test_a_whole_number_is_a_record_s_time_in_milliseconds_for_spark_and_for_a_look(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, millis = tmp_path / "t", int(NOON.timestamp() * 1000)
    times = pa.array([millis, 2**62, None], pa.int64())
    write_deltalake(path, pa.table({"value": [b"1", b"2", b"3"], "timestamp": times}))
    stream = Stream(spark, path)
    [(by_spark, files)] = stream.go()
    assert files is None
    needed = needed_columns(stream.source, VALUES)
    looked = newest_of_table(stream.source, VALUES, needed, Store(), 3).select(["value", "timestamp"])
    for rows in (by_spark, looked.to_pylist()):
        assert {row["value"]: row["timestamp"] for row in rows} == {b"1": NOON, b"2": None, b"3": None}


def test_plain_columns_with_the_route_as_partition_are_read_from_the_files(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    ids = pa.array([1, 2, None, 4], pa.int32())
    names = ["a game/ü%20", "b", None, "a game/ü%20"]
    rows = pa.table({"game_name": names, "schema_id": ids, "payload": [b"1", b"2", b"3", None]})
    write_deltalake(path, rows, partition_by=["game_name"])
    [(by_spark, files)] = Stream(spark, path, COLUMNS).go()
    assert files is not None
    assert counted(rows_of(files)) == counted(by_spark)
    assert len(by_spark) == 4


def test_a_column_that_may_be_missing_is_null_by_spark_and_by_the_files(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"game_name": ["a"], "payload": [b"1"]}))
    [(by_spark, files)] = Stream(spark, path, COLUMNS, optional=frozenset({"schema_id"})).go()
    assert files is not None
    assert rows_of(files) == by_spark == [{"game_name": "a", "schema_id": None, "payload": b"1"}]
    with pytest.raises(
        SourceMissing, match=r"'schema_id', which envelope\.schema_id names; it has: game_name, payload"
    ):
        Stream(spark, path, COLUMNS).go()


@pytest.mark.parametrize("needs", ["a cast", "a deletion vector", "mapped names"])
def test_what_files_alone_do_not_say_comes_by_way_of_spark(spark: SparkSession, tmp_path: Path, needs: str) -> None:
    path = tmp_path / "t"
    properties = {
        "a cast": "delta.appendOnly = false",
        "a deletion vector": "delta.enableDeletionVectors = true",
        "mapped names": "delta.columnMapping.mode = 'name'",
    }[needs]
    spark.sql(
        f"CREATE TABLE delta.`{path}` (game_name STRING, schema_id {'BIGINT' if needs == 'a cast' else 'INT'}, "
        f"payload BINARY) USING delta TBLPROPERTIES ({properties})"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT /*+ COALESCE(1) */ * FROM VALUES ('a', 1, X'01'), ('b', 2, X'02')")
    if needs == "a deletion vector":
        spark.sql(f"DELETE FROM delta.`{path}` WHERE game_name = 'a'")
    [(rows, files)] = Stream(spark, path, COLUMNS).go()
    assert len(rows) == (1 if needs == "a deletion vector" else 2)
    assert files is None


def test_a_source_in_a_bucket_is_opened_as_the_tables_are_where_it_is_their_bucket() -> None:
    def tables(root: str, **options: str) -> Tables:
        return Tables.model_validate({"root": root, "storage_options": options})

    def source(path: str) -> DeltaSource:
        return DeltaSource(type="delta", path=path)

    with_key = tables("s3a://lake/games", AWS_REGION="eu-west-1")
    assert store_of_source(source("s3a://lake/in"), with_key) == Store({"AWS_REGION": "eu-west-1"})
    assert store_of_source(source("s3a://other/in"), with_key) is None
    assert store_of_source(source("s3a://lake/in"), tables("s3a://lake/games")) is None
    assert store_of_source(source("in"), with_key) == Store()
