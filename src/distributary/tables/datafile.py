"""One Parquet data file of a Delta table: written whole, described by a small value that can cross processes.

Writing the file ourselves, apart from the commit, lets many tasks write for one table and one commit take them all.
Statistics follow the Delta protocol ("Per-file Statistics": numRecords, minValues, maxValues, nullCount).
"""

from __future__ import annotations

import json
import math
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distributary.steps import Steps, finished
from distributary.tables.codec import codec_of, packing
from distributary.tables.store import Store

INDEXED_COLUMNS = 32
"""Leaf columns with statistics per file; the default of `delta.dataSkippingNumIndexedCols`."""

SAMPLE, SAMPLED_ROWS = 500, 2000
"""Rows by which it is judged whether a column's values repeat, and rows of a file from which on that is worth it."""

SMALL_ROWS = 128
"""Rows of a file up to which dictionaries take more time than they are worth: an eighth of the writing, for a file that
is no smaller (0.92 to 1.05 times as large without)."""

KEPT_NAMES = 4096
"""Names of columns whose JSON is kept."""

LONGEST_TEXT = 64
"""Characters of a text up to which it is its own bound; a longer one is bounded by so many."""
_EXACT = Context(prec=40)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written but belongs to no table yet. `path` is relative to the table; sizes in bytes.

    `partition`: values of the table's partition columns, which the file itself does not hold.
    """

    path: str
    size: int
    rows: int
    stats: str
    written_ms: int
    partition: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_log(self) -> dict[str, Any]:
        """The `add` action of a commit that we write ourselves."""
        return {
            "path": self.path,
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": self.written_ms,
            "dataChange": True,
            "stats": self.stats,
        }


def write_data_file(table_uri: str, rows: pa.Table, store: Store) -> DataFile:
    """Write `rows` as one Parquet file under `table_uri`, under a name never used before.

    Raises OSError when the store refuses it. A file whose commit never comes is an orphan that vacuum removes.
    """
    return finished(writing_data_file(table_uri, rows, store))


def writing_data_file(table_uri: str, rows: pa.Table, store: Store) -> Steps[DataFile]:
    """`write_data_file`, step by step."""
    name = f"part-{uuid.uuid4().hex}.{codec_of(rows.schema)}.parquet"
    leaves = tuple(_leaves(rows.schema))
    sink = pa.BufferOutputStream()
    collected: list[pq.FileMetaData] = []
    pq.write_table(
        rows,
        sink,
        metadata_collector=collected,
        store_schema=False,
        write_statistics=_columns_with_bounds(rows, leaves),
        **packing(rows.schema, _columns_with_dictionary(rows)),
    )
    body = sink.getvalue()
    yield
    stats = _stats(collected[0], rows, leaves)
    yield
    store.put(table_uri, name, body)
    return DataFile(name, body.size, rows.num_rows, stats, int(time.time() * 1000))


# -- statistics --------------------------------------------------------------------------------------------

_Json = dict[str, Any]
"""Nested by column path; a leaf is JSON text already, for a decimal has no exact float."""


def _stats(meta: pq.FileMetaData, rows: pa.Table, leaves: Sequence[_Leaf]) -> str:
    """Every bound that is safe: where a column has none, a filter of deltalake's `to_pandas` or `to_pyarrow_dataset`
    (1.6.6) compares with null, and finds no row of the file."""
    lows: _Json = {}
    highs: _Json = {}
    nulls: _Json = {}
    counted: set[tuple[str, ...]] = set()
    row_groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
    for index, leaf in enumerate(leaves):
        counted.add(leaf.within or leaf.path)
        if len(counted) > INDEXED_COLUMNS:
            break
        groups = [row_group.column(index).statistics for row_group in row_groups]
        if leaf.within or not groups or any(s is None for s in groups):
            continue
        if all(s.has_null_count for s in groups):
            _put(nulls, leaf.path, str(sum(s.null_count for s in groups)))
        if (ends := _ends(groups, leaf, rows)) is not None:
            _put(lows, leaf.path, _low(ends[0], leaf.kind))
            _put(highs, leaf.path, _high(ends[1], leaf.kind))
    return _text({"numRecords": str(meta.num_rows), "minValues": lows, "maxValues": highs, "nullCount": nulls})


def _ends(groups: Sequence[pq.Statistics], leaf: _Leaf, rows: pa.Table) -> tuple[Any, Any] | None:
    """The column's least and greatest value; None where it has no value, or its type no bounds."""
    bounded = [s for s in groups if s.has_min_max]
    if any(s.num_values for s in groups if not s.has_min_max):
        # The Parquet writer leaves out texts beyond its own limit.
        if not pa.types.is_string(leaf.kind):
            return None
        ends = pc.min_max(_values(rows, leaf)).as_py()
        return ends["min"].encode(), ends["max"].encode()
    if not bounded:
        return None
    return min(_value(s.min_raw, leaf.kind) for s in bounded), max(_value(s.max_raw, leaf.kind) for s in bounded)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A Parquet leaf column, in the file's order. Names stay apart: `a.b` is a name or a path, the file cannot say."""

    path: tuple[str, ...]
    kind: pa.DataType
    within: tuple[str, ...]
    """Path of the outermost list or map that holds it; empty without one. Readers count such a one as one column."""


