"""What the keys of messages need of the rest of a pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributary.config.base import fault
from distributary.config.debezium import check_debezium

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline

OF_KEYED = ("deleted_values", "merge_engine_rows", "merge", "tombstones", "tombstone_retention", "history")
"""Keys of change files that mean the same for messages with keys."""
ORDERS_OF_RECORDS = ("_origin.timestamp", "_origin.offset")
"""What is known of each record, and says which of two is newer."""
LAYOUTS = {
    "wide": "one table of all routes gets every message: give layout fanout",
    "declarative": "a declarative pipeline appends: give layout fanout",
}
"""Layouts without keys, and why."""


def check_keyed(config: Pipeline) -> None:
    """Raises ConfigError for keys of messages that cannot work."""
    tables = config.tables
    _check_history(config)
    if tables.tombstones == "beside":
        _check_beside(config)
    if config.holds_changes:
        for key in ("keys", "newest_by"):
            if getattr(tables, key):
                detail = "the events of change files name their keys and their order; keys can be given by route"
                raise fault(f"tables.{key}", f"not allowed with change files: {detail}")
        for route, table_config in tables.routes.items():
            if table_config.newest_by is not None:
                raise fault(f"tables.routes.{route}.newest_by", "not allowed with change files, which have an order")
        if tables.message_log is not None:
            raise fault("tables.log", "change files have tables by source table: allowed is {table}, not {route}")
        return
    if config.envelope.is_debezium:
        check_debezium(config)
        return
    _check_log(config)
    _check_record_key(config)
    if not tables.has_keys:
        for key, value in tables.each("newest_by").items():
            if value is not None:
                raise fault(key, "it decides between messages of one key: give tables.keys too")
        return
    if config.payload.is_inferred:
        for key, keys in tables.each("keys").items():
            if not set(keys or ()) <= {*config.payload.columns, getattr(config.source.record_key, "column", None)}:
                raise fault(key, "with payload.types inferred, a key needs one type: declare it in payload.columns")
    for key, column in tables.each("newest_by").items():
        if column is not None and column.startswith("_origin.") and column not in ORDERS_OF_RECORDS:
            raise fault(key, f"of a record itself, allowed are {' and '.join(ORDERS_OF_RECORDS)}")
    if why := LAYOUTS.get(config.layout):
        raise fault("tables.keys", f"not allowed with layout {config.layout}: {why}")


def _check_beside(config: Pipeline) -> None:
    """Raises ConfigError for what tombstones beside a table do not go with."""
    tables = config.tables
    if tables.deleted_values == "keep":
        raise fault("tables.deleted_values", "beside a table, only the key of a deleted row is kept: leave it out")
    if tables.managed:
        raise fault("tables.tombstones", "a managed table has no folder of ours to put them in: leave it out")


def _check_log(config: Pipeline) -> None:
    tables = config.tables
    if tables.log == type(tables).model_fields["log"].get_default():
        return
    if tables.message_log is None:
        raise fault("tables.log", "of messages, a log is named by the route: allowed is a name with {route} in it")
    if not tables.has_keys:
        raise fault("tables.log", "without tables.keys every message is in its table already: leave it out")
    if tables.message_log == tables.name:
        raise fault("tables.log", "log and name need different names")


def _check_history(config: Pipeline) -> None:
    tables = config.tables
    if tables.history is None:
        return
    of_tables = config.holds_changes or config.envelope.is_debezium
    if of_tables and "{route" in tables.history:
        raise fault("tables.history", "tables are named by source table: allowed are {database}, {schema} and {table}")
    if not of_tables and "{route" not in tables.history:
        raise fault("tables.history", "of messages, it is named by the route: allowed is a name with {route} in it")
    if tables.history == tables.name:
        raise fault("tables.history", "history and name need different names")
    if (tables.log if of_tables else tables.message_log) is None:
        raise fault("tables.history", "a history is made, made anew and verified from the log: give tables.log too")
    if of_tables and tables.merged is None:
        raise fault("tables.history", "a history goes with the merged table: give tables.merged too")
    if "type_widening" in (tables.evolution.type_change, *(tables.for_route(r)[1].type_change for r in tables.routes)):
        raise fault("tables.history", "a history is written by tasks, and type_widening is Spark's: give widen")


def _check_record_key(config: Pipeline) -> None:
    """Of `source.key`: a record without a value says nothing but its key, so that must say all there is to know."""
    tables, record_key = config.tables, config.source.record_key
    if record_key is None:
        return
    if record_key.has_schema and config.registry is None:
        raise fault("registry", f"keys of format {record_key.format} need a registry: give url (a server) or path")
    if not tables.has_keys:
        return
    names = record_key.names
    if wrong := [key for key, keys in tables.each("keys").items() if keys and sorted(keys) != sorted(names)]:
        raise fault(wrong[0], f"the record's key (source.key) is the key: allowed is [{', '.join(names)}]")
    if not config.envelope.route.of_record or config.envelope.format != "none":
        detail = "a record without a value has no message that could say its route: give envelope none, and a route "
        raise fault("source.key", f"{detail}by topic, header or constant")
    if config.envelope.route.place == "key":
        raise fault("source.key", "the record's key says the route already, so it tells no rows apart")
    for key, column in tables.each("newest_by").items():
        if column is not None and not column.startswith("_origin."):
            detail = f"a record without a value, which deletes its row, has no {column!r}"
            raise fault(key, f"{detail}: allowed with source.key is _origin.timestamp, or nothing")
