"""The functions that Spark calls in its tasks for change files. A task gets a number and looks its work up by it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from distributary.engine.apart import Apart, killers
from distributary.engine.changes.deliver import Work, deliver
from distributary.engine.changes.merging import MergeWork, merge_files
from distributary.engine.changes.read import load
from distributary.engine.changes.task_spec import ChangeSpec, WorkFile
from distributary.engine.messages.tasks import RESULT_DDL, decode_results, encode_result
from distributary.engine.workers import in_worker


def run_deliver(spark: SparkSession, buckets: Sequence[Sequence[Work]], spec: ChangeSpec, name: str) -> list[Any]:
    """One task per bucket; everything that they say. Raises what a task raised."""
    return _run(spark, len(buckets), partial(deliver_task, buckets=buckets, spec=spec, name=name))


def run_merges(spark: SparkSession, work: Sequence[MergeWork], spec: ChangeSpec) -> list[Any]:
    """One task per table to be merged."""
    return _run(spark, len(work), partial(merge_task, work=work, spec=spec))


def run_killers(spark: SparkSession, files: Sequence[WorkFile], spec: ChangeSpec, tasks: int) -> dict[str, str]:
    """The files that end the process which reads them, and how."""
    shares = [list(files[n::tasks]) for n in range(min(tasks, len(files)))]
    return dict(_run(spark, len(shares), partial(killers_task, shares=shares, spec=spec)))


def _run(spark: SparkSession, tasks: int, function: Any) -> list[Any]:
    if not tasks:
        return []
    numbers = spark.range(0, tasks, 1, tasks)
    return [value for values in decode_results(numbers.mapInArrow(function, RESULT_DDL).toArrow()) for value in values]


@in_worker
def deliver_task(
    batches: Iterator[pa.RecordBatch], buckets: Sequence[Sequence[Work]], spec: ChangeSpec, name: str
) -> Iterator[pa.RecordBatch]:
    for number in _numbers(batches):
        yield encode_result(list(deliver(buckets[number], spec, f"{name}{number}")))


@in_worker
def merge_task(
    batches: Iterator[pa.RecordBatch], work: Sequence[MergeWork], spec: ChangeSpec
) -> Iterator[pa.RecordBatch]:
    for number in _numbers(batches):
        yield encode_result([merge_files(work[number], spec)])


@in_worker
def killers_task(
    batches: Iterator[pa.RecordBatch], shares: Sequence[Sequence[WorkFile]], spec: ChangeSpec
) -> Iterator[pa.RecordBatch]:
    with Apart(spec.read_sec) as apart:
        for number in _numbers(batches):
            yield encode_result(list(_killers(shares[number], spec, apart)))


def _killers(files: Sequence[WorkFile], spec: ChangeSpec, apart: Apart) -> Iterator[tuple[str, str]]:
    work = partial(load, spec=spec)
    for number, how in killers(work, lambda begin, _: files[begin], len(files), apart, singly=True).items():
        yield files[number].path, how


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()
