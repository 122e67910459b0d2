"""Keys of a pipeline file that do not go together. A key that would mean nothing is a fault, not silence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distributary.config.base import fault, is_given
from distributary.config.databricks import not_on_databricks
from distributary.config.described import check_described
from distributary.config.environment import environment
from distributary.config.keyed import OF_KEYED, check_keyed
from distributary.config.layouts import Bronze
from distributary.config.managed import check_managed
from distributary.config.places import check_places
from distributary.config.writing import RouteOverride, Tables
from distributary.names import rules_of

_FIELD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline


def check_together(config: Pipeline) -> None:
    """Raises ValueError, which names the key and what is allowed."""
    _check_changes(config)
    check_keyed(config)
    check_managed(config)
    check_places(config)
    _check_stores(config)
    _check_declarative(config)
    _check_given(config)
    _check_layout(config)
    _check_names(config)
    _check_state_names(config)
    check_described(config)
    if config.envelope.format == "json" and "payload" not in config.model_fields_set:
        detail = "an envelope of JSON does not say what payloads are: give payload: {format: json, framing: none}"
        raise fault("payload", f"{detail}, or another format")
    if config.holds_changes or config.envelope.is_debezium or config.holds_rows:
        return
    if config.registry is None and (config.payload.has_schema or config.envelope.format in ("protobuf", "avro")):
        needing = (
            f"{config.payload.format} payloads" if config.payload.has_schema else f"{config.envelope.format} envelopes"
        )
        detail = f"{needing} need a registry: give url (a server) or path (embedded)"
        raise fault("registry", detail + _instead_of_registry(config))
    _check_route(config)
    _check_fields(config)
    bare = config.envelope.format == "protobuf" and config.envelope.framing == "none"
    if bare and config.envelope.proto is None and config.envelope_subject is None:
        raise fault("envelope.proto", "a bare envelope (framing none) needs its schema: give proto or subject")


def _instead_of_registry(config: Pipeline) -> str:
    """What else may be meant, where a key was left out that would say it."""
    if config.payload.format == "json" and config.envelope.format == "none":
        return "; or, where messages are JSON without a schema, payload: {format: json, framing: none}"
    if not config.payload.has_schema and "format" not in config.envelope.model_fields_set:
        default = "an envelope is protobuf unless envelope.format says otherwise"
        return f"; {default}: none, where the message is the payload"
    return ""


def _check_route(config: Pipeline) -> None:
    """What the route needs of the source, the payload and the layout."""
    source, envelope, route = config.source, config.envelope, config.envelope.route
    if envelope.format == "columns" and not source.has_columns:
        raise fault("envelope.format", "a record of Kafka has no columns: allowed are protobuf, avro, json and none")
    if envelope.format == "none" and not config.payload.is_framed:
        detail = "without an envelope, only the header in front of a message tells its schema: framing confluent"
        raise fault("payload.framing", detail)
    if envelope.format == "none" and not route.of_record:
        kind = config.payload.format
        if kind in ("bytes", "text"):
            raise fault("envelope.route", f"{kind} payloads are not read: allowed are from, header and constant")
        if not config.payload.has_schema and route.place == "message_type":
            raise fault("envelope.route", "without a schema a record has no type: give a field, or where else it is")
        if kind != "protobuf" and (route.oneof is not None or route.any is not None):
            raise fault("envelope.route", f"{kind} has no oneof and no Any: give a field, or where else it is")
    if not source.has_offsets and (route.place == "key" or route.header is not None):
        raise fault("envelope.route", "allowed with source.type kafka only, whose records have keys and headers")
    if route.header is not None and not source.with_headers:
        raise fault("source.headers", "the route is a header: headers must be read, so give source.headers: true")
    if config.is_declarative and route.of_record:
        detail = "with layout declarative the envelope or the message says the route; other layouts take this too"
        raise fault("envelope.route", detail)


def _check_fields(config: Pipeline) -> None:
    """Paths to fields of protobuf and Avro, whose names are letters, digits and `_`."""
    envelope = config.envelope
    message = config.payload if envelope.format == "none" else envelope
    if message.format not in ("protobuf", "avro"):
        return
    route = envelope.route
    paths = {"route": route.field or route.oneof or route.any}
    if envelope.format != "none":
        paths |= {"schema_id": envelope.schema_id, "payload": envelope.payload}
    for key, path in paths.items():
        if path is not None and not _FIELD.fullmatch(path):
            detail = "allowed: letters, digits and _, with dots between the names of a path, as in meta.event_type"
            raise fault(f"envelope.{key}", f"{detail}; this is {path!r}")


def _check_changes(config: Pipeline) -> None:
    """Keys that mean nothing for this kind of source are faults, not silence."""
    if config.holds_changes:
        for key in ("expectations", "select", "include", "exclude"):
            if is_given(config.tables, key):
                raise fault(f"tables.{key}", "not allowed with change files")
        for route, table_config in config.tables.routes.items():
            if table_config.name is not None:
                raise fault(f"tables.routes.{route}.name", "change files make two tables each: give log and merged")
        for key in ("registry", "envelope", "payload"):
            if is_given(config, key):
                raise fault(key, "change files carry their schemas themselves: leave it out")
        if is_given(config.tables, "name"):
            raise fault("tables.name", "change files make two tables each: give tables.log and tables.merged")
        if config.change_files.written_by == "debezium" and (config.tables.log is None or config.tables.merged is None):
            detail = "a value that was not logged is looked for in the log: give log and merged"
            raise fault("tables.log", detail)
        return
    if config.envelope.is_debezium:
        return
    also = OF_KEYED if config.tables.has_keys else ()
    for key in Tables.CHANGE_KEYS:
        if is_given(config.tables, key) and key not in also:
            others = ", and with tables.keys" if key in OF_KEYED else ""
            raise fault(f"tables.{key}", f"allowed with change files and Debezium{others} only")
    for route, table_config in config.tables.routes.items():
        for key in RouteOverride.CHANGE_KEYS:
            if is_given(table_config, key):
                raise fault(f"tables.routes.{route}.{key}", "allowed with change files and Debezium only")


def _check_stores(config: Pipeline) -> None:
    """Spark has a connector for `s3://` on some platforms only; `s3a://` is the one that anybody can add.

    Tables that tasks write, and a state without a checkpoint, need none.
    """
    if "DATABRICKS_RUNTIME_VERSION" in environment():
        for key, why in not_on_databricks(config):
            raise fault(key, why)
        return
    if any("fs.s3." in key for key in config.spark.conf) or "databricks" in config.model_fields_set:
        return
    checkpoint = "checkpoint" if config.checkpoint else "state" if config.state else "tables.root"
    places = [
        ("source.path", config.source.address),
        (checkpoint, config.checkpoint_path),
        ("bronze.path" if config.bronze.path else "tables.root", config.bronze_table),
        ("tables.root", config.tables.root if config.is_declarative else None),
    ]
    for key, place in places:
        if place is not None and place.startswith("s3://"):
            detail = "write s3a://, or name the connector of s3:// as spark.conf's spark.hadoop.fs.s3.impl"
            raise fault(key, f"Spark has no connector for s3:// here: {detail}")


def _check_declarative(config: Pipeline) -> None:
    if not config.is_declarative:
        if is_given(config, "declarative"):
            raise fault("declarative", "allowed with layout: declarative only")
        for key, function in config.tables.each("function").items():
            if function is not None:
                raise fault(key, "allowed with layout: declarative only; use select")
    else:
        for key in ("include", "exclude"):
            if is_given(config.tables, key):
                detail = "with layout declarative, declarative.subject says which routes there are"
                raise fault(f"tables.{key}", detail)
        if config.declarative.silver_as == "sink":
            _check_sink(config)


def _check_sink(config: Pipeline) -> None:
    """One flow writes all silver tables: none of them can wait for itself."""
    for key, function in config.tables.each("function").items():
        if function is not None:
            raise fault(key, "allowed with declarative.silver_as: table only; use select")
    for key, expectations in config.tables.each("expectations").items():
        if any(expectation.otherwise == "fail" for expectation in expectations or ()):
            detail = "with declarative.silver_as: sink, allowed are otherwise: warn and drop; a table cannot wait alone"
            raise fault(key, detail)


def _check_names(config: Pipeline) -> None:
    """Names that two routes could share, where nobody could tell whose a view or a dataset is."""
    if config.layout not in ("wide", "declarative"):
        return
    if rules_of(config.tables.name):
        raise fault("tables.name", f"rules are not allowed with layout {config.layout}; give {{route}} without them")
    for route, table_config in config.tables.routes.items():
        if table_config.name is not None:
            raise fault(f"tables.routes.{route}.name", f"not allowed with layout {config.layout}")


def _check_given(config: Pipeline) -> None:
    """A DataFrame's rows are appended, each to one table."""
    if not config.source.is_given:
        return
    if not config.is_fanout:
        raise fault("layout", "with source.type dataframe there is one layout; leave it out")
    if config.tables.has_keys or config.envelope.is_debezium:
        key = "tables.keys" if config.tables.has_keys else "envelope"
        raise fault(key, "not allowed with source.type dataframe, whose rows are appended")
    if config.holds_rows and is_given(config, "envelope"):
        raise fault("envelope", "a DataFrame's rows are those of the tables; with messages in them, give payload too")


