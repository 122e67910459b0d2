"""Arrow casts that say which values they could not take, and the few that Arrow does not have.

Each returns the array and a mask of values that have no place in the type, or None where all have one. Such values are
null in the array.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
Cast = tuple[pa.Array, Mask | None]

WIDEST_DECIMAL = 38
LONGEST_SCALE = 20_000
"""Digits behind the point, or zeros before it: PostgreSQL has up to 16,383."""
OVER_38_DIGITS = 10**38 >> 64
DAY_US = 86_400_000_000
# how Datastream writes PostgreSQL's infinity and -infinity (DataflowTemplates#2203); all beyond them is taken as such
LAST_US, FIRST_US = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
NO_TIME, NO_DAY = -(2**63), -(2**31)
"""How JSON readers store a text that stands for no day of a calendar, as `0000-00-00` does."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999, in days since 1970: what readers in Python can hold. Values outside of it are never written."""
FIRST_MICRO, LAST_MICRO = FIRST_DAY * DAY_US, (LAST_DAY + 1) * DAY_US - 1
TIMESTAMP = pa.timestamp("us", "UTC")
DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
NAMED = {
    "string": pa.string(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}


def named_type(name: str) -> pa.DataType | None:
    """The Arrow type of a column type in the settings: Spark's names, `decimal(p,s)` among them; None if unknown."""
    if match := DECIMAL.fullmatch(name.strip()):
        precision, scale = int(match[1]), int(match[2])
        return pa.decimal128(precision, scale) if 0 < precision <= WIDEST_DECIMAL and scale <= precision else None
    return NAMED.get(name.strip())


def cast(array: pa.Array, type: pa.DataType) -> Cast:
    """`array` as `type`; nothing is rounded, wrapped or cut off but the time of day where a date is asked for."""
    if array.type == type:
        return array, None
    if pa.types.is_floating(array.type) and pa.types.is_decimal(type):
        # by the shortest text: FLOAT 1.2 is 1.2, not 1.2000000476837158 (DataflowTemplates 57fc14b17b)
        array = array.cast(pa.string())
    if pa.types.is_integer(array.type) and pa.types.is_decimal(type):
        array = array.cast(pa.decimal128(20, 0))  # Arrow asks the type for room for every whole number there is
    if pa.types.is_timestamp(array.type) and pa.types.is_date(type):
        array = pc.floor_temporal(array, unit="day").cast(pa.timestamp("us")) if len(array) else array
    try:
        return array.cast(type), None
    except pa.ArrowInvalid:
        return each(array, type, lambda value: value)


def each(array: pa.Array, type: pa.DataType, convert: Callable[[Any], Any]) -> Cast:
    """The slow way, value by value: null and True in the mask where `convert` or the type refuses."""
    bad = np.zeros(len(array), bool)
    items: list[pa.Array] = []
    for place, value in enumerate(array):
        try:
            plain = value.as_py()
            converted = None if plain is None else convert(plain)
            items.append(
                pa.array([converted], array.type).cast(type) if converted is plain else pa.array([converted], type)
            )
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, OverflowError, ArithmeticError):
            bad[place] = True
            items.append(pa.nulls(1, type))
    return pa.concat_arrays(items) if items else pa.array([], type), bad


