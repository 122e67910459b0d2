"""Avro payloads to Arrow.

Records of one schema lie end to end in one buffer, and where each begins is known. So all of them are walked side by
side (`walk`). A record that the walk does not vouch for is read by fastavro, alone: it decides. Where bytes do not
bound what it does, they are measured before (`avro.bounds`). Both give what is stored; `columns` makes columns.

Measured, ten columns, records per second of CPU: the walk 1.5 to 2.0 M, 1.0 M where one in a thousand is cut; fastavro
0.05 M. DataFusion reads the same records, written as a block of a container file, at 1.3 to 1.9 M, but fails on a whole
block for one record, gives no place of it, and nothing bounds what a hostile record makes it allocate.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from distributary.avro.bounds import EventWalk, smallest
from distributary.avro.schema import Array, Map, Node, Record, Recursion, Union, solid
from distributary.errors import Reason
from distributary.errors.border import contained
from distributary.schemas.avro.columns import AvroColumns, branches_of, columns_of, entry_of, stored_type
from distributary.schemas.avro.tree import Tree, tree_of
from distributary.schemas.avro.walk import PayloadWalker, Unfit, can_walk
from distributary.schemas.decoding import Rejected, Split
from distributary.schemas.protobuf.columns import EMPTY_COLUMN

AT_ONCE: Final = 32_768
"""Records of one walk: what is read of them nearly fits the processor's caches."""
FEW: Final = 64
"""So many records are not halved any more to find the ones that the walk cannot give."""
PADDING: Final = bytes(16)
OUT_OF_RANGE: Final = "a date, time or number is beyond what its column can hold"
NULLED: Final = "times out of range are null"


class AvroDecoder:
    """Decodes the records of one schema."""

    def __init__(self, tree: Tree, *, null_out_of_range: bool = False) -> None:
        self._tree, self._null = tree, null_out_of_range
        self._record = tree.record
        self._has_walk = can_walk(tree.record)
        self._is_bounded = self._has_walk and is_bounded(tree.record)
        self.full_name = tree.full_name
        self.engine = "avro" if self._has_walk else "fastavro"
        self.columns = columns_of(tree.record) if tree.record.fields else pa.schema([(EMPTY_COLUMN, pa.bool_())])
        self._stored = stored_type(tree.record)

    def decode(self, payloads: pa.BinaryArray) -> Split:
        """Decode records without header; there are no nulls."""
        if payloads.type != pa.binary():
            payloads = payloads.cast(pa.binary())
        decoded = _Decoded()
        for begin in range(0, len(payloads), AT_ONCE):
            window = payloads.slice(begin, AT_ONCE)
            if self._has_walk:
                self._walk(window, begin, decoded)
            else:
                decoded.slow += range(begin, begin + len(window))
        rejected: dict[int, Rejected] = {}
        self._read(payloads, decoded, rejected)
        return self._split(len(payloads), decoded, rejected)

    def _walk(self, window: pa.BinaryArray, first: int, decoded: _Decoded) -> None:
        """Walk some records; what the walk does not vouch for is left in `decoded.slow`."""
        offsets = np.frombuffer(window.buffers()[1], np.int32, len(window) + 1, window.offset * 4).astype(np.int64)
        low, high = int(offsets[0]), int(offsets[-1])
        body = window.buffers()[2]
        data = pa.py_buffer((b"" if body is None else body.slice(low, high - low).to_pybytes()) + PADDING)
        self._walk_some(PayloadWalker(data), offsets - low, 0, len(window), first, decoded)

    def _walk_some(
        self, walker: PayloadWalker, offsets: Any, begin: int, end: int, first: int, decoded: _Decoded
    ) -> None:
        try:
            stored, good = self._vouched(walker, offsets, np.arange(begin, end))
        except Unfit:
            if end - begin <= FEW:
                decoded.slow += range(first + begin, first + end)
                return
            middle = (begin + end) // 2
            self._walk_some(walker, offsets, begin, middle, first, decoded)
            self._walk_some(walker, offsets, middle, end, first, decoded)
            return
        lanes = first + np.arange(begin, end)
        decoded.slow += lanes[~good].tolist()
        if len(stored):
            decoded.stored.append(stored)
            decoded.at.append(lanes[good])

    def _vouched(self, walker: PayloadWalker, offsets: Any, lanes: Any) -> tuple[Any, Any]:
        """The records that are right, as stored, and which of `lanes` they are. Raises Unfit."""
        columns, ends, bad = walker.records(self._record, offsets[lanes], offsets[lanes + 1])
        good = ~bad & (ends == offsets[lanes + 1])
        if not good.all():
            lanes = lanes[good]
            columns, _, _ = walker.records(self._record, offsets[lanes], offsets[lanes + 1])
        return columns.arrow(), good

    def _read(self, payloads: pa.BinaryArray, decoded: _Decoded, rejected: dict[int, Rejected]) -> None:
        """Read by fastavro what is left."""
        rows: list[Any] = []
        positions: list[int] = []
        for place in sorted(decoded.slow):
            try:
                row = self._one(payloads[place].as_py())
            except BaseException as error:
                rejected[place] = Rejected(place, Reason.CORRUPT_PAYLOAD, contained(error))
            else:
                rows.append(row)
                positions.append(place)
        for begin, end in _steps(len(rows)):
            self._store(rows[begin:end], positions[begin:end], decoded, rejected)

    def _one(self, body: bytes) -> Any:
        """A record as plain values of `stored_type`. Raises anything."""
        if not self._is_bounded:
            EventWalk(self._record, memoryview(body)).end(0)
        stream = io.BytesIO(body)
        try:
            value = fastavro.schemaless_reader(stream, self._tree.reader, None)
        except EOFError:
            # Its own words are none, or name an object's place in memory, so that no two details were alike.
            raise ValueError("it ends in the middle of a value") from None
        if (left_over := len(body) - stream.tell()) > 0:
            raise ValueError(f"bytes behind its end: {left_over:,}")
        return _plain(self._record, value)

    def _store(self, rows: list[Any], positions: list[int], decoded: _Decoded, rejected: dict[int, Rejected]) -> None:
        """Rows as Arrow, by halves where one does not fit its own schema, as an int of 40 bits."""
        try:
            array = pa.array(rows, self._stored)
        except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
            if len(rows) == 1:
                rejected[positions[0]] = Rejected(positions[0], Reason.CORRUPT_PAYLOAD, contained(error))
                return
            middle = len(rows) // 2
            self._store(rows[:middle], positions[:middle], decoded, rejected)
            self._store(rows[middle:], positions[middle:], decoded, rejected)
            return
        decoded.stored.append(array)
        decoded.at.append(np.array(positions, np.int64))

    def _split(self, count: int, decoded: _Decoded, rejected: dict[int, Rejected]) -> Split:
        maker = AvroColumns(self._null)
        arrays, places = [], []
        for stored, row_numbers in zip(decoded.stored, decoded.at, strict=True):
            records, refused = maker.make(self._record, stored)
            if refused is not None and refused.any():
                for place in row_numbers[refused].tolist():
                    rejected[place] = Rejected(place, Reason.CORRUPT_PAYLOAD, OUT_OF_RANGE)
                records, row_numbers = records.filter(pa.array(~refused)), row_numbers[~refused]
            arrays.append(records)
            places.append(row_numbers)
        rows = _one_batch(arrays, self.columns)
        order = np.concatenate([np.zeros(0, np.int64), *places])
        if len(order) > 1 and (np.diff(order) < 0).any():
            ranks = np.argsort(order)
            rows, order = rows.take(pa.array(ranks)), order[ranks]
        positions = None if len(order) == count else pa.array(order, pa.int64())
        warnings = Counter({NULLED: maker.nulled} if maker.nulled else {})
        return Split(rows, positions, [rejected[place] for place in sorted(rejected)], warnings)


