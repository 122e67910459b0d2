"""Outcomes of several tasks with one route, as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from distributary.changes.model import SourceTable, known_one
from distributary.engine.changes.orders import ChangeOutcome
from distributary.tables.evolve import Policy, evolve


def joined(one: ChangeOutcome | None, other: ChangeOutcome) -> ChangeOutcome:
    """`one` with what `other` did."""
    if one is None:
        return other
    if one.source is not None and other.source is not None:
        one.source = known_one(one.source, other.source)
    one.rows_in += other.rows_in
    one.rows_written += other.rows_written
    one.files += other.files
    one.reasons = dict(Counter(one.reasons) + Counter(other.reasons))
    one.newest_ms = max((ms for ms in (one.newest_ms, other.newest_ms) if ms is not None), default=None)
    one.brought |= other.brought
    one.seconds["log"] = one.seconds.get("log", 0.0) + other.seconds.get("log", 0.0)
    one.changed = one.changed or other.changed
    one.created, one.evolved = one.created or other.created, one.evolved or other.evolved
    one.widened |= other.widened
    one.tip = other.tip or one.tip
    for path, numbers in other.again.items():
        one.again.setdefault(path, []).extend(numbers)
    if one.schema is not None and other.schema is not None:
        # They agree on the types (`agrees`): this only adds columns.
        one.schema = evolve(schema_of(one), [schema_of(other)], Policy()).schema.serialize().to_pybytes()
    if other.error:
        one.state, one.error = other.state, other.error
    merged = one.merge_created
    take_merge(one, other)
    one.merge_created = one.merge_created or merged
    return one


_WORSE = ("off", "append_only", "merged", "rows", "waiting", "parked")


def take_merge(outcome: ChangeOutcome, merged: ChangeOutcome) -> None:
    """Enter what a merge did. Of two states the one that leaves more to do counts."""
    if outcome.merge_state == "rows" or _WORSE.index(merged.merge_state) > _WORSE.index(outcome.merge_state):
        outcome.merge_state, outcome.merge_error = merged.merge_state, merged.merge_error
        outcome.anew = outcome.anew or merged.anew
    outcome.merge_created = merged.merge_created
    outcome.by_spark = outcome.by_spark or merged.by_spark
    outcome.merge_spark, outcome.merge_files = merged.merge_spark, merged.merge_files
    outcome.merge_tip = merged.merge_tip or outcome.merge_tip
    outcome.store_fault = outcome.store_fault or merged.store_fault
    outcome.store_doubt = outcome.store_doubt or merged.store_doubt
    outcome.upserts += merged.upserts
    outcome.deletes += merged.deletes
    outcome.stale += merged.stale
    outcome.late += merged.late
    outcome.resolved += merged.resolved
    for name in ("reduce", "merge"):
        outcome.seconds[name] = outcome.seconds.get(name, 0.0) + merged.seconds.get(name, 0.0)


def schema_of(outcome: ChangeOutcome) -> pa.Schema:
    """The columns of an outcome's files; none where it has none."""
    return pa.schema([]) if outcome.schema is None else _schema(outcome.schema)


def columns_of_all(outcomes: Sequence[ChangeOutcome], policy: Policy) -> pa.Schema:
    """The columns that hold the events of all outcomes of one route.

    By what the events brought, not by what each task made of it: alone with `ID`, a task calls the column of its second
    type `ID__bigint`, and beside the `id` of another task that would pass for the column of a field of its own.
    """
    known = [pa.schema(list(schema_of(o))[: o.known]) for o in outcomes if o.known]
    incoming = list(dict.fromkeys(_schema(body) for o in outcomes for body in o.incoming))
    if not known:
        return evolve(None, incoming, policy).schema
    # Where the table's own columns had to grow, each task has decided that already, in the same way.
    table = evolve(None, known, Policy()).schema
    return evolve(table, incoming, replace(policy, can_widen=False)).schema


def _schema(body: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(body))


def agrees(whole: pa.Schema, part: pa.Schema) -> bool:
    """Does every column of `part` have the type that it has in `whole`?"""
    kinds = {f.name: f.type for f in whole}
    return all(kinds.get(f.name) == f.type for f in part)


def source_of(outcome: ChangeOutcome) -> SourceTable:
    assert outcome.source is not None
    return outcome.source
