"""What only Spark may write: log tables whose protocol delta-rs lacks, and merged tables that are too large for a task.

The rows come as data files that the tasks have written below the state folder; Spark reads those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.changes.digits import metadata_in
from distributary.changes.handed_on import HandedOn, of_keys
from distributary.changes.model import METADATA_TYPE
from distributary.changes.reduce import METADATA, NUMBER, Reduced, reduce_rows
from distributary.changes.truncates import Truncates
from distributary.changes.unfilled import Unfilled
from distributary.engine.changes.emptying import all_truncates, remembering
from distributary.engine.changes.key_columns import key_types
from distributary.engine.changes.keyed_table import Into, absent
from distributary.engine.changes.merging import UNSAID, done_by, of_one_log, purged_until, write_reduced
from distributary.engine.changes.task_spec import ORIGIN, ChangeSpec
from distributary.engine.changes.transactions import all_of, others_of
from distributary.engine.outcomes import Merge, Outcome
from distributary.names import quoted
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Evolution
from distributary.tables.merge import MergeTarget
from distributary.tables.merge_rows import MergeRules
from distributary.tables.spark_engine import SparkEngine, SparkEngineError, asking, spark_ended, spark_schema
from distributary.tables.spark_merge import merge_by_spark, merge_session
from distributary.tables.spark_order import newest_by_spark
from distributary.tables.store import Store, join, local_path
from distributary.tables.table import retried


class BySpark:
    def __init__(self, spark: SparkSession, store: Store) -> None:
        self.spark = spark
        self.engine = SparkEngine(spark, store)
        self.store = store
        self._merging: SparkSession | None = None
        self.routes: set[str] = set()
        """Routes of which a table was written by Spark last, as far as known."""

    @asking(SparkEngineError)
    def append(self, outcome: Outcome, evolution: Evolution, spec: ChangeSpec) -> None:
        """Append an outcome's files to its log table. Raises as `asking`."""
        append = outcome.append
        policy = spec.named.policy(outcome.route)
        schema = self.engine.prepare(spec.target(outcome.table, outcome.route), [evolution.schema], policy)
        rows = _read(self.spark, [join(append.folder, f.path) for f in append.files])
        names = set(rows.columns)
        table_schema = spark_schema(schema)
        rows = rows.select(
            *(rows[quoted(f.name)].cast(f.dataType).alias(f.name) for f in table_schema if f.name in names)
        )
        self.engine.append(rows, outcome.table, spec.txn)

    def merge(self, outcome: Outcome, spec: ChangeSpec) -> Outcome:
        """Merge the reduced rows in the files of its merge by Spark. Never raises for a fault of the table."""
        begun = outcome.merge
        assert begun is not None
        merge, files = replace(begun, by_spark=True, why_spark=None), list(begun.files)
        try:
            by_spark = retried(lambda: self._merge(outcome, spec, files))
            merge = replace(
                merge,
                state="merged",
                created=by_spark.created,
                tip=by_spark.tip,
                widened={**merge.widened, **by_spark.widened},
                late=merge.late + by_spark.late,
                upserts=by_spark.upserts,
                deletes=by_spark.deletes,
                stale=by_spark.stale,
            )
        except BaseException as e:
            if spark_ended(e):
                raise
            merge = merge.parked(e)
        for file in files:
            self.store.delete(spec.parts, file.path)
        return replace(outcome, merge=merge)

    @asking(SparkEngineError)
    def _merge(self, outcome: Outcome, spec: ChangeSpec, files: list[DataFile]) -> Merge:
        """What was done. `files` gets those that are made on the way."""
        begun, about, named = outcome.merge, outcome.events, spec.named
        assert begun is not None and begun.table is not None and about is not None
        into = Into(about.source, begun.table, about.keys, about.brought)
        table = into.table(spec).open()
        truncates = Truncates.read(begun.truncates, METADATA_TYPE, named.order(about.source))
        target = MergeTarget(remembering(into.table(spec), truncates), table, named.policy(outcome.route))
        session = self._merge_session()
        rows = _read(session, [join(spec.parts, f.path) for f in begun.files])
        rules = named.rules(about.source, purged_until(table))
        if len(begun.files) > 1:
            # Shares of the keys; but a delete by ROWID has found its key only after they were made.
            rows = newest_by_spark(rows, about.keys, rules.order)
        with of_one_log(outcome.route, into.uri):
            while True:
                try:
                    merged = merge_by_spark(session, target, rows, about.keys, rules, spec.txn, aside=(ORIGIN,))
                    return done_by(into, merged)
                except HandedOn as e:
                    rules = replace(rules, settled=e.transactions)
                    decided_file = _decided_anew(rows, into, rules, spec)
                except Unfilled as e:
                    rules = replace(rules, filled=True)
                    decided_file = _completed(rows, e.keys, into, rules, spec)
                if decided_file is not None:
                    files.append(decided_file)
                    rows = _in_place_of(rows, _read(session, [join(spec.parts, decided_file.path)]), into.keys)

    def _merge_session(self) -> SparkSession:
        if self._merging is None:
            self._merging = merge_session(self.spark)
        return self._merging

    def note(self, outcome: Outcome) -> None:
        """Keep in mind who wrote a route's tables. A batch that only wrote the log says nothing of the merge."""
        if outcome.by_spark:
            self.routes.add(outcome.route)
        elif outcome.merge is not None and outcome.merge.state == "merged":
            self.routes.discard(outcome.route)

    def drop(self, outcome: Outcome, spec: ChangeSpec) -> None:
        """Remove files that lay below the state folder only for this."""
        if outcome.append.folder == spec.parts:
            for file in outcome.append.files:
                self.store.delete(spec.parts, file.path)


