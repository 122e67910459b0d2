"""Parquet files of the avro shape: not Datastream's own, but what somebody converted its files to.

Their values are Arrow's already. They are brought to what avro would have stored, so that one mapping serves all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distributary.avro.schema import NULL, Array, Field, Node, Record, Scalar
from distributary.changes import casts
from distributary.changes.metadata import Rows
from distributary.changes.model import BadEvent
from distributary.errors import FileBroken, Reason

MOST_UNPACKED = 512 << 20
BYTES_OF_A_COLUMN = 8
Stored = tuple[Node, pa.Array]


def read_parquet(body: pa.Buffer, path: str, bad: list[BadEvent], most: int = MOST_UNPACKED) -> Iterator[Rows]:
    """The events of each row group; one that can't be read is added to `bad`. The file may unpack to `most` bytes.

    Raises:
        FileBroken: the footer can't be read, so nothing can.
    """
    for row, table in read_tables(body, path, bad, most):
        yield _rows(table, row)


def read_tables(body: pa.Buffer, path: str, bad: list[BadEvent], most: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each row group, and the number of the first. `bad` and raises as `read_parquet`."""
    items = _most_items(body)
    try:
        # A footer that tells of more columns than it has bytes for would have them all made first.
        file = pq.ParquetFile(
            pa.BufferReader(body), thrift_string_size_limit=body.size, thrift_container_size_limit=items
        )
    except (pa.ArrowException, OSError) as exc:
        raise FileBroken(path=path, detail=f"it is no whole Parquet file: {exc}") from exc
    _check_size(file.metadata, path, most)
    row = 0
    for number in range(file.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        try:
            table = file.read_row_group(number).combine_chunks()
        except (pa.ArrowException, OSError) as exc:
            detail = f"{count} events of row group {number} can't be read: {exc}"
            bad.append(BadEvent(row, Reason.FILE_BROKEN, detail, b""))
        else:
            if count:
                yield row, table
        row += count


def _most_items(body: pa.Buffer) -> int:
    """Items that a list in the footer may have: each column takes some bytes of it."""
    footer_bytes = int.from_bytes(body.slice(max(0, body.size - 8), 4).to_pybytes(), "little") if body.size >= 8 else 0
    return 1_000 + min(footer_bytes, int(body.size)) // BYTES_OF_A_COLUMN


def _check_size(footer: pq.FileMetaData, path: str, most: int) -> None:
    """Raises FileBroken: a file that would be larger than it may, by its footer."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    size = sum(max(group.total_byte_size, 0) for group in groups)
    # A column of one value takes next to no bytes in the file, but some in memory.
    cells = sum(max(group.num_rows, 0) for group in groups) * footer.num_columns
    if max(size, cells) > most:
        detail = (
            f"its footer tells of {size:,} bytes and {cells:,} values; allowed are {most:,} (source.max_unpacked_bytes)"
        )
        raise FileBroken(path=path, detail=detail)


def _rows(table: pa.Table, row: int) -> Rows:
    columns = {name: _chunk(table.column(name)) for name in table.column_names}
    source, payload = columns.pop("source_metadata", None), columns.pop("payload", None)
    stored = [] if payload is None else [(name, *as_stored(array)) for name, array in _children(payload).items()]
    return Rows(
        np.arange(row, row + len(table), dtype=np.int64),
        columns,
        {} if source is None else _children(source),
        stored,
    )


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _children(array: pa.Array) -> dict[str, pa.Array]:
    if not pa.types.is_struct(array.type):
        return {}
    names = [array.type.field(place).name for place in range(array.type.num_fields)]
    return dict(zip(names, array.flatten(), strict=True))


def as_stored(array: pa.Array) -> Stored:
    """An array's avro type, and its values as avro stores them. Decimals and what avro lacks stay as they are."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return as_stored(array.dictionary_decode())
    if pa.types.is_null(kind):
        return NULL, array
    if pa.types.is_timestamp(kind):
        return Scalar("long", "timestamp-micros"), _micros(array)
    if pa.types.is_time(kind):
        return Scalar("long", "time-micros"), array.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if pa.types.is_date(kind):
        return Scalar("int", "date"), _days(array)
    if pa.types.is_struct(kind):
        children = {name: as_stored(child) for name, child in _children(array).items()}
        fields = tuple(Field(name, node) for name, (node, _) in children.items())
        arrays = [child_array for _, child_array in children.values()]
        types = [pa.field(name, child_array.type) for name, (_, child_array) in children.items()]
        return Record("", fields), pa.StructArray.from_arrays(arrays, fields=types, mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        plain = array.cast(pa.list_(kind.value_type))
        node, items = as_stored(plain.values)
        return Array(node), pa.ListArray.from_arrays(_offsets(plain), items, mask=plain.is_null())
    return _flat(array)


def _flat(array: pa.Array) -> Stored:
    kind = array.type
    if pa.types.is_map(kind):
        return Scalar("string"), casts.json_text(array)
    if pa.types.is_decimal256(kind):
        return Scalar("string"), array.cast(pa.string())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return Scalar("string"), array.cast(pa.string())
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return Scalar("bytes"), array.cast(pa.binary())
    if pa.types.is_integer(kind):
        if pa.types.is_uint64(kind):  # MySQL's bigint unsigned, which avro files have as text too
            return Scalar("string", "number"), array.cast(pa.string())
        long = kind.bit_width == 64 or pa.types.is_uint32(kind)
        return (Scalar("long"), array.cast(pa.int64())) if long else (Scalar("int"), array.cast(pa.int32()))
    if pa.types.is_float16(kind):
        return Scalar("float"), array.cast(pa.float32())
    return Scalar("string"), array  # the mapping gives on as it is what has no logical type


def _days(array: pa.Array) -> pa.Array:
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())
    days = [None if value is None else value // 86_400_000 for value in array.cast(pa.int64()).to_pylist()]
    return pa.array([n if n is None or abs(n) < -casts.NO_DAY else casts.NO_DAY for n in days], pa.int32())


def _micros(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.timestamp("us", array.type.tz), safe=array.type.unit != "ns").cast(pa.int64())
    except pa.ArrowInvalid:  # too large for microseconds, so beyond all calendars too
        factor = {"s": 1_000_000, "ms": 1000}[array.type.unit]
        numbers = [None if value is None else value * factor for value in array.cast(pa.int64()).to_pylist()]
        most = -casts.NO_TIME
        return pa.array([n if n is None or abs(n) < most else casts.NO_TIME for n in numbers], pa.int64())


def _offsets(array: pa.ListArray) -> pa.Array:
    """The list's offsets without its nulls."""
    return pa.array(np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1])
