"""Random table schemas, and rows for them (hypothesis)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TIMESTAMP = pa.timestamp("us", tz="UTC")
SCALARS: tuple[pa.DataType, ...] = (
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.decimal128(20, 0),
    pa.decimal128(10, 2),
    pa.date32(),
    TIMESTAMP,
)


def types(scalars: Sequence[pa.DataType] = SCALARS, names: str = "abc") -> st.SearchStrategy[pa.DataType]:
    def nest(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return st.one_of(
            fields(inner, names).map(pa.struct),
            inner.map(lambda t: pa.list_(pa.field("element", t))),
            st.tuples(st.sampled_from([pa.string(), pa.int32()]), inner).map(lambda kv: pa.map_(*kv)),
        )

    return st.recursive(st.sampled_from(scalars), nest, max_leaves=4)


def fields(kinds: st.SearchStrategy[pa.DataType], names: str = "abc") -> st.SearchStrategy[list[pa.Field]]:
    pairs = st.tuples(st.sampled_from(names), kinds)
    return st.lists(pairs, min_size=1, max_size=3, unique_by=lambda p: p[0].lower()).map(
        lambda found: [pa.field(name, kind) for name, kind in found]
    )


def schemas(scalars: Sequence[pa.DataType] = SCALARS, names: str = "abcAB") -> st.SearchStrategy[pa.Schema]:
    return fields(types(scalars, names), names).map(pa.schema)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | _present(kind)


def _present(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({f.name: values(f.type) for f in kind})
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_map(kind):
        pairs = st.tuples(_present(kind.key_type), values(kind.item_type))
        return st.lists(pairs, max_size=2, unique_by=lambda p: p[0])
    if pa.types.is_integer(kind):
        return st.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_decimal(kind):
        top = 10**kind.precision - 1
        return st.integers(-top, top).map(lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=40)))
    by_kind: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.bool_(): st.booleans(),
        pa.string(): st.text(max_size=3),
        pa.binary(): st.binary(max_size=3),
        pa.date32(): st.dates(date(1600, 1, 1)),
        TIMESTAMP: st.datetimes(datetime(1600, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
    }
    return by_kind[kind]


@st.composite
def batches(draw: st.DrawFn, schema: pa.Schema, max_rows: int = 4) -> pa.RecordBatch:
    """Some rows; often a slice out of the middle of a longer batch, as chunks are."""
    rows = draw(st.lists(_present(pa.struct(list(schema))), max_size=max_rows + 2))
    whole = pa.RecordBatch.from_arrays([pa.array([row[f.name] for row in rows], f.type) for f in schema], schema=schema)
    begin = draw(st.integers(0, min(2, len(rows))))
    return whole.slice(begin, draw(st.integers(0, len(rows) - begin)))


def leaves(value: Any) -> Iterator[Any]:
    """The non-null values inside a Python value, keys of maps among them."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner)
    elif value is not None:
        yield value


def missing(before: Any, after: Any) -> Counter[Any]:
    """Leaves of `before` that `after` lacks. Equal numbers count as equal whatever their type."""
    return Counter(leaves(before)) - Counter(leaves(after))
