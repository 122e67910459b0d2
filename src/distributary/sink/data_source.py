"""What Spark calls: the data source, its writers, and what they tell each other."""

from __future__ import annotations

import base64
import pickle
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StructType

from distributary.config import load
from distributary.errors import BadInput
from distributary.sink.by_routes import RouteRows
from distributary.sink.committing import BatchEnding
from distributary.sink.plain_columns import plain_schema
from distributary.sink.sink_options import FORMAT, PIPELINE_OPTION, ROWS_OPTION, SinkOptions, transaction
from distributary.sink.written import WrittenFiles
from distributary.tables.snapshot import Txn
from distributary.tables.spark_types import arrow_schema

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark says to a task of the streaming query that it works for."""


@dataclass
class TaskReport(WriterCommitMessage):
    """What a task says to the commit. `stream`: the query that it worked for."""

    stream: str
    taken: WrittenFiles


class Intake(Protocol):
    """What a task does with its rows."""

    @property
    def options(self) -> SinkOptions: ...

    def take(self, batches: Iterator[pa.RecordBatch], stream: str, batch: int, task: str) -> WrittenFiles:
        """Rows -> files that no table has yet."""
        ...


class DistributarySource(DataSource):
    """`format("distributary")`: appends the rows of a DataFrame to a Delta table per route."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises BadInput: an option or a column will not do, or rows are to be overwritten. Raises ConfigError."""
        intake = self._checked(schema, overwrite, 'mode("append")')
        app, number = self.options.get("txnAppId"), transaction(dict(self.options))
        if (app is None) != (number is None):
            raise BadInput(detail="a write that may be done again needs both options, 'txnAppId' and 'txnVersion'")
        return SinkBatchWriter(intake, Txn(app or uuid.uuid4().hex, number or 0))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises BadInput, as `writer`."""
        intake = self._checked(schema, overwrite, 'outputMode("append")')
        if transaction(dict(self.options)) is not None:
            raise BadInput(detail="a stream's batches have numbers of their own: leave the option 'txnVersion' out")
        return StreamWriter(intake, self.options.get("txnAppId"))

    def _checked(self, schema: StructType, overwrite: bool, allowed: str) -> Intake:
        if overwrite:
            raise BadInput(detail=f"format distributary appends: use {allowed}")
        if ROWS_OPTION in self.options:
            # Whoever may set a sink's options has code run by the same session.
            return unpacked(self.options[ROWS_OPTION])
        if (file := self.options.get(PIPELINE_OPTION)) is not None:
            from distributary.sink.message_rows import MessageRows  # the engine: not every process that looks needs it

            rows = MessageRows(load(file))
            rows.check(schema.names)
            return rows
        options = SinkOptions.read(dict(self.options))
        if options.route not in schema.names:
            columns = ", ".join(schema.names)
            raise BadInput(detail=f"option 'route': there is no column {options.route!r}. The rows have: {columns}")
        check_route(schema, options.route)
        plain_schema(arrow_schema(schema))
        return RouteRows(options)


class SinkBatchWriter(DataSourceArrowWriter):
    """Of `df.write`. With `txnAppId` and `txnVersion` a write that is done again adds nothing."""

    def __init__(self, intake: Intake, txn: Txn) -> None:
        self.intake = intake
        self.options = intake.options
        self.txn = txn

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return _taken(iterator, self.intake, self.txn.app_id, self.txn.version)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        BatchEnding(self.options, self.txn).commit(_said(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        BatchEnding(self.options, self.txn).abort(_said(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Of `df.writeStream`: each batch once, by the query's id and its number."""

    def __init__(self, intake: Intake, app: str | None = None) -> None:
        self.intake = intake
        self.options = intake.options
        self.app = app

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        context = TaskContext.get()
        stream = self.app or (context and context.getLocalProperty(QUERY_ID))
        if context is None or not stream:
            raise BadInput(detail="Spark does not say for which query this task works; give the option 'txnAppId'")
        return _taken(iterator, self.intake, stream, int(context.getLocalProperty(BATCH_ID) or 0))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for ending in self._endings(messages, batchId):
            ending.commit(_said(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        for ending in self._endings(messages, batchId):
            ending.abort(_said(messages))

    def _endings(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> Iterator[BatchEnding]:
        """One; none where no task has said anything."""
        stream = next((message.stream for message in messages if isinstance(message, TaskReport)), None)
        if stream is not None:
            yield BatchEnding(self.options, Txn(stream, batch))


def _taken(rows: Iterator[pa.RecordBatch], intake: Intake, stream: str, batch: int) -> TaskReport:
    context = TaskContext.get()
    task = "0" if context is None else f"{context.partitionId()}.{context.attemptNumber()}"
    return TaskReport(stream, intake.take(rows, stream, batch, task))


def check_route(schema: StructType, route: str) -> None:
    """Raises BadInput: the column of the route holds bytes, of which nobody knows whether they are a name."""
    if isinstance(schema[route].dataType, BinaryType):
        raise BadInput(
            detail=f'the route {route!r} is binary. Cast it: .withColumn("{route}", F.col("{route}").cast("string"))'
        )


def packed(intake: Intake) -> str:
    """As the value of the option `ROWS_OPTION`."""
    return base64.b64encode(zlib.compress(pickle.dumps(intake))).decode()


def unpacked(text: str) -> Intake:
    intake: Intake = pickle.loads(zlib.decompress(base64.b64decode(text)))
    return intake


def _said(messages: Sequence[WriterCommitMessage | None]) -> Iterator[WrittenFiles]:
    return (message.taken for message in messages if isinstance(message, TaskReport))
