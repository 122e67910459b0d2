"""The key of an event as text: one canonical spelling for each value, whatever type its column has.

A key keeps its identity while its column's type changes, so it is compared as text. Equal keys have equal texts:

| value | spelling |
|---|---|
| integer, decimal | plain digits, no exponent, no trailing zeros of a fraction, one zero: `1`, `-0.5` |
| float | the shortest digits that give the double back, plain: `1`, `0.1`; `NaN`, `Infinity`, `-Infinity` |
| boolean | `true`, `false` |
| date | ISO 8601: `2026-01-31` |
| timestamp | ISO 8601 in UTC, no trailing zeros of a second: `2026-01-31T10:00:00.5Z`; at midnight as its date |
| time of day | `10:00:00.5` |
| bytes | hex in lower case |
| text | as it is |
| list, struct, map | as JSON |

So 1, 1.0 and "1" are one key, and so are a date and the timestamp of its midnight; a float counts as the double that it
equals. A whole key is a JSON array of one text, or null, per key column: `["7","eu"]`, without blanks and with
characters beyond ASCII as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

WIDE = pa.decimal128(38, 0)
_TICKS = pa.timestamp("us")


def spelled(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Each value's spelling, as strings; null for null. A value of any type has one."""
    column = _flat(column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return spelled(column.cast(kind.value_type))
    if _is_text(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or (pa.types.is_decimal(kind) and kind.scale == 0):
        return column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        texts = pc.replace_substring(column.cast(pa.timestamp(kind.unit)).cast(pa.string()), " ", "T")
        texts = pc.binary_join_element_wise(_trimmed(texts), "Z", "")
        return pc.replace_substring_regex(texts, r"T00:00:00Z$", "")
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.string())
    if pa.types.is_time(kind):
        return _trimmed(column.cast(pa.string()))
    return _one_by_one(column, _speller(kind))


def key_texts(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """Each row's whole key, of one or more key columns."""
    spellings = [_quoted(column) for column in columns]
    inside = spellings[0] if len(spellings) == 1 else pc.binary_join_element_wise(*spellings, ",")
    return pc.binary_join_element_wise("[", inside, "]", "")


def key_parts(texts: pa.Array | pa.ChunkedArray, columns: int) -> list[pa.Array]:
    """The other way round: per key column the spellings. Null where the text is null, or is no key of so many."""
    distinct = _flat(texts).dictionary_encode()
    keys = [json.loads(text) for text in distinct.dictionary.to_pylist()]
    columns_of_texts: list[pa.Array] = []
    for number in range(columns):
        values = [key[number] if len(key) == columns else None for key in keys]
        columns_of_texts.append(pa.array(values, pa.string()).take(distinct.indices))
    return columns_of_texts


def as_type(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | None:
    """The values that are spelled so, in a column of type `kind`; None where the type does not hold each of them."""
    texts = _flat(texts)
    if _is_text(kind):
        return texts.cast(kind)
    try:
        values = _read(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, ArithmeticError):
        return None
    return values if spelled(values).equals(texts.cast(pa.string())) else None


def in_type(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column's values in a wider type; as text they are spelled as keys are. Raises pa.ArrowInvalid."""
    if column.type == kind:
        return column
    return spelled(column).cast(kind) if _is_text(kind) else column.cast(kind)


def holding(kind: pa.DataType, texts: pa.Array | pa.ChunkedArray) -> pa.DataType:
    """The type that a key column of type `kind` must have to hold these too: itself, or the narrowest wider one.

    int -> bigint -> decimal(38,0) for integers, double for floats, text where nothing else does.
    """
    return next(wider for wider in _wider(kind) if as_type(texts, wider) is not None)


def holding_both(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type of `_wider(kind)` that holds every value of type `other`."""
    return next((wider for wider in _wider(kind) if wider in _wider(other)), pa.string())


def _wider(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_signed_integer(kind) or (pa.types.is_unsigned_integer(kind) and kind.bit_width < 64):
        longer = [k for k in (pa.int8(), pa.int16(), pa.int32(), pa.int64()) if k.bit_width > kind.bit_width]
        return [kind, *longer, WIDE, pa.string()]
    if pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0 and kind.precision < 38):
        return [kind, WIDE, pa.string()]
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return [kind, pa.float64(), pa.string()]
    return [pa.string()] if _is_text(kind) else [kind, pa.string()]


# -- spelling ----------------------------------------------------------------------------------------------


def _trimmed(times: pa.Array) -> pa.Array:
    """Without the zeros at the end of a second's fraction, nor a point with nothing behind it."""
    return pc.replace_substring_regex(pc.replace_substring_regex(times, r"(\.\d*?)0+$", r"\1"), r"\.$", "")


def _quoted(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Each spelling as JSON writes it."""
    texts = spelled(column)
    kind = column.type
    if _is_text(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        odd = pc.match_substring_regex(texts, r'[\x00-\x1f"\\]')
        if pc.any(odd).as_py():
            inner = [None if text is None else json.dumps(text, ensure_ascii=False)[1:-1] for text in texts.to_pylist()]
            texts = pa.array(inner, pa.string())
    return pc.fill_null(pc.binary_join_element_wise('"', texts, '"', ""), "null")


def _speller(kind: pa.DataType) -> Callable[[Any], str]:
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_floating(kind):
        return _float
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return bytes.hex
    if kind == pa.binary_view():
        return bytes.hex
    return _json


def _one_by_one(column: pa.Array, speller: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else speller(value) for value in column.to_pylist()], pa.string())


def _decimal(value: Decimal) -> str:
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _float(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return _decimal(Decimal(repr(float(value))))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)


# -- reading -----------------------------------------------------------------------------------------------


def _read(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises pa.ArrowInvalid, ArrowNotImplementedError, ValueError, ArithmeticError."""
    if pa.types.is_timestamp(kind):
        moments = pc.replace_substring_regex(texts, r"Z$", "").cast(_TICKS)
        return (pc.assume_timezone(moments, "UTC") if kind.tz else moments).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], kind)
    if pa.types.is_floating(kind):
        numbers = [None if text is None else float(text) for text in texts.to_pylist()]
        return pa.array(numbers, pa.float64()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if text is None else Decimal(text) for text in texts.to_pylist()], kind)
    return texts.cast(kind)


# -- columns -----------------------------------------------------------------------------------------------


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array
