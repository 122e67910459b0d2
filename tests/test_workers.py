"""What holds for every function that Spark calls in its Python workers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from distributary.engine.workers import in_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_what_a_worker_has_imported_is_out_of_the_collectors_sight(spark: SparkSession) -> None:
    def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "seen": [len(gc.get_objects())]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(in_worker(counts), "frozen bigint, seen bigint").collect()
    assert row.frozen > row.seen
