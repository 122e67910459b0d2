"""What is known of the keys of a table that Spark merges: of each the newer of its row and its tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.names import quoted
from distributary.tables.merge_rows import DELETED, MergeRules
from distributary.tables.snapshot import Txn
from distributary.tables.spark_engine import table_of
from distributary.tables.spark_order import is_old, newest_by_spark, number_text, same_key
from distributary.tables.spark_tombstones import SparkTombstones

_THERE = "_there"
TOMBSTONE = "_deleted__tombstone"
"""Of an event: the number of the tombstone of its key that lies beside the table. A payload may have a `_tombstone`."""


@dataclass(frozen=True)
class KnownEvents:
    """What is known of the keys of a table: its rows and, where they lie beside it, its tombstones. `newer`: where an
    event `s` holds over what is known as `t`."""

    spark: SparkSession
    uri: str
    keys: Sequence[str]
    rules: MergeRules
    beside: SparkTombstones | None
    newer: str

    def rows(self) -> DataFrame:
        """Keys and metadata of the table's rows."""
        return self._events(table_of(self.spark, self.uri).toDF())

    def tombstones(self) -> DataFrame | None:
        """Those beside the table, likewise."""
        return None if self.beside is None else self._events(self.beside.frame)

    def _events(self, frame: DataFrame) -> DataFrame:
        return frame.select(*(F.col(quoted(key)) for key in self.keys), self.rules.order.metadata)

    def events(self) -> DataFrame:
        """Of each key the newer of its row and its tombstone."""
        dead = self.tombstones()
        if dead is None:
            return self.rows()
        return newest_by_spark(self.rows().unionByName(dead, allowMissingColumns=True), self.keys, self.rules.order)

    def bury(self, source: DataFrame, txn: Txn) -> int:
        """Commit the deletes among the events that hold over what is known, as tombstones; how many. 0 where they lie
        in the table."""
        dead = self.tombstones()
        if dead is None or self.beside is None or source.where(DELETED).isEmpty():
            return 0
        met = "_met"
        deletes = self._events(source.where(DELETED)).withColumn(met, F.lit(False))
        for theirs in (self.rows(), dead):
            pairs = self._meeting(deletes, theirs).where(f"t.{_THERE} IS NULL OR {self.newer}")
            names = [f"s.{quoted(name)}" for name in (*self.keys, self.rules.order.metadata)]
            deletes = pairs.selectExpr(*names, f"s.{met} OR t.{_THERE} IS NOT NULL AS {met}")
        if self.rules.purged_until is not None:
            deletes = deletes.where(f"{met} OR NOT {is_old(self.rules.order.metadata, self.rules.purged_until)}")
        events: pa.Table = deletes.drop(met).toArrow()
        self.beside.bury(events, self.rules, txn)
        return int(events.num_rows)

    def _meeting(self, events: DataFrame, theirs: DataFrame) -> DataFrame:
        """Events `s`, each with what there is of its key as `t`."""
        marked = theirs.withColumn(_THERE, F.lit(True)).alias("t")
        return events.alias("s").join(marked, F.expr(same_key(self.keys)), "left")

    def above_tombstones(self, source: DataFrame) -> DataFrame:
        """The events over which no tombstone beside holds, with that one's number (`TOMBSTONE`)."""
        dead = self.tombstones()
        if dead is None:
            return source
        number = {side: number_text(side, self.rules.order) for side in "st"}
        pairs = self._meeting(source, dead)
        pairs = pairs.where(f"t.{_THERE} IS NULL OR {self.newer} OR {number['s']} = {number['t']}")
        return pairs.selectExpr("s.*", f"CASE WHEN t.{_THERE} THEN {number['t']} END AS {TOMBSTONE}")
