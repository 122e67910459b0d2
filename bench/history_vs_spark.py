"""Changes to many small history tables (every version of each row): ours inside tasks against Spark's MERGE."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.merges import KEYS, NUMBER, Work, events, save
from bench.result import Case, Result
from bench.workload import CORES, SPARK_TUNED, Place, WrongRows, say, session
from distributary.changes.model import METADATA
from distributary.changes.reduce import MissingColumns
from distributary.changes.sequence import OrderSettings
from distributary.engine.messages.tasks import RESULT_DDL, decode_results, encode_result
from distributary.engine.workers import in_worker
from distributary.tables.evolve import Policy
from distributary.tables.history_table import merge_history
from distributary.tables.merge import MergeTarget
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

NOTE = (
    "Seconds to bring a batch of changes into each of the history tables, median of the last rounds; each round adds "
    "its versions to those of the rounds before. Ours: one Spark job whose tasks read the changes from Parquet and "
    "write the history. Other: the MERGE that is written for this (each change twice, once to end its row's current "
    "version, once to be inserted), a job per table in 8 threads, from the same Parquet files. One change per key and "
    "batch, all in order: what such a MERGE takes. At the end all versions of both sides are compared."
)
THREADS = 8


def run(place: Place) -> Result:
    tables, rows, changes = place.size((20, 10_000, 500), (2, 100, 10))
    rounds = place.size(4, 2)
    spark = session(**SPARK_TUNED)
    uris = {side: [str(place.root / side / f"t{n}") for n in range(tables)] for side in ("ours", "other")}
    base = save(events(np.arange(rows), 0, 0), place.root / "base.parquet")
    for side in uris:
        # Both begin with tables that we have made.
        _ours(spark, [Work(uri, base) for uri in uris[side]], 0)
    seconds: dict[str, list[float]] = {side: [] for side in uris}
    for number in range(1, rounds + 1):
        files = []
        for table in range(tables):
            ids = np.random.default_rng(number * tables + table).choice(rows, changes, replace=False)
            found = events(ids, number * 10**6, number * tables + table)
            files.append(save(found, place.root / "changes" / f"{number}-{table}.parquet"))
        work = {side: [Work(*pair) for pair in zip(uris[side], files, strict=True)] for side in uris}
        seconds["ours"].append(_ours(spark, work["ours"], number))
        seconds["other"].append(_other(spark, work["other"]))
        say(f"{tables} histories: " + ", ".join(f"{side} {sec[-1]:.2f} s" for side, sec in seconds.items()))
    for mine, theirs in zip(uris["ours"], uris["other"], strict=True):
        one, two = _content(mine), _content(theirs)
        if not one.equals(two):
            raise WrongRows(f"{mine} and {theirs} differ: {one.num_rows} and {two.num_rows} versions")
    last = {side: median(found[rounds // 2 :]) for side, found in seconds.items()}
    details = {"all ours": seconds["ours"], "all other": seconds["other"], "versions each": _content(mine).num_rows}
    label = f"{tables} histories of {rows:,} rows, {changes} changes each"
    return Result("history_vs_spark", NOTE, (Case(label, "s", last["ours"], last["other"], details=details),))


def _ours(spark: SparkSession, work: Sequence[Work], batch: int) -> float:
    tasks = min(CORES, len(work))
    task = partial(_task, work=work, tasks=tasks, batch=batch)
    began = time.monotonic()
    list(decode_results(spark.range(0, tasks, 1, tasks).mapInArrow(task, RESULT_DDL).toArrow()))
    return time.monotonic() - began


@in_worker
def _task(batches: Iterator[pa.RecordBatch], work: Sequence[Work], tasks: int, batch: int) -> Iterator[pa.RecordBatch]:
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            yield encode_result({one.uri: _take(one, batch) for one in work[number::tasks]})


def _take(work: Work, batch: int) -> int:
    table = Table(work.uri, Store(), Owner("bench", work.uri, KEYS))
    target = MergeTarget(table, table.open(), Policy("add", "widen", can_widen=False))
    rows = pq.ParquetFile(work.changes).read(use_threads=False)
    return merge_history(target, rows, KEYS, OrderSettings(kind="mysql"), MissingColumns(), Txn("bench", batch))


def _other(spark: SparkSession, work: Sequence[Work]) -> float:
    began = time.monotonic()
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(_merge, spark, one) for one in work]:
            future.result()
    return time.monotonic() - began


def _merge(spark: SparkSession, work: Work) -> None:
    moment = f"timestamp_millis({METADATA}.source_timestamp)"
    new = [f"{moment} AS valid_from", "CAST(NULL AS TIMESTAMP) AS valid_to", "true AS is_current"]
    changes = spark.read.parquet(work.changes).selectExpr("*", *new, "false AS _deleted", "'~' AS _until")
    both = changes.selectExpr("*", "id AS _meets").union(changes.selectExpr("*", "CAST(NULL AS BIGINT) AS _meets"))
    merge = SparkDeltaTable.forPath(spark, work.uri).alias("t")
    done = merge.merge(both.alias("s"), "t.id = s._meets AND t.is_current")
    ended = {"valid_to": "s.valid_from", "is_current": "false"}
    done = done.whenMatchedUpdate(f"s.{NUMBER} > t.{NUMBER}", ended)
    inserted = {name: f"s.{name}" for name in changes.columns}
    done.whenNotMatchedInsert("s._meets IS NULL", inserted).execute()


def _content(uri: str) -> pa.Table:
    names = ["id", "note", "valid_from", "valid_to", "is_current", METADATA]
    table = DeltaTable(uri).to_pyarrow_table(columns=names)
    number = pc.struct_field(table.column(METADATA).combine_chunks(), "change_sequence_number")
    columns = {name: table[name] for name in names[:-1]} | {"number": number}
    return pa.table(columns).sort_by([("id", "ascending"), ("number", "ascending")]).combine_chunks()
