"""Does a table's row say what its protobuf message says, by the official library and the mapping of docs/columns.md?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from distributary.audit.judge.likeness import names_of, same
from distributary.audit.judge.plain_values import Moment, nothing
from distributary.audit.judge.read_payload import Simple
from distributary.schemas.registry.compile import ProtobufSchema
from distributary.schemas.registry.lenient import is_made_up

_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64,
}  # fmt: skip
_SECONDS = {
    "google.protobuf.Timestamp": range(-62_135_596_800, 253_402_300_800),
    "google.protobuf.Duration": range(-315_576_000_000, 315_576_000_001),
}
_JSON = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))


ONLY = "/"
"""Between the full name of a message and that of the one field that counts."""


def message_class(schema: ProtobufSchema, message: str | Sequence[int], *, raw_indexes: bool = False) -> Any:
    """The class of a message: by full name, also with only one of its fields (`ONLY`), or by its indexes in the root
    file (`raw_indexes`: map entries count).

    Raises KeyError, IndexError.
    """
    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(schema.descriptor_set).file
    for file in files:
        pool.Add(file)
    if isinstance(message, str):
        name, _, only = message.partition(ONLY)
        declared = pool.FindMessageTypeByName(name)
        return GetMessageClass(_only(declared, only) if only else declared)
    root = files[-1]
    message_type = root.message_type[message[0]]
    name = f"{root.package}.{message_type.name}" if root.package else message_type.name
    for index in message[1:]:
        # Map entries are no messages that anybody has written.
        message_type = [nested for nested in message_type.nested_type if raw_indexes or not nested.options.map_entry][
            index
        ]
        name = f"{name}.{message_type.name}"
    return GetMessageClass(pool.FindMessageTypeByName(name))


def reader(
    schema: ProtobufSchema, message: str | Sequence[int], *, raw_indexes: bool = False
) -> Callable[[bytes], ProtobufPayload]:
    """What reads the bodies of a message (`message_class`). Raises KeyError, IndexError."""
    read_class = message_class(schema, message, raw_indexes=raw_indexes)
    return lambda body: ProtobufPayload(read_class.FromString(body))


@dataclass(frozen=True)
class ProtobufPayload:
    """What a message says."""

    message: Any

    def differs(self, row: Mapping[str, Any]) -> str | None:
        return differs(self.message, row)

    def simple(self) -> dict[str, Simple]:
        fields = (f for f in self.message.DESCRIPTOR.fields if not f.is_repeated)
        return {
            f.name: Simple(getattr(self.message, f.name), f.default_value, f.type == FieldDescriptor.TYPE_STRING)
            for f in fields
            if f.type == FieldDescriptor.TYPE_STRING or (f.cpp_type in _WHOLE and f.enum_type is None)
        }

    def has(self, name: str) -> bool:
        return name in self.message.DESCRIPTOR.fields_by_name

    def value_of(self, name: str) -> Any:
        field = self.message.DESCRIPTOR.fields_by_name.get(name)
        if field is None or (field.has_presence and not self.message.HasField(name)):
            return None
        value = getattr(self.message, name)
        if field.enum_type is not None:
            return text_at(self.message, name)
        if field.message_type is None:
            return value
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return Moment(value.seconds * 1_000_000 + value.nanos // 1000)
        return value.value if field.message_type.full_name in _WRAPPERS else value

    def text_at(self, path: str) -> str | None:
        return text_at(self.message, path)

    @property
    def type_name(self) -> str:
        return str(self.message.DESCRIPTOR.full_name)


def _only(message: Descriptor, name: str) -> Descriptor:
    """A message as if it had no other field."""
    file = FileDescriptorProto(name="only.proto", syntax="proto3", dependency=[message.file.name])
    file.message_type.add(name="Only").oneof_decl.add(name="only")
    declaration = DescriptorProto()
    message.CopyToProto(declaration)
    file.message_type[0].field.extend(field for field in declaration.field if field.name == name)
    file.message_type[0].field[0].oneof_index = 0
    message.file.pool.Add(file)
    return message.file.pool.FindMessageTypeByName("Only")


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(schema id, message indexes, body) of a record with Confluent's header. Raises ValueError, IndexError."""
    if value[0] != 0:
        raise ValueError("no header")
    place = 5

    def number() -> int:
        nonlocal place
        number_read = shift = 0
        while True:
            byte = value[place]
            place += 1
            number_read |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (number_read >> 1) ^ -(number_read & 1) if zigzag else number_read
            shift += 7

    path = [number() for _ in range(number())]
    return int.from_bytes(value[1:5], "big"), path or [0], value[place:]


