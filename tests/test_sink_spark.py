"""`format("distributary")` as Spark runs it: found by itself, exactly once whatever fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.extent import either
from tests.killing import processes

pytestmark = pytest.mark.spark

GAMES = ("chess", "go")
KILLED_AT = either(("between",), ("before", "between"))


def feed(folder: Path, number: int) -> None:
    """One more file of the source: a batch of ten rows of each game."""
    folder.mkdir(exist_ok=True)
    rows = pa.table({"game": [*GAMES] * 10, "n": range(number * 20, number * 20 + 20)})
    pq.write_table(rows, folder / f"{number}.parquet")


def numbers(lake: Path) -> list[int]:
    """Of all rows in all tables."""
    tables = [DeltaTable(lake / game).to_pyarrow_table() for game in GAMES]
    for game, table in zip(GAMES, tables, strict=True):
        assert set(table.column("game").to_pylist()) <= {game}
    return sorted(n for table in tables for n in table.column("n").to_pylist())


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("game string, n bigint").option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(rows: DataFrame, lake: Path) -> None:
    writer = rows.writeStream.format("distributary").option("route", "game").trigger(availableNow=True)
    writer.option("checkpointLocation", str(lake / "checkpoint")).start(str(lake)).awaitTermination()


def test_rows_of_a_stream_go_to_a_table_per_route_each_once(spark: SparkSession, tmp_path: Path, lake: Path) -> None:
    feed(tmp_path / "source", 0)
    run(source(spark, tmp_path / "source").repartition("game"), lake)
    feed(tmp_path / "source", 1)
    run(source(spark, tmp_path / "source").repartition("game"), lake)
    assert numbers(lake) == list(range(40))
    assert [len(DeltaTable(lake / game).file_uris()) for game in GAMES] == [2, 2]


def test_a_task_that_fails_commits_nothing_and_its_batch_comes_again(
    spark: SparkSession, tmp_path: Path, lake: Path
) -> None:
    feed(tmp_path / "source", 0)
    bad = tmp_path / "bad"
    bad.touch()

    def breaks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if bad.exists() and batch.num_rows and batch.column("game")[0].as_py() == "go":
                raise ValueError("this task fails")
            yield batch

    # In partitions of their own: one task has written its file when the other one fails.
    rows = source(spark, tmp_path / "source").repartition(4, "game").mapInArrow(breaks, "game string, n bigint")
    with pytest.raises(PySparkException):
        run(rows, lake)
    # A task that Spark kills while it writes may leave a file; no table has it.
    assert not list(lake.glob("*/_delta_log/*"))
    bad.unlink()
    run(rows, lake)
    assert numbers(lake) == list(range(20))


def test_a_write_with_a_transaction_of_its_own_is_done_once(spark: SparkSession, lake: Path) -> None:
    at = datetime(2026, 11, 29, 12, tzinfo=UTC)
    rows = spark.createDataFrame(
        [("chess", 1, at, {"a": [1.5]}), ("go", 2, at, None), (None, 3, at, None)],
        "game string, n bigint, at timestamp, more map<string,array<double>>",
    )
    for _ in range(2):
        writer = rows.write.format("distributary").mode("append").option("route", "game")
        writer.option("txnAppId", "nightly").option("txnVersion", 7).save(str(lake))
    assert numbers(lake) == [1, 2]
    (row,) = spark.read.format("delta").load(str(lake / "chess")).select("at", "more").collect()
    assert (row["at"].astimezone(UTC), row["more"]) == (at, {"a": [1.5]})
    aside = DeltaTable(lake / "_distributary/sink/quarantine").to_pyarrow_table()
    assert aside.column("reason").to_pylist() == ["NO_ROUTE"]
    rows.limit(1).write.format("distributary").mode("append").option("route", "game").save(str(lake))
    assert numbers(lake) == [1, 1, 2]


@pytest.mark.parametrize(
    ("mode", "column", "said"),
    [("append", "nothing", "there is no column 'nothing'"), ("overwrite", "game", "format distributary appends")],
)
def test_what_will_not_do_is_said_before_a_row_is_written(
    spark: SparkSession, lake: Path, mode: str, column: str, said: str
) -> None:
    rows = spark.range(3).select(F.lit("a").alias("game"), "id")
    with pytest.raises(PySparkException, match=said):
        rows.write.format("distributary").mode(mode).option("route", column).save(str(lake))
    assert not list(lake.iterdir())


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((Path(__file__).parent.parent / "docs" / "notebook.ipynb").read_text())
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    lake, games = names["lake"], names["games"]
    assert len(games) == 3
    for root in (lake, names["folder"] / "streamed"):
        good = sum(DeltaTable(root / game).to_pyarrow_table().num_rows for game in games)
        bad = DeltaTable(root / "_distributary/sink/quarantine").to_pyarrow_table().num_rows
        assert (good, bad) == (446, 4)
    assert names["decoded"].where("decoded.user_name is not null").count() > 100
    assert DeltaTable(names["folder"] / "scores/chess").to_pyarrow_table().num_rows == 1
    assert "CORRUPT_PAYLOAD" in capsys.readouterr().out
    shutil.rmtree(names["folder"])


@pytest.mark.crash
def test_a_driver_that_is_killed_inside_a_batch_loses_and_doubles_nothing(tmp_path: Path, lake: Path) -> None:
    for number in range(2):
        feed(tmp_path / "source", number)
    log = tmp_path / "children.log"
    modes = [*KILLED_AT, "last"]
    with processes(tmp_path, log, len(modes), "tests.sink_child") as following:
        for mode in modes:
            child = following()
            child.go([mode])
            assert (child.finish(120) == 0) == (mode == "last"), log.read_text()[-4000:]
    assert numbers(lake) == list(range(40)), log.read_text()[-4000:]
