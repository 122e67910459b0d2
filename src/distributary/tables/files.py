"""The data files of a table, read one at a time and past what delta-rs's own readers refuse (type widening).

Names follow the Delta protocol: a path in the log is URL-encoded and relative to the table ("Add File"); with column
mapping, a file knows a column by its physical name ("Reader Requirements for Column Mapping").
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from distributary.errors.border import TableFault
from distributary.tables.by_name import is_named
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, filesystem, local_path

READ_ROWS = 1 << 18
_MAPPED = "delta.columnMapping.physicalName"
_PARTITION = "partition."
"""Before a partition column's name among the actions of delta-rs."""


def open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    """A Parquet file, whoever wrote it: Spark writes times as INT96 unless told otherwise; as nanoseconds they would
    end in 2262. `options`: of `pq.ParquetFile`."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def names_in(folder: str, store: Store) -> list[str]:
    """What lies in a folder, sorted; nothing where it is not there. Of a schema by its name, its tables.

    Raises OSError.
    """
    if is_named(folder):
        from distributary.tables.spark_names import tables_in  # Spark's

        return tables_in(folder)
    infos = filesystem(folder, store).get_file_info(pafs.FileSelector("", allow_not_found=True))
    return sorted(str(info.base_name) for info in infos)


def delete_entry(folder: str, name: str, store: Store) -> None:
    """Delete an entry with all below it. Raises OSError."""
    if is_named(folder):
        from distributary.tables.spark_names import drop

        drop(f"{folder}/{name}")
        return
    local = local_path(folder)
    if local is not None:
        entry = local / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
        return
    system = filesystem(folder, store)
    if system.get_file_info(name).type == pafs.FileType.Directory:
        system.delete_dir(name)
    else:
        system.delete_file(name)


def file_names(table: Snapshot) -> list[str]:
    """The table's active files, relative to the table."""
    return _paths(table.adds())


def _paths(actions: pa.Table) -> list[str]:
    return [unquote(str(path)) for path in actions.column("path").to_pylist()]


