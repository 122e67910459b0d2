"""Which data files a micro-batch over a Delta table stands for.

Spark's Delta source decides which files are a batch, and its checkpoint remembers it; this asks the plan of the running
batch for them. Where that can't be asked (Spark Connect, another vendor's plan) or where a file is more than its
columns (deletion vectors, mapped column names, types to be cast), the answer is None, and the rows come by way of
Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from py4j.protocol import Py4JError

from distributary.config import DeltaSource, Envelope, Tables
from distributary.sources.data_files import BatchFiles, SourceColumn, SourceFile, spread
from distributary.sources.delta import ORIGIN_COLUMNS, needed_columns
from distributary.tables.store import Store, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("distributary")

_INDEX = "org.apache.spark.sql.delta.files.TahoeBatchFileIndex"
_KINDS: Mapping[str, Mapping[str, pa.DataType]] = {
    "binary": {"binary": pa.binary()},
    "string": {"string": pa.string()},
    "int": {"integer": pa.int32(), "short": pa.int32(), "byte": pa.int32()},
    "bigint": {"long": pa.int64(), "integer": pa.int64()},
    "topic": {"string": pa.string()},
    "partition": {"integer": pa.int32(), "short": pa.int32()},
    "offset": {"long": pa.int64(), "integer": pa.int64()},
    "timestamp": {"timestamp": pa.timestamp("us", tz="UTC")},
}
"""What is wanted -> Delta types that are it without a cast that could fail -> the Arrow type."""


def store_of_source(source: DeltaSource, tables: Tables) -> Store | None:
    """How the source's files are opened: as local files, or as the tables' where they share a bucket, or
    one catalog gives credentials for both; else None."""
    if not source.path:
        return None
    if local_path(source.path) is not None:
        return Store()
    same = _bucket(source.path) == _bucket(tables.root)
    return Store.of(tables) if tables.unity or (same and tables.storage_options) else None


def _bucket(uri: str) -> str:
    return "/".join(uri.split("/")[:3])


def batch_files(
    spark: SparkSession,
    query: StreamingQuery,
    batch: int,
    source: DeltaSource,
    envelope: Envelope,
    store: Store,
    optional: frozenset[str] = frozenset(),
) -> BatchFiles | None:
    """The files of the batch that `query` runs now, dealt out to tasks; None where Spark must read them. `optional`: as
    in `delta_stream`."""
    try:
        planned = _planned(spark, query, batch)
        if planned is None:
            return None
        metadata, added = planned
        columns = _columns(metadata, source, envelope, optional)
        if columns is None or any(file.get("deletionVector") or ":" in file["path"] for file in added):
            return None
        files = [SourceFile(unquote(f["path"]), int(f["size"]), f["partitionValues"]) for f in added]
    except (Py4JError, AttributeError, TypeError, KeyError, ValueError) as e:
        log.debug("the rows of batch %d come by way of Spark: %s", batch, e)
        return None
    if not files:
        return None
    return BatchFiles(source.path, columns, spread(files, spark.sparkContext.defaultParallelism), store)


def _planned(spark: Any, query: Any, batch: int) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """Delta's metadata and `add` actions of the running batch. Raises Py4JError, AttributeError."""
    execution = query._jsq.streamingQuery().lastExecution()
    leaves = execution.analyzed().collectLeaves()
    if execution.currentBatchId() != batch or leaves.size() != 1:
        return None
    index = leaves.apply(0).relation().location()
    if index.getClass().getName() != _INDEX:
        return None
    as_json = spark._jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper().writeValueAsString
    return json.loads(as_json(index.snapshot().metadata())), json.loads(as_json(index.addFiles()))


def _columns(
    metadata: Mapping[str, Any], source: DeltaSource, envelope: Envelope, optional: frozenset[str]
) -> tuple[SourceColumn, ...] | None:
    """The columns that `delta_stream` selects; None where one of them has to be cast or renamed by Spark."""
    if metadata["configuration"].get("delta.columnMapping.mode", "none") != "none":
        return None
    kinds = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    needed = needed_columns(source, envelope)
    selected = [(name, alias, kind) for name, (alias, kind) in needed.items()]
    selected += [(name, name, name) for name in ORIGIN_COLUMNS if name in kinds and name not in needed]
    columns = []
    for name, alias, kind in selected:
        if name in optional and name not in kinds:
            columns.append(SourceColumn(name, alias, pa.int32()))  # no file has it, so it is null
            continue
        delta_type = kinds.get(name)
        arrow = _KINDS[kind].get(delta_type) if isinstance(delta_type, str) else None
        partition = name in metadata["partitionColumns"]
        if arrow is None or (partition and pa.types.is_binary(arrow)):
            return None
        columns.append(SourceColumn(name, alias, arrow, partition))
    return tuple(columns)