class _Decoded:
    """What was read: stored values with their places, and the places that fastavro is to read."""

    def __init__(self) -> None:
        self.stored: list[Any] = []
        self.at: list[Any] = []
        self.slow: list[int] = []


def _steps(count: int, size: int = 4_096) -> Iterator[tuple[int, int]]:
    return ((begin, min(begin + size, count)) for begin in range(0, count, size))


def _one_batch(arrays: list[Any], columns: pa.Schema) -> pa.RecordBatch:
    if not arrays:
        return pa.RecordBatch.from_pylist([], columns)
    records = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
    return pa.RecordBatch.from_arrays(records.flatten(), schema=columns)


def _plain(node: Node, value: Any) -> Any:
    """A value that fastavro has read as `pa.array` takes it for `stored_type(node)`."""
    if value is None:
        return None
    if isinstance(node, Union):
        inner = solid(node)
        if isinstance(inner, Union):
            return {field.name: _plain(field.node, value.get(field.name)) for field in branches_of(inner)}
        node = inner
    if isinstance(node, Record):
        return {f.name: _plain(f.node, value[f.name]) for f in node.fields} if node.fields else True
    if isinstance(node, Array):
        return [_plain(node.items, item) for item in value]
    if isinstance(node, Map):
        values = entry_of(node).fields[1].node
        return [{"key": key, "value": _plain(values, item)} for key, item in value.items()]
    if isinstance(node, Recursion):
        return json.dumps(value, default=_hex, ensure_ascii=False)
    return value


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def is_bounded(node: Node) -> bool:
    """Does each item of a list take a byte, so that no record says it has more values than bytes?"""
    if isinstance(node, Record):
        return all(is_bounded(field.node) for field in node.fields)
    if isinstance(node, Union):
        return all(map(is_bounded, node.branches))
    if isinstance(node, Array):
        return smallest(node.items) > 0 and is_bounded(node.items)
    return is_bounded(node.values) if isinstance(node, Map) else True


@lru_cache(maxsize=1_024)
def avro_decoder(texts: tuple[str, ...], subject: str, null_out_of_range: bool) -> AvroDecoder:
    """The decoder of a schema. Raises SchemaBroken."""
    return AvroDecoder(tree_of(texts, subject), null_out_of_range=null_out_of_range)
