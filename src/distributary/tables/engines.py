"""Which engine may write a table: `task` (delta-rs, from inside a task), or only Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from distributary.config import Tables
from distributary.tables.by_name import is_named
from distributary.tables.evolve import Evolution, Policy
from distributary.tables.put_once import cannot_put_once
from distributary.tables.snapshot import Snapshot

WIDENING = "typeWidening"
"""Delta's own feature for columns that get a wider type."""

TASK_FEATURES = frozenset(
    {"appendOnly", "invariants", "deletionVectors", "changeDataFeed", "v2Checkpoint", "timestampNtz"}
)
"""Table features under which a blind append by delta-rs is right. Any other one means engine `spark`."""

_VARIANT = re.compile(r'"(?:type|elementType|valueType)": ?"variant"')

TASK_PROPERTIES = frozenset(
    {
        "delta.appendOnly",
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.deletedFileRetentionDuration",
        "delta.enableChangeDataFeed",
        "delta.enableDeletionVectors",
        "delta.logRetentionDuration",
    }
)
"""Table properties with which delta-rs can create a table."""


NO_REWRITES = frozenset({"delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableDeletionVectors"})
"""Those of them with which tasks rewrite no file."""


def for_rewrites(properties: Mapping[str, str]) -> dict[str, str]:
    """Of the properties that new tables are to have, those of one that tasks alone write, and rewrite."""
    return {name: value for name, value in properties.items() if name in TASK_PROPERTIES - NO_REWRITES}


def made_by_spark(properties: Mapping[str, str]) -> str | None:
    """Why only Spark can make a table with these properties, in words; None where delta-rs can."""
    unknown = sorted(key for key in properties.keys() - TASK_PROPERTIES if key.startswith("delta."))
    return f"table properties {', '.join(unknown)}" if unknown else None


def why_spark(table: Snapshot | None, tables: Tables, route: str, evolution: Evolution | None = None) -> str | None:
    """Why engine `spark` must append to this route's table, in words; None where engine `task` does. `evolution`: what
    the rows make of its columns."""
    if (why := by_settings(tables, route)) is not None:
        return why
    described = tables.described(route)
    if table is None and (described.partition_by or described.cluster_by):
        return "tables.partition_by" if described.partition_by else "tables.cluster_by"
    if table is not None and (why := spark_needed(table)) is not None:
        return why
    if table is None and (unknown := sorted(described.properties.keys() - TASK_PROPERTIES)):
        return f"table properties {', '.join(unknown)}"
    return evolution.widening if evolution is not None and in_place(policy_of(tables, route), table) else None


def kept_by_catalog(table: Snapshot) -> bool:
    """Are its commits its catalog's, which alone may join and remove its files then?"""
    return "catalogManaged" in table.writer_features


def by_settings(tables: Tables, route: str) -> str | None:
    """As `why_spark`, whatever the table is like."""
    if tables.managed:
        return "tables.managed"
    return "tables.engine" if tables.for_route(route)[0] == "spark" else None


def spark_needed(
    table: Snapshot, partitioned_by: Sequence[str] = (), *, removes: bool = False, vectors: bool = False
) -> str | None:
    """Why delta-rs must not append to this table, in words; None when it may. `partitioned_by`: what it may be.
    `removes`: nor take out files that it has, as merges do; `vectors`: whoever does it minds deletion vectors."""
    if is_named(table.uri):
        return "a table by its name"
    features = table.writer_features
    if not _VARIANT.search(table.schema_json):
        features.discard("variantType")  # deltalake adds this feature to every table that it gives deletion vectors
    if unknown := sorted(features - TASK_FEATURES):
        return f"table features {', '.join(unknown)}"
    if table.partitioned_by != list(partitioned_by):
        return "a partitioned table"
    guarded = [k for k in table.properties if k.startswith("delta.constraints.")]
    if guarded or _has_expressions(table):
        return "constraints, generated or identity columns"
    if table.properties.get("delta.columnMapping.mode", "none") != "none":
        return "column mapping"
    return _why_not_removed(table, vectors) if removes else None


def _why_not_removed(table: Snapshot, vectors: bool) -> str | None:
    if table.properties.get("delta.enableChangeDataFeed", "false").lower() == "true":
        return "a change data feed"
    # Whoever switched the vectors on may have written some, and a rewritten file would bring deleted rows back.
    if not vectors and "deletionVectors" in table.reader_features:
        return "deletion vectors"
    return cannot_put_once(table.uri, table.store)


def policy_of(tables: Tables, route: str) -> Policy:
    """What the settings let happen to the columns of a route's table."""
    engine, rules = tables.for_route(route)
    widens = rules.type_change == "type_widening"
    return Policy(
        rules.new_column,
        "widen" if rules.type_change == "type_widening" else rules.type_change,
        type_widening=widens,
        rewrite_up_to=None if widens or engine == "spark" else rules.rewrite_up_to,
        max_columns=rules.max_columns,
        comments=tables.described(route).column_comments,
    )


def in_place(policy: Policy, table: Snapshot | None) -> bool:
    """Does this table get wider columns by Delta's own feature, and so by Spark?"""
    return policy.type_widening or has_feature(table)


def has_feature(table: Snapshot | None) -> bool:
    return table is not None and WIDENING in table.writer_features


def _has_expressions(table: Snapshot) -> bool:
    text = table.schema_json
    return any(key in text for key in ("delta.generationExpression", "delta.invariants", "delta.identity."))
