"""Merged tables and changes to them, for the benchmarks that merge: made here, merged by both sides, compared."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from bench.workload import CORES, WrongRows
from distributary.changes.hashing import row_hash
from distributary.changes.model import METADATA, METADATA_TYPE, SOURCE_TYPE
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings, sequence_numbers
from distributary.engine.messages.tasks import RESULT_DDL, decode_results, encode_result
from distributary.engine.workers import in_worker
from distributary.tables.evolve import Policy
from distributary.tables.merge import MergeTarget, merge_on_tip, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.merge_tip import MergeTip
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.store import Store
from distributary.tables.table import Table

KEYS = ("id",)
START_MS = 1_767_225_600_000
NUMBER = f"{METADATA}.change_sequence_number"
_CONTENT = pa.schema([("id", pa.int64()), ("note", pa.string()), ("number", pa.string())])


def events(ids: np.ndarray, first: int, seed: int) -> pa.Table:
    """Updates of the rows `ids`, ten columns, as a log table holds them; `first`: their place in the binlog."""
    rng, count = np.random.default_rng(seed), len(ids)
    words = np.array([f"{word:032x}" for word in rng.integers(0, 2**62, count)])
    columns = {
        "id": pa.array(ids, pa.int64()),
        "customer": pa.array(rng.integers(0, 10**6, count)),
        "status": pa.array(rng.choice(["new", "paid", "sent"], count)),
        "amount": pa.array(rng.random(count) * 100),
        "name": pa.array([f"user {n}" for n in rng.integers(0, 10**6, count)]),
        "city": pa.array(rng.choice(["Oslo", "Bonn", "Rome"], count)),
        "quantity": pa.array(rng.integers(0, 9, count), pa.int32()),
        "note": pa.array([word[16:] for word in words]),
        "open": pa.array(rng.random(count) > 0.5),
        "changed_at": pa.array(START_MS * 1000 + first + np.arange(count), pa.timestamp("us", tz="UTC")),
    }
    places = first + np.arange(count)
    source = {
        "database": pa.repeat("shop", count),
        "table": pa.repeat("orders", count),
        "log_file": pa.repeat("mysql-bin.000131", count),
        "log_position": pa.array(places, pa.int64()),
    }
    time_ms = pa.array(START_MS + places // 100, pa.int64())
    given = {
        "uuid": pa.array(words),
        "source_timestamp": time_ms,
        "read_timestamp": time_ms,
        "change_type": pa.repeat("UPDATE-INSERT", count),
        "is_deleted": pa.repeat(False, count),
        "is_backfill": pa.repeat(False, count),
        "read_method": pa.repeat("mysql-cdc-binlog", count),
        "object": pa.repeat("shop_orders", count),
        "schema_key": pa.repeat("a" * 40, count),
        "source": struct_of(source, SOURCE_TYPE, count),
    }
    plain = pa.table(
        [given.get(f.name, pa.nulls(count, f.type)) for f in METADATA_TYPE], pa.schema(list(METADATA_TYPE))
    )
    given["change_sequence_number"] = sequence_numbers("mysql", plain, row_hash(columns, count)).numbers
    return pa.table({**columns, METADATA: struct_of(given, METADATA_TYPE, count)})


def struct_of(given: Mapping[str, pa.Array], kind: pa.StructType, count: int) -> pa.StructArray:
    return pa.StructArray.from_arrays([given.get(f.name, pa.nulls(count, f.type)) for f in kind], fields=list(kind))


@dataclass(frozen=True)
class Work:
    """One table's changes of one batch: `changes` is a Parquet file of events. `on_read`: by deletion vectors."""

    uri: str
    changes: str
    on_read: bool = False


