"""Avro types to table columns: one rule set, fixed for ever, since a later change would break tables.

docs/payloads.md has the table for users. Readers give values as stored (`stored_type`); `AvroColumns` makes the columns
of them, all rows at once, and says which rows hold a value that its type cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import Array, Field, Map, Node, Record, Recursion, Scalar, Union, solid
from distributary.avro.walk_columns import ARROW
from distributary.changes import casts
from distributary.schemas.decoding import distinct_names
from distributary.schemas.protobuf.columns import COMMENT, EMPTY, EMPTY_COLUMN

Mask = npt.NDArray[np.bool_]
Converted = tuple[Any, Mask | None]

TIMES: Final = {
    "timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms", "local-timestamp-micros": "us", "local-timestamp-nanos": "ns",
}  # fmt: skip
CLOCKS: Final = {"time-millis": 1000, "time-micros": 1}
STRING: Final = Scalar("string")


def entry_of(node: Map) -> Record:
    """A map's bytes are those of a list of such records."""
    return Record("", (Field("key", STRING), Field("value", node.values)))


def branches_of(node: Union) -> list[Field]:
    return [branch.fields[0] for branch in node.branches if isinstance(branch, Record)]


def stored_type(node: Node) -> Any:
    """The Arrow type that a node's values have before `AvroColumns`."""
    if isinstance(node, Union):
        inner = solid(node)
        if isinstance(inner, Union):
            return pa.struct([pa.field(field.name, stored_type(field.node)) for field in branches_of(inner)])
        node = inner
    if isinstance(node, Scalar):
        return ARROW[node.kind]
    if isinstance(node, Record):
        fields = [pa.field(f.name, stored_type(f.node)) for f in node.fields]
        return pa.struct(fields) if fields else pa.bool_()
    if isinstance(node, Array):
        return pa.list_(stored_type(node.items))
    if isinstance(node, Map):
        return pa.list_(stored_type(entry_of(node)))
    return pa.string()


def column_type(node: Node) -> Any:
    """The Arrow type of a node's column."""
    if isinstance(node, Union):
        inner = solid(node)
        if isinstance(inner, Union):
            return _struct(branches_of(inner))
        node = inner
    if isinstance(node, Scalar):
        return _scalar_type(node)
    if isinstance(node, Record):
        return _struct(node.fields) if node.fields else EMPTY
    if isinstance(node, Array):
        return pa.list_(pa.field("element", column_type(node.items)))
    if isinstance(node, Map):
        return pa.map_(pa.string(), column_type(node.values))
    return pa.string()


def columns_of(record: Record) -> pa.Schema:
    """The columns of a record as a row."""
    kind = column_type(record)
    return pa.schema(list(kind))


def _struct(fields: Sequence[Field]) -> Any:
    names = column_names([field.name for field in fields])
    return pa.struct([_column(name, field) for name, field in zip(names, fields, strict=True)])


def _column(name: str, field: Field) -> Any:
    about = None if field.doc is None else {COMMENT: field.doc.encode()}
    return pa.field(name, column_type(field.node), metadata=about)


def column_names(names: Sequence[str]) -> list[str]:
    """Names of columns, no two of which differ in case only."""
    return distinct_names(enumerate(names, 1))


def is_decimal(node: Scalar) -> bool:
    valid = node.precision > 0 and 0 <= node.scale <= node.precision
    return node.logical == "decimal" and node.kind in ("bytes", "fixed") and valid


def _scalar_type(node: Scalar) -> Any:
    if is_decimal(node):
        wide = node.precision > casts.WIDEST_DECIMAL
        return pa.string() if wide else pa.decimal128(node.precision, node.scale)
    if node.kind == "int" and node.logical == "date":
        return pa.date32()
    if node.kind in ("int", "long") and node.logical in CLOCKS:
        return pa.string()
    if node.kind == "long" and node.logical in TIMES:
        return pa.timestamp("us") if node.logical.startswith("local-") else casts.TIMESTAMP
    if node.kind == "fixed" and node.logical == "uuid" and node.size == 16:
        return pa.string()
    return pa.bool_() if node.kind == "null" else ARROW[node.kind]


