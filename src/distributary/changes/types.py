"""Datastream's unified types as Delta has them. The one mapping, for avro, for JSON with a schema file, for Parquet.

| unified type | avro as stored | column |
|---|---|---|
| BOOLEAN INTEGER LONG FLOAT DOUBLE STRING | the same | boolean int long float double string |
| BYTES | bytes | binary |
| DECIMAL(p,s) | bytes | decimal(p,s); over 38 digits: string, or decimal(38,s) by setting |
| NUMBER, VARCHAR, JSON | string | string, as written |
| DATE | int | date |
| TIMESTAMP, DATETIME | long, record | timestamp |
| TIMESTAMP WITH TZ | record | timestamp, the instant; as string with its offset |
| TIME, TIME INTERVAL, TIME WITH TZ | long, record | string: `07:05:00.25`, `-838:59:59`, `07:05:00+01:00` |
| INTERVAL | record | string, ISO 8601 |
| GEOMETRY | record | struct of value (WKB), srid, type |
| array | record of itself | array, flat |
| UNSUPPORTED | null | no column |

Source: Datastream documentation, "Unified types", and real files. A column's setting may ask for another type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import NULL, Array, Node, Record, Scalar, solid
from distributary.avro.walk_columns import is_nested_list
from distributary.changes import casts
from distributary.changes.casts import WIDEST_DECIMAL, Cast, Mask
from distributary.changes.model import Reading

TIMES = {
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "timestamp-nanos": "ns",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
    "local-timestamp-nanos": "ns",
}
CLOCKS = {"time-millis": 1000, "time-micros": 1, "time-interval-micros": 1}
PLAIN = Reading()


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    """A column as Delta takes it, and the rows whose value it can't hold, with the reason. `beyond`: times that are
    null in it, since no reader can hold them."""

    array: pa.Array
    bad: Mask | None = None
    detail: str = ""
    beyond: int = 0


def has_column(node: Node) -> bool:
    """False for UNSUPPORTED, whose values are always null and whose type Delta does not have."""
    inner = solid(node)
    return not (isinstance(inner, Scalar) and (inner.kind == "null" or inner.logical == "unsupported"))


def column(node: Node, stored: pa.Array, type_name: str | None = None, reading: Reading = PLAIN) -> ConvertedColumn:
    """`stored` (type `arrow_type(node)`) as the mapping above says, or as the setting `type_name` asks."""
    if type_name is None:
        array, bad = _mapped(node, stored, reading)
        detail = "a value that its type can't hold"
    else:
        array, bad = _asked(node, stored, casts.named_type(type_name), reading)
        detail = f"a value that {type_name} can't hold"
    beyond = _nulls(array) - _nulls(stored) - (0 if bad is None else int(bad.sum()))
    return ConvertedColumn(array, bad, detail if bad is not None else "", max(0, beyond))


def _nulls(array: pa.Array) -> int:
    return int(_nulls(array.flatten()) if pa.types.is_list(array.type) else array.null_count)


def _asked(node: Node, stored: pa.Array, type_: pa.DataType, reading: Reading) -> Cast:
    inner = solid(node)
    if pa.types.is_string(type_):
        return _text(inner, stored, reading)
    if pa.types.is_integer(type_) and isinstance(inner, Scalar) and inner.logical in CLOCKS:
        return casts.cast(stored, type_)
    if (
        pa.types.is_decimal(type_)
        and isinstance(inner, Scalar)
        and inner.logical == "decimal"
        and pa.types.is_binary(stored.type)
    ):
        return casts.each(stored, type_, lambda value: casts.exact_decimal(value, inner.scale))
    array, bad = _mapped(node, stored, reading)
    if pa.types.is_binary(type_) and pa.types.is_string(array.type):
        converted = casts.each(array, type_, casts.unhex if reading.text_bytes == "hex" else casts.unbase64)
    else:
        converted = casts.cast(array, type_)
    array, outside = casts.in_calendar(converted[0])
    return array, _either(_either(bad, converted[1]), _refused(outside, reading))


def _refused(outside: Mask | None, reading: Reading) -> Mask | None:
    """Of times that no reader can hold those that set their event aside: by the setting all or none."""
    return outside if reading.out_of_range == "reject" else None


def _text(node: Node, stored: pa.Array, reading: Reading) -> Cast:
    """Times as text keep what a timestamp can't: the offset, and PostgreSQL's infinities."""
    if isinstance(node, Record) and node.name == "timestampTz":
        millis = stored.field("offset").cast(pa.int64())
        local, bad = _time_text(stored.field("timestamp").cast(pa.int64()), pc.multiply(millis, 1000), reading)
        text = pc.binary_join_element_wise(local, casts.offset_text(millis), "")
        return _only(stored, text), bad
    if isinstance(node, Scalar) and TIMES.get(node.logical) == "us":
        return _time_text(stored.cast(pa.int64()), 0, reading)
    array, bad = _mapped(node, stored, reading)
    if pa.types.is_nested(array.type):
        return casts.json_text(array), bad
    text, outside = casts.cast(array, pa.string())
    return text, _either(bad, outside)


def _time_text(micros: pa.Array, shift: pa.Array | int, reading: Reading) -> Cast:
    high, low = pc.greater_equal(micros, casts.LAST_US), pc.less_equal(micros, casts.FIRST_US)
    safe = pc.if_else(pc.or_(high, low), 0, pc.add(micros, shift))
    text = safe.cast(pa.timestamp("us")).cast(pa.string())
    text = pc.if_else(high, "infinity", pc.if_else(low, "-infinity", text))
    none = pc.equal(micros, casts.NO_TIME)
    if not pc.any(none).as_py():
        return text, None
    bad = pc.fill_null(none, False).to_numpy(zero_copy_only=False)
    return pc.if_else(none, pa.scalar(None, pa.string()), text), _refused(bad, reading)


def _mapped(node: Node, stored: pa.Array, reading: Reading) -> Cast:
    node = solid(node)
    if isinstance(node, Scalar):
        return _scalar(node, stored, reading)
    if isinstance(node, Record):
        return _record(node, stored, reading)
    if isinstance(node, Array):
        return _list(node.items, stored, reading)
    return stored, None  # maps and mixed unions are text already


def _scalar(node: Scalar, stored: pa.Array, reading: Reading) -> Cast:
    if node.logical == "decimal" and node.kind in ("bytes", "fixed"):
        return _decimal(node, stored, reading)
    if node.logical == "date" and node.kind == "int":
        array, bad = casts.dates(stored)
        return array, _refused(bad, reading)
    if node.kind in ("int", "long"):
        if node.logical in CLOCKS:
            array, bad = casts.clocks(stored, CLOCKS[node.logical])
            return array, _refused(bad, reading)
        if node.logical in TIMES:
            array, bad = casts.timestamps(stored, TIMES[node.logical])
            return array, _refused(bad, reading)
    return stored, None


def _decimal(node: Scalar, stored: pa.Array, reading: Reading) -> Cast:
    if pa.types.is_string(stored.type):  # JSON's numbers, as they stand in the file
        fits = 0 < node.precision <= WIDEST_DECIMAL
        return casts.cast(stored, pa.decimal128(node.precision, node.scale)) if fits else (stored, None)
    if 0 < node.precision <= WIDEST_DECIMAL:
        return casts.decimals(stored, node.precision, node.scale)
    if reading.wide_decimals == "decimal" and node.scale <= WIDEST_DECIMAL:
        wide = pa.decimal128(WIDEST_DECIMAL, node.scale)
        return casts.each(stored, wide, lambda value: casts.exact_decimal(value, node.scale))
    return casts.each(stored, pa.string(), lambda value: casts.decimal_text(value, node.scale))


def _record(node: Record, stored: pa.Array, reading: Reading) -> Cast:
    if is_nested_list(node):
        return _list(node.field("elementValue") or NULL, stored, reading)
    names = set(node.names)
    if node.name == "varchar" and "value" in names:
        return _only(stored, stored.field("value")), None
    if names == {"timestamp", "offset"}:
        inner, bad = _mapped(node.field("timestamp") or NULL, stored.field("timestamp"), reading)
        return _only(stored, inner), bad
    if names == {"date", "time"}:
        days, clock = (stored.field(name).cast(pa.int64()) for name in ("date", "time"))
        far = pc.greater(pc.abs(days), casts.LAST_DAY + 1)  # its product could wrap round to another date
        micros = pc.if_else(far, casts.NO_TIME, pc.add(pc.multiply(days, casts.DAY_US), clock))
        array, bad = casts.timestamps(micros, "us")
        return _only(stored, array), _refused(bad, reading)
    if names == {"time", "offset"}:
        text = pc.binary_join_element_wise(
            casts.clock_text(stored.field("time")), casts.offset_text(stored.field("offset")), ""
        )
        return _only(stored, text), None
    if names == {"months", "hours", "micros"}:
        return _only(stored, casts.interval_text(*(stored.field(name) for name in ("months", "hours", "micros")))), None
    return _struct(node, stored, reading)


def _struct(node: Record, stored: pa.Array, reading: Reading) -> Cast:
    arrays, fields, bad = [], [], None
    for field in node.fields:
        if has_column(field.node):
            array, child_bad = _mapped(field.node, stored.field(field.name), reading)
            arrays.append(array)
            fields.append(pa.field(field.name, array.type))
            bad = _either(bad, child_bad)
    if not arrays:
        return pa.nulls(len(stored), pa.string()), bad
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=stored.is_null()), bad


def _list(items: Node, stored: pa.Array, reading: Reading) -> Cast:
    if not has_column(items):
        return stored.cast(pa.list_(pa.string())), None
    array, bad = _mapped(items, stored.flatten(), reading)
    lengths = pc.fill_null(pc.list_value_length(stored), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    result = pa.ListArray.from_arrays(pa.array(offsets), array, mask=stored.is_null())
    if bad is not None:
        bad = np.add.reduceat(np.append(bad, False), offsets[:-1]).astype(bool) & (lengths > 0)
    return result, bad


def _only(stored: pa.Array, array: pa.Array) -> pa.Array:
    """`array` where the record itself is there: a struct's child does not know of its parent's nulls."""
    if not stored.null_count:
        return array
    return pc.if_else(stored.is_valid(), array, pa.scalar(None, array.type))


def _either(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right
