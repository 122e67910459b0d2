"""Casts that never change a value: what the target type cannot hold exactly becomes null.

Arrow's safe cast is not enough: it turns 1e300 into a float's infinity, 5 into true and 1.5 into decimal 2.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def exact_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """`column` as `kind`; null where the value does not fit, so that casting back would not give it again.

    Numbers, booleans, text and bytes go into one another; any other pair of different types fits nowhere, since it
    would need a guess (is a number a time in seconds?).
    """
    if column.type == kind:
        return column
    if not (_plain(column.type) and _plain(kind)):
        return pa.nulls(len(column), kind)
    cast = _cast_each(column, kind)
    if _checked_by_arrow(column.type) and _checked_by_arrow(kind):
        return cast
    back = _cast_each(cast, column.type)
    same = pc.equal(back, column)
    if pa.types.is_floating(column.type) and pa.types.is_floating(kind):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(column)))
    return pc.if_else(pc.fill_null(same, False), cast, pa.scalar(None, kind))


def _plain(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_string,
        pa.types.is_binary,
    )
    return any(test(kind) for test in tests)


def _checked_by_arrow(kind: pa.DataType) -> bool:
    """Between these, Arrow refuses every inexact value; and not each of them casts back (int64 to decimal(5,0))."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _cast_each(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Each value cast, null for those that Arrow refuses; only if it refuses any, distinct values are halved."""
    try:
        return _cast(column, kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(column), kind)
    except pa.ArrowInvalid:
        distinct = column.dictionary_encode()
        return _halve(distinct.dictionary, kind).take(distinct.indices)


def _halve(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Finds the few values that do not cast among many in few casts."""
    try:
        return _cast(column, kind)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind)
    half = len(column) // 2
    return pa.concat_arrays([_halve(column.slice(0, half), kind), _halve(column.slice(half), kind)])


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        # Arrow asks for a precision that holds every integer of the type; the second cast looks at the values.
        column = column.cast(pa.decimal128(38, min(kind.scale, 19)))
    # Arrow's check of integers into floats refuses all beyond 2**53, also those that a float holds, as 2**62.
    inexact = pa.types.is_integer(column.type) and pa.types.is_floating(kind)
    return column.cast(kind, safe=not inexact)