def decimals(array: pa.Array, precision: int, scale: int) -> Cast:
    """Two's complement, most significant byte first (avro's `decimal`), as decimal128(precision, scale)."""
    count = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
    sizes = np.diff(offsets)
    if count == 0 or array.buffers()[2] is None:
        return pa.nulls(count, pa.decimal128(precision, scale)), None
    if sizes.max() > 16:
        widest = pa.decimal128(precision, scale)
        return each(array, widest, lambda value: exact_decimal(value, scale))
    data = np.concatenate([np.zeros(16, np.uint8), np.frombuffer(array.buffers()[2], np.uint8)])
    words = np.ndarray((len(data) - 7,), np.dtype(">i8"), buffer=data.data, strides=(1,))
    ends = offsets[1:].astype(np.int64) + 16
    unused = np.clip(64 - 8 * sizes, 0, 56).astype(np.int64)
    low = words[ends - 8].astype(np.int64)
    pairs = np.empty((count, 2), np.int64)
    short = (low << unused) >> unused  # the sign comes along
    pairs[:, 0], pairs[:, 1] = short, short >> 63
    if (wide := sizes > 8).any():
        unused = np.clip(128 - 8 * sizes, 0, 56).astype(np.int64)
        high = (words[ends - 16].astype(np.int64) << unused) >> unused
        pairs[wide, 0], pairs[wide, 1] = low[wide], high[wide]
    if (empty := sizes == 0).any():
        pairs[empty] = 0
    result = pa.Array.from_buffers(pa.decimal128(38, scale), count, [_validity(array), pa.py_buffer(pairs)])
    fits = ((pairs[:, 1] < OVER_38_DIGITS) & (pairs[:, 1] > -OVER_38_DIGITS)).all()
    if precision >= WIDEST_DECIMAL:
        return (result, None) if fits else each(result, result.type, lambda value: value)
    if not fits:  # Arrow's own check takes the least number there is, which has no opposite, for a small one
        return each(result, pa.decimal128(precision, scale), lambda value: value)
    try:
        return result.cast(pa.decimal128(precision, scale)), None
    except pa.ArrowInvalid:
        return each(result, pa.decimal128(precision, scale), lambda value: value)


def exact_decimal(value: bytes, scale: int) -> Decimal:
    """A decimal of any width; Python's own context would round it to 28 digits."""
    return Decimal(decimal_text(value, scale))


def decimal_text(value: bytes, scale: int) -> str:
    """A decimal of any width as plain text with all its digits. Raises ValueError for a scale that no database has."""
    if abs(scale) > LONGEST_SCALE:
        raise ValueError(f"a scale of {scale}")
    number = int.from_bytes(value, "big", signed=True)
    if scale < 0:  # of Oracle: 5 with the scale -3 is 5000
        number, scale = number * 10**-scale, 0
    digits = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def _validity(array: pa.Array) -> pa.Buffer | None:
    if not array.null_count:
        return None
    return pa.py_buffer(np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))


