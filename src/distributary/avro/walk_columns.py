"""What the side-by-side walk over avro rows finds, and how it becomes Arrow.

A text is not copied while the rows are walked: a column remembers where its values stand in the file, and one `take`
cuts all of them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import NULL, Array, Field, Node, Record, Scalar, Union, solid

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LARGEST_SPAN = 1 << 31
WIDEST_COPY = 64

ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


def arrow_type(node: Node) -> pa.DataType:
    """The Arrow type that a node's values have before any logical type is applied. Text where there is no such type."""
    node = solid(node)
    if isinstance(node, Scalar):
        return ARROW[node.kind]
    if isinstance(node, Record):
        if is_nested_list(node):
            return pa.list_(arrow_type(node.field("elementValue") or NULL))
        return pa.struct([pa.field(field.name, arrow_type(field.node)) for field in node.fields])
    if isinstance(node, Array):
        return pa.list_(arrow_type(node.items))
    return pa.string()


def is_nested_list(node: Record) -> bool:
    """PostgreSQL's arrays of any depth; users get one flat list."""
    return node.name.startswith("multidimensionalArray") and {"nestedArray", "elementValue"} <= set(node.names)


def element_of(node: Record) -> Union | None:
    """The type of a nested list's elements, where it is written in the one way that is known: both fields in this
    order, each a union of null and one type."""
    nested, element = node.field("nestedArray"), node.field("elementValue")
    if node.names != ("nestedArray", "elementValue") or not isinstance(nested, Union):
        return None
    if not isinstance(element, Union) or NULL not in element.branches or NULL not in nested.branches:
        return None
    return element if isinstance(solid(nested), Array) else None


class Unfit(Exception):
    """Rows that this way of reading can't give: texts too large for one array, or a text that is not UTF-8."""


@dataclass(slots=True)
class Numbers:
    type: pa.DataType
    values: npt.NDArray[Any]
    present: Mask | None

    def arrow(self) -> pa.Array:
        count = len(self.values)
        if pa.types.is_null(self.type):
            return pa.nulls(count)
        if pa.types.is_boolean(self.type):
            return pa.array(self.values != 0, self.type, mask=None if self.present is None else ~self.present)
        buffers = [_bitmap(self.present), pa.py_buffer(self.values)]
        return pa.Array.from_buffers(self.type, count, buffers)


@dataclass(slots=True)
class Texts:
    type: pa.DataType
    data: pa.Buffer
    starts: Longs
    ends: Longs
    present: Mask | None

    def early(self) -> AnyColumn:
        """Cut out while the rows' bytes are still in the processor's cache, where they may be cut: look-alikes of rows
        are not yet told from rows, and may overlap them or run over the end."""
        apart = (self.starts[1:] >= self.ends[:-1]).all() and self.ends[-1:].max(initial=0) <= self.data.size
        try:
            return WalkedColumn(self.arrow()) if apart else self
        except Unfit:
            return self

    def arrow(self) -> pa.Array:
        """Cut out of the file by one `take`: of an array of which each second item is a text, the others the gaps."""
        count = len(self.starts)
        if not count:
            return pa.array([], self.type)
        base, top = int(self.starts[0]), int(self.ends.max())
        if top - base >= LARGEST_SPAN:
            raise Unfit
        sizes = self.ends - self.starts
        size = int(sizes[0])
        if 0 < size <= WIDEST_COPY and (sizes == size).all():
            return self._alike(size)
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self.starts - base
        offsets[1::2] = self.ends - base
        buffers = [None, pa.py_buffer(offsets), self.data.slice(base, top - base)]
        gaps = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        texts = gaps.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))
        _, bounds, cut = texts.buffers()
        return self._checked(count, bounds, cut)

    def _alike(self, size: int) -> pa.Array:
        """Texts of one length, such as uuids: cheaper to copy as items of that length."""
        count = len(self.starts)
        data = np.frombuffer(self.data, np.uint8)
        items = np.ndarray((len(data) - size + 1,), np.dtype(f"S{size}"), buffer=data.data, strides=(1,))
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        return self._checked(count, pa.py_buffer(offsets), pa.py_buffer(items[self.starts]))

    def _checked(self, count: int, offsets: pa.Buffer, cut: pa.Buffer | None) -> pa.Array:
        array = pa.Array.from_buffers(self.type, count, [_bitmap(self.present), offsets, cut])
        if pa.types.is_string(self.type) and cut and np.frombuffer(cut, np.uint8).max(initial=0) >= 0x80:
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as exc:
                raise Unfit from exc
        return array