def _check_state_names(config: Pipeline) -> None:
    if config.state_database is None:
        return
    if config.is_declarative:
        raise fault("state_database", "not allowed with layout declarative, whose datasets have names")
    if config.source.is_given:
        raise fault("state_database", "not allowed with source.type dataframe: no run of ours is there to give names")
    if config.tables.unity and config.tables.unity.names and config.state_database.count(".") != 1:
        raise fault("state_database", "tables.unity.names needs the catalog and the schema, as in main.operations")


def _check_layout(config: Pipeline) -> None:
    for layout, key in (("two_hop", "bronze"), ("wide", "wide")):
        if config.layout != layout and is_given(config, key):
            raise fault(key, f"allowed with layout: {layout} only")
    if config.holds_changes and not config.is_fanout:
        raise fault("layout", "change files have one layout; leave it out")
    if config.bronze.new_checkpoint == "continue" and not config.source.has_offsets:
        raise fault("bronze.new_checkpoint", "continue: allowed with source.type kafka only, which has offsets")
    if config.bronze_table is not None:
        names = config.envelope.columns
        for key, name in zip(("route", "schema_id", "payload"), names, strict=True):
            reserved = (*Bronze.COLUMNS, *(["record_key"] if config.source.record_key is not None else ()))
            if name.lower() in reserved or len({n.lower() for n in names}) < len(names):
                raise fault(f"envelope.{key}", f"bronze has a column {name!r} of its own; give the envelope others")
    if config.is_declarative and config.tables.unity and config.tables.unity.names:
        raise fault(
            "tables.unity.names", "not allowed with layout declarative, whose tables have names, which Spark makes"
        )
    if config.shared_table is not None:
        for key, engine in config.tables.each("engine").items():
            if engine == "spark":
                raise fault(key, "a wide table is written by engine task only")
