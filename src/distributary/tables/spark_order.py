"""Order of events (`changes.sequence`, `changes.reduce`) as SQL: of an event `s` and what is known of its key, `t`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from distributary.changes.anew import TIMES
from distributary.changes.digits import FIRST_LAYOUT, LAYOUTS, MOVED, PREFIX, UNCHANGED, WIDTH
from distributary.changes.model import DEBEZIUM
from distributary.changes.reduce import KEY_LEFT, KEY_TAKEN, METADATA, NUMBER
from distributary.changes.sequence import REPAIR_MARGIN_MS, OrderSettings
from distributary.names import quoted

LACKS = f"coalesce(contains(t.{{metadata}}.schema_key, '{UNCHANGED}'), false)"
"""The row does not say all its values itself."""
SAME_TRANSACTION = f"(s.{METADATA}.source.tx_id = t.{METADATA}.source.tx_id)"
ANOTHER_ROW = f"(s.{METADATA}.source.row_id <> t.{METADATA}.source.row_id)"


def newer_text(order: OrderSettings, oracle: bool, settled: Collection[str]) -> str:
    newer = _of_one_log(f"({number_text('s', order)} > {number_text('t', order)})", order)
    if not oracle:
        return newer
    key_left = {side: is_of(f"{side}.{METADATA}", KEY_LEFT, "DELETE") for side in "st"}
    both = f"coalesce({SAME_TRANSACTION} AND {ANOTHER_ROW}, false)"
    key_taken = {side: is_of(f"{side}.{METADATA}", KEY_TAKEN, "INSERT") for side in "st"}
    weak = f"({key_left['s']} AND {key_taken['t']} AND {both}{_open(settled)})"
    strong = f"({key_left['t']} AND {key_taken['s']} AND {both})"
    return f"(({newer} AND NOT {weak}) OR {strong})"


def is_of(metadata: str, moved: str, alone: str) -> str:
    """As `changes.reduce` tells the two halves of a key's move, as SQL."""
    perhaps = f"({metadata}.change_type = '{alone}' AND startswith({metadata}.read_method, '{DEBEZIUM}'))"
    return f"coalesce({metadata}.change_type = '{moved}' OR {perhaps}, false)"


def _open(settled: Collection[str]) -> str:
    """Not where all events of the transaction have been weighed."""
    if not settled:
        return ""
    named = ", ".join("'" + tx.replace("\\", "\\\\").replace("'", "\\'") + "'" for tx in sorted(settled))
    return f" AND s.{METADATA}.source.tx_id NOT IN ({named})"


def number_text(side: str, order: OrderSettings) -> str:
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


ANEW = "two changes of one row are not of one log:"


def _of_one_log(newer: str, order: OrderSettings) -> str:
    """`anew.check`, as SQL: the condition `newer`, which ends the query where the two cannot be of one log."""
    if order.kind not in TIMES:
        return newer
    ours, theirs = number_text("s", order), number_text("t", order)
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
    return f"(CASE WHEN {anew} THEN cast(raise_error(concat('{ANEW} ', {both})) AS boolean) ELSE {newer} END)"


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


def names_rows(source: DataFrame) -> bool:
    kinds = {field.name: field.dataType for field in source.schema.fields}
    text = kinds[METADATA].simpleString() if METADATA in kinds else ""
    if "row_id" not in text or "tx_id" not in text:
        return False
    return source.where(f"{METADATA}.source.row_id IS NOT NULL").limit(1).count() > 0


def is_old(metadata: str, purged_until: int) -> str:
    backfill = f"coalesce({metadata}.is_backfill, false)"
    return f"(NOT {backfill} AND coalesce({metadata}.source_timestamp, 0) < {purged_until})"


def same_key(keys: Sequence[str]) -> str:
    return " AND ".join(f"t.{quoted(key)} <=> s.{quoted(key)}" for key in keys)


def newest_by_spark(rows: DataFrame, keys: Sequence[str], order: OrderSettings) -> DataFrame:
    """One row per key, the newest, of rows that were reduced apart from each other."""
    by_key, rank = ", ".join(f"s.{quoted(key)}" for key in keys), "_rank"
    ranked = rows.alias("s").select(
        "s.*",
        F.expr(f"row_number() OVER (PARTITION BY {by_key} ORDER BY {number_text('s', order)} DESC)").alias(rank),
    )
    return ranked.where(f"{rank} = 1").drop(rank)