_Path = tuple[str, ...]


def _leaves(fields: Iterable[pa.Field], path: _Path = (), within: _Path = ()) -> Iterator[_Leaf]:
    for child in fields:
        leaf_path, kind = (*path, child.name), child.type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, leaf_path, within)
        elif pa.types.is_list(kind):
            yield from _leaves([kind.value_field], leaf_path, within or leaf_path)
        elif pa.types.is_map(kind):
            yield from _leaves([kind.key_field, kind.item_field], leaf_path, within or leaf_path)
        else:
            yield _Leaf(leaf_path, kind, within)


def _columns_with_dictionary(rows: pa.Table) -> bool | list[str]:
    """True for all; else the Parquet columns whose values repeat. Of the others a dictionary is built for nothing: it
    takes more room than the values."""
    if rows.num_rows <= SMALL_ROWS:
        return []
    if rows.num_rows < SAMPLED_ROWS or not (unlike := _hardly_repeating(rows)):
        return True
    return [name for name in _parquet_names(rows.schema) if name not in unlike]


def _hardly_repeating(rows: pa.Table) -> set[str]:
    """Columns that seem, by neighbouring rows in the middle, to have a value for every two rows or more."""
    values = rows.num_rows / 2
    sample = rows.slice((rows.num_rows - SAMPLE) // 2, SAMPLE)
    while any(pa.types.is_struct(sample_field.type) for sample_field in sample.schema):
        sample = sample.flatten()
    # So many different ones are among the sample where each is drawn from that many values.
    least = values * -math.expm1(-SAMPLE / values)
    return {
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if not pa.types.is_nested(column.type) and pc.count_distinct(column, mode="all").as_py() >= least
    }


def _parquet_names(fields: Iterable[pa.Field], path: str = "") -> Iterator[str]:
    """Leaf columns as pyarrow names them in a Parquet file's schema."""
    for child in fields:
        full_name, kind = f"{path}{child.name}", child.type
        if pa.types.is_struct(kind):
            yield from _parquet_names(kind, f"{full_name}.")
        elif pa.types.is_list(kind):
            yield from _parquet_names([pa.field("element", kind.value_type)], f"{full_name}.list.")
        elif pa.types.is_map(kind):
            yield from _parquet_names([pa.field("key", kind.key_type)], f"{full_name}.key_value.")
            yield from _parquet_names([pa.field("value", kind.item_type)], f"{full_name}.key_value.")
        else:
            yield full_name


def _columns_with_bounds(rows: pa.Table, leaves: Sequence[_Leaf]) -> bool | list[str]:
    """True for all; else the Parquet columns that may have bounds: those without a NaN.

    Arrow's bounds pass over NaN, but to Spark and DataFusion NaN is larger than any number: `x > 5` would skip it.
    """
    single = [leaf for leaf in leaves if not leaf.within]
    unbounded = {".".join(leaf.path) for leaf in single if _has_nan(rows, leaf)}
    if not unbounded:
        return True
    return sorted({".".join(leaf.path) for leaf in single} - unbounded)


def _has_nan(rows: pa.Table, leaf: _Leaf) -> bool:
    return pa.types.is_floating(leaf.kind) and bool(pc.any(pc.is_nan(_values(rows, leaf))).as_py())


def _values(rows: pa.Table, leaf: _Leaf) -> pa.ChunkedArray:
    column = rows.column(leaf.path[0])
    for name in leaf.path[1:]:
        column = pc.struct_field(column, column.type.get_field_index(name))
    return column


def _value(raw: Any, kind: pa.DataType) -> Any:
    """The physical value as one that compares as the column does. Raw, since pyarrow cannot show the year 10000."""
    if pa.types.is_decimal(kind):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _low(value: Any, kind: pa.DataType) -> str | None:
    return json_text(value.decode()[:LONGEST_TEXT]) if pa.types.is_string(kind) else _bound(value, kind)


def _high(value: Any, kind: pa.DataType) -> str | None:
    if not pa.types.is_string(kind):
        return _bound(value, kind)
    text = value.decode()
    above = text if len(text) <= LONGEST_TEXT else _above(text[:LONGEST_TEXT])
    return None if above is None else json_text(above)


_UNESCAPED = json.JSONEncoder(ensure_ascii=False)


def json_text(value: Any) -> str:
    """JSON without escaped pairs: delta-rs (1.6.6) takes those of U+20000 and above for other characters."""
    return _UNESCAPED.encode(value)


def _above(prefix: str) -> str | None:
    """A text that is greater than every one that begins with `prefix`, by code points, which is the order of UTF-8."""
    for last in reversed(range(len(prefix))):
        if prefix[last] < chr(sys.maxunicode):
            after = ord(prefix[last]) + 1
            # Surrogates are no characters.
            return prefix[:last] + chr(0xE000 if after == 0xD800 else after)
    return None


def _bound(value: Any, kind: pa.DataType) -> str | None:
    """The protocol's JSON form; None leaves the bound out. A bound that is there must hold for every reader: NaN, the
    infinities and far years have none."""
    if pa.types.is_boolean(kind):
        return json.dumps(value)
    if pa.types.is_integer(kind):
        return str(value)
    if pa.types.is_floating(kind):
        return json.dumps(value) if math.isfinite(value) else None
    if pa.types.is_decimal(kind):
        return format(Decimal(value).scaleb(-kind.scale, _EXACT), "f")
    if pa.types.is_date(kind):
        return _moment(value, timedelta(days=1), lambda moment: moment.date().isoformat())
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        zone = "" if kind.tz is None else "Z"
        return _moment(
            value, timedelta(microseconds=1), lambda moment: moment.isoformat(timespec="microseconds") + zone
        )
    return None


def _moment(number: int, unit: timedelta, form: Callable[[datetime], str]) -> str | None:
    """`number` units since 1970; None outside the years 1000 to 9999, where readers disagree on the text."""
    try:
        moment = datetime(1970, 1, 1) + number * unit
    except OverflowError:
        return None
    return f'"{form(moment)}"' if moment.year >= 1000 else None


def _put(into: _Json, path: Sequence[str], text: str | None) -> None:
    if text is None:
        return
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = text


def _text(node: _Json | str) -> str:
    if isinstance(node, str):
        return node
    return "{" + ", ".join([f"{_name_text(name)}: {_text(inner)}" for name, inner in node.items()]) + "}"


_name_text = lru_cache(KEPT_NAMES)(json_text)
