"""Engine `spark`: Spark's own MERGE, for merged tables that a task must not write, or that are too large for one.

The same rules as engine `task` (merge_rows.py), as SQL. Idempotence is the guard by sequence; the batch's transaction
follows in an empty append of its own, since MERGE takes a transaction id from the session's settings only, which other
tables share (delta-io/delta#3934).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from distributary.changes.anew import TIMES, BegunAnew
from distributary.changes.digits import FIRST_LAYOUT, LAYOUTS, MOVED, PREFIX, UNCHANGED, WIDTH
from distributary.changes.handed_on import HandedOn
from distributary.changes.model import DEBEZIUM
from distributary.changes.reduce import KEY_LEFT, KEY_TAKEN, METADATA, NUMBER
from distributary.changes.sequence import REPAIR_MARGIN_MS, OrderSettings
from distributary.changes.unfilled import Unfilled, may_say
from distributary.names import quoted
from distributary.tables.evolve import Evolution, Slot, evolve
from distributary.tables.merge import Merged, MergeTarget
from distributary.tables.merge_rows import DELETED, DELETED_AT, DELETED_FIELD, Counts, MergeRules
from distributary.tables.snapshot import Txn, columns_of
from distributary.tables.spark_engine import SparkEngine, SparkEngineError, first_line
from distributary.tables.spark_types import arrow_schema
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
    back with the rows that could not be judged (`Merged.late`). A tombstone counts as updated, unlike with engine
    `task`: Delta's metrics do not tell them apart.

    Raises BegunAnew, HandedOn, Unfilled, SparkEngineError, TableFault, OSError.
    """
    uri, table = target.table.uri, target.before
    if table is not None and table.has(txn):
        return Merged()
    engine = SparkEngine(spark, target.table.store)
    if table is not None and rules.settled is not None:
        _ask_for_others(spark, uri, rows, keys, rules.settled)
    if table is not None and rules.has_unchanged and not rules.filled:
        _ask_for_older(spark, uri, rows, keys, rules)
    masks = [name for name in rows.columns if name.startswith(UNSAID)]
    merged_rows = _as_merged(rows.drop(*aside), keys, rules, masks)
    brought = arrow_schema(merged_rows.drop(*masks).schema)
    brought = brought.set(brought.get_field_index(DELETED), DELETED_FIELD)
    evolution = evolve(columns_of(table), [brought], for_spark(target.policy, table))
    engine.prepare(target.table, [brought], target.policy)
    source = _fitted(merged_rows, evolution, masks)
    try:
        plain = source.drop(*(name for name in source.columns if name.startswith(UNSAID)))
        if evolution.changed:
            # New columns first, at any depth, by Delta's own schema merging: an append of no rows.
            plain.limit(0).write.format("delta").mode("append").option("mergeSchema", "true").save(uri)
        late = _late(spark, uri, rows.drop(*masks), keys, rules)
        late_rows = 0 if late is None else late.num_rows
        counts = _merge(spark, uri, source, plain.columns, keys, rules, late_rows)
    except (PySparkException, Py4JJavaError) as e:
        if (pair := re.search(rf"{_ANEW} (\w+) (\w+)", str(e))) is not None:
            raise BegunAnew(pair[1], pair[2], rules.order.kind) from e
        raise SparkEngineError(first_line(e)) from e
    engine.append(plain.limit(0), uri, txn)
    return Merged(counts, created=table is None, evolved=evolution.changed and table is not None, late=late)


def newest_by_spark(rows: DataFrame, keys: Sequence[str], order: OrderSettings) -> DataFrame:
    """One row per key, the newest, of rows that were reduced apart from each other."""
    by_key, rank = ", ".join(f"s.{quoted(key)}" for key in keys), "_rank"
    ranked = rows.alias("s").select(
        "s.*",
        F.expr(f"row_number() OVER (PARTITION BY {by_key} ORDER BY {_number('s', order)} DESC)").alias(rank),
    )
    return ranked.where(f"{rank} = 1").drop(rank)


def _ask_for_others(
    spark: SparkSession, uri: str, rows: DataFrame, keys: Sequence[str], settled: Collection[str]
) -> None:
    """Raises HandedOn where rows of one transaction, none of those `settled`, have handed on a key of the table."""
    if not _has_rows(rows):
        return
    of_transaction = rows.where(f"{METADATA}.source.tx_id IS NOT NULL")
    of_transaction = (
        of_transaction.where(~F.col(f"{METADATA}.source.tx_id").isin(sorted(settled))) if settled else of_transaction
    )
    names = [F.col(quoted(key)) for key in keys]
    brought = of_transaction.select(*names, METADATA).alias("s")
    table = SparkDeltaTable.forPath(spark, uri).toDF().select(*names, METADATA).alias("t")
    halves = ((KEY_LEFT, "DELETE"), (KEY_TAKEN, "INSERT"))
    moves = " OR ".join(_is_of(f"{side}.{METADATA}", *half) for side in "st" for half in halves)
    handed_on = f"{_SAME} AND {_ANOTHER} AND ({moves})"
    met = table.join(brought, F.expr(f"({_on(keys)}) AND {handed_on}"))
    open_transactions = met.select(F.expr(f"s.{METADATA}.source.tx_id").alias("tx")).distinct().collect()
    if open_transactions:
        raise HandedOn({str(row.tx) for row in open_transactions})


