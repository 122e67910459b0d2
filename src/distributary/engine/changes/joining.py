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
    tables = [pa.schema(list(append.columns())[: append.known]) for append in appends if append.known]
    incoming = list(dict.fromkeys(_schema(body) for append in appends for body in append.incoming))
    if not tables:
        return evolve(None, incoming, policy).schema
    # Where the table's own columns had to grow, each task has decided that already, in the same way.
    table = evolve(None, tables, Policy()).schema
    return evolve(table, incoming, replace(policy, can_widen=False)).schema


def _schema(body: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(body))


def agrees(all_columns: pa.Schema, columns: pa.Schema) -> bool:
    """Does every column of `columns` have the type that it has in `all_columns`?"""
    kinds = {f.name: f.type for f in all_columns}
    return all(kinds.get(f.name) == f.type for f in columns)