def timestamps(array: pa.Array, unit: str) -> Cast:
    """Numbers since 1970 as microseconds in UTC. Out of place are the infinities and all years but 1 to 9999."""
    count = array.cast(pa.int64())
    if unit == "ns":
        outside = pc.equal(count, NO_TIME)
        micros = pc.divide(pc.subtract(count, _below(count, 1000)), 1000)
    elif unit == "us":
        outside, micros = _beyond(count, FIRST_MICRO, LAST_MICRO), count
    else:
        outside = _beyond(count, -(-FIRST_MICRO // 1000), LAST_MICRO // 1000)
        micros = pc.multiply(count, 1000)
    return _within(micros, outside, TIMESTAMP)


def dates(array: pa.Array) -> Cast:
    """Days since 1970 as dates. Out of place are all years but 1 to 9999."""
    days = array.cast(pa.int32())
    return _within(days, _beyond(days, FIRST_DAY, LAST_DAY), pa.date32())


def in_calendar(array: pa.Array) -> Cast:
    """Dates and timestamps; those of years that readers in Python can't hold are out of place."""
    kind = array.type
    if pa.types.is_date32(kind):
        return dates(array.cast(pa.int32()))
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        micros = array.cast(pa.int64())
        return _within(micros, _beyond(micros, FIRST_MICRO, LAST_MICRO), kind)
    return array, None


def _beyond(count: pa.Array, first: int, last: int) -> pa.Array:
    return pc.or_(pc.less(count, first), pc.greater(count, last))


def _within(count: pa.Array, outside: pa.Array, kind: pa.DataType) -> Cast:
    if not pc.any(outside).as_py():
        return count.cast(kind), None
    bad = pc.fill_null(outside, False).to_numpy(zero_copy_only=False)
    return pc.if_else(outside, pa.scalar(None, count.type), count).cast(kind), bad


def parse_times(texts: pa.Array) -> Cast:
    """Times as JSON files write them, in microseconds without a zone, in UTC: `2021-05-16T01:13:01.000Z`,
    `2025-11-05T18:23:46.698000Z`, `2021-12-25 05:42:04.408`, and with an offset; whole numbers are milliseconds."""
    bare = pc.utf8_rtrim(texts, "Z")
    try:
        return bare.cast(pa.timestamp("us")), None
    except pa.ArrowInvalid:
        return each(texts, pa.timestamp("us"), _parsed)


def _parsed(text: str) -> datetime:
    if text.lstrip("-").isdigit():
        return datetime(1970, 1, 1) + timedelta(milliseconds=int(text))
    moment = datetime.fromisoformat(text.strip())
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _below(count: pa.Array, unit: int) -> pa.Array:
    """What a floored division leaves over; Arrow's own division rounds to zero."""
    values = count.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(values % unit)


def clocks(array: pa.Array, micros: int) -> Cast:
    """Numbers of `micros` microseconds each as text; what is out of all proportion is null."""
    count = array.cast(pa.int64())
    outside = pc.fill_null(pc.greater(pc.abs(count), LAST_US // micros), False)
    if not pc.any(outside).as_py():
        return clock_text(pc.multiply(count, micros)), None
    inside = pc.if_else(outside, pa.scalar(None, pa.int64()), count)
    return clock_text(pc.multiply(inside, micros)), outside.to_numpy(zero_copy_only=False)


def clock_text(micros: pa.Array) -> pa.Array:
    """Times and intervals of MySQL as text: `-838:59:59`, `07:05:00.25`. Delta has no type for either."""
    values = micros.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    size = np.abs(values)
    hours = pc.utf8_lpad(pa.array(size // 3_600_000_000).cast(pa.string()), 2, "0")
    rest = pa.array(size % 3_600_000_000, pa.time64("us")).cast(pa.string())
    rest = pc.replace_substring_regex(pc.utf8_slice_codeunits(rest, 2), r"\.0+$", "")
    rest = pc.replace_substring_regex(rest, r"(\.\d*[1-9])0+$", r"\1")
    sign = pc.if_else(pa.array(values < 0), "-", "")
    text = pc.binary_join_element_wise(sign, hours, rest, "")
    return pc.if_else(micros.is_null(), pa.scalar(None, pa.string()), text)


def offset_text(millis: pa.Array) -> pa.Array:
    """An offset from UTC in milliseconds as `+01:00`."""
    values = millis.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    minutes = np.abs(values) // 60_000
    hours = pc.utf8_lpad(pa.array(minutes // 60).cast(pa.string()), 2, "0")
    rest = pc.utf8_lpad(pa.array(minutes % 60).cast(pa.string()), 2, "0")
    sign = pc.if_else(pa.array(values < 0), "-", "+")
    return pc.binary_join_element_wise(sign, hours, ":", rest, "")


def interval_text(months: pa.Array, hours: pa.Array, micros: pa.Array) -> pa.Array:
    """An interval in ISO 8601: `P14MT27H1.5S`; `PT0S` where it is empty."""
    texts: list[str | None] = []
    for month, hour, micro in zip(months.to_pylist(), hours.to_pylist(), micros.to_pylist(), strict=True):
        if month is None and hour is None and micro is None:
            texts.append(None)
            continue
        date = f"{month}M" if month else ""
        time = f"{hour}H" if hour else ""
        if micro:
            seconds = f"{'-' if micro < 0 else ''}{abs(micro) // 1_000_000}.{abs(micro) % 1_000_000:06d}"
            time += f"{seconds.rstrip('0').rstrip('.')}S"
        texts.append(f"P{date}T{time}" if time else f"P{date}" if date else "PT0S")
    return pa.array(texts, pa.string())


def json_text(array: pa.Array) -> pa.Array:
    """Lists and structs as JSON text, bytes as hex."""
    values = (shown(array, place) for place in range(len(array)))
    return pa.array([None if value is None else as_json(value).decode() for value in values], pa.string())


def shown(array: pa.Array, place: int) -> Any:
    """A value for people: as Python has it or, where Python has no such value (a date of the year 10000), as Arrow
    writes it."""
    try:
        return array[place].as_py()
    except (ValueError, OverflowError, ArithmeticError):
        return " ".join(array.slice(place, 1).to_string().strip("[] \n").split())


def as_json(value: Any) -> bytes:
    """JSON, bytes as hex, all else that JSON lacks as text."""
    return json.dumps(value, default=_plain, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def unhex(text: str) -> bytes:
    return binascii.unhexlify(text)


def unbase64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
