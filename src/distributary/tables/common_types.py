"""Which type holds all values of two."""

from __future__ import annotations

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