def differs(message: Any, row: Mapping[str, Any]) -> str | None:
    """The first column that does not say what the message does; None where all do.

    A column that no field of this schema has is null.
    """
    names = names_of(tuple(row))
    explained: set[str] = set()
    for field in message.DESCRIPTOR.fields:
        columns = names.of(field.name)
        right = [c for c in columns if _said(message, field, row[c])]
        if not right and (columns or not _unset(message, field)):
            return str(field.name)
        explained.update(right)
    if not message.DESCRIPTOR.fields:
        explained.add("_empty")
    return next(
        (c for c in names.columns if c not in explained and not nothing(row[c]) and row[c] not in ([], {})), None
    )


def _unset(message: Any, field: FieldDescriptor) -> bool:
    return all(set_field.number != field.number for set_field, _ in message.ListFields())


def _said(message: Any, field: FieldDescriptor, cell: Any) -> bool:
    value = getattr(message, field.name)
    if field.is_repeated:
        if cell is None:
            return not value
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            inner = entry.fields_by_name["value"]
            return len(value) == len(cell) and all(
                any(same(key, k) and _one(inner, value[key], v) for k, v in cell.items()) for key in value
            )
        return len(value) == len(cell) and all(_one(field, item, k) for item, k in zip(value, cell, strict=True))
    if field.has_presence and not message.HasField(field.name):
        return cell is None or (field.message_type is None and field.has_default_value and _one(field, value, cell))
    return _one(field, value, cell)


def _one(field: FieldDescriptor, value: Any, cell: Any) -> bool:
    if field.message_type is not None:
        return _message(value, cell)
    if cell is None:
        return False
    if field.enum_type is not None:
        symbols = [v.name for v in field.enum_type.values if v.number == value and not is_made_up(v.name)]
        return bool(cell == (symbols[0] if symbols else str(value)))
    return same(value, cell)


def _beyond(value: Any, seconds: range) -> bool:
    """A time that no reader holds may be null (payload.out_of_range)."""
    signed = value.DESCRIPTOR.name == "Duration"
    nanos = range(-(10**9) + 1 if signed else 0, 10**9)
    return value.seconds not in seconds or value.nanos not in nanos or (signed and value.seconds * value.nanos < 0)


def _message(value: Any, cell: Any) -> bool:
    name = value.DESCRIPTOR.full_name
    if name in _WRAPPERS:
        return cell is not None and same(value.value, cell)
    if cell is None and name in _SECONDS:
        return _beyond(value, _SECONDS[name])
    if name == "google.protobuf.Timestamp":
        return isinstance(cell, Moment) and cell == value.seconds * 10**6 + value.nanos // 1000
    if name == "google.protobuf.Duration":
        return bool(cell == value.seconds * 10**6 + value.nanos // 1000)
    if cell is None:
        return False
    if isinstance(cell, bytes):
        return bool(type(value).FromString(cell) == value)
    if name in _JSON:
        return bool(json.loads(cell) == json_format.MessageToDict(value))
    if name == "google.protobuf.Any":
        return bool(cell["type_url"] == value.type_url and cell["value"] == value.value)
    return isinstance(cell, Mapping) and differs(value, cell) is None


def text_at(message: Any, path: str) -> str | None:
    """A field as a route: an enum by its name, a wrapped value by what it wraps; None where it is not set."""
    holder, _, name = path.rpartition(".")
    for step in holder.split(".") if holder else ():
        if not message.HasField(step):
            return None
        message = getattr(message, step)
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name) and not field.has_default_value:
        return None
    value = getattr(message, name)
    if field.message_type is not None:
        value = value.value
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else str(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