def _decided_anew(rows: DataFrame, into: Into, rules: MergeRules, spec: ChangeSpec) -> DataFile | None:
    """Of the keys of reduced rows that transactions of `rules.settled` hand on: the events that decide them by all that
    the log has, as a file; None where `rows` have them already."""
    transactions = rules.settled or frozenset()
    plain = rows.drop(*(name for name in rows.columns if name.startswith(UNSAID)))
    of_transactions = plain.where(F.col(f"{METADATA}.source.tx_id").isin(sorted(transactions))).toArrow()
    others = others_of(into.source, spec, transactions, of_transactions, key_types(of_transactions.schema, into.keys))
    events = of_keys(of_transactions, others, into.keys)
    reduced = reduce_rows(events, into.keys, rules.order, rules.gaps(absent(events, into.brought)))
    new = pc.invert(pc.is_in(_numbers(reduced.rows), _numbers(of_transactions)))
    if not pc.any(new).as_py():
        return None
    masks = {column: mask.filter(new) for column, mask in reduced.unchanged.items()}
    return write_reduced(Reduced(reduced.rows.filter(new), masks), spec)


def _completed(rows: DataFrame, keys: pa.Table, into: Into, rules: MergeRules, spec: ChangeSpec) -> DataFile:
    """The newest events of these keys, with what the log's older ones say of their columns, as a file."""
    plain = rows.drop(*(name for name in rows.columns if name.startswith(UNSAID)))
    keys_asked = plain.sparkSession.createDataFrame(keys).alias("k")
    by_key = " AND ".join(f"r.{quoted(key)} <=> k.{quoted(key)}" for key in into.keys)
    own = plain.alias("r").join(keys_asked, F.expr(by_key), "left_semi").toArrow()
    types = key_types(own.schema, into.keys)
    events = [own, all_of(into.source, spec, keys, own, types)]
    all_events = pa.concat_tables(events, promote_options="permissive")
    all_events = all_truncates(into.table(spec).open(), (), rules.order).emptied(all_events, into.keys)
    return write_reduced(
        reduce_rows(all_events, into.keys, rules.order, rules.gaps(absent(all_events, into.brought))), spec
    )


def _numbers(rows: pa.Table) -> pa.Array:
    return pc.struct_field(rows.column(metadata_in(rows.column_names)), NUMBER).combine_chunks()


def _in_place_of(rows: DataFrame, decided: DataFrame, keys: Sequence[str]) -> DataFrame:
    """`decided`, and the rows of other keys."""
    by_key = " AND ".join(f"s.{quoted(key)} <=> o.{quoted(key)}" for key in keys)
    undecided = rows.alias("s").join(decided.alias("o"), F.expr(by_key), "left_anti")
    return undecided.unionByName(decided, allowMissingColumns=True)


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    return spark.read.option("mergeSchema", "true").parquet(*[_hadoop(p) for p in paths])


def _hadoop(path: str) -> str:
    local = local_path(path)
    if local is not None:
        return local.absolute().as_uri()
    return "s3a://" + path.removeprefix("s3://") if path.startswith("s3://") else path
