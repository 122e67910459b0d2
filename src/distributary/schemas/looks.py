"""What the bytes of one record look like, for a person who has to find out what a topic holds.

Names and types only: what is said here may stand in a log, where nobody wants to find values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from distributary.names import shown

PayloadKind = Literal[
    "nothing", "framed", "json", "avro file", "avro message", "parquet file", "text", "protobuf", "bytes"
]

MAGIC, HEADER_BYTES = 0, 5
_STARTS: dict[bytes, tuple[PayloadKind, str]] = {
    b"Obj\x01": ("avro file", "an Avro container file"),
    b"\xc3\x01": ("avro message", "an Avro message in single-object encoding (no schema id of a registry)"),
    b"PAR1": ("parquet file", "a Parquet file"),
}
SHOWN_FIELDS = 12
SHOWN_BYTES = 8
_LONGEST = 1 << 20
"""Bytes of a record that are looked at."""
_VARINT, _FIXED64, _LENGTH, _GROUP, _FIXED32 = 0, 1, 2, 3, 5


@dataclass(frozen=True)
class Looks:
    """A guess. `schema_id`: of the registry's header, where there is one."""

    kind: PayloadKind
    words: str
    schema_id: int | None = None


def looks(value: bytes) -> Looks:
    """What `value` looks like. Never raises."""
    if not value:
        return Looks("nothing", "no bytes at all")
    if value[0] == MAGIC and len(value) >= HEADER_BYTES:
        schema_id = int.from_bytes(value[1:HEADER_BYTES], "big", signed=True)
        body = _body(value[HEADER_BYTES:])
        words = f"the registry's header (magic byte 0, schema id {schema_id}), then {body.words}"
        return Looks("framed", words, schema_id)
    for start, (kind, words) in _STARTS.items():
        if value.startswith(start):
            return Looks(kind, words)
    return _plain(value)


def _body(value: bytes) -> Looks:
    """What follows a header: of protobuf, the message's indexes first, which for the first message are one zero."""
    if not value:
        return Looks("nothing", "no bytes")
    look = _protobuf(value[1:]) if value[0] == 0 else None
    return look or _plain(value)


def _plain(value: bytes) -> Looks:
    head = value[:_LONGEST]
    return _json(head) or _protobuf(head) or _text(head) or _bytes(value)


def _bytes(value: bytes) -> Looks:
    return Looks("bytes", f"{len(value):,} bytes that begin with {value[:SHOWN_BYTES].hex(' ')}")


def _json(value: bytes) -> Looks | None:
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict):
        return Looks("json", f"a JSON object with the fields {_names(document)}")
    return Looks("json", "a JSON array")


def _text(value: bytes) -> Looks | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    printable = sum(c.isprintable() or c.isspace() for c in text)
    return Looks("text", f"text of {len(text):,} characters") if printable >= 0.9 * len(text) else None


def _protobuf(value: bytes) -> Looks | None:
    """Every byte read as fields of a message whose schema nobody has told. Short texts may pass for one by chance, so
    a text that prints is no message unless it has a field that holds text."""
    try:
        fields = UnknownFieldSet(Empty.FromString(value))
    except DecodeError:
        return None
    parsed = [(f.field_number, f.wire_type, f.data) for f in fields]  # type: ignore[attr-defined]
    if not parsed or (_text(value) is not None and not any(kind == _LENGTH for _, kind, _ in parsed)):
        return None
    words = ", ".join(f"{number} ({_wire(kind, data)})" for number, kind, data in parsed[:SHOWN_FIELDS])
    hidden = f" and {len(parsed) - SHOWN_FIELDS} more" if len(parsed) > SHOWN_FIELDS else ""
    return Looks("protobuf", f"a protobuf message with the fields {words}{hidden}")


def _wire(kind: int, data: Any) -> str:
    if kind != _LENGTH:
        return {_VARINT: "a number", _FIXED64: "8 bytes", _FIXED32: "4 bytes", _GROUP: "a group"}.get(kind, "?")
    return "text" if data and _text(data) is not None else f"{len(data):,} bytes"


def _names(document: dict[str, Any]) -> str:
    names = ", ".join(shown(name) for name in list(document)[:SHOWN_FIELDS])
    return names + (f" and {len(document) - SHOWN_FIELDS} more" if len(document) > SHOWN_FIELDS else "")