class AvroColumns:
    """Stored values as columns. `null_out_of_range`: a time of no calendar is null, else its row is refused."""

    def __init__(self, null_out_of_range: bool) -> None:
        self._null = null_out_of_range
        self.nulled = 0
        """Times that are null since no reader can hold them."""

    def make(self, node: Node, stored: Any) -> Converted:
        """The column, and which rows it refuses (None: none)."""
        if isinstance(node, Union):
            inner = solid(node)
            if isinstance(inner, Union):
                return self._struct(branches_of(inner), stored)
            node = inner
        if isinstance(node, Scalar):
            return self._scalar(node, stored)
        if isinstance(node, Record):
            return self._struct(node.fields, stored) if node.fields else (_empty(stored), None)
        if isinstance(node, Array):
            return self._list(node, stored)
        if isinstance(node, Map):
            return self._map(node, stored)
        return stored, None

    def _struct(self, fields: Sequence[Field], stored: Any) -> Converted:
        arrays, bad = [], None
        for place, field in enumerate(fields):
            array, refused = self.make(field.node, stored.field(place))
            arrays.append(array)
            bad = _either(bad, refused)
        mask = stored.is_null() if stored.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(_struct(fields)), mask=mask), bad

    def _list(self, node: Array, stored: Any) -> Converted:
        values, refused = self.make(node.items, stored.values)
        array = pa.ListArray.from_arrays(_offsets(stored), values, type=column_type(node), mask=_nulls(stored))
        return array, _of_parents(refused, stored)

    def _map(self, node: Map, stored: Any) -> Converted:
        offsets, entries = _last_of_each_key(stored)
        values, refused = self.make(node.values, entries.field(1))
        kind = column_type(node)
        array = pa.MapArray.from_arrays(offsets, entries.field(0), values, type=kind, mask=_nulls(stored))
        return array, None if refused is None else _parents(refused, np.asarray(offsets))

    def _scalar(self, node: Scalar, stored: Any) -> Converted:
        if node.kind == "null":
            return pa.nulls(len(stored), pa.bool_()), None
        if is_decimal(node):
            if node.precision <= casts.WIDEST_DECIMAL:
                return casts.decimals(stored, node.precision, node.scale)
            texts = [None if v is None else casts.decimal_text(v, node.scale) for v in stored.to_pylist()]
            return pa.array(texts, pa.string()), None
        if node.kind == "fixed" and node.logical == "uuid" and node.size == 16:
            return pa.array([None if v is None else _uuid(v.hex()) for v in stored.to_pylist()], pa.string()), None
        if node.kind == "int" and node.logical == "date":
            return self._time(*casts.dates(stored))
        if node.kind in ("int", "long") and node.logical in CLOCKS:
            return self._time(*casts.clocks(stored, CLOCKS[node.logical]))
        if node.kind == "long" and node.logical in TIMES:
            array, bad = casts.timestamps(stored, TIMES[node.logical])
            return self._time(array.cast(_scalar_type(node)) if node.logical.startswith("local-") else array, bad)
        return stored, None

    def _time(self, array: Any, bad: Mask | None) -> Converted:
        if bad is None or not self._null:
            return array, bad
        self.nulled += int(bad.sum())
        return array, None


def _uuid(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _empty(stored: Any) -> Any:
    """A record without fields: where it is there is all that it says."""
    presence = pc.if_else(stored.is_valid(), True, None)
    return pa.StructArray.from_arrays([presence], names=[EMPTY_COLUMN], mask=stored.is_null())


def _either(left: Mask | None, right: Mask | None) -> Mask | None:
    return right if left is None else left if right is None else left | right


def _offsets(stored: Any) -> Any:
    return pa.array(np.asarray(stored.offsets), pa.int32())


def _nulls(stored: Any) -> Any:
    return stored.is_null() if stored.null_count else None


def _of_parents(bad: Mask | None, stored: Any) -> Mask | None:
    return None if bad is None else _parents(bad, np.asarray(stored.offsets))


def _parents(bad: Mask, offsets: Any) -> Mask:
    """Which lists hold a bad item."""
    bad_lists = np.zeros(len(offsets) - 1, bool)
    bad_lists[np.searchsorted(offsets, np.flatnonzero(bad), side="right") - 1] = True
    return bad_lists


def _last_of_each_key(stored: Any) -> tuple[Any, Any]:
    """Offsets and entries of maps; of a key that is written twice the last one counts."""
    offsets, entries = np.asarray(stored.offsets).astype(np.int64), stored.values
    count = len(entries)
    if not count:
        return _offsets(stored), entries
    keys = entries.field(0).dictionary_encode()
    parents = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    if len(parents) < count:  # items before or behind the lists
        entries = entries.slice(int(offsets[0]), len(parents))
        keys, offsets, count = keys.slice(int(offsets[0]), len(parents)), offsets - offsets[0], len(parents)
    codes = parents * max(1, len(keys.dictionary)) + np.asarray(keys.indices)
    unique, last = np.unique(codes[::-1], return_index=True)
    if len(unique) == count:
        return pa.array(offsets, pa.int32()), entries
    entry_places = np.sort(count - 1 - last)
    sizes = np.bincount(parents[entry_places], minlength=len(offsets) - 1)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return pa.array(starts, pa.int32()), entries.take(pa.array(entry_places))


__all__ = ["AvroColumns", "Recursion", "column_type", "columns_of", "stored_type"]
