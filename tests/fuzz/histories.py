"""Random histories of databases, as files, through the product's reading, order and merge without Spark: the table is
what the database holds. The histories come from an engine of their own (`tests.histories`)."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from distributary.changes.file_events import read_events
from distributary.changes.handed_on import HandedOn, in_transactions, of_keys
from distributary.changes.model import METADATA, Reading
from distributary.changes.reduce import reduce_rows
from distributary.changes.sequence import OrderSettings
from distributary.tables.merge_rows import DELETED, Incoming, MergeRules, as_merged
from distributary.tables.merge_values import completed
from tests.histories.engine import KINDS, Engine
from tests.histories.files import File, write

HELP = "random histories of databases as change files, against what the database holds"


class Difference(AssertionError):
    """A table is not what its database holds."""


def history(seed: str) -> tuple[Engine, list[File], Random]:
    """The same one for the same seed."""
    dice = Random(seed)
    engine = Engine(dice.choice(KINDS), dice)
    engine.live(dice.choice((3, 8, 20, 60)))
    return engine, write(engine, dice), dice


def check(seed: str, counts: Counter[str]) -> None:
    """Raises Difference."""
    engine, files, dice = history(seed)
    counts.update({"histories": 1, "events": _compare(seed, engine, files, dice), "epochs": len(engine.epochs)})
    counts.update({f"histories of {engine.kind}": 1})


def check_handed_on(seed: str) -> None:
    """Transactions of Oracle that hand a key on more than once, in any batches. Raises Difference."""
    dice = Random(seed)
    engine = Engine("oracle", dice, hands_on=True)
    engine.live(dice.choice((3, 8, 20, 60)))
    _compare(seed, engine, write(engine, dice), dice)


def _compare(seed: str, engine: Engine, files: Sequence[File], dice: Random) -> int:
    """Number of events. Raises Difference."""
    order = OrderSettings(tuple((ms, n) for n, ms in enumerate(engine.epochs, 1)), kind=engine.kind)
    key = "_id" if engine.kind == "mongodb" else "id"
    table: pa.Table | None = None
    log: list[pa.Table] = []
    while files:
        size = dice.choice((1, 2, len(files)))
        log.append(_rows(files[:size]))
        files = files[size:]
        table = merged(table, log, key, MergeRules(order=order, settled=frozenset()))
    found = _living(table, engine.kind)
    if found != engine.expected:
        keys = [k for k in {*found, *engine.expected} if found.get(k) != engine.expected.get(k)]
        more = [(found.get(k), engine.expected.get(k)) for k in keys]
        raise Difference(f"{engine.kind}, seed {seed}: keys {keys}: found and expected {more}")
    return sum(rows.num_rows for rows in log)


def _rows(files: Sequence[File]) -> pa.Table:
    parts = []
    for file in files:
        read = read_events(file.body, file.name, Reading(), file.schema)
        if read.bad or len({events.table.route for events in read.events}) > 1:
            raise Difference(f"{file.name}: {[bad.detail for bad in read.bad[:3]]}")
        parts += [events.rows for events in read.events]
    return pa.concat_tables(parts, promote_options="permissive").combine_chunks()


def merged(table: pa.Table | None, log: Sequence[pa.Table], key: str, rules: MergeRules) -> pa.Table:
    """The table after the last batch of the log."""
    try:
        return _with(table, log[-1], key, rules)
    except HandedOn as e:
        others = in_transactions(pa.concat_tables(log, promote_options="permissive"), e.transactions)
        return _with(table, of_keys(log[-1], others, [key]), key, replace(rules, settled=e.transactions))


def _with(table: pa.Table | None, rows: pa.Table, key: str, rules: MergeRules) -> pa.Table:
    new = as_merged(reduce_rows(rows, [key], rules.order).rows, [key], rules)
    if table is None:
        return new
    both = pa.unify_schemas([table.schema, new.schema], promote_options="permissive")
    table, new = _fitted(table, both), _fitted(new, both)
    incoming = Incoming(new, [key], rules)
    at, mine, wins = incoming.meet(table)
    verdict = incoming.verdict()
    keep = np.ones(table.num_rows, bool)
    keep[at[wins]] = False
    changed = completed(incoming, np.flatnonzero(verdict.replaces), table.take(pa.array(at[wins])), mine[wins], {})
    return pa.concat_tables([table.filter(pa.array(keep)), changed, incoming.rows.filter(pa.array(verdict.new))])


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), rows], promote_options="permissive").combine_chunks()


def _living(table: pa.Table | None, kind: str) -> dict[int, dict[str, Any]]:
    rows = [] if table is None else table.drop_columns([METADATA]).to_pylist()
    living = [row for row in rows if not row[DELETED]]
    if kind == "mongodb":
        living = [json.loads(row["data"]) for row in living]
    names = ("id", "ref", "n", "v")
    if len({row["id"] for row in living}) != len(living):
        raise Difference("a key is there twice")
    return {row["id"]: {name: row.get(name) for name in names} for row in living}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=20_000, help="histories")
    parser.add_argument("--workers", type=int, default=2, help="processes")


def main(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Ends at `count` histories, or after `seconds`; the first ten that differ are in the report."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    started = time.monotonic()
    seeds = (f"{arguments.seed}:{number}" for number in range(arguments.count))
    with ProcessPoolExecutor(arguments.workers) as pool:
        while some := list(islice(seeds, AT_A_TIME * arguments.workers)):
            for found, said in pool.map(_checked, some, chunksize=AT_A_TIME // 4):
                counts.update(found)
                wrong += said
            if 0 < arguments.seconds < time.monotonic() - started:
                break
    seconds = round(time.monotonic() - started, 1)
    report = {"seed": arguments.seed, **counts, "seconds": seconds, "wrong": len(wrong), "first": wrong[:10]}
    return report, int(bool(wrong))


AT_A_TIME = 100
"""Histories of a process between two looks at the clock."""


def _checked(seed: str) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    try:
        check(seed, counts)
    except Exception as e:
        return counts, [f"{type(e).__name__} ({seed}): {e}"[:500]]
    return counts, []
