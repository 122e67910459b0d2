"""The functions that Spark calls in its tasks: Arrow batches in, Arrow batches out. Importable, so that they ship."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from distributary.engine.apart import Apart, limited
from distributary.engine.messages.chunks import one_array, read_records
from distributary.engine.messages.decode import decode, fit_decided
from distributary.engine.messages.deliver import deliver
from distributary.engine.messages.demux import WINDOW_BYTES, demux
from distributary.engine.messages.entering import entering
from distributary.engine.messages.killers import find_envelope_killers, find_killers
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.messages.pieces import cut_pieces
from distributary.engine.messages.spool import SpoolReader
from distributary.engine.messages.task_spec import MessageSpec
from distributary.engine.windows import windows
from distributary.engine.workers import in_worker
from distributary.schemas.registry.compile import CompiledSchema
from distributary.sources.data_files import BatchFiles

RESULT_DDL = "body binary"
_SAID_SCHEMA = pa.schema([("body", pa.binary())])


def encode_result(value: Any) -> pa.RecordBatch:
    """One thing that a task tells the driver."""
    return pa.RecordBatch.from_pydict({"body": [pickle.dumps(value)]}, schema=_SAID_SCHEMA)


def decode_results(rows: pa.Table) -> Iterator[Any]:
    """What the tasks of a job told: our own values from our own tasks."""
    for body in rows.column("body"):
        yield pickle.loads(body.as_py())


@in_worker
def demux_task(
    batches: Iterator[pa.RecordBatch], reader: EnvelopeReader, spool: str | None
) -> Iterator[pa.RecordBatch]:
    """Source rows -> chunks (`CHUNK_SCHEMA`)."""
    yield from demux(batches, reader, _partition(), spool)


@in_worker
def demux_files_task(
    batches: Iterator[pa.RecordBatch], files: BatchFiles, reader: EnvelopeReader, spool: str | None
) -> Iterator[pa.RecordBatch]:
    """A task's number -> the rows of its files -> chunks."""
    yield from demux(_rows_of(files, batches), reader, _partition(), spool)


@in_worker
def listed_task(
    batches: Iterator[pa.RecordBatch], lists: str, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """A bucket's number -> its chunks, which the file `lists` names -> what `task` makes of them."""
    with pa.memory_map(lists) as file:
        chunk_file = pa.ipc.open_file(file)
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        yield from task(chunk_file.get_batch(number) for number in numbers)


@in_worker
def deliver_task(
    batches: Iterator[pa.RecordBatch], spec: MessageSpec, schemas: Mapping[int, CompiledSchema], name: str
) -> Iterator[pa.RecordBatch]:
    """Chunks -> tables; says an Outcome per route and the DataFile of its rejected rows."""
    yield encode_result(list(deliver(chunk_rows(batches), spec, schemas, task=f"{name}{_partition()}")))


@in_worker
def entering_task(
    batches: Iterator[pa.RecordBatch],
    spec: MessageSpec,
    schemas: Mapping[int, CompiledSchema],
    columns: Mapping[str, pa.Schema | None],
) -> Iterator[pa.RecordBatch]:
    """Chunks -> (route, writer) of those who have a row that enters their table. `columns`: of each route's table."""
    for chunk in chunk_rows(batches):
        if chunk["kind"] == "rows":
            route, cut = chunk["route"], [(json.loads(chunk["groups"]), read_records(chunk["blob"]))]
            yield encode_result([(route, writer) for writer in entering(route, cut, columns[route], spec, schemas)])


@in_worker
def killers_task(
    batches: Iterator[pa.RecordBatch], spec: MessageSpec, schemas: Mapping[int, CompiledSchema]
) -> Iterator[pa.RecordBatch]:
    """Chunks -> the records among them that end their reader: (fingerprint, how)."""
    with Apart(spec.read_sec) as apart:
        for chunk in chunk_rows(batches):
            if chunk["kind"] == "rows":
                cut = [(json.loads(chunk["groups"]), read_records(chunk["blob"]))]
                yield encode_result(list(find_killers(chunk["route"], cut, spec, schemas, apart)))


@in_worker
def envelope_killers_task(
    batches: Iterator[pa.RecordBatch], reader: EnvelopeReader, files: BatchFiles | None
) -> Iterator[pa.RecordBatch]:
    """Source rows, or a task's number -> those that end the process which opens them: (fingerprint, how)."""
    with Apart(reader.read_sec) as apart:
        for window in windows(batches if files is None else _rows_of(files, batches), WINDOW_BYTES):
            values = one_array(window.column("value")).drop_null()
            yield encode_result(list(find_envelope_killers(values, reader, apart).items()))


@in_worker
def spark_rows_task(
    batches: Iterator[pa.RecordBatch], spec: MessageSpec, schemas: Mapping[int, CompiledSchema], route: str
) -> Iterator[pa.RecordBatch]:
    """Chunks of one route -> its good rows in its table's schema, for engine `spark` to write."""
    for chunk in chunk_rows(batches):
        cut = [(json.loads(chunk["groups"]), read_records(chunk["blob"]))]
        for piece in cut_pieces(cut, schemas, raw_nested_indexes=spec.raw_nested_indexes):
            with limited(spec.read_sec):
                decoded = decode(route, piece, spec, schemas)
            if decoded.broken is not None:
                raise decoded.broken
            fitted = fit_decided(route, decoded, spec.decision(route).schema, spec)
            yield from fitted.table.to_batches()


def _rows_of(files: BatchFiles, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (
        batch_rows for batch in batches for number in batch.column(0).to_pylist() for batch_rows in files.read(number)
    )


def chunk_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Chunk rows as dicts; the blob stays where it is, in Arrow's memory or in a mapped file."""
    spool = SpoolReader()
    for batch in batches:
        columns = [batch.column(n).to_pylist() for n in ("kind", "route", "groups", "size", "file", "begin")]
        blobs = batch.column("blob")
        for row, (kind, route, groups, size, file, begin) in enumerate(zip(*columns, strict=True)):
            blob = blobs[row].as_buffer() if file is None else spool.read(file, begin, size)
            yield {"kind": kind, "route": route, "groups": groups, "blob": blob}


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