class TableFiles:
    """A table's files. Columns are asked for by dotted path: `route`, `_origin.batch`."""

    def __init__(self, table: Snapshot) -> None:
        actions = table.adds()
        partitions = [name for name in actions.column_names if name.startswith(_PARTITION)]
        self._places = actions.select(["path", *partitions])
        self.names = _paths(self._places)
        self._written_at = dict(zip(self.names, actions.column("modification_time").to_pylist(), strict=True))
        self._query = table.by_query
        self._place = (table.uri, table.store)
        self._fields = json.loads(table.schema_json)["fields"]
        self._kept = _kept_rows(table)

    @cached_property
    def _system(self) -> pafs.FileSystem:
        return filesystem(*self._place)

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns with their Delta types; `struct`, `array` or `map` for a nested one."""
        return {f["name"]: f["type"] if isinstance(f["type"], str) else f["type"]["type"] for f in self._fields}

    def within(self, column: str, value: str) -> TableFiles:
        """Those of one partition; the table's log is not read again for them."""
        narrowed = copy(self)
        narrowed._places = self._places.filter(pc.equal(self._places.column(f"{_PARTITION}{column}"), value))
        narrowed.names = _paths(narrowed._places)
        return narrowed

    @property
    def newest_first(self) -> list[str]:
        """The names of the files, by the time at which each was written, as the log has it."""
        return sorted(self.names, key=lambda name: self._written_at[name], reverse=True)

    def beyond(self, earlier: TableFiles | None) -> int:
        """Rows in files that an earlier version of the table does not have (None: in all). Raises as `rows`."""
        if self._query is not None:
            return self._query.rows() - (0 if earlier is None else earlier.rows(earlier.names[0]))
        names = set() if earlier is None else set(earlier.names)
        return sum(self.rows(name) for name in self.names if name not in names)

    def has(self, path: str) -> bool:
        """Does the table have this column?"""
        return self._physical(path) is not None

    def rows(self, name: str) -> int:
        """Rows of one file by its footer, less the deleted ones. Raises FileNotFoundError, OSError, ArrowInvalid."""
        if self._query is not None:
            return self._query.rows()
        with self._system.open_input_file(name) as file:
            total = int(open_parquet(file).metadata.num_rows)
        live_rows = self._kept.get(name.rsplit("/", 1)[-1])
        return total if live_rows is None else total - int(np.count_nonzero(~live_rows[:total]))

    def read(self, name: str, paths: Sequence[str]) -> Iterator[pa.Table]:
        """The file's columns `paths`, named so, in pieces; null where the file lacks one. Deleted rows are left out.

        Raises FileNotFoundError, OSError, ArrowInvalid.
        """
        yield from self._read(name, {path: self._physical(path) or path.split(".") for path in paths})

    def read_whole(self, name: str) -> Iterator[pa.Table]:
        """As `read`, of all the table's columns: a column's name may hold dots."""
        names = ((f["name"], f["metadata"].get(_MAPPED, f["name"])) for f in self._fields)
        yield from self._read(name, {name: [physical] for name, physical in names})

    def _read(self, name: str, columns: Mapping[str, Sequence[str]]) -> Iterator[pa.Table]:
        if self._query is not None:
            yield from self._query.pieces(columns)
            return
        live_rows = self._kept.get(name.rsplit("/", 1)[-1])
        begin = 0
        for piece in self._filled(name, _pieces(self._system, name, columns)):
            if live_rows is None:
                yield piece
                continue
            # A keep mask may end before the file does; the rows after it are there.
            live_piece = live_rows[begin : begin + piece.num_rows]
            keep = np.ones(piece.num_rows, dtype=bool)
            keep[: len(live_piece)] = live_piece
            begin += piece.num_rows
            yield piece.filter(pa.array(keep))

    def _filled(self, name: str, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """With the columns that the table is partitioned by: their values stand in its log, not in its files (Delta
        protocol, "Partition Value Serialization")."""
        columns = [column.removeprefix(_PARTITION) for column in self._places.column_names[1:]]
        place = self.names.index(name) if columns and name in self.names else None
        for piece in pieces:
            if place is not None:
                for column in set(columns) & set(piece.column_names):
                    value = self._places.column(f"{_PARTITION}{column}")[place]
                    filled = pa.repeat(value, piece.num_rows)
                    piece = piece.set_column(piece.column_names.index(column), column, filled)
            yield piece

    def read_all(self, paths: Sequence[str]) -> Iterator[pa.Table]:
        """As `read`, of one file after the other."""
        for name in self.names:
            yield from self.read(name, paths)

    def _physical(self, path: str) -> list[str] | None:
        names: list[str] = []
        fields: Any = self._fields
        for name in path.split("."):
            field = next((f for f in fields if f["name"] == name), None)
            if field is None:
                return None
            names.append(field["metadata"].get(_MAPPED, name))
            fields = field["type"].get("fields", []) if isinstance(field["type"], dict) else []
        return names


def read_file(uri: str, name: str, paths: Sequence[str], store: Store) -> Iterator[pa.Table]:
    """Columns of a data file that no table has taken in yet. Raises as `TableFiles.read`."""
    yield from _pieces(filesystem(uri, store), name, {path: path.split(".") for path in paths})


def _pieces(system: pafs.FileSystem, name: str, columns: Mapping[str, Sequence[str]]) -> Iterator[pa.Table]:
    with system.open_input_file(name) as opened:
        file = open_parquet(opened)
        present = {path: physical for path, physical in columns.items() if _is_in(file.schema_arrow, physical)}
        if not present:
            yield pa.table({path: pa.nulls(file.metadata.num_rows) for path in columns})
            return
        for batch in file.iter_batches(READ_ROWS, columns=[".".join(p) for p in present.values()]):
            rows = batch.num_rows
            yield pa.table({p: _column(batch, present[p]) if p in present else pa.nulls(rows) for p in columns})


def _is_in(schema: pa.Schema, physical: Sequence[str]) -> bool:
    fields: Any = schema
    for name in physical:
        index = fields.get_field_index(name) if fields is not None else -1
        if index < 0:
            return False
        kind = fields.field(index).type
        fields = kind if pa.types.is_struct(kind) else None
    return True


def _column(batch: pa.RecordBatch, physical: Sequence[str]) -> pa.Array:
    column = batch.column(physical[0])
    for name in physical[1:]:
        column = pc.struct_field(column, name)
    # Files that DataFusion rewrote ask to be read as views, which Arrow's kernels do not know.
    if column.type in (pa.string_view(), pa.binary_view()):
        column = column.cast(pa.large_string() if column.type == pa.string_view() else pa.large_binary())
    return column


def _kept_rows(table: Snapshot) -> dict[str, np.ndarray[Any, np.dtype[np.bool_]]]:
    """File name (its last part) -> which rows are not deleted, for files with a deletion vector.

    delta-rs does not read those of a table with type widening: there, deleted rows count as present.
    """
    if "deletionVectors" not in table.reader_features:
        return {}
    try:
        vectors = table.deletion_vectors()
    except TableFault:
        return {}
    masks = zip(vectors.column("filepath").to_pylist(), vectors.column("selection_vector"), strict=True)
    return {path.rsplit("/", 1)[-1]: mask.values.to_numpy(zero_copy_only=False) for path, mask in masks}
