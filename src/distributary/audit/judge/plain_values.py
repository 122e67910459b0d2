"""Values of change files and of tables as plain Python values, and as texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa

DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


class Moment(int):
    """Microseconds since 1970, UTC."""


class Day(int):
    """Days since 1970."""


class Clock(int):
    """Microseconds of a time of day or an interval."""


class Single(float):
    """A number of a column or file of 32-bit floats."""


# -- what a table or a Parquet file holds ------------------------------------------------------------------------


def plain(array: Any) -> list[Any]:
    """An Arrow array's values, times as numbers: Python's calendar ends before Arrow's does."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in plain(chunk)]
    kind = array.type
    if pa.types.is_timestamp(kind):
        return [None if v is None else Moment(_micros(v, kind.unit)) for v in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_date32(kind):
        return [None if v is None else Day(v) for v in array.cast(pa.int32()).to_pylist()]
    if pa.types.is_date64(kind):
        return [None if v is None else Day(v // 86_400_000) for v in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_time(kind):
        numbers = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
        return [None if v is None else Clock(_micros(v, kind.unit)) for v in numbers.to_pylist()]
    if pa.types.is_duration(kind):
        return [None if v is None else Clock(_micros(v, kind.unit)) for v in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_float32(kind):
        return [None if v is None else Single(v) for v in array.to_pylist()]
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*map(plain, array.flatten()), strict=True)]
        rows = rows or [{} for _ in range(len(array))]
        return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind):
        entries = iter(plain(pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])))
        offsets = array.offsets.to_pylist()
        every = [(e["k"], e["v"]) for e in entries]
        maps = [dict(every[a - offsets[0] : b - offsets[0]]) for a, b in pairwise(offsets)]
        return [
            mapping if is_valid else None for mapping, is_valid in zip(maps, array.is_valid().to_pylist(), strict=True)
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = iter(plain(array.flatten()))
        sizes = array.value_lengths().to_pylist() if not pa.types.is_fixed_size_list(kind) else _fixed_sizes(array)
        return [None if size is None else [next(items) for _ in range(size)] for size in sizes]
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [None if v is None else v.decode("utf-8", "backslashreplace") for v in array.cast("binary").to_pylist()]


def _micros(value: int, unit: str) -> int:
    return value // 1000 if unit == "ns" else value * {"us": 1, "ms": 1_000, "s": 1_000_000}[unit]


def _fixed_sizes(array: Any) -> list[int | None]:
    return [array.type.list_size if is_valid else None for is_valid in array.is_valid().to_pylist()]


def spelled(value: Any) -> str | None:
    """A value as one text, whatever the type of its column: for keys, and for a look at whether two rows are alike."""
    if value is None or isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Moment | Day):
        return _moment_text(value if isinstance(value, Moment) else value * DAY_US)
    if isinstance(value, Clock):
        return f"{'-' if value < 0 else ''}{_clock_text(abs(value))}"
    if isinstance(value, int | float | Decimal):
        return _number_text(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return json.dumps({name: spelled(v) for name, v in sorted(value.items()) if not nothing(v)})
    return json.dumps([spelled(item) for item in value])


def _moment_text(micros: int) -> str:
    """ISO 8601 in UTC; midnight as its date: a day and its midnight are one key."""
    days, rest = divmod(micros, DAY_US)
    try:
        day = (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        day = f"day {days}"
    return f"{day}T{_clock_text(rest)}Z" if rest else day


def _clock_text(micros: int) -> str:
    seconds, rest_micros = divmod(micros, 10**6)
    fraction = f".{rest_micros:06d}".rstrip("0") if rest_micros else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def _number_text(value: int | float | Decimal) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        value = Decimal(repr(value))
    if isinstance(value, int):
        return str(value)
    text = f"{value:f}" if value.is_finite() else str(value)
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def nothing(value: Any) -> bool:
    """Null, or a record of nulls."""
    return value is None or (isinstance(value, dict) and all(map(nothing, value.values())))
