"""A batch's chunks between its two jobs: what the driver knows of each, where they lie, and how tasks get at them.

In general they lie in Spark's own rows, kept on disk, and Spark's shuffle brings each to its task. Where all tasks
share one machine they lie in a spool (engine/messages/spool.py): a task is told where its chunks are, and nothing is
moved.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from distributary.engine.messages.chunks import CHUNK_SCHEMA, Groups, WriterSchema, asked_for
from distributary.engine.messages.pieces import FEW_ROWS, PIECE_CELLS
from distributary.engine.messages.spool import close_spool, spooled
from distributary.engine.messages.stored_changes import ids_of
from distributary.engine.messages.tasks import listed_task
from distributary.engine.packing import BUCKET_BYTES, Packing, pack, refs
from distributary.state.journal import Refusals
from distributary.tables.spark_types import struct_of

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task does with its chunks (`CHUNK_SCHEMA`)."""


Cells = Callable[[Groups], int]

MAPPED_BYTES = 4 * BUCKET_BYTES
"""Bytes of a bucket whose chunks lie in files: its task maps them, and holds one route's rows after the other."""


@dataclass(frozen=True)
class BatchChunks(ABC):
    """A batch cut by route, released at the end of a `with`. `meta`: the chunks without their bytes, as dicts.
    `refused`: envelope ids, and why. `room`: bytes of chunks that one task takes."""

    room: ClassVar[int] = BUCKET_BYTES
    spark: SparkSession
    meta: list[dict[str, Any]]
    refused: Refusals

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.release(succeeded=kind is None)

    @abstractmethod
    def hand_out(self, packing: Packing, task: Task, columns: str | StructType) -> DataFrame:
        """What `task` makes of each bucket's chunks, as `columns`; a bucket is a partition, of its number.

        There must be a bucket.
        """

    @abstractmethod
    def release(self, *, succeeded: bool) -> None:
        """The chunks are no longer needed. `succeeded`: no task writes any, or will be believed that reads them."""

    def packed(self, cells: Cells = lambda _: 0) -> Packing:
        """Who takes which chunk. `cells`: how many a chunk's groups will have."""
        return self._packed(self.meta, cells)

    def records_of(self, routes: Collection[str]) -> Packing:
        """Who takes which chunk of records of `routes`; rows set aside before they had an owner are not among them."""
        return self._packed(c for c in self.meta if c["kind"] == "rows" and c["route"] in routes)

    def _packed(self, chunks: Iterable[dict[str, Any]], cells: Cells = lambda _: 0) -> Packing:
        names = ("task", "seq", "kind", "route", "rows", "size")
        rows = self.rows()

        def cells_of(chunk: dict[str, Any]) -> int:
            # To ask for the columns of every schema would cost more than most batches.
            many = chunk["kind"] == "rows" and rows[chunk["route"]] > FEW_ROWS
            return cells(json.loads(chunk["groups"])) if many else 0

        chunk_refs = refs((*(c[n] for n in names), cells_of(c)) for c in chunks)
        return pack(chunk_refs, self.spark.sparkContext.defaultParallelism, self.room, PIECE_CELLS)

    def writers(self) -> dict[str, set[WriterSchema]]:
        """Route -> who wrote its payloads."""
        writers_of: dict[str, set[WriterSchema]] = {}
        for chunk in self.meta:
            if chunk["kind"] == "rows":
                writers_of.setdefault(chunk["route"], set()).update((g[0], g[1]) for g in json.loads(chunk["groups"]))
        return writers_of

    def schema_ids(self) -> set[int]:
        """Of the writers."""
        return ids_of(writer for writers in self.writers().values() for writer in writers)

    def rows(self) -> Counter[str]:
        """Records of each route."""
        rows_of: Counter[str] = Counter()
        for chunk in self.meta:
            if chunk["kind"] == "rows":
                rows_of[chunk["route"]] += chunk["rows"]
        return rows_of

    def unknown_ids(self) -> set[int]:
        """Envelope schemas that the reader was not given."""
        return asked_for(self.meta)

    def tombstones(self) -> dict[str | None, int]:
        tombstones_of: Counter[str | None] = Counter()
        for chunk in self.meta:
            if chunk["kind"] == "tombstones":
                tombstones_of[chunk["route"]] += chunk["rows"]
        return dict(tombstones_of)

    def excluded(self) -> int:
        """Records of routes that are left out."""
        return sum(chunk["rows"] for chunk in self.meta if chunk["kind"] == "excluded")

    def bad(self) -> dict[str | None, dict[str, int]]:
        """Route (None where it is not known) -> reason -> rows that cannot even be handed to an owner."""
        reasons_of: dict[str | None, Counter[str]] = {}
        for chunk in self.meta:
            if chunk["kind"] == "bad":
                reasons_of.setdefault(chunk["route"], Counter()).update(json.loads(chunk["groups"]))
        return {route: dict(reasons) for route, reasons in reasons_of.items()}

    def newest(self) -> dict[str, int]:
        """Route -> time of its newest record, microseconds."""
        newest_of: dict[str, int] = {}
        for chunk in self.meta:
            if chunk["newest"] is not None:
                newest_of[chunk["route"]] = max(chunk["newest"], newest_of.get(chunk["route"], 0))
        return newest_of


