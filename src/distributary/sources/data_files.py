"""The data files of one batch of a Delta source, read by the tasks themselves.

A stream over a Delta table turns columns into rows and rows into columns again before Python sees them. A batch's
Parquet files hold the columns, so a task that is given the files reads them as Arrow, and no row passes through the
JVM. Runs inside Spark tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from distributary.errors import SourceDown
from distributary.errors.border import in_words
from distributary.tables.files import open_parquet
from distributary.tables.outage import is_store_fault
from distributary.tables.store import Store

PIECE_BYTES = 32 * 2**20
"""About the most bytes of a file that are one piece of work."""
SMALL_BYTES = 2**20
"""A piece with fewer bytes is not worth a task of its own."""
TASK_BYTES = 128 * 2**20
"""About the most bytes that one task reads, one batch of rows after the other."""
BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of the source table, read as `kind` under the name `alias`.

    `partition`: its values are in the commits, not in the files.
    """

    name: str
    alias: str
    kind: pa.DataType
    partition: bool = False


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Parquet file: its name below the table's folder, size in bytes, and the values of its partition columns."""

    name: str
    size: int
    partition: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """The row groups of a file whose middle lies within [begin, end) of its bytes: how Spark splits files too."""

    file: SourceFile
    begin: int
    end: int


@dataclass(frozen=True)
class BatchFiles:
    """The files of one batch in the table's folder, and which task reads what of them."""

    folder: str
    columns: tuple[SourceColumn, ...]
    tasks: tuple[tuple[Piece, ...], ...]
    store: Store

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """The rows of one task, at most `BATCH_ROWS` at a time; a column that a file lacks is null.

        Raises SourceDown (its store is away), OSError, ArrowInvalid (what is no Parquet file).
        """
        for piece in self.tasks[task]:
            try:
                yield from self._piece(piece)
            except OSError as e:
                if not is_store_fault(e):
                    raise
                raise SourceDown(source=self.folder, detail=in_words(e)) from e

    def _piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        with (
            self.store.open(self.folder, piece.file.name) as source,
            open_parquet(source) as file,
        ):
            groups = _groups(file.metadata, piece)
            names = [c.name for c in self.columns if not c.partition and c.name in file.schema_arrow.names]
            if not groups:
                return
            if not names:
                rows = sum(file.metadata.row_group(n).num_rows for n in groups)
                yield self._batch(pa.table({"": pa.nulls(rows)}).to_batches()[0], piece.file)
                return
            for batch in file.iter_batches(BATCH_ROWS, groups, names, use_threads=False):
                yield self._batch(batch, piece.file)

    def _batch(self, rows: pa.RecordBatch, file: SourceFile) -> pa.RecordBatch:
        """The wanted columns, in their types."""
        arrays = []
        for column in self.columns:
            if column.partition:
                # Delta's protocol, "Partition Value Serialization": an empty text is null.
                value = pa.scalar(file.partition.get(column.name) or None, pa.string())
                arrays.append(pa.repeat(value, rows.num_rows).cast(column.kind))
            elif column.name in rows.schema.names:
                arrays.append(rows.column(column.name).cast(column.kind))
            else:
                arrays.append(pa.nulls(rows.num_rows, column.kind))
        return pa.record_batch(arrays, names=[c.alias for c in self.columns])


def spread(files: Sequence[SourceFile], slots: int) -> tuple[tuple[Piece, ...], ...]:
    """Deal files out to `slots` tasks, or to more where they are many, about the same number of bytes to each."""
    total = sum(file.size for file in files)
    size = max(SMALL_BYTES, min(PIECE_BYTES, -(-total // max(1, 2 * slots))))
    pieces = [piece for file in files for piece in _cut(file, size)]
    tasks: list[list[Piece]] = [[] for _ in range(max(min(slots, len(pieces)), -(-total // TASK_BYTES)))]
    heap = [(0, number) for number in range(len(tasks))]
    for piece in sorted(pieces, key=lambda p: p.begin - p.end):
        weight, number = heapq.heappop(heap)
        tasks[number].append(piece)
        heapq.heappush(heap, (weight + piece.end - piece.begin, number))
    return tuple(tuple(task) for task in tasks)


def _cut(file: SourceFile, size: int) -> list[Piece]:
    count = max(1, round(file.size / size))
    txns = [file.size * n // count for n in range(count)]
    return [Piece(file, begin, end) for begin, end in zip(txns, [*txns[1:], max(1, file.size)], strict=True)]


def _groups(metadata: pq.FileMetaData, piece: Piece) -> list[int]:
    """The row groups of a piece. Every row group of a file belongs to exactly one of the pieces that make it up."""
    numbers = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(n) for n in range(group.num_columns)]
        begin = min(_start(c) for c in columns)
        middle = begin + sum(c.total_compressed_size for c in columns) // 2
        if piece.begin <= min(middle, piece.file.size - 1) < piece.end:
            numbers.append(number)
    return numbers


def _start(column: pq.ColumnChunkMetaData) -> int:
    first: int = column.data_page_offset
    return first if column.dictionary_page_offset is None else min(first, column.dictionary_page_offset)
