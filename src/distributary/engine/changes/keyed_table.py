"""A table of a route that tells its rows apart by a key: the merged one, or its history. What it is, and that its key
columns hold the keys of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from distributary.changes.model import Kind, SourceTable
from distributary.engine.changes.fitting import RESERVED
from distributary.engine.changes.key_columns import KeyTypes, key_types, with_types
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.engine.outcomes import Merge
from distributary.errors import KeysChanged, KeysSwitched, KeyTypeChanged
from distributary.tables.common_types import common_type
from distributary.tables.engines import by_settings, spark_needed
from distributary.tables.evolve import widened_in_words
from distributary.tables.rewrite import rewrite_wider
from distributary.tables.snapshot import Snapshot
from distributary.tables.table import Table


@dataclass(frozen=True)
class Into:
    """The table at `uri`, and what is known of the rows for it. `brought`: columns by schema key. `truncates`: the
    metadata of the TRUNCATEs that come with them (`changes.truncates`)."""

    source: SourceTable
    uri: str
    keys: tuple[str, ...]
    brought: Mapping[str, Sequence[str]]
    truncates: tuple[pa.Array, ...] = ()

    @property
    def route(self) -> str:
        return self.source.route

    def table(self, spec: ChangeSpec) -> Table:
        return spec.target(self.uri, self.route, self.keys)

    def begun(self) -> Merge:
        return Merge(self.uri, "merged")


def hold(merged: pa.Schema, types: KeyTypes) -> bool:
    """Do the table's key columns have these types?"""
    return all(merged.field(key).type == kind for key, kind in types.items() if key in merged.names)


def with_wider_keys(
    into: Into, table: Snapshot | None, rows: pa.Schema, spec: ChangeSpec, widened: dict[str, str]
) -> tuple[Snapshot | None, KeyTypes]:
    """The merged table with key columns that hold the keys of `rows` too, and the types of these.

    Raises KeyTypeChanged, CommitConflict, TableFault, OSError.
    """
    route = into.route
    if table is None:
        return None, key_types(rows, into.keys)
    before = table.schema
    types = key_types(rows, into.keys, before)
    if hold(before, types):
        return table, types
    policy = spec.named.policy(route)
    why = by_settings(spec.named.tables, route) or spark_needed(table, removes=True)
    if why is None:
        after = with_types(before, types)
        rewrite_wider(into.uri, before, after, spec.store)
        widened.update(widened_in_words(before, after))
        return into.table(spec).open(), types
    for key, kind in types.items():
        table_type = before.field(key).type if key in before.names else kind
        if common_type(table_type, kind) is None or policy.type_change != "widen" or not policy.can_widen:
            remedy = f"distributary resync FILE --route {route}"
            if spark_needed(table):
                remedy = f"remove the table, then {remedy}"
            raise KeyTypeChanged(
                route=route, table=into.uri, column=key, known=str(table_type), needed=str(kind), why=why, remedy=remedy
            )
    return table, types


def check_keys(into: Into, table: Snapshot | None) -> None:
    """Raises KeysChanged, or of messages KeysSwitched, when the table's rows are told apart by other columns."""
    owner = table.owner if table is not None else None
    if owner is not None and into.source.kind is Kind.MESSAGES and set(owner.keys) != set(into.keys):
        by = f"by {', '.join(owner.keys)}" if owner.keys else "by nothing, for it holds every message"
        raise KeysSwitched(route=into.route, table=into.uri, detail=f"tells its rows apart {by}")
    if owner is not None and owner.keys and set(owner.keys) != set(into.keys):
        raise KeysChanged(route=into.route, table=into.uri, known=", ".join(owner.keys), found=", ".join(into.keys))


def absent(rows: pa.Table, brought: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Schema key -> columns that its events do not speak of."""
    names = [n for n in rows.column_names if n not in RESERVED]
    return {key: [n for n in names if n not in set(brought_names)] for key, brought_names in brought.items()}
