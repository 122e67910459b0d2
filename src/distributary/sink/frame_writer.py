"""A DataFrame of a user's own -> Spark's writer, all set for a table per route (`dy.fan_out`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from distributary.config import Pipeline, load_document
from distributary.errors import BadInput
from distributary.names import quoted
from distributary.sink.by_routes import RouteRows
from distributary.sink.data_source import DistributarySource, Intake, check_route, packed
from distributary.sink.message_rows import MessageRows
from distributary.sink.sink_options import FORMAT, ROWS_OPTION, SinkOptions

TOLD = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
    "key": "binary",
}
"""Columns of a record of Kafka's, which say where it comes from, and their types in Spark."""


def writer(
    rows: DataFrame,
    *,
    route: str,
    tables: str | Mapping[str, Any],
    payload: str | None,
    schema_id: str | None,
    format: str,
    registry: str | Mapping[str, Any] | None,
    name: str,
    state: str | None,
    repartition: bool,
) -> DataStreamWriter | DataFrameWriter:
    """Spark's writer of the rows. Raises BadInput, ConfigError."""
    for column in (route, payload, schema_id):
        if column is not None and column not in rows.columns:
            raise BadInput(detail=f"there is no column {column!r}. The rows have: {', '.join(rows.columns)}")
    where = {"root": tables} if isinstance(tables, str) else dict(tables)
    document: dict[str, Any] = {"pipeline": name, "tables": where, **({} if state is None else {"state": state})}
    document["source"] = {"type": "dataframe"}
    intake: Intake
    if payload is None:
        check_route(rows.schema, route)
        config = load_document(document)
        intake = RouteRows(SinkOptions(route, config.pipeline, config.tables, config.state_root))
    else:
        config = load_document({**document, **_messages(schema_id, format, registry)})
        rows = _as_read(rows, config, route, payload, schema_id)
        route = config.envelope.columns[0]
        intake = MessageRows(config)
    if repartition:
        rows = rows.repartition(F.col(quoted(route)))
    # Spark would find the format by itself, but tasks get what `--py-files` sent for a registered one only (4.2.0).
    rows.sparkSession.dataSource.register(DistributarySource)
    frame_writer = rows.writeStream if rows.isStreaming else rows.write.mode("append")
    return frame_writer.format(FORMAT).option(ROWS_OPTION, packed(intake))


def _messages(schema_id: str | None, format: str, registry: str | Mapping[str, Any] | None) -> dict[str, Any]:
    settings: dict[str, Any] = {"envelope": {"format": "columns"}, "payload": {"format": format}}
    if schema_id is not None:
        settings["payload"]["framing"] = "none"
    if registry is not None:
        registry_settings = (
            {"url" if "://" in registry else "path": registry} if isinstance(registry, str) else dict(registry)
        )
        settings["registry"] = registry_settings
    return settings


def _as_read(rows: DataFrame, config: Pipeline, route: str, payload: str, schema_id: str | None) -> DataFrame:
    """The columns that a pipeline over columns reads."""
    names = config.envelope.columns
    ids = F.lit(None) if schema_id is None else F.col(quoted(schema_id))
    columns_given = (F.col(quoted(route)).cast("string"), ids.cast("int"), F.col(quoted(payload)))
    origin = [F.col(name) for name in origin_columns(rows.schema) if name not in names]
    return rows.select(*(column.alias(name) for column, name in zip(columns_given, names, strict=True)), *origin)


def origin_columns(schema: StructType) -> list[str]:
    """The columns that say where a record comes from, and go along. One of such a name and another type is the user's
    own, and says something else."""
    return [field.name for field in schema if TOLD.get(field.name) == field.dataType.simpleString()]
