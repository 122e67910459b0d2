"""Whether a column that is there may take a wider type, and by which means (docs/decisions/0001-wider-columns.md).

- **The table's files written anew** (`rewrite`): the default, where delta-rs may write the table and it is not too
  large. Every reader can open it afterwards.
- **Delta's feature typeWidening**, by Spark: where it was asked for, or is on already. Few readers but Spark can open
  such a table (deltalake 1.6, Polars 2.1 and what reads through them refuse it).
- **Neither**: values of the wider type get a second column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable

from distributary.config import Tables
from distributary.tables import append
from distributary.tables.evolve import Evolution, Policy, evolve, widened_in_words
from distributary.tables.put_once import cannot_put_once
from distributary.tables.rewrite import is_elsewhere, live_files
from distributary.tables.store import Store

FEATURE = "typeWidening"

Within = Callable[[Mapping[str, str]], bool]
"""Of a partition's values: can it hold the columns in question?"""


def evolve_table(
    table: DeltaTable | None,
    schema: pa.Schema | None,
    incoming: Sequence[pa.Schema],
    policy: Policy,
    uri: str,
    store: Store,
    *,
    partitioned_by: Sequence[str] = (),
    within: Within | None = None,
) -> Evolution:
    """`evolve` for a table as it is open (`schema`: its columns, as the caller sees them): wider types only where the
    table can get them. The table's files are looked at only where a column would get one. Raises DeltaError."""
    evolution = evolve(schema, incoming, policy)
    if table is None or not evolution.widened or in_place(policy, table):
        return evolution
    if why_not_rewritten(table, policy, uri, store, partitioned_by, within) is None:
        return evolution
    return evolve(schema, incoming, replace(policy, can_widen=False))


def growing(
    table: DeltaTable | None, policy: Policy, uri: str, store: Store
) -> Callable[[pa.Schema | None, Sequence[pa.Schema]], Evolution]:
    """(columns, incoming schemas) -> `evolve_table`; without `table`, as it is open at `uri`, no column that is there
    gets another type."""

    def grow(schema: pa.Schema | None, incoming: Sequence[pa.Schema]) -> Evolution:
        if table is None:
            return evolve(schema, incoming, replace(policy, can_widen=False))
        return evolve_table(table, schema, incoming, policy, uri, store)

    return grow


def settled(table: DeltaTable | None, schema: pa.Schema | None) -> Evolution:
    """The evolution of a table to the columns that were decided upon, once files in them have been written.

    Raises CommitConflict where the table has been given others since.
    """
    assert schema is not None
    found = None if table is None else append.arrow_schema(table)
    evolution = evolve(found, [schema], Policy())
    kinds = {field.name: field.type for field in evolution.schema}
    if any(kinds.get(field.name) != field.type for field in schema):
        raise append.CommitConflict("the table has got other columns than those that were decided upon")
    return evolution


def policy_of(tables: Tables, route: str) -> Policy:
    """What the settings let happen to the columns of a route's table."""
    engine, rules = tables.for_route(route)
    asked = rules.type_change == "type_widening"
    return Policy(
        rules.new_column,
        "widen" if rules.type_change == "type_widening" else rules.type_change,
        type_widening=asked,
        rewrite_up_to=None if asked or engine == "spark" else rules.rewrite_up_to,
        max_columns=rules.max_columns,
    )


def said_of(table: DeltaTable | None, evolution: Evolution) -> dict[str, str]:
    """What `evolution` widens of the table, in words: path -> `int -> bigint`."""
    if table is None or not evolution.widened:
        return {}
    return widened_in_words(append.arrow_schema(table), evolution.schema)


def in_place(policy: Policy, table: DeltaTable | None) -> bool:
    """Does this table get wider columns by Delta's own feature, and so by Spark?"""
    return policy.type_widening or has_feature(table)


def has_feature(table: DeltaTable | None) -> bool:
    return table is not None and FEATURE in (table.protocol().writer_features or [])


def for_spark(policy: Policy, table: DeltaTable | None) -> Policy:
    """The policy where engine `spark` writes: it does not write tables anew."""
    return replace(policy, can_widen=policy.can_widen and in_place(policy, table))


def why_not_rewritten(
    table: DeltaTable,
    policy: Policy,
    uri: str,
    store: Store,
    partitioned_by: Sequence[str] = (),
    within: Within | None = None,
) -> str | None:
    """Why the table's files are not written anew, in words; None where they can be."""
    if policy.rewrite_up_to is None:
        return "the settings"
    if (why := append.spark_needed(table, partitioned_by)) is not None:
        return why
    # Whoever switched them on may have written some, and a rewritten file would bring deleted rows back.
    if "deletionVectors" in (table.protocol().reader_features or []):
        return "deletion vectors"
    if (why := cannot_put_once(uri, store)) is not None:
        return why
    files = [live.file for live in live_files(table) if within is None or within(live.partition)]
    if any(is_elsewhere(file.path) for file in files):
        return "files outside its folder, as in a clone"
    if (size := sum(file.size for file in files)) > policy.rewrite_up_to:
        return f"{size:,} bytes; {policy.rewrite_up_to:,} are rewritten at most"
    return None
