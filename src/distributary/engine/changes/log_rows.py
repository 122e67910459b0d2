"""A log table's rows, a piece at a time, in the table's own columns, whoever wrote the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from distributary.engine.changes.task_spec import ORIGIN
from distributary.tables.files import open_parquet
from distributary.tables.merge_rows import fitted
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store, filesystem

PIECE_ROWS = 1 << 17
RECONCILED = "reconcile:"
"""Events that `reconcile` has made come from no file: this stands before the time of the backfill that they follow."""


def log_rows(
    uri: str, names: Sequence[str], store: Store, schema: pa.Schema | None, after: int = -1, upto: int | None = None
) -> Iterator[pa.Table]:
    """Events of batches `after` < batch <= `upto` in these files; those of `reconcile` belong to no batch, and to all.

    `schema`: of the table; None: each file's own. Raises FileNotFoundError, OSError, ArrowInvalid.
    """
    system = filesystem(uri, store)
    for name in names:
        with system.open_input_file(name) as opened:
            for batch in open_parquet(opened).iter_batches(PIECE_ROWS, use_threads=False):
                rows = pa.Table.from_batches([batch])
                rows = fitted(rows, schema) if schema is not None else plain(rows)
                in_range = _wanted(rows, after, upto)
                if in_range.num_rows:
                    yield in_range


def files_of(log: Snapshot, first: int) -> dict[str, int]:
    """Files of a log table that may hold rows of batches from `first` on, by their statistics: name -> bytes."""
    adds = log.adds()
    newest = f"max.{ORIGIN}.batch"
    if newest in adds.column_names:
        adds = adds.filter(pc.greater_equal(pc.fill_null(adds.column(newest), first), first))
    paths, sizes = (adds.column(name).to_pylist() for name in ("path", "size_bytes"))
    return {unquote(path): size for path, size in zip(paths, sizes, strict=True)}


def bytes_of(table: Snapshot) -> int:
    """Bytes of a table's data files."""
    return sum(table.sizes().values())


def _wanted(rows: pa.Table, after: int, upto: int | None) -> pa.Table:
    number = pc.struct_field(rows.column(ORIGIN), "batch")
    inside = pc.greater(number, after)
    if upto is not None:
        inside = pc.and_(inside, pc.less_equal(number, upto))
    by_reconcile = pc.and_(pc.is_null(number), pc.starts_with(pc.struct_field(rows.column(ORIGIN), "file"), RECONCILED))
    return rows.filter(pc.or_(pc.fill_null(inside, False), pc.fill_null(by_reconcile, False)))


def plain(rows: pa.Table) -> pa.Table:
    """Views, as DataFusion writes them into its files, as ordinary texts and bytes."""
    schema = pa.schema([f.with_type(_plain(f.type)) for f in rows.schema])
    return rows if schema == rows.schema else rows.cast(schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.string_view(), pa.large_string()):
        return pa.string()
    if kind in (pa.binary_view(), pa.large_binary()):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_plain(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