@dataclass(frozen=True)
class CarriedChunks(BatchChunks):
    """Chunks in rows of Spark's (`CHUNK_DDL`), kept until the batch is done."""

    frame: DataFrame

    @classmethod
    def of(cls, cut: DataFrame, refused: Refusals) -> CarriedChunks:
        """Run the job that cuts."""
        frame = cut.persist(StorageLevel.DISK_ONLY)
        try:
            meta = frame.drop("blob", "file", "begin").toArrow().to_pylist()
        except BaseException:
            frame.unpersist()
            raise
        return cls(cut.sparkSession, meta, refused, frame)

    def hand_out(self, packing: Packing, task: Task, columns: str | StructType) -> DataFrame:
        buckets = F.from_json(F.lit(json.dumps(packing.as_arrays())), "array<array<int>>")
        # `get`: a chunk that is of no concern here may lie beyond its task's list.
        bucket = F.get(F.get(buckets, F.col("task")), F.col("seq"))
        frame = self.frame.withColumn("bucket", bucket).where("bucket >= 0")
        return frame.repartitionById(packing.buckets, "bucket").mapInArrow(task, _struct(columns))

    def release(self, *, succeeded: bool) -> None:
        self.frame.unpersist()


@dataclass(frozen=True)
class SpooledChunks(BatchChunks):
    """Chunks in files of `folder`, of a spool, which all tasks see."""

    room: ClassVar[int] = MAPPED_BYTES
    folder: str

    @classmethod
    def of(cls, cut: DataFrame, refused: Refusals, folder: str) -> SpooledChunks:
        """Run the job that cuts."""
        try:
            meta = cut.toArrow().to_pylist()
        except BaseException:
            close_spool(folder, reuse=False)
            raise
        return cls(cut.sparkSession, meta, refused, folder)

    def hand_out(self, packing: Packing, task: Task, columns: str | StructType) -> DataFrame:
        lists: list[list[dict[str, Any]]] = [[] for _ in range(packing.buckets)]
        for chunk in self.meta:
            bucket = packing.bucket_of.get((chunk["task"], chunk["seq"]))
            if bucket is not None:
                lists[bucket].append(chunk)
        path = str(Path(self.folder) / f"lists-{uuid.uuid4().hex}")
        with spooled(self.folder), pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, CHUNK_SCHEMA) as out:
            for chunks in lists:
                out.write_batch(pa.RecordBatch.from_pylist(chunks, schema=CHUNK_SCHEMA))
        numbers = self.spark.range(0, packing.buckets, 1, packing.buckets)
        return numbers.mapInArrow(partial(listed_task, lists=path, task=task), _struct(columns))

    def release(self, *, succeeded: bool) -> None:
        close_spool(self.folder, reuse=succeeded)


def _struct(columns: str | StructType) -> StructType:
    return struct_of(columns) if isinstance(columns, str) else columns