class MergedTables:
    """Merged tables as engine `task` writes them, and what its last merges left behind in them, as a stream has it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._tips: dict[str, MergeTip] = {}

    def merge(self, work: Sequence[Work], batch: int) -> float:
        """Seconds of one Spark job in which tasks read, reduce and merge their share of the tables."""
        # Spark ends Python workers that were idle for a minute, as ours are while the other side runs.
        self._job([], batch)
        began = time.monotonic()
        self._tips = self._job(work, batch)
        return time.monotonic() - began

    def _job(self, work: Sequence[Work], batch: int) -> dict[str, MergeTip]:
        tasks = min(CORES, len(work)) or CORES
        task = partial(_task, work=work, tasks=tasks, batch=batch, tips=self._tips)
        numbers = self._spark.range(0, tasks, 1, tasks)
        return {
            uri: tip
            for found in decode_results(numbers.mapInArrow(task, RESULT_DDL).toArrow())
            for uri, tip in found.items()
        }


@in_worker
def _task(
    batches: Iterator[pa.RecordBatch], work: Sequence[Work], tasks: int, batch: int, tips: Mapping[str, MergeTip]
) -> Iterator[pa.RecordBatch]:
    for numbers in batches:
        for number in numbers.column(0).to_pylist():
            done = {one.uri: merge_one(one, batch, tips.get(one.uri)) for one in work[number::tasks]}
            yield encode_result({uri: tip for uri, tip in done.items() if tip is not None})


def merge_one(work: Work, batch: int, tip: MergeTip | None) -> MergeTip | None:
    """What is known of the table now. `tip`: what was known before."""
    rows = pq.ParquetFile(work.changes).read(use_threads=False)
    return merge_events(work.uri, rows, batch, tip, MergeRules(on_read=work.on_read))


def merge_events(uri: str, rows: pa.Table, batch: int, tip: MergeTip | None, rules: MergeRules) -> MergeTip | None:
    """Reduce and merge events into a table, as a task does; as `merge_one`. Raises WrongRows where it needs Spark."""
    txn = Txn("bench", batch)
    owner, policy = Owner("bench", "orders", KEYS), Policy("add", "widen", can_widen=False)
    target = MergeTarget(Table(uri, Store(), owner), None, policy)
    reduced = reduce_rows(rows, KEYS, OrderSettings())
    merged = None if tip is None else merge_on_tip(target, tip, reduced, KEYS, rules, txn)
    if merged is None:
        merged = merge_rows(replace(target, before=target.table.open()), reduced, KEYS, rules, txn)
    if merged.why_spark:
        raise WrongRows(merged.why_spark)
    return merged.tip


@dataclass
class Side:
    """One table, merged one way, batch after batch in this process. `seconds`: of CPU, of each batch."""

    uri: str
    rules: MergeRules
    tip: MergeTip | None = None
    seconds: list[float] = field(default_factory=list)

    def merge(self, rows: pa.Table, batch: int) -> None:
        began = time.process_time()
        self.tip = merge_events(self.uri, rows, batch, self.tip, self.rules)
        self.seconds.append(time.process_time() - began)

    def rows(self, where: str = "true") -> pa.Table:
        """Key and note of its rows, in the order of their keys."""
        query = f"select id, note from t where {where} order by id"
        return pa.table(QueryBuilder().register("t", DeltaTable(self.uri)).execute(query).read_all())


def spark_merge_all(spark: SparkSession, work: Sequence[Work], threads: int) -> float:
    """Seconds of a MERGE by Spark per table, in so many threads, as a foreachBatch does it; rows are one per key."""
    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(_spark_merge, spark, one) for one in work]:
            future.result()
    return time.monotonic() - began


def _spark_merge(spark: SparkSession, work: Work) -> None:
    changes = spark.read.parquet(work.changes)
    newer = f"s.{NUMBER} > t.{NUMBER}"
    target = SparkDeltaTable.forPath(spark, work.uri).alias("t")
    merge = target.merge(
        changes.selectExpr("*", "false AS _deleted", "null AS _deleted_at").alias("s"), "t.id <=> s.id"
    )
    merge.whenMatchedUpdateAll(newer).whenNotMatchedInsertAll().execute()


def save(table: pa.Table, path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, store_schema=False)
    return str(path)


def check_same(ours: Sequence[str], other: Sequence[str]) -> None:
    """Raises WrongRows unless the tables of both sides hold the same."""
    for mine, theirs in zip(ours, other, strict=True):
        one, two = (_content(uri) for uri in (mine, theirs))
        if not one.equals(two):
            raise WrongRows(f"{mine} and {theirs} differ: {one.num_rows} and {two.num_rows} rows")


def _content(uri: str) -> pa.Table:
    # Of deltalake's readers the one that knows deletion vectors.
    query = f"SELECT id, note, {METADATA}['change_sequence_number'] AS number FROM t ORDER BY id"
    found = QueryBuilder().register("t", DeltaTable(uri)).execute(query).read_all()
    return pa.table(found).cast(_CONTENT).combine_chunks()