def _ask_for_older(spark: SparkSession, uri: str, rows: DataFrame, keys: Sequence[str], rules: MergeRules) -> None:
    """Raises Unfilled where a late event may say what its row lacks."""
    names, metadata = [F.col(quoted(key)) for key in keys], rules.order.metadata
    brought = rows.select(*names, metadata).alias("s")
    table = SparkDeltaTable.forPath(spark, uri).toDF().select(*names, metadata).alias("t")
    late = f"{_number('s', rules.order)} < {_number('t', rules.order)} AND {_LACKS.format(metadata=metadata)}"
    met = table.join(brought, F.expr(f"({_on(keys)}) AND {late}"))
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


def _merge(
    spark: SparkSession,
    uri: str,
    source: DataFrame,
    columns: Sequence[str],
    keys: Sequence[str],
    rules: MergeRules,
    late_rows: int,
) -> Counts:
    oracle = _has_rows(source)
    newer = _newer(rules.order, oracle, rules.settled or ())
    if rules.filled:
        same = f"{_number('s', rules.order)} = {_number('t', rules.order)}"
        newer = f"({newer} OR ({same} AND {_LACKS.format(metadata=rules.order.metadata)}))"
    hard = f"(s.{DELETED})" if rules.deletes == "hard" else "false"
    judged = "true" if rules.purged_until is None else f"NOT {_old('s.' + rules.order.metadata, rules.purged_until)}"
    sets = {quoted(name): _value(name, source, keys, rules) for name in columns}
    inserts = {quoted(name): f"s.{quoted(name)}" for name in columns}
    judged_rows = source.count() - late_rows
    result = (
        SparkDeltaTable.forPath(spark, uri)
        .alias("t")
        .merge(source.alias("s"), _on(keys))
        .whenMatchedDelete(f"{newer} AND {hard}")
        .whenMatchedUpdate(newer, sets)
        .whenNotMatchedInsert(f"NOT {hard} AND {judged}", inserts)
        .execute()
        .first()
    )
    counts = {
        name: int(result[f"num_{name}_rows"] or 0) if result else 0 for name in ("inserted", "updated", "deleted")
    }
    return Counts(**counts, ignored=max(0, judged_rows - sum(counts.values())))


def _late(spark: SparkSession, uri: str, rows: DataFrame, keys: Sequence[str], rules: MergeRules) -> pa.Table | None:
    """Upserts older than the purged tombstones, of keys that the table does not have."""
    if rules.purged_until is None:
        return None
    metadata = rules.order.metadata
    old = rows.where(f"{_old(metadata, rules.purged_until)} AND NOT coalesce({metadata}.is_deleted, false)").alias("s")
    if old.isEmpty():
        return None
    table_keys = SparkDeltaTable.forPath(spark, uri).toDF().select(*(F.col(quoted(key)) for key in keys)).alias("t")
    return old.join(table_keys, F.expr(_on(keys)), "left_anti").toArrow()


def _old(metadata: str, purged_until: int) -> str:
    backfill = f"coalesce({metadata}.is_backfill, false)"
    return f"(NOT {backfill} AND coalesce({metadata}.source_timestamp, 0) < {purged_until})"


def _on(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)


def _value(name: str, source: DataFrame, keys: Sequence[str], rules: MergeRules) -> str:
    """What a column of a row that is there becomes."""
    old, new = f"t.{quoted(name)}", f"s.{quoted(name)}"
    text = new
    if f"{UNSAID}{name}" in source.columns:
        mask = f"s.{quoted(UNSAID + name)}"
        text = f"CASE WHEN {mask} AND NOT coalesce(t.{DELETED}, false) THEN {old} ELSE {text} END"
    if rules.keep_deleted_values and name not in (*keys, rules.order.metadata, DELETED, DELETED_AT):
        text = f"CASE WHEN s.{DELETED} AND {new} IS NULL THEN {old} ELSE {text} END"
    return text


# -- the order of events, as SQL -----------------------------------------------------------------------------


_LACKS = f"coalesce(contains(t.{{metadata}}.schema_key, '{UNCHANGED}'), false)"
"""The row does not say all its values itself."""
_SAME = f"(s.{METADATA}.source.tx_id = t.{METADATA}.source.tx_id)"
_ANOTHER = f"(s.{METADATA}.source.row_id <> t.{METADATA}.source.row_id)"


