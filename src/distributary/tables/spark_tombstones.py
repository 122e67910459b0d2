"""Tombstones beside a merged table (`tables.tombstones`) that Spark merges: Spark reads them, and our own commits write
them, as tasks do.

Spark makes no table in a folder that holds `_tombstones`, so the merged table comes first, without rows: until its next
version it may say `beside` and have none (`tombstones_of`). Then as ever: the tombstones, then the table.

A MERGE of Spark's cannot be told on which version to be committed. So who has written tombstones changes a property of
the table before the merge: a merge that began before and does not see them fails on that (Delta's own rule), and one
that was committed before is seen by this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distributary.changes.digits import metadata_in
from distributary.changes.reduce import Reduced
from distributary.names import literal
from distributary.tables.by_name import sql_name
from distributary.tables.merge import MergeTarget, merge_rows
from distributary.tables.merge_rows import MergeRules
from distributary.tables.snapshot import Snapshot, Txn
from distributary.tables.spark_engine import SparkEngineError
from distributary.tables.table import Table, retried
from distributary.tables.tombstones import POLICY, Tombstones, columns_beside, place_of

NEWEST = "distributary.tombstonesOf"
"""Property of a merged table: the batch that wrote tombstones last."""


class SparkTombstones:
    """Those beside `table`, which are made where they are not there yet. `before`: the table as it was opened, None
    where it was made just now. `columns`: of its rows."""

    def __init__(
        self, spark: SparkSession, table: Table, before: Snapshot | None, columns: pa.Schema, keys: Sequence[str]
    ) -> None:
        """Raises CommitConflict, TableCollision, TableFault, OSError."""
        self._spark, self._table, self._keys = spark, table, tuple(keys)
        self._columns = columns_beside(columns, keys, metadata_in(columns.names))
        retried(lambda: Tombstones.opened(table, before, self._columns, keys).made(self._columns, keys))

    @property
    def frame(self) -> DataFrame:
        """As they are now."""
        return self._spark.read.format("delta").load(place_of(self._table).uri)

    def bury(self, events: pa.Table, rules: MergeRules, txn: Txn) -> None:
        """Commit deletes, one per key, where no tombstone is newer. Raises as a merge, SparkEngineError."""
        if not events.num_rows:
            return
        retried(lambda: self._bury(events, rules, txn))
        mark = literal(f"{txn.app_id} {txn.version}")
        self._spark.sql(f"ALTER TABLE {sql_name(self._table.uri)} SET TBLPROPERTIES ({literal(NEWEST)} = {mark})")

    def _bury(self, events: pa.Table, rules: MergeRules, txn: Txn) -> None:
        place = place_of(self._table)
        target = MergeTarget(place, place.open(), POLICY)
        own = MergeRules(order=rules.order, small_files=1)
        if (why := merge_rows(target, Reduced(events), self._keys, own, txn).why_spark) is not None:
            raise SparkEngineError(f"{place.uri}: {why}")


def remembered(target: MergeTarget) -> MergeTarget:
    """The merged table, which says from its first commit on where its tombstones are."""
    return replace(target, table=Tombstones(place_of(target.table)).remembered(target.table))
