"""What topics of Debezium need of the rest of a pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributary.config.base import fault, is_given

if TYPE_CHECKING:
    from distributary.config.base import Model
    from distributary.config.pipeline import Pipeline

OF_TABLES = (
    "merged",
    "view",
    "deleted_values",
    "merge_engine_rows",
    "merge",
    "tombstones",
    "tombstone_retention",
    "history",
)
OF_ROUTES = ("epochs", "repair_backfills", "log", "merged", "view", "history")
"""Keys of change files that mean the same here."""


def check_debezium(config: Pipeline) -> None:
    """Raises ConfigError for what cannot work."""
    tables, payload = config.tables, config.payload
    if config.source.reads_files:
        detail = "changes of Debezium are read from Kafka, or from a table of its records: allowed are kafka and delta"
        raise fault("source.type", detail)
    if not config.is_fanout:
        raise fault("layout", "changes of Debezium have one layout: leave it out")
    if "format" not in payload.model_fields_set:
        raise fault("payload.format", "say how the messages are written: allowed are json, avro and protobuf")
    if payload.format not in ("json", "avro", "protobuf"):
        raise fault("payload.format", "changes of Debezium have fields: allowed are json, avro and protobuf")
    for key in ("message", "legacy_varints", "raw_nested_indexes"):
        if is_given(payload, key):
            raise fault(f"payload.{key}", "Kafka Connect's converters name each message in its header: leave it out")
    if payload.columns:
        raise fault("payload.columns", "changes of Debezium have columns of their own: leave it out")
    if payload.format == "json" and config.registry is not None:
        raise fault("registry", "JSON of Debezium brings its schemas itself, or has none: leave it out")
    if payload.format != "json":
        if config.envelope.dialect is not None:
            raise fault("payload.format", f"messages of {config.envelope.dialect} are JSON: allowed is json")
        if payload.framing != "confluent":
            raise fault("payload.framing", "a change names its schema in its header: allowed is confluent")
        if config.registry is None:
            raise fault("registry", f"{payload.format} payloads need one: give url (a server) or path (embedded)")
    if tables.log is None or tables.merged is None:
        raise fault("tables.log", "a source table makes two tables, by which they are verified: give log and merged")
    if "{route" in tables.log:
        raise fault("tables.log", "tables are named by source table: allowed are {database}, {schema} and {table}")
    for key in ("keys", "newest_by", "include", "exclude", "expectations", "select"):
        if getattr(tables, key):
            raise fault(f"tables.{key}", "not allowed with envelope debezium; keys can be given by route")
    if is_given(tables, "name"):
        raise fault("tables.name", "a source table makes two tables: give tables.log and tables.merged")
    _refuse(tables, "tables", type(tables).CHANGE_KEYS, OF_TABLES)
    for route, table_config in tables.routes.items():
        _refuse(
            table_config, f"tables.routes.{route}", (*type(table_config).CHANGE_KEYS, "name", "newest_by"), OF_ROUTES
        )


def decoded_format(config: Pipeline) -> str:
    """The format by which a payload becomes columns: a change of Debezium is taken apart when it is delivered."""
    payload = config.payload
    return "bytes" if config.envelope.is_debezium and payload.format == "json" else payload.encoding


def _refuse(model: Model, place: str, keys: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for key in keys:
        if key not in allowed and is_given(model, key):
            raise fault(f"{place}.{key}", "not allowed with envelope debezium")