@dataclass(slots=True)
class WalkedColumn:
    array: pa.Array

    def arrow(self) -> pa.Array:
        return self.array


@dataclass(slots=True)
class Struct:
    fields: tuple[Field, ...]
    columns: list[AnyColumn]
    present: Mask | None
    count: int

    def arrow(self) -> pa.StructArray:
        arrays = [column.arrow() for column in self.columns]
        fields = [pa.field(field.name, array.type) for field, array in zip(self.fields, arrays, strict=True)]
        mask = None if self.present is None else pa.array(~self.present)
        if not arrays:
            return pa.array([{}] * self.count, pa.struct([]))
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


@dataclass(slots=True)
class Lists:
    type: pa.DataType
    counts: Longs
    items: list[AnyColumn]
    present: Mask | None

    def arrow(self) -> pa.Array:
        lanes, most = len(self.counts), len(self.items)
        offsets = np.zeros(lanes + 1, np.int32)
        np.cumsum(self.counts, out=offsets[1:])
        full = int(offsets[-1]) == lanes * most
        if most == 1:
            values = self.items[0].arrow()
            values = values if full else values.filter(pa.array(self.counts == 1))
        elif not most:
            values = pa.nulls(0, self.type.value_type)
        elif full and (joined := _side_by_side([column.arrow() for column in self.items])) is not None:
            values = joined
        else:
            places = np.arange(lanes, dtype=np.int64)[:, None] + np.arange(most, dtype=np.int64)[None, :] * lanes
            if not full:
                places = places[np.arange(most)[None, :] < self.counts[:, None]]
            columns = [column.arrow() for column in self.items]
            values = pa.concat_arrays(columns).take(pa.array(places.reshape(-1)))
        buffers = [_bitmap(self.present), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.type, lanes, buffers, children=[values])


def _side_by_side(columns: list[pa.Array]) -> pa.Array | None:
    """Texts of each row one behind the other, where each column's are of one length, as those of `sort_keys` are."""
    blocks = []
    for array in columns:
        if array.null_count or not pa.types.is_string(array.type) or not len(array):
            return None
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        size = int(offsets[1] - offsets[0])
        if not size or (np.diff(offsets) != size).any():
            return None
        blocks.append(np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].reshape(-1, size))
    data = np.hstack(blocks)
    sizes = np.tile(np.array([block.shape[1] for block in blocks], np.int32), len(data))
    bounds = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    return pa.Array.from_buffers(pa.string(), len(sizes), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


@dataclass(slots=True)
class Mixed:
    """A union of texts and whole numbers, as text: an item of `sort_keys`."""

    columns: list[AnyColumn]

    def arrow(self) -> pa.Array:
        arrays = [column.arrow() for column in self.columns]
        texts = [array.cast(pa.string()) for array in arrays if array.null_count < len(array)]
        if not texts:
            return pa.nulls(len(arrays[0]), pa.string())
        return texts[0] if len(texts) == 1 else pc.coalesce(*texts)


@dataclass(slots=True)
class Enum:
    symbols: tuple[str, ...]
    places: npt.NDArray[Any]
    present: Mask | None

    def arrow(self) -> pa.Array:
        mask = None if self.present is None else ~self.present
        safe = np.clip(self.places, 0, len(self.symbols) - 1)
        return pa.array(self.symbols, pa.string()).take(pa.array(safe, pa.int64(), mask=mask))


AnyColumn = Numbers | Texts | WalkedColumn | Struct | Lists | Mixed | Enum


def _bitmap(present: Mask | None) -> pa.Buffer | None:
    return None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
