"""The files of a merged table: which of them may hold a key, and their rewriting, in bounded memory.

Copy-on-write: a file that holds a row to be replaced is read in pieces and written anew without it, with the new
versions of its rows behind. Files are kept small (`FILE_BYTES` of decoded rows), so that a few changes rewrite little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.changes.reduce import Places
from distributary.changes.sequence import Bools
from distributary.tables.datafile import LONGEST_TEXT, DataFile, write_data_file
from distributary.tables.files import open_parquet
from distributary.tables.merge_rows import fitted
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, filesystem, local_path

FILE_BYTES = 64 << 20
"""Decoded bytes of rows that a rewritten file aims at."""
READ_ROWS = 1 << 15
WRITERS = 2
"""Files rewritten at a time within one task, and only where there is much to rewrite: a task is one core's share."""

Bound = int | str | Decimal | date
Needs = Callable[[pq.FileMetaData | None], pa.Schema]
"""Which columns a merge must read of a file, by its footer; None where it has all of them in any case."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that belongs to the table. `bounds`: per key column the lowest and highest value, None if not known."""

    path: str
    size: int
    rows: int
    bounds: tuple[tuple[Bound, Bound] | None, ...]

    @classmethod
    def of(cls, file: DataFile, rows: pa.Table, keys: Sequence[str]) -> LiveFile:
        """Of a file just written from `rows`."""
        bounds = tuple(_bounds_of(rows.column(key)) for key in keys)
        return cls(file.path, file.size, file.rows, bounds)


def live_files(table: Snapshot, keys: Sequence[str]) -> list[LiveFile]:
    """The table's active files; those without row counts have -1."""
    adds = table.adds(flatten=False)
    rows = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else [-1] * adds.num_rows
    bounds = list(zip(*(_logged_bounds(adds, key) for key in keys), strict=True)) or [()] * adds.num_rows
    paths, sizes = adds.column("path").to_pylist(), adds.column("size_bytes").to_pylist()
    return [
        LiveFile(path, int(size), -1 if count is None else int(count), tuple(bound))
        for path, size, count, bound in zip(paths, sizes, rows, bounds, strict=True)
    ]


def may_hold(files: Sequence[LiveFile], rows: pa.Table, keys: Sequence[str]) -> list[int]:
    """The files that can hold a key of `rows`, by their bounds."""
    columns = [rows.column(key) for key in keys]
    return [number for number, file in enumerate(files) if _overlaps(file, columns)]


def _overlaps(file: LiveFile, columns: Sequence[pa.ChunkedArray]) -> bool:
    inside: Any = None
    for bound, column in zip(file.bounds, columns, strict=True):
        if bound is None:
            continue
        low, high = (pa.scalar(value, column.type) for value in bound)
        # A null key is in no bounds.
        inside_bounds = pc.fill_null(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)), True)
        inside = inside_bounds if inside is None else pc.and_(inside, inside_bounds)
    return inside is None or bool(pc.any(inside).as_py())


def _bounds_of(column: pa.ChunkedArray) -> tuple[Bound, Bound] | None:
    if not _bounded(column.type):
        return None
    try:
        bounds_struct = pc.min_max(column).as_py()
    except (ValueError, OverflowError):
        return None
    bounds = bounds_struct["min"], bounds_struct["max"]
    # A long text is no bound in the log either.
    long = isinstance(bounds[0], str) and max(map(len, bounds)) > LONGEST_TEXT
    return None if bounds[0] is None or long else bounds


def _logged_bounds(adds: pa.Table, key: str) -> list[tuple[Bound, Bound] | None]:
    lows, highs = _logged(adds, "min", key), _logged(adds, "max", key)
    return [None if a is None or b is None else (a, b) for a, b in zip(lows, highs, strict=True)]


def _logged(adds: pa.Table, bound: str, key: str) -> list[Any]:
    nothing = [None] * adds.num_rows
    if bound not in adds.column_names:
        return nothing
    column = adds.column(bound).combine_chunks()
    if not pa.types.is_struct(column.type) or column.type.get_field_index(key) < 0:
        return nothing
    values = pc.struct_field(column, [column.type.get_field_index(key)])
    try:
        return list(values.to_pylist()) if _bounded(values.type) else nothing
    except (ValueError, OverflowError):
        return nothing


