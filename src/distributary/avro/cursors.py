"""One cursor per row, all moved together over one field after the other.

`present` is the mask of rows in which a value stands at all: behind a union with null it is narrower than before.
Absent rows are computed too and thrown away, which is cheaper than to gather and scatter the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.avro.blocks import SYNC, Block
from distributary.avro.schema import NULL, Array, Node, Record, Scalar, Union
from distributary.avro.walk_columns import (
    ARROW,
    AnyColumn,
    Enum,
    Lists,
    Longs,
    Mask,
    Mixed,
    Numbers,
    Struct,
    Texts,
    Unfit,
    arrow_type,
    element_of,
    is_nested_list,
)

Words = npt.NDArray[np.uint64]

AT_ONCE = 1 << 17  # bytes looked through in one step: they stay in the processor's cache
LONGEST_LIST = 1_000
MOST_STEPS = 20_000
"""Steps of one walk. Lists in lists would multiply; a file that needs more is left to fastavro."""
ZIGZAG = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(256)], np.int64)
ODD = np.uint8(1)
ONE = np.uint64(1)
CONTINUED = np.uint64(0x8080808080808080)
SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F)
# three steps that close the gaps between groups of 7, 14 and 28 bits: (low groups, high groups, shift)
CLOSING = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


class Walker:
    def __init__(self, data: pa.Buffer) -> None:
        """`data` has at least 16 readable bytes behind the last row."""
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._size = len(self._bytes)
        assert self._size >= SYNC
        # the eight bytes from any place on, as one number
        self._words: Words = np.ndarray((self._size - 7,), np.dtype("<u8"), buffer=self._bytes.data, strides=(1,))
        self._bad: Mask = np.zeros(0, bool)
        self._steps = 0

    def candidates(self, blocks: Sequence[Block]) -> Longs | None:
        """All places that look as the first row begins: a text of its length, with its punctuation (a uuid's four
        hyphens), and a number of several bytes behind it where the first row has one. None where that says too little.
        """
        if not blocks:
            return None
        start, end = blocks[0].start, blocks[-1].end
        length = int(self._bytes[start])
        if length & 1 or length >= 0x80 or start + 2 + length // 2 > self._size:
            return None
        text = bytes(self._bytes[start + 1 : start + 1 + length // 2])
        found_places = []
        for begin in range(start, end, AT_ONCE):
            found_places.append(np.flatnonzero(self._bytes[begin : min(begin + AT_ONCE, end)] == length) + begin)
        places: Longs = np.concatenate(found_places)
        txns = [(offset + 1, byte) for offset, byte in enumerate(text) if not chr(byte).isalnum()][:6]
        for offset, byte in txns:
            places = places[self._at(places + offset) == byte]
        behind = 1 + len(text)
        if self._bytes[start + behind] >= 0x80:
            places = places[self._at(places + behind) >= 0x80]
        rows = sum(block.count for block in blocks)
        return places if len(places) <= 4 * rows + 1_000 else None

    def walk(self, schema: Record, begins: Longs) -> tuple[Struct, Longs, Mask]:
        """The columns of the rows that begin there, where each row ends, and which rows can't be right."""
        self._bad = np.zeros(len(begins), bool)
        self._steps = MOST_STEPS
        columns, ends = self._record(schema, begins, None)
        return columns, ends, self._bad

    # -- nodes -----------------------------------------------------------------------------------------------

    def _node(self, node: Node, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        self._steps -= 1
        if self._steps < 0:
            raise Unfit
        if isinstance(node, Scalar):
            return self._scalar(node, places, present)
        if isinstance(node, Union):
            return self._union(node, places, present)
        if isinstance(node, Record):
            return self._nested(node, places, present) if is_nested_list(node) else self._record(node, places, present)
        if isinstance(node, Array):
            return self._array(node.items, places, present, None)
        raise Unfit

    def _nested(self, node: Record, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        """A PostgreSQL array of one dimension; those of more are left to fastavro."""
        nested, element = node.field("nestedArray"), element_of(node)
        assert isinstance(nested, Union) and element is not None
        none = 2 * nested.branches.index(NULL)
        self._flag(self._at(places) != 2 - none, present)
        column, places = self._array(element, _step(places, 1, present), present, none)
        self._flag(self._at(places) != 2 * element.branches.index(NULL), present)
        return column, _step(places, 1, present)

    def _record(self, node: Record, places: Longs, present: Mask | None) -> tuple[Struct, Longs]:
        columns = []
        rows = len(places)
        for field in node.fields:
            column, places = self._node(field.node, places, present)
            columns.append(column)
        return Struct(node.fields, columns, present, rows), places

    def _scalar(self, node: Scalar, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        kind = node.kind
        if kind in ("string", "bytes"):
            return self._text(kind, places, present)
        if kind == "null":
            return Numbers(pa.null(), np.zeros(len(places), np.int8), None), places
        if kind == "fixed":
            return self._fixed(node.size, places, present)
        if kind in ("float", "double"):
            words = self._word(places)
            floats = words.view(np.float64) if kind == "double" else words.astype(np.uint32).view(np.float32)
            return Numbers(ARROW[kind], floats, present), _step(places, 8 if kind == "double" else 4, present)
        if kind == "boolean":
            byte = self._at(places)
            self._flag(byte > 1, present)
            return Numbers(pa.bool_(), byte, present), _step(places, 1, present)
        values, places = self._long(places, present)
        if kind == "enum":
            self._flag((values < 0) | (values >= len(node.symbols)), present)
            return Enum(node.symbols, values, present), places
        if kind == "int":
            short = values.astype(np.int32)
            self._flag(short != values, present)
            return Numbers(pa.int32(), short, present), places
        return Numbers(pa.int64(), values, present), places

    def _text(self, kind: str, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        length, begin = self._long(places, present)
        if len(length) and (length.min() < 0 or length.max() > self._size):
            wrong = (length < 0) | (length > self._size)
            self._flag(wrong, present)
            length = np.where(wrong, 0, length)
        end = begin + length if present is None else begin + length * present
        return Texts(ARROW[kind], self._data, begin, end, present).early(), end

    def _fixed(self, size: int, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        end = _step(places, size, present)
        self._flag(end > self._size, present)
        end = np.minimum(end, self._size)
        return Texts(pa.binary(), self._data, places, end, present), end

    def _union(self, node: Union, places: Longs, present: Mask | None) -> tuple[AnyColumn, Longs]:
        branch = self._at(places)
        places = _step(places, 1, present)
        last = 2 * (len(node.branches) - 1)
        if (branch & ODD).any() or branch.max(initial=0) > last:
            self._flag(((branch & 1) == 1) | (branch > last), present)
        columns = []
        for number, branch_node in enumerate(node.branches):
            if branch_node == NULL:
                continue
            takes: Mask | None = branch == 2 * number
            if present is not None:
                takes = takes & present  # type: ignore[operator]  # it is a mask still
            elif takes.all():  # type: ignore[union-attr]
                takes = None
            column, places = self._node(branch_node, places, takes)
            columns.append(column)
        if not columns:
            return self._scalar(NULL, places, present)
        return columns[0] if len(columns) == 1 else Mixed(columns), places

    def _array(self, item: Node, places: Longs, present: Mask | None, before: int | None) -> tuple[AnyColumn, Longs]:
        """Lists of one avro block, as all writers of short lists make them; any other is left to fastavro. `before` is
        a byte that has to stand before each item."""
        counts, places = self._long(places, present)
        counts = counts if present is None else counts * present
        negative = counts < 0
        if negative.any():  # the block's size in bytes follows
            _, places = self._long(places, negative)
            counts = np.abs(counts)
        odd = counts.view(np.uint64) > LONGEST_LIST
        if odd.any():
            self._flag(odd, present)
            counts = np.where(odd, 0, counts)
        counts = self._plausible(counts, places)
        items = []
        for number in range(int(counts.max()) if len(counts) else 0):
            inside: Mask | None = counts > number
            if inside.all():  # type: ignore[union-attr]
                inside = None
            if before is not None:
                self._flag(self._at(places) != before, inside)
                places = _step(places, 1, inside)
            column, places = self._node(item, places, inside)
            items.append(column)
        some: Mask = counts > 0
        self._flag(self._at(places) != 0, some)
        places = places + some
        return Lists(pa.list_(arrow_type(item)), counts, items, present), places

    def _plausible(self, counts: Longs, places: Longs) -> Longs:
        """Counts of lists whose items begin at `places`, without those that cannot be right: their rows are flagged."""
        return counts

    # -- bytes -----------------------------------------------------------------------------------------------

    def _at(self, places: Longs) -> npt.NDArray[np.uint8]:
        return np.take(self._bytes, places, mode="clip")

    def _word(self, places: Longs) -> Words:
        return self._words[np.minimum(places, self._size - 8)]

    def _flag(self, wrong: Mask, present: Mask | None) -> None:
        self._bad |= wrong if present is None else wrong & present

    def _long(self, places: Longs, present: Mask | None) -> tuple[Longs, Longs]:
        """Variable-length zigzag numbers, and the places behind them."""
        first = self._at(places)
        if first.max(initial=0) < 0x80:
            return np.take(ZIGZAG, first), _step(places, 1, present)
        words = self._word(places)
        stops = ~words & CONTINUED
        lowest = stops & -stops
        used = lowest ^ (lowest - ONE)  # all bits up to the last one of the number
        width = (np.bitwise_count(used) >> 3).astype(np.int64)
        words = words & used & SEVEN
        for low, high, shift in CLOSING:
            words = (words & low) | ((words & high) >> shift)
        if not stops.all():
            self._longest(places, words, width, np.flatnonzero(stops == 0), present)
        values = (words >> ONE) ^ -(words & ONE)
        return values.view(np.int64), places + width if present is None else places + width * present

    def _longest(self, places: Longs, words: Words, width: Longs, lanes: Longs, present: Mask | None) -> None:
        """Numbers of nine and ten bytes: completes `words` and `width` in their lanes."""
        ninth = self._at(places[lanes] + 8).astype(np.uint64)
        tenth = self._at(places[lanes] + 9).astype(np.uint64)
        ten = ninth >= 0x80
        words[lanes] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        words[lanes] |= np.where(ten, (tenth & ONE) << np.uint64(63), np.uint64(0))
        width[lanes] = np.where(ten, 10, 9)
        wrong = np.zeros(len(places), bool)
        wrong[lanes] = ten & (tenth > 1)
        self._flag(wrong, present)


def _step(places: Longs, width: int, present: Mask | None) -> Longs:
    return places + width if present is None else places + width * present
