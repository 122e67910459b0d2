"""Rows by key: any number of columns of any flat type, null equal to null, NaN to NaN, as Spark's `<=>` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.key_text import in_type

Codes = npt.NDArray[np.int64]
MANY_VALUES = 4096
"""Known keys from which on only those are looked up that lie between the least and the greatest key of the others."""


class KeyIndex:
    """Finds the rows of one table, the `known` rows, by key. Equal keys have one code, from 0 to `len(index)` - 1."""

    def __init__(self, rows: pa.Table, keys: Sequence[str]) -> None:
        """Raises ValueError for no keys, or a key of a nested type."""
        if not keys:
            raise ValueError("rows without a key cannot be told apart")
        self._keys = tuple(keys)
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        self.codes = np.zeros(rows.num_rows, np.int64)
        for number, key in enumerate(self._keys):
            column = _comparable(rows.column(key))
            coded = column.dictionary_encode(null_encoding="encode")
            self._values.append(coded.dictionary)
            codes = _longs(coded.indices)
            if number:
                # Two codes in one integer, made dense again: any number of columns fits.
                pairs = pa.array(self.codes * len(coded.dictionary) + codes).dictionary_encode()
                self._pairs.append(pairs.dictionary)
                codes = _longs(pairs.indices)
            self.codes = codes
        last = self._pairs[-1] if self._pairs else self._values[0]
        self._count = len(last)

    def __len__(self) -> int:
        return self._count

    def find(self, rows: pa.Table) -> Codes:
        """The code of each row's key; -1 where no known row has it."""
        row_codes = np.zeros(rows.num_rows, np.int64)
        for number, key in enumerate(self._keys):
            values = self._values[number]
            column = _comparable(in_type(rows.column(key), values.type))
            codes = _lookup(column, values)
            if number:
                pairs = _lookup(pa.array(row_codes * len(values) + codes), self._pairs[number - 1])
                codes = np.where((row_codes < 0) | (codes < 0), -1, pairs)
            row_codes = codes
        return row_codes


def _comparable(column: Any) -> pa.Array:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if pa.types.is_nested(kind):
        raise ValueError(f"a key column of type {kind} cannot be compared")
    # -0.0 is 0.0
    return pc.add(column, pa.scalar(0.0, kind)) if pa.types.is_floating(kind) else column


def _lookup(column: pa.Array, values: pa.Array) -> Codes:
    if len(values) < MANY_VALUES or not _has_order(column.type):
        return _longs(pc.fill_null(pc.index_in(column, value_set=values), -1))
    # Arrow hashes all values anew for each call; of a large table's files each holds a small part of the keys.
    ends = pc.min_max(column)
    between = pc.and_(pc.greater_equal(values, ends["min"]), pc.less_equal(values, ends["max"]))
    # A null is in no bounds, and equal to null.
    places = np.flatnonzero(pc.fill_null(between, True).to_numpy(zero_copy_only=False))
    codes = pc.index_in(column, value_set=values.take(pa.array(places)))
    return np.append(places, -1)[_longs(pc.fill_null(codes, -1))]


def _has_order(kind: pa.DataType) -> bool:
    """Has Arrow bounds for it that leave no value out (NaN) and costs little to ask for?"""
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_timestamp)
    return any(test(kind) for test in tests)


def _longs(column: pa.Array) -> Codes:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)
