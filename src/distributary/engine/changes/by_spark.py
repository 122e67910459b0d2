"""What only Spark may write: log tables whose protocol delta-rs lacks, and merged tables that are too large for a task.

The rows come as data files that the tasks have written below the state folder; Spark reads those.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from distributary.engine.changes.joining import source_of
from distributary.engine.changes.merging import horizon, of_one_log, take_merged
from distributary.engine.changes.orders import ORIGIN, ChangeOrders, ChangeOutcome
from distributary.names import quoted
from distributary.tables.evolve import Evolution
from distributary.tables.merge import Target
from distributary.tables.spark_engine import SparkEngine, spark_ended, spark_schema
from distributary.tables.spark_merge import merge_by_spark, merge_session, newest_by_spark
from distributary.tables.store import Store, join, local_path


class BySpark:
    def __init__(self, spark: SparkSession, store: Store) -> None:
        self.spark = spark
        self.engine = SparkEngine(spark, store)
        self.store = store
        self._merging: SparkSession | None = None
        self.routes: set[str] = set()
        """Routes of which a table was written by Spark last, as far as known."""

    def append(self, outcome: ChangeOutcome, evolution: Evolution, orders: ChangeOrders) -> None:
        """Append an outcome's files to its log table. Raises SparkEngineError for what Spark refuses."""
        outcome.by_spark = True
        policy = orders.named.policy(outcome.route)
        schema = self.engine.prepare(orders.target(outcome.table, outcome.route), [evolution.schema], policy)
        rows = _read(self.spark, [join(outcome.files_at, f.path) for f in outcome.files])
        names = set(rows.columns)
        known = spark_schema(schema)
        rows = rows.select(*(rows[quoted(f.name)].cast(f.dataType).alias(f.name) for f in known if f.name in names))
        self.engine.append(rows, outcome.table, orders.mark)

    def merge(self, merged: ChangeOutcome, orders: ChangeOrders) -> ChangeOutcome:
        """Merge the reduced rows in `merged.merge_files` by Spark. Never raises for a fault of the table."""
        uri, named = merged.merged, orders.named
        assert uri is not None
        merged.by_spark = True
        place = orders.target(uri, merged.route, merged.keys)
        try:
            table = place.open()
            target = Target(place, table, named.policy(merged.route))
            session = self._merge_session()
            rows = _read(session, [join(orders.parts, f.path) for f in merged.merge_files])
            rules = named.rules(source_of(merged), horizon(table))
            if len(merged.merge_files) > 1:
                # Shares of the keys; but a delete by ROWID has found its key only after they were made.
                rows = newest_by_spark(rows, merged.keys, rules.order)
            with of_one_log(merged.route, uri):
                done = merge_by_spark(session, target, rows, merged.keys, rules, orders.mark, aside=(ORIGIN,))
            take_merged(merged, done)
        except BaseException as e:
            if spark_ended(e):
                raise
            merged.park_merge(e)
        for file in merged.merge_files:
            self.store.delete(orders.parts, file.path)
        merged.merge_spark = None
        return merged

    def _merge_session(self) -> SparkSession:
        if self._merging is None:
            self._merging = merge_session(self.spark)
        return self._merging

    def note(self, outcome: ChangeOutcome) -> None:
        """Keep in mind who wrote a route's tables. A batch that only wrote the log says nothing of the merge."""
        if outcome.by_spark:
            self.routes.add(outcome.route)
        elif outcome.merge_state == "merged":
            self.routes.discard(outcome.route)

    def drop(self, outcome: ChangeOutcome, orders: ChangeOrders) -> None:
        """Remove files that lay below the state folder only for this."""
        if outcome.files_at == orders.parts:
            for file in outcome.files:
                self.store.delete(orders.parts, file.path)


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    return spark.read.option("mergeSchema", "true").parquet(*[_hadoop(p) for p in paths])


def _hadoop(path: str) -> str:
    local = local_path(path)
    if local is not None:
        return local.absolute().as_uri()
    return "s3a://" + path.removeprefix("s3://") if path.startswith("s3://") else path
