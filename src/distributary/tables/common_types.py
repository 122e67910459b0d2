"""Which type holds all values of two; and columns in the types that they had before."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The smaller of the types that hold every value of both, among the pairs that Delta can widen; else None."""
    if a == b:
        return a
    if a in _INTEGERS and b in _INTEGERS:
        return max(a, b, key=_INTEGERS.index)
    for wider, narrower in ((a, b), (b, a)):
        if pa.types.is_decimal(wider) and narrower in _INTEGERS:
            digits = 10 if narrower != pa.int64() else 20
            integral = max(wider.precision - wider.scale, digits)
            return pa.decimal128(integral + wider.scale, wider.scale) if integral + wider.scale <= 38 else None
        if wider == pa.float64() and narrower in (pa.float32(), *_INTEGERS[:3]):
            return wider
        if wider == pa.float32() and narrower in _INTEGERS[:3]:
            return pa.float64()
    if pa.types.is_decimal(a) and pa.types.is_decimal(b):
        scale = max(a.scale, b.scale)
        precision = max(a.precision - a.scale, b.precision - b.scale) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def types_before(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """`after` with every leaf that `before` has still in its old type: what is new of it are columns only."""
    return pa.schema([_narrow(new, before) for new in after])


def _narrow(new: pa.Field, before: Iterable[pa.Field]) -> pa.Field:
    old = next((earlier for earlier in before if earlier.name == new.name), None)
    return new if old is None else new.with_type(_old_type(old.type, new.type))


def _old_type(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(old):
        return pa.struct([_narrow(inner, old) for inner in new])
    if pa.types.is_list(old):
        return pa.list_(new.value_field.with_type(_old_type(old.value_type, new.value_type)))
    if pa.types.is_map(old):
        return pa.map_(new.key_type, new.item_field.with_type(_old_type(old.item_type, new.item_type)))
    return old
