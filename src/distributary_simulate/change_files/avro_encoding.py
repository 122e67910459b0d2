"""Avro's binary encoding and its container file, from the specification (avro.apache.org/docs/1.12.0/specification).

Written for files that look like Datastream's: no codec, and a header that holds the schema alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

Encode = Callable[[bytearray, Any], None]

BLOCK_BYTES: Final = 64_000
"""A block ends once it holds this much: the default of Avro's Java writer."""
SYNC_BYTES: Final = 16
_DOUBLE: Final = struct.Struct("<d").pack
_FLOAT: Final = struct.Struct("<f").pack


def varint(value: int) -> bytes:
    """A long in zigzag coding."""
    out = bytearray()
    write_long(out, value)
    return bytes(out)


def write_long(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def encoder(schema: Any, named: dict[str, Encode] | None = None) -> Encode:
    """A function that appends one value. Records are tuples in field order; decimals are Decimal; None is null.

    A union takes the first branch that the value's Python type fits. Raises KeyError for a type it does not know.
    """
    named = {} if named is None else named
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        # A record may hold itself: look it up when it is used, not now.
        return _PRIMITIVE[schema] if schema in _PRIMITIVE else lambda out, value: named[schema](out, value)
    if schema["type"] == "record":
        named[schema["name"]] = encode_record = _record(schema, named)
        return encode_record
    if schema["type"] == "array":
        return _array(encoder(schema["items"], named))
    if schema.get("logicalType") == "decimal":
        return _decimal(schema["scale"])
    return _PRIMITIVE[schema["type"]]


def container(schema_text: str, rows: Iterable[bytes], sync: bytes) -> bytes:
    """A whole file of encoded records. sync: the 16 bytes that end each block."""
    out = bytearray(header(schema_text, sync))
    block, count = bytearray(), 0
    for row in rows:
        block += row
        count += 1
        if len(block) >= BLOCK_BYTES:
            append_block(out, block, count, sync)
            block, count = bytearray(), 0
    if count:
        append_block(out, block, count, sync)
    return bytes(out)


def header(schema_text: str, sync: bytes) -> bytes:
    assert len(sync) == SYNC_BYTES
    out = bytearray(b"Obj\x01")
    write_long(out, 1)
    _write_bytes(out, b"avro.schema")
    _write_bytes(out, schema_text.encode())
    return bytes(out + b"\x00" + sync)


def append_block(out: bytearray, block: bytes | bytearray | memoryview, count: int, sync: bytes) -> None:
    write_long(out, count)
    write_long(out, len(block))
    out += block
    out += sync


def compact(schema: Any) -> str:
    """The schema as JSON text without blanks, as it stands in real files."""
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _write_bytes(out: bytearray, value: bytes) -> None:
    write_long(out, len(value))
    out += value


def _write_text(out: bytearray, value: str) -> None:
    _write_bytes(out, value.encode())


def _write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def _write_float(out: bytearray, value: float) -> None:
    out += _FLOAT(value)


def _write_double(out: bytearray, value: float) -> None:
    out += _DOUBLE(value)


def _write_null(out: bytearray, value: None) -> None:
    return None


_PRIMITIVE: Final[dict[str, Encode]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": write_long,
    "long": write_long,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_text,
}
# Which Python types mean which branch of a union without null: sort_keys has a string and a long.
_BRANCHES: Final = {"string": str, "long": int}


def _union(branches: list[Any], named: dict[str, Encode]) -> Encode:
    if branches[0] == "null" and len(branches) == 2:
        inner = encoder(branches[1], named)

        def nullable(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(0)
            else:
                out.append(2)
                inner(out, value)

        return nullable

    choices = [(_BRANCHES[branch], index, encoder(branch, named)) for index, branch in enumerate(branches)]

    def chosen(out: bytearray, value: Any) -> None:
        for kind, index, encode in choices:
            if isinstance(value, kind):
                write_long(out, index)
                encode(out, value)
                return
        raise TypeError(f"{value!r} fits no branch of {branches}")

    return chosen


def _record(schema: dict[str, Any], named: dict[str, Encode]) -> Encode:
    fields: list[Encode] = []

    def record(out: bytearray, value: tuple[Any, ...]) -> None:
        for encode, field_value in zip(fields, value, strict=True):
            encode(out, field_value)

    named[schema["name"]] = record
    fields += [encoder(field["type"], named) for field in schema["fields"]]
    return record


def _array(item: Encode) -> Encode:
    def items(out: bytearray, value: list[Any]) -> None:
        if value:
            write_long(out, len(value))
            for item_value in value:
                item(out, item_value)
        out.append(0)

    return items


def _decimal(scale: int) -> Encode:
    def write(out: bytearray, value: Decimal) -> None:
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or exponent < -scale:
            raise ValueError(f"{value} does not fit a scale of {scale}")
        unscaled = int("".join(map(str, digits))) * 10 ** (exponent + scale)
        number = -unscaled if sign else unscaled
        # The shortest two's complement, as Java's BigInteger.toByteArray gives it.
        bits = (number if number >= 0 else ~number).bit_length()
        _write_bytes(out, number.to_bytes(bits // 8 + 1, "big", signed=True))

    return write