def _newer(order: OrderSettings, oracle: bool, settled: Collection[str]) -> str:
    newer = _of_one_log(f"({_number('s', order)} > {_number('t', order)})", order)
    if not oracle:
        return newer
    key_left = {side: _is_of(f"{side}.{METADATA}", KEY_LEFT, "DELETE") for side in "st"}
    both = f"coalesce({_SAME} AND {_ANOTHER}, false)"
    key_taken = {side: _is_of(f"{side}.{METADATA}", KEY_TAKEN, "INSERT") for side in "st"}
    weak = f"({key_left['s']} AND {key_taken['t']} AND {both}{_open(settled)})"
    strong = f"({key_left['t']} AND {key_taken['s']} AND {both})"
    return f"(({newer} AND NOT {weak}) OR {strong})"


def _is_of(metadata: str, moved: str, alone: str) -> str:
    """As `changes.reduce` tells the two halves of a key's move, as SQL."""
    perhaps = f"({metadata}.change_type = '{alone}' AND startswith({metadata}.read_method, '{DEBEZIUM}'))"
    return f"coalesce({metadata}.change_type = '{moved}' OR {perhaps}, false)"


def _open(settled: Collection[str]) -> str:
    """Not where all events of the transaction have been weighed."""
    if not settled:
        return ""
    named = ", ".join("'" + tx.replace("\\", "\\\\").replace("'", "\\'") + "'" for tx in sorted(settled))
    return f" AND s.{METADATA}.source.tx_id NOT IN ({named})"


def _number(side: str, order: OrderSettings) -> str:
    """`standing`, as SQL."""
    number = f"{side}.{order.metadata}.{NUMBER}"
    ours = f"coalesce(length({number}) = {WIDTH}, false)"
    rest = f"CASE WHEN {ours} THEN {_todays(number, order.kind)} ELSE '{'0' * (WIDTH - PREFIX)}' END"
    if not order:
        return rest
    time = f"coalesce({side}.{order.metadata}.source_timestamp, 0)"
    backfill = f"coalesce({side}.{order.metadata}.is_backfill, false)"
    starts = sorted(order.repair_backfills)
    of_row = " + ".join(f"int({start} <= {time})" for start in starts) or "0"
    of_change = " + ".join(f"int({start - REPAIR_MARGIN_MS} <= {time})" for start in starts) or "0"
    epoch = "0"
    for since, name in sorted(order.epochs):
        epoch = f"CASE WHEN {time} >= {since} THEN {name} ELSE {epoch} END"
    generation = f"CASE WHEN {backfill} THEN {of_row} ELSE {of_change} END"
    prefix = f"concat(lpad(lower(hex({generation})), 2, '0'), lpad(lower(hex({epoch})), 4, '0'))"
    return f"concat(CASE WHEN {ours} THEN {prefix} ELSE '{'0' * PREFIX}' END, {rest})"


_ANEW = "two changes of one row are not of one log:"


def _of_one_log(newer: str, order: OrderSettings) -> str:
    """`anew.check`, as SQL: the condition `newer`, which ends the query where the two cannot be of one log."""
    if order.kind not in TIMES:
        return newer
    ours, theirs = _number("s", order), _number("t", order)
    prefix = PREFIX if order else 0
    begin, end = TIMES[order.kind]
    time = {
        n: f"cast(conv(substring({n}, {prefix + begin + 1}, {end - begin}), 16, 10) AS bigint)" for n in (ours, theirs)
    }
    earlier = f"CASE WHEN {newer} THEN {time[ours]} ELSE {time[theirs]} END"
    later = f"CASE WHEN {newer} THEN {time[theirs]} ELSE {time[ours]} END"
    changes = " AND ".join(f"substring({n}, {prefix + 1}, 1) >= '{FIRST_LAYOUT}'" for n in (ours, theirs))
    same_prefix = f"substring({ours}, 1, {prefix}) = substring({theirs}, 1, {prefix})"
    anew = f"{changes} AND {same_prefix} AND {later} - {earlier} > {order.margin_ms}"
    both = f"CASE WHEN {newer} THEN concat({ours}, ' ', {theirs}) ELSE concat({theirs}, ' ', {ours}) END"
    return f"(CASE WHEN {anew} THEN cast(raise_error(concat('{_ANEW} ', {both})) AS boolean) ELSE {newer} END)"


def _todays(number: str, kind: str) -> str:
    """The digits behind generation and epoch; those of the first layout in the places that they have in today's."""
    digits = f"substring({number}, {PREFIX + 1})"
    if kind not in MOVED:
        return digits
    begin = PREFIX + 2
    pieces = [
        f"'{piece}'" if isinstance(piece, str) else f"substring({number}, {begin + piece[0]}, {piece[1] - piece[0]})"
        for piece in MOVED[kind]
    ]
    old = f"substring({number}, {PREFIX + 1}, 1) = '{FIRST_LAYOUT}'"
    return f"CASE WHEN {old} THEN concat('{LAYOUTS[kind]}', {', '.join(pieces)}) ELSE {digits} END"


def _has_rows(source: DataFrame) -> bool:
    kinds = {field.name: field.dataType for field in source.schema.fields}
    text = kinds[METADATA].simpleString() if METADATA in kinds else ""
    if "row_id" not in text or "tx_id" not in text:
        return False
    return source.where(f"{METADATA}.source.row_id IS NOT NULL").limit(1).count() > 0