def _bounded(kind: pa.DataType) -> bool:
    """Types whose logged bounds are exact, or wide enough: Spark cuts times to milliseconds, NaN has no place."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_decimal, pa.types.is_date)
    return any(test(kind) for test in tests)


# -- reading -----------------------------------------------------------------------------------------------


class Reader:
    """Files of the table at `uri`, as rows of `schema`."""

    def __init__(self, uri: str, store: Store, schema: pa.Schema) -> None:
        self.schema = schema
        self._system = filesystem(uri, store)
        self._remote = local_path(uri) is None
        self._held: dict[str, pa.Table] = {}
        self._room = FILE_BYTES

    def part(self, file: LiveFile, needs: Needs) -> pa.Table:
        """The columns of `needs`, of all rows. Raises FileNotFoundError, OSError, pa.ArrowException."""
        if 0 < file.rows <= READ_ROWS and self._room > 0:
            # To read a small file once costs less than to open it twice.
            file_rows = pa.concat_tables([self.schema.empty_table(), *self.pieces(file)])
            self._held[file.path] = file_rows
            self._room -= file_rows.nbytes
            columns = needs(None)
            return fitted(file_rows.select(columns.names), columns)
        with self._opened(file) as opened:
            parquet = self._parquet(opened)
            columns, in_file = needs(parquet.metadata), set(_columns(parquet))
            present = [path for path in _leaf_paths(columns) if path in in_file]
            return fitted(parquet.read(columns=present, use_threads=False), columns)

    def columns(self, file: LiveFile) -> pa.Schema:
        """The columns that the file has, in its own types. Raises as `part`."""
        with self._opened(file) as opened:
            return self._parquet(opened).schema_arrow

    def pieces(self, file: LiveFile) -> Iterator[pa.Table]:
        """All columns, some rows at a time. Raises as `part`."""
        if (kept_table := self._held.pop(file.path, None)) is not None:
            yield kept_table
            return
        with self._opened(file) as opened:
            for batch in self._parquet(opened).iter_batches(READ_ROWS, use_threads=False):
                yield fitted(pa.Table.from_batches([batch]), self.schema)

    def forget(self, files: Iterable[LiveFile]) -> None:
        """These will not be asked for again."""
        for file in files:
            self._held.pop(file.path, None)

    def _opened(self, file: LiveFile) -> Any:
        return self._system.open_input_file(unquote(file.path))

    def _parquet(self, opened: Any) -> pq.ParquetFile:
        return open_parquet(opened, pre_buffer=self._remote)


def _columns(file: pq.ParquetFile) -> Iterator[str]:
    """Paths of leaves and of all that holds them."""
    for number in range(len(file.schema)):
        names = file.schema.column(number).path.split(".")
        yield from (".".join(names[:length]) for length in range(1, len(names) + 1))


def _leaf_paths(schema: Any, before: str = "") -> Iterator[str]:
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from _leaf_paths(field.type, f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}"


# -- writing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unit:
    """Files that are written anew together. `drop`: per file, True for the rows that go. `grows`: new rows go here."""

    files: tuple[LiveFile, ...]
    drop: tuple[Bools | None, ...]
    tail: tuple[Callable[[pa.Table | None, Places], pa.Table] | None, ...]
    """Per file what comes behind its rows: (the dropped rows, their places) -> rows."""
    grows: bool = False

    @classmethod
    def joined(cls, units: Sequence[Unit]) -> Unit:
        """Small files as one, to which new rows may go: their bounds get wider, and a small file is soon judged."""
        files = tuple(file for unit in units for file in unit.files)
        drop = tuple(mask for unit in units for mask in unit.drop)
        return cls(files, drop, tuple(tail for unit in units for tail in unit.tail), grows=True)


Written = tuple[list[DataFile], list[LiveFile]]


class FileWriter:
    """Writes rows of the table at `uri` as new files."""

    def __init__(self, uri: str, store: Store, keys: Sequence[str]) -> None:
        self._uri, self._store, self._keys = uri, store, tuple(keys)

    def write(self, pieces: Iterator[pa.Table], rows: int) -> Written:
        """About `rows` rows (0: not known) as files of even size, near `FILE_BYTES` decoded each."""
        written: Written = ([], [])
        pending: list[pa.Table] = []
        limit, count = 0, 0
        for piece in pieces:
            if not piece.num_rows:
                continue
            limit = limit or _rows_per_file(piece, rows)
            pending.append(piece)
            count += piece.num_rows
            # What is left over must not become a sliver of a file.
            while count >= limit + min(limit, READ_ROWS):
                table = pa.concat_tables(pending)
                self._file(table.slice(0, limit), written)
                pending, count = [table.slice(limit)], count - limit
        if count:
            self._file(pa.concat_tables(pending), written)
        return written

    def _file(self, rows: pa.Table, written: Written) -> None:
        file = write_data_file(self._uri, rows, self._store)
        written[0].append(file)
        written[1].append(LiveFile.of(file, rows, self._keys))


def _rows_per_file(piece: pa.Table, rows: int) -> int:
    rows_of_full_file = max(1, FILE_BYTES * int(piece.num_rows) // max(1, int(piece.nbytes)))
    return rows_of_full_file if rows <= 0 else -(-rows // max(1, round(rows / rows_of_full_file)))


def rewrite(units: Sequence[Unit], reader: Reader, writer: FileWriter, extra: pa.Table) -> Written:
    """Write the units' files anew, and `extra` behind the first unit's if that `grows`, else as files of its own.

    Files that end up empty leave nothing.
    """
    grows = bool(units) and units[0].grows

    def rewrite_unit(number: int) -> Written:
        unit = units[number]
        last = extra if grows and number == 0 else None
        is_counted = all(file.rows >= 0 for file in unit.files)
        rows = sum(file.rows for file in unit.files) + (0 if last is None else last.num_rows)
        return writer.write(_stream(unit, reader, last), rows if is_counted else 0)

    alone = writer.write(iter([extra]), extra.num_rows) if extra.num_rows and not grows else ([], [])
    if len(units) <= 1:
        written = [rewrite_unit(number) for number in range(len(units))]
    else:
        with ThreadPoolExecutor(WRITERS) as pool:
            written = list(pool.map(rewrite_unit, range(len(units))))
    written.append(alone)
    return [f for files, _ in written for f in files], [f for _, files in written for f in files]


def _stream(unit: Unit, reader: Reader, last: pa.Table | None) -> Iterator[pa.Table]:
    for file, drop, tail in zip(unit.files, unit.drop, unit.tail, strict=True):
        begin = 0
        dropped: list[pa.Table] = []
        for piece in reader.pieces(file):
            drop_piece = None if drop is None else drop[begin : begin + piece.num_rows]
            begin += piece.num_rows
            if drop_piece is None or not drop_piece.any():
                yield piece
                continue
            if tail is not None:
                dropped.append(piece.filter(pa.array(drop_piece)))
            yield piece.filter(pa.array(~drop_piece))
        if tail is not None and drop is not None:
            yield tail(pa.concat_tables(dropped) if dropped else None, np.flatnonzero(drop))
    if last is not None:
        yield last
