"""Engine `spark`: Spark's own MERGE, for merged tables that a task must not write, or that are too large for one.

The same rules as engine `task` (merge_rows.py), as SQL. Idempotence is the guard by sequence; the batch's transaction
follows in an empty append of its own, since MERGE takes a transaction id from the session's settings only, which other
tables share (delta-io/delta#3934).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from distributary.changes.anew import BegunAnew
from distributary.changes.handed_on import HandedOn
from distributary.changes.reduce import KEY_LEFT, KEY_TAKEN, METADATA
from distributary.changes.unfilled import Unfilled, may_say
from distributary.names import quoted
from distributary.tables.evolve import Evolution, Slot, evolve
from distributary.tables.merge import Merged, MergeTarget
from distributary.tables.merge_rows import DELETED, DELETED_AT, DELETED_FIELD, Counts, MergeRules
from distributary.tables.snapshot import Txn, columns_of
from distributary.tables.spark_engine import SparkEngine, SparkEngineError, append_to, asking, table_of
from distributary.tables.spark_known import TOMBSTONE, KnownEvents
from distributary.tables.spark_order import (
    ANEW,
    ANOTHER_ROW,
    LACKS,
    SAME_TRANSACTION,
    is_of,
    is_old,
    names_rows,
    newer_text,
    number_text,
    same_key,
)
from distributary.tables.spark_tombstones import SparkTombstones, remembered
from distributary.tables.spark_types import arrow_schema
from distributary.tables.tombstones import are_beside
from distributary.tables.widening import for_spark

UNSAID = "_unsaid_"
"""Begins the names of columns that say which rows do not speak of a column."""


MERGE_CONF = {"spark.sql.adaptive.enabled": "true", "spark.sql.adaptive.coalescePartitions.enabled": "true"}
"""What a MERGE needs, unlike the batches of a stream: how many rows meet is known only as it runs. Without it, a merge
of a few rows is hundreds of tasks, and a file from each of them."""


def merge_session(spark: SparkSession) -> SparkSession:
    """A session for merges, with the settings that `spark` has now, else with `MERGE_CONF`.

    A session of its own, because settings are a session's, and the batches and other threads use `spark` meanwhile.
    """
    session = spark.newSession()
    get_all = session.conf.getAll
    for name, value in {**spark.conf.getAll, **MERGE_CONF}.items():
        # What was set when the application began is there already, and may not be set again.
        if get_all.get(name) != value:
            session.conf.set(name, value)
    return session


def merge_by_spark(
    spark: SparkSession,
    target: MergeTarget,
    rows: DataFrame,
    keys: Sequence[str],
    rules: MergeRules,
    txn: Txn,
    aside: Sequence[str] = (),
) -> Merged:
    """Merge reduced rows (payload columns, `datastream_metadata`, `_unsaid_<column>` masks).

    `spark`: the session of `rows`, best a `merge_session`. `aside`: columns that do not go into the table, but come
    back with the rows that could not be judged (`Merged.late`). A tombstone in the table counts as updated, unlike with
    engine `task`: Delta's metrics do not tell them apart.

    Raises BegunAnew, HandedOn, Unfilled, SparkEngineError, TableFault, OSError (ConnectionError: as `asking`).
    """
    uri, table = target.table.uri, target.before
    if table is not None and table.has(txn):
        return Merged()
    engine = SparkEngine(spark, target.table.store)
    masks = [name for name in rows.columns if name.startswith(UNSAID)]
    merged_rows = _as_merged(rows.drop(*aside), keys, rules, masks)
    brought = arrow_schema(merged_rows.drop(*masks).schema)
    brought = brought.set(brought.get_field_index(DELETED), DELETED_FIELD)
    evolution = evolve(columns_of(table), [brought], for_spark(target.policy, table))
    beside = None
    if (rules.beside if table is None else are_beside(table)) and rules.deletes == "soft":
        target, beside = _with_tombstones(engine, target, brought, evolution.schema, keys)
    newer = newer_text(rules.order, names_rows(rows), rules.settled or ())
    of_keys = KnownEvents(spark, uri, keys, rules, beside, newer)
    if table is not None and rules.settled is not None:
        _ask_for_others(of_keys, rows, rules.settled)
    if table is not None and rules.has_unchanged and not rules.filled:
        _ask_for_older(of_keys, rows)
    engine.prepare(target.table, [brought], target.policy)
    source = _fitted(merged_rows, evolution, masks)
    try:
        with asking(SparkEngineError):
            plain = source.drop(*(name for name in source.columns if name.startswith(UNSAID)))
            if evolution.changed:
                # New columns first, at any depth, by Delta's own schema merging: an append of no rows.
                append_to(plain.limit(0).write, uri)
            late = _late(of_keys, rows.drop(*masks))
            late_rows = 0 if late is None else late.num_rows
            buried = of_keys.bury(source, txn)
            counts = _merge(of_keys, source, plain.columns, late_rows, buried)
    except SparkEngineError as e:
        if (pair := re.search(rf"{ANEW} (\w+) (\w+)", str(e.__cause__))) is not None:
            raise BegunAnew(pair[1], pair[2], rules.order.kind) from e
        raise
    engine.append(plain.limit(0), uri, txn)
    return Merged(counts, created=table is None, evolved=evolution.changed and table is not None, late=late)


def _with_tombstones(
    engine: SparkEngine, target: MergeTarget, brought: pa.Schema, columns: pa.Schema, keys: Sequence[str]
) -> tuple[MergeTarget, SparkTombstones]:
    """The table, made if need be, and its tombstones beside it, which Spark must not meet as it makes the table."""
    if target.before is None:
        target = remembered(target)
        engine.prepare(target.table, [brought], target.policy)
    return target, SparkTombstones(engine.spark, target.table, target.before, columns, keys)


@asking(SparkEngineError)
def _ask_for_others(of_keys: KnownEvents, rows: DataFrame, settled: Collection[str]) -> None:
    """Raises HandedOn where rows of one transaction, none of those `settled`, have handed on a key of the table."""
    keys = of_keys.keys
    if not names_rows(rows):
        return
    of_transaction = rows.where(f"{METADATA}.source.tx_id IS NOT NULL")
    of_transaction = (
        of_transaction.where(~F.col(f"{METADATA}.source.tx_id").isin(sorted(settled))) if settled else of_transaction
    )
    names = [F.col(quoted(key)) for key in keys]
    brought = of_transaction.select(*names, METADATA).alias("s")
    table = of_keys.events().alias("t")
    halves = ((KEY_LEFT, "DELETE"), (KEY_TAKEN, "INSERT"))
    moves = " OR ".join(is_of(f"{side}.{METADATA}", *half) for side in "st" for half in halves)
    handed_on = f"{SAME_TRANSACTION} AND {ANOTHER_ROW} AND ({moves})"
    met = table.join(brought, F.expr(f"({same_key(keys)}) AND {handed_on}"))
    open_transactions = met.select(F.expr(f"s.{METADATA}.source.tx_id").alias("tx")).distinct().collect()
    if open_transactions:
        raise HandedOn({str(row.tx) for row in open_transactions})


@asking(SparkEngineError)
def _ask_for_older(of_keys: KnownEvents, rows: DataFrame) -> None:
    """Raises Unfilled where a late event may say what its row lacks."""
    keys, rules = of_keys.keys, of_keys.rules
    names, metadata = [F.col(quoted(key)) for key in keys], rules.order.metadata
    brought = rows.select(*names, metadata).alias("s")
    table = of_keys.events().alias("t")
    late = f"{number_text('s', rules.order)} < {number_text('t', rules.order)} AND {LACKS.format(metadata=metadata)}"
    met = table.join(brought, F.expr(f"({same_key(keys)}) AND {late}"))
    columns = [*(f"s.{quoted(key)}" for key in keys), f"s.{metadata}", f"t.{metadata} AS _row"]
    met_rows = met.selectExpr(*columns).toArrow()
    completes = may_say(met_rows.column(metadata).combine_chunks(), met_rows.column("_row").combine_chunks())
    if any(completes):
        raise Unfilled(met_rows.select(list(keys)).filter(pa.array(completes)))


def _as_merged(rows: DataFrame, keys: Sequence[str], rules: MergeRules, masks: Sequence[str]) -> DataFrame:
    metadata = rules.order.metadata
    deleted = f"coalesce({metadata}.is_deleted, false)"
    columns = []
    for name in rows.columns:
        stays = name in (*keys, metadata, *masks) or rules.keep_deleted_values
        text = quoted(name) if stays else f"CASE WHEN NOT {deleted} THEN {quoted(name)} END"
        columns.append(F.expr(text).alias(name))
    deleted_at = f"CASE WHEN {deleted} THEN timestamp_millis({metadata}.source_timestamp) END"
    return rows.select(*columns, F.expr(deleted).alias(DELETED), F.expr(deleted_at).alias(DELETED_AT))


def _fitted(rows: DataFrame, evolution: Evolution, masks: Sequence[str]) -> DataFrame:
    """The rows under the names and in the types that their columns have in the table."""
    kinds = {field.name: field.type for field in evolution.schema}
    columns = []
    for slot in evolution.slots[0]:
        if slot.target is not None:
            columns.append(_entered(F.col(quoted(slot.source)), slot, kinds[slot.target]).alias(slot.target))
            if f"{UNSAID}{slot.source}" in masks:
                columns.append(F.col(quoted(f"{UNSAID}{slot.source}")).alias(f"{UNSAID}{slot.target}"))
    return rows.select(*columns)


def _entered(column: Column, slot: Slot, kind: pa.DataType) -> Column:
    """The column in the table's type. Fields of a struct go by name: Spark's cast takes them in order."""
    if not pa.types.is_struct(kind) or not slot.children:
        return column.cast(from_arrow_type(kind))
    ways = {child.target: child for child in slot.children}
    fields = []
    for field in kind:
        way = ways.get(field.name)
        value = F.lit(None) if way is None else _entered(column.getField(way.source), way, field.type)
        fields.append(value.cast(from_arrow_type(field.type)).alias(field.name))
    return F.when(column.isNotNull(), F.struct(*fields))


def _merge(of_keys: KnownEvents, source: DataFrame, columns: Sequence[str], late_rows: int, buried: int) -> Counts:
    rules, keys, beside = of_keys.rules, of_keys.keys, of_keys.beside is not None
    newer = of_keys.newer
    if rules.filled:
        same = f"{number_text('s', rules.order)} = {number_text('t', rules.order)}"
        newer = f"({newer} OR ({same} AND {LACKS.format(metadata=rules.order.metadata)}))"
    removes = f"(s.{DELETED})" if rules.deletes == "hard" or beside else "false"
    judged = "true" if rules.purged_until is None else f"NOT {is_old('s.' + rules.order.metadata, rules.purged_until)}"
    if beside and rules.purged_until is not None:
        judged = f"(s.{TOMBSTONE} IS NOT NULL OR {judged})"
    judged_rows = source.count() - late_rows
    source = of_keys.above_tombstones(source)
    sets = {quoted(name): _value(name, source, keys, rules) for name in columns}
    inserts = {quoted(name): f"s.{quoted(name)}" for name in columns}
    result = (
        table_of(of_keys.spark, of_keys.uri)
        .alias("t")
        .merge(source.alias("s"), same_key(keys))
        .whenMatchedDelete(f"{newer} AND {removes}")
        .whenMatchedUpdate(newer, sets)
        .whenNotMatchedInsert(f"NOT {removes} AND {judged}", inserts)
        .execute()
        .first()
    )
    counts = {
        name: int(result[f"num_{name}_rows"] or 0) if result else 0 for name in ("inserted", "updated", "deleted")
    }
    counts["deleted"] = max(counts["deleted"], buried)
    return Counts(**counts, ignored=max(0, judged_rows - sum(counts.values())))


def _late(of_keys: KnownEvents, rows: DataFrame) -> pa.Table | None:
    """Upserts older than the purged tombstones, of keys that the table does not have."""
    if of_keys.rules.purged_until is None:
        return None
    metadata = of_keys.rules.order.metadata
    condition = is_old(metadata, of_keys.rules.purged_until)
    old = rows.where(f"{condition} AND NOT coalesce({metadata}.is_deleted, false)").alias("s")
    if old.isEmpty():
        return None
    return old.join(of_keys.events().alias("t"), F.expr(same_key(of_keys.keys)), "left_anti").toArrow()


def _value(name: str, source: DataFrame, keys: Sequence[str], rules: MergeRules) -> str:
    """What a column of a row that is there becomes."""
    old, new = f"t.{quoted(name)}", f"s.{quoted(name)}"
    text = new
    if f"{UNSAID}{name}" in source.columns:
        mask = f"s.{quoted(UNSAID + name)}"
        is_dead = f"coalesce(t.{DELETED}, false)"
        if TOMBSTONE in source.columns:
            is_dead = f"({is_dead} OR coalesce(s.{TOMBSTONE} > {number_text('t', rules.order)}, false))"
        text = f"CASE WHEN {mask} AND NOT {is_dead} THEN {old} ELSE {text} END"
    if rules.keep_deleted_values and name not in (*keys, rules.order.metadata, DELETED, DELETED_AT):
        text = f"CASE WHEN s.{DELETED} AND {new} IS NULL THEN {old} ELSE {text} END"
    return text
