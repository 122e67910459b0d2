"""Types of Kafka Connect in protobuf, as Confluent's ProtobufConverter writes them, and their stored values as columns.

What a converter to protobuf keeps of a type is its message: `confluent.type.Decimal`, `google.type.Date`,
`google.type.TimeOfDay`, `google.protobuf.Timestamp`, and structs by their short names. The names of Debezium's own
types (`io.debezium.time.MicroTimestamp`) are lost: such a value is the number or the text that stands for it.

Source: kafka-connect-protobuf-converter 7 and 8, the messages of `confluent/type` and `google/type`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import Scalar
from distributary.changes.debezium.connect import DECIMAL, VARIABLE, Connect, node_of
from distributary.changes.json_values import JsonColumn

MESSAGE = "message"
"""The kind of what is a message; its column is that, unless it is one of these:"""
DECIMAL_MESSAGE, DATE_MESSAGE, CLOCK_MESSAGE = "confluent.type.Decimal", "google.type.Date", "google.type.TimeOfDay"
VARIABLE_MESSAGE = "VariableScaleDecimal"
"""The short name of Debezium's message, which is declared anew in each schema."""

_INT32 = (-(2**31), 2**31 - 1)
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def message_kind(full_name: str, precision: int | None, scale: int | None) -> Connect | None:
    """What a message stands for as a value; None for one that is a struct. `precision`, `scale`: as the schema says
    them of a decimal."""
    if full_name == DECIMAL_MESSAGE and scale is not None:
        return Connect(MESSAGE, full_name, precision or 0, scale)
    if full_name == DECIMAL_MESSAGE or full_name.rpartition(".")[2] == VARIABLE_MESSAGE:
        return Connect("struct", VARIABLE)
    return Connect(MESSAGE, full_name) if full_name in _READ else None


def column_of(kind: Connect, stored: pa.Array) -> JsonColumn:
    """Values of a message that stands for a value (`message_kind`)."""
    return _READ[kind.name](kind, stored)


def stands_for_value(kind: Connect) -> bool:
    return kind.kind == MESSAGE and kind.name in _READ


def _decimals(kind: Connect, stored: pa.Array) -> JsonColumn:
    node = node_of(Connect("bytes", DECIMAL, kind.precision, kind.scale))
    values, scales = (pc.struct_field(stored, [name]) for name in ("value", "scale"))
    others = np.flatnonzero(_bools(pc.not_equal(scales, kind.scale))).tolist()
    if not others:
        return JsonColumn(node, values)
    rescaled, faults = values.to_pylist(), []
    for place in others:
        moved = kind.scale - scales[place].as_py()
        number = int.from_bytes(rescaled[place], "big", signed=True)
        number, rest = (number * 10**moved, 0) if 0 <= moved <= 76 else divmod(number, 10 ** min(-moved, 76))
        if rest or abs(moved) > 76:
            faults.append((place, f"it has {scales[place]} digits behind the point, and its schema {kind.scale}"))
            rescaled[place] = None
        else:
            rescaled[place] = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
    return JsonColumn(node, pa.array(rescaled, pa.binary()), faults)


def _dates(kind: Connect, stored: pa.Array) -> JsonColumn:
    year, month, day = _numbers(stored, ("year", "month", "day"))
    months = (year - 1970) * 12 + month - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + day - 1
    is_day = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    is_day &= days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) == months
    # Of a year that no table can hold, as of any other type: the mapping makes it null.
    return _whole(kind, Scalar("int", "date"), stored, np.clip(days, *_INT32), is_day, pa.int32())


def _clocks(kind: Connect, stored: pa.Array) -> JsonColumn:
    hours, minutes, seconds, nanos = _numbers(stored, ("hours", "minutes", "seconds", "nanos"))
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + nanos // 1000
    within = ((hours, 24), (minutes, 59), (seconds, 60), (nanos, 999_999_999))
    is_clock = np.logical_and.reduce([(numbers >= 0) & (numbers <= most) for numbers, most in within])
    return _whole(kind, Scalar("long", "time-micros"), stored, micros, is_clock, pa.int64())


_READ: dict[str, Callable[[Connect, pa.Array], JsonColumn]] = {
    DECIMAL_MESSAGE: _decimals,
    DATE_MESSAGE: _dates,
    CLOCK_MESSAGE: _clocks,
}


def _whole(
    kind: Connect, node: Scalar, stored: pa.Array, numbers: Longs, is_one: Bools, type: pa.DataType
) -> JsonColumn:
    missing = _bools(stored.is_null())
    wrong = np.flatnonzero(~is_one & ~missing).tolist()
    array = pa.array(np.where(is_one, numbers, 0), type, mask=missing | ~is_one)
    return JsonColumn(node, array, [(place, f"{stored[place].as_py()} is no {kind.name}") for place in wrong])


def _numbers(stored: pa.Array, names: tuple[str, ...]) -> Iterator[Longs]:
    for name in names:
        numbers = pc.fill_null(pc.struct_field(stored, [name]).cast(pa.int64()), 0)
        yield np.asarray(numbers.to_numpy(zero_copy_only=False))


def _bools(flags: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), bool)


# -- on the way from the decoder to the reader of changes --------------------------------------------------------------


def written(kind: Connect) -> str:
    """As JSON, which `parse_written` reads."""
    return json.dumps(asdict(kind))


@lru_cache(512)
def parse_written(text: str) -> Connect:
    return _kind(json.loads(text))


def _kind(document: dict[str, Any]) -> Connect:
    fields = tuple((name, _kind(field)) for name, field in document["fields"])
    item = None if document["item"] is None else _kind(document["item"])
    return Connect(**{**document, "fields": fields, "item": item})
