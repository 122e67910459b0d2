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

from distributary.tables.engines import in_place, spark_needed
from distributary.tables.evolve import Evolution, Policy, evolve, widened_in_words
from distributary.tables.faults import CommitConflict
from distributary.tables.put_once import cannot_put_once
from distributary.tables.rewrite import is_elsewhere, live_files
from distributary.tables.snapshot import Snapshot, columns_of

Within = Callable[[Mapping[str, str]], bool]
"""Of a partition's values: can it hold the columns in question?"""


def evolve_table(
    table: Snapshot | None,
    schema: pa.Schema | None,
    incoming: Sequence[pa.Schema],
    policy: Policy,
    *,
    partitioned_by: Sequence[str] = (),
    within: Within | None = None,
) -> Evolution:
    """`evolve` for a table as it is open (`schema`: its columns, as the caller sees them): wider types only where the
    table can get them. The table's files are looked at only where a column would get one. Raises TableFault."""
    evolution = evolve(schema, incoming, policy)
    if table is None or not evolution.widened or in_place(policy, table):
        return evolution
    if why_not_rewritten(table, policy, partitioned_by, within) is None:
        return evolution
    return evolve(schema, incoming, replace(policy, can_widen=False))


def growing(table: Snapshot | None, policy: Policy) -> Callable[[pa.Schema | None, Sequence[pa.Schema]], Evolution]:
    """(columns, incoming schemas) -> `evolve_table`; without `table`, no column that is there gets another
    type."""

    def grow(schema: pa.Schema | None, incoming: Sequence[pa.Schema]) -> Evolution:
        if table is None:
            return evolve(schema, incoming, replace(policy, can_widen=False))
        return evolve_table(table, schema, incoming, policy)

    return grow


def settled(table: Snapshot | None, schema: pa.Schema | None) -> Evolution:
    """The evolution of a table to the columns that were decided upon, once files in them have been written.

    Raises CommitConflict where the table has been given others since.
    """
    assert schema is not None
    evolution = evolve(columns_of(table), [schema], Policy())
    kinds = {field.name: field.type for field in evolution.schema}
    # What the files lack is null in their rows.
    lacks = any(not field.nullable and field.name not in schema.names for field in evolution.schema)
    if lacks or any(kinds.get(field.name) != field.type for field in schema):
        raise CommitConflict("the table has got other columns than those that were decided upon")
    return evolution


def said_of(table: Snapshot | None, evolution: Evolution) -> dict[str, str]:
    """What `evolution` widens of the table, in words: path -> `int -> bigint`."""
    if table is None or not evolution.widened:
        return {}
    return widened_in_words(table.schema, evolution.schema)


def for_spark(policy: Policy, table: Snapshot | None) -> Policy:
    """The policy where engine `spark` writes: it does not write tables anew."""
    return replace(policy, can_widen=policy.can_widen and in_place(policy, table))


def why_not_rewritten(
    table: Snapshot,
    policy: Policy,
    partitioned_by: Sequence[str] = (),
    within: Within | None = None,
) -> str | None:
    """Why the table's files are not written anew, in words; None where they can be."""
    if policy.rewrite_up_to is None:
        return "the settings"
    if (why := spark_needed(table, partitioned_by)) is not None:
        return why
    # Whoever switched them on may have written some, and a rewritten file would bring deleted rows back.
    if "deletionVectors" in table.reader_features:
        return "deletion vectors"
    if (why := cannot_put_once(table.uri, table.store)) is not None:
        return why
    files = [live.file for live in live_files(table) if within is None or within(live.partition)]
    if any(is_elsewhere(file.path) for file in files):
        return "files outside its folder, as in a clone"
    if (size := sum(file.size for file in files)) > policy.rewrite_up_to:
        return f"{size:,} bytes; {policy.rewrite_up_to:,} are rewritten at most"
    return None
