"""Protobuf's wire format and Confluent's header, written by hand: https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

import struct


def varint(number: int) -> bytes:
    """A number as int64 has it: a negative one takes ten bytes."""
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def whole(field: int, number: int) -> bytes:
    """A field of an integer type; nothing for 0, as proto3 has it."""
    return varint(field << 3) + varint(number) if number else b""


def double(field: int, number: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", number) if number else b""


def block(field: int, body: bytes) -> bytes:
    """A text, bytes or a message that is there."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def text(field: int, value: str) -> bytes:
    return block(field, value.encode()) if value else b""


def framed(schema_id: int, body: bytes) -> bytes:
    """With the header of the first message of a schema."""
    return b"\0" + schema_id.to_bytes(4, "big") + b"\0" + body
