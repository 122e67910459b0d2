"""Into which shares the keys of a table are cut, so that one share of its events fits into memory.

By ranges of a key column where one has values that a sample can cut evenly: the files that a share's merge writes then
hold keys that no other share has, so that each merge meets only its own. Else by a hash of the key.

What counts is what rows take in memory. A log file's bytes say little of it: the metadata of a backfill is nearly the
same in all rows, so that a byte of a file stands for 8 of rows (`make bench ONLY=merge_memory`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.changes.hashing import row_hash
from distributary.changes.key_text import in_type, spelled
from distributary.changes.sequence import OrderSettings
from distributary.engine.changes.key_columns import KeyTypes
from distributary.tables.files import open_parquet
from distributary.tables.store import Store, filesystem

SHARE_BYTES = 96 << 20
"""Decoded bytes of rows per share. A merge holds some five times as much: rows, their reduction, their columns as the
table has them, and in the order of their keys."""
SMALL_BYTES = 1 << 20
"""Bytes of files up to which nothing is asked: they are one share."""
MOST_SHARES = 256
"""Each share is an open file for a while. With more bytes than so many shares have, a share grows."""
SAMPLED_FILES, SAMPLED_ROWS, WEIGHED_FILES, WEIGHED_ROWS = 64, 2048, 8, 2048
"""Files and rows of each whose keys are looked at; files and rows of each whose memory is."""
_LARGEST = 2
"""A share may have so many times the rows of an even one, by the sample."""

Numbers = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True)
class KeyShares:
    """Shares of the keys in the columns `keys`. `column`: the one that `bounds` (ascending) cut; None: by hash."""

    keys: tuple[str, ...]
    count: int = 1
    column: str | None = None
    bounds: pa.Array | None = None

    def numbers(self, rows: pa.Table) -> Numbers:
        """Each row's share, from 0: the same one for equal keys. By hash also where the columns have other types."""
        if self.count == 1:
            return np.zeros(rows.num_rows, np.int64)
        if self.bounds is None or self.column is None:
            columns = {key: spelled(rows.column(key)) for key in self.keys}
            hashed = row_hash(columns, rows.num_rows).to_numpy(zero_copy_only=False)
            return np.asarray((hashed >> np.uint64(32)) % np.uint64(self.count), np.int64)
        places = pc.search_sorted(self.bounds, _ordered(rows.column(self.column)), side="right")
        return np.asarray(pc.fill_null(places, 0).to_numpy(zero_copy_only=False), np.int64)

    def name(self, number: int, order: OrderSettings) -> str:
        """Of a share: two of one name hold the same keys, in the same order of their events. Other files of the same
        log may have other bounds, and settings that are put right another order."""
        bounds = None if self.bounds is None else (self.column, self.bounds.to_pylist())
        if bounds is None and not order:
            return f"share {number} of {self.count}"
        what = repr((bounds, order.epochs, order.repair_backfills))
        digest = hashlib.blake2b(what.encode(), digest_size=6).hexdigest()
        return f"share {number} of {self.count} by {digest}"

    def of(self, rows: pa.Table, number: int) -> pa.Table:
        """The rows whose keys belong to share `number`."""
        return rows if self.count == 1 else rows.filter(pa.array(self.numbers(rows) == number))


def shares_of(size: int) -> int:
    """Into how many shares the keys of rows are cut that take so many bytes of memory."""
    return min(MOST_SHARES, 1 + size // SHARE_BYTES)


def shares_by_hash(keys: Sequence[str], size: int) -> KeyShares:
    """Shares that are the same in all tables which have these keys; `size`: as for `shares_of`."""
    return KeyShares(tuple(keys), shares_of(size))


def key_shares(folder: str, names: Sequence[str], keys: Sequence[str], types: KeyTypes, store: Store) -> KeyShares:
    """Shares for the rows of a log's files; the same for the same files. `types`: of the keys as rows are handed on.

    Raises FileNotFoundError, OSError, pa.ArrowException.
    """
    sample = _Sample(folder, names, store)
    count = shares_of(sample.decoded) if sample.size > SMALL_BYTES else 1
    if count == 1:
        return KeyShares(tuple(keys))
    cuts = ((key, _bounds(sample.values(key, types[key]), count)) for key in keys)
    column, bounds = next(((key, cut) for key, cut in cuts if cut is not None), (None, None))
    return KeyShares(tuple(keys), count if bounds is None else len(bounds) + 1, column, bounds)


def _bounds(values: pa.Array, count: int) -> pa.Array | None:
    """Where `count` shares of even size begin, but the first; None where too many rows have one value."""
    if not len(values) or not _is_ordered(values.type):
        return None
    values = _ordered(values)
    values = values.take(pc.sort_indices(values))
    bounds = values.take(pa.array(np.arange(1, count) * len(values) // count)).unique()
    rows = np.bincount(pc.search_sorted(bounds, values, side="right").to_numpy(), minlength=len(bounds) + 1)
    return bounds if rows.max() <= _LARGEST * -(-len(values) // count) else None


def _is_ordered(kind: pa.DataType) -> bool:
    """Types of keys that equal values are cut alike in; a NaN has no place, and zero has two."""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _ordered(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Arrow 26 searches no decimals. As doubles equal ones are equal still.
    return column.cast(pa.float64(), safe=False) if pa.types.is_decimal(column.type) else column


class _Sample:
    """Some of the files, evenly from all of them."""

    def __init__(self, folder: str, names: Sequence[str], store: Store) -> None:
        self._system = filesystem(folder, store)
        self._names = _evenly(sorted(names), SAMPLED_FILES)
        of_sampled = [self._size(name) for name in self._names]
        self.size = sum(of_sampled) * len(names) // max(1, len(self._names))

    def _size(self, name: str) -> int:
        return int(self._system.get_file_info(name).size or 0)

    @property
    def decoded(self) -> int:
        """Bytes that all rows take in memory, about."""
        decoded = compressed = 0
        for name in _evenly(self._names, WEIGHED_FILES):
            with self._system.open_input_file(name) as opened:
                file = open_parquet(opened)
                first = next(file.iter_batches(WEIGHED_ROWS, use_threads=False), None)
                if first is not None and first.num_rows:
                    decoded += first.nbytes * file.metadata.num_rows // first.num_rows
                    compressed += int(opened.size())
        return decoded * self.size // compressed if compressed else 0

    def values(self, key: str, kind: pa.DataType) -> pa.Array:
        """Values of a key column, without nulls. None of files that lack it."""
        arrays: list[pa.Array] = []
        for name in self._names:
            with self._system.open_input_file(name) as opened:
                arrays += _values(open_parquet(opened), key, kind)
        return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


def _values(file: pq.ParquetFile, key: str, kind: pa.DataType) -> list[pa.Array]:
    if key not in file.schema_arrow.names:
        return []
    column = pc.drop_null(file.read(columns=[key], use_threads=False).column(0).combine_chunks())
    picked = column.take(pa.array(_evenly(range(len(column)), SAMPLED_ROWS), pa.int64()))
    return [in_type(picked, kind)]


def _evenly(items: Sequence[T], most: int) -> list[T]:
    return [items[n * len(items) // min(most, len(items))] for n in range(min(most, len(items)))]
