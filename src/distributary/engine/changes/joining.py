"""What several tasks did with one route, compared: they must agree on its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from distributary.engine.outcomes import Append
from distributary.tables.evolve import Policy, evolve


def columns_of_all(appends: Sequence[Append], policy: Policy) -> pa.Schema:
    """The columns that hold the events of all parts of one route.

    By what the events brought, not by what each task made of it: alone with `ID`, a task calls the column of its second
    type `ID__bigint`, and beside the `id` of another task that would pass for the column of a field of its own.
    """
    known = [pa.schema(list(one.columns())[: one.known]) for one in appends if one.known]
    incoming = list(dict.fromkeys(_schema(body) for one in appends for body in one.incoming))
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
