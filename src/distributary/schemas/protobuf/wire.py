"""A schema reduced to what the wire knows, so that two decoders read the same thing.

Both decoders get descriptors that are rebuilt from the writer schema: message types `M0` (the root), `M1`, ...,
fields `f<number>`, in one file without a package. What differs from the writer schema, and why:

- a map is the repeated entry message that it is on the wire: parsers of maps drop what else an entry holds, and do
  not tell an entry without value from one with the default value;
- enums are int32: the same bytes, and a closed (proto2) enum does not hide an unknown number among unknown fields;
- every field tells unset from default, so that a default that a sender wrote is known to be there;
- groups and packing stay, required is optional;
- it is a proto3 file: strings must be valid UTF-8, also those of a proto2 schema (libraries disagree about those:
  Java puts U+FFFD, Python gives bytes);
- well-known types are plain messages: their meaning is given to them once, in this project, for both decoders;
- descriptors are small (no options, no unused types), which counts with thousands of schema ids in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from distributary.schemas.protobuf.columns import INSTANT, OPAQUE, Field, MessageFields, shared_oneof, targets, wrapped

ROOT: Final = "M0"
_KINDS: Final[dict[str, Any]] = {"enum": FieldDescriptorProto.TYPE_INT32} | dict.fromkeys(
    OPAQUE, FieldDescriptorProto.TYPE_BYTES
)
RESERVED_NUMBERS: Final = range(19_000, 20_000)
"""Protobuf keeps them to itself; protoc warns, ptars panics."""
MAX_FAST_NUMBER: Final = 65_535
"""ptars allocates 16 bytes per possible field number and message, on each call: 8 GB for the highest number."""


@dataclass(frozen=True, slots=True)
class Extension:
    """The extensions of a message: where their numbers are, and the names of those that the schema declares."""

    message: str
    ranges: tuple[tuple[int, int], ...]
    names: Mapping[int, str]

    def name(self, number: int) -> str | None:
        """What to call a number; None for one that is no extension's."""
        if number in self.names:
            return self.names[number]
        inside = any(first <= number < end for first, end in self.ranges)
        return f"{self.message}.{number}" if inside else None


Extensions: TypeAlias = Mapping[str, Extension]
"""By name of the message in the reduced file."""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message and all it reaches, as the official library is to read them."""

    file: bytes
    """A serialised `FileDescriptorProto` (`reduced`)."""
    names: Mapping[str, str]
    """Names in that file, by full name in the writer schema."""
    extensions: Extensions

    @classmethod
    def of(cls, root: Descriptor) -> WireMessage:
        names = names_of(root)
        extensions = {}
        for message in reachable(root):
            if message.extension_ranges:
                all_extensions = message.file.pool.FindAllExtensions(message)
                declared = {extension.number: extension.full_name for extension in all_extensions}
                ranges = tuple((first, end) for first, end in message.extension_ranges)
                extensions[names[message.full_name]] = Extension(message.full_name, ranges, declared)
        return cls(reduced(root).SerializeToString(), names, extensions)


def reduced(root: Descriptor) -> FileDescriptorProto:
    """Descriptors of a message, given as the writer schema declares it, and of all it reaches; see above."""
    names = names_of(root)
    file = FileDescriptorProto(name="m", syntax="proto3")
    for message in reachable(root):
        out = file.message_type.add(name=names[message.full_name])
        # Descriptors want the oneofs of proto3's `optional` after all others.
        for oneof in message.oneofs:
            if len(oneof.fields) > 1:
                out.oneof_decl.add(name=oneof.name)
        for field in message.fields:
            target = field.message_type
            if target is not None and target.GetOptions().map_entry:
                entry = out.nested_type.add(name=f"E{field.number}")
                for member in target.fields:
                    _add_field(entry, member, names)
                _add_field(out, field, {target.full_name: f"{out.name}.E{field.number}"})
            else:
                _add_field(out, field, names)
    return file


def names_of(root: Descriptor) -> dict[str, str]:
    """The names of message types in the reduced file, by their full names."""
    return {message.full_name: f"M{number}" for number, message in enumerate(reachable(root))}


def reachable(root: Descriptor) -> list[Descriptor]:
    """The message and all message types that its fields lead to, once each, without map entries."""
    by_name = {root.full_name: root}
    todo = [root]
    while todo:
        for target in targets(todo.pop()):
            if target.full_name not in by_name:
                by_name[target.full_name] = target
                todo.append(target)
    return list(by_name.values())


def why_official(message: MessageFields) -> str | None:
    """Why a schema is read by the official library from the start; None where ptars may read it."""
    if not message.fields:
        return "the message has no fields"
    return next(_not_for_ptars(message), None)


def _not_for_ptars(message: MessageFields) -> Iterator[str]:
    for field in message.fields:
        for member in field.entry or (field,):
            if field.kind == FieldDescriptor.TYPE_GROUP:
                yield f"{message.full_name}.{field.column} is a group"
            if field.number > MAX_FAST_NUMBER or field.number in RESERVED_NUMBERS:
                yield f"{message.full_name}.{field.column} has number {field.number}"
            if member.message is not None:
                yield from _not_for_ptars(member.message)


def without_opaque(message: MessageFields) -> FileDescriptorProto:
    """As `reduced`, for ptars: fields that it can't make are the bytes that they are on the wire (`columns.OPAQUE`).

    So no type contains itself any more, and what is left of a type may differ from place to place.
    """
    fast = _Fast()
    fast.file.message_type.append(_named(fast.message(message), ROOT))
    return fast.file


def _named(message: DescriptorProto, name: str) -> DescriptorProto:
    """Give a message its name, which its map fields repeat."""
    message.name = name
    for field in message.field:
        if not field.type_name.startswith("."):
            field.type_name = f".{name}.{field.type_name}" if field.type_name else ""
    return message


class _Fast:
    """Collects the messages of a file, once for each set of columns."""

    def __init__(self) -> None:
        self.file = FileDescriptorProto(name="m", syntax="proto3")
        self._names: dict[bytes, str] = {}

    def message(self, message: MessageFields) -> DescriptorProto:
        """A message without a name, and whatever it holds."""
        out = DescriptorProto()
        for field in message.fields:
            if field.oneof is not None and field.oneof not in [declared.name for declared in out.oneof_decl]:
                out.oneof_decl.add(name=field.oneof)
        for field in message.fields:
            if field.entry is not None:
                entry = out.nested_type.add(name=f"E{field.number}")
                for member in field.entry:
                    self._add(entry, member)
                out.field.add(
                    name=f"f{field.number}",
                    number=field.number,
                    type=FieldDescriptorProto.TYPE_MESSAGE,
                    label=FieldDescriptorProto.LABEL_REPEATED,
                    type_name=f"E{field.number}",
                )
            else:
                self._add(out, field)
        return out

    def _add(self, out: DescriptorProto, field: Field) -> None:
        target = self._target(field)
        kind = FieldDescriptorProto.TYPE_MESSAGE if target else _KINDS.get(field.form, field.kind)
        label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
        added = out.field.add(
            name=f"f{field.number}",
            number=field.number,
            type=kind,
            label=label,
        )
        if target:
            added.type_name = f".{target}"
        if field.repeated:
            if not target:
                added.options.packed = field.packed
        elif field.oneof is not None:
            added.oneof_index = [declared.name for declared in out.oneof_decl].index(field.oneof)
        elif not target:
            added.proto3_optional = True
            added.oneof_index = len(out.oneof_decl)
            out.oneof_decl.add(name=f"_f{field.number}")

    def _target(self, field: Field) -> str:
        """The message type of a field that holds one as ptars sees it, else nothing."""
        match field.form:
            case "struct":
                assert field.message is not None
                return self._shared(self.message(field.message))
            case "empty":
                return self._shared(DescriptorProto())
            case "timestamp" | "duration":
                return self._shared(self.message(INSTANT))
            case "wrapper":
                return self._shared(self.message(wrapped(field.kind)))
        return ""

    def _shared(self, message: DescriptorProto) -> str:
        key = message.SerializeToString(deterministic=True)
        if key not in self._names:
            self._names[key] = f"M{len(self._names) + 1}"
            self.file.message_type.append(_named(message, self._names[key]))
        return self._names[key]


def _add_field(out: DescriptorProto, field: FieldDescriptor, names: dict[str, str], *, in_map: bool = False) -> None:
    is_enum = field.type == FieldDescriptor.TYPE_ENUM
    added = out.field.add(
        name=f"f{field.number}",
        json_name=field.name,
        number=field.number,
        type=FieldDescriptorProto.TYPE_INT32 if is_enum else field.type,
        label=FieldDescriptorProto.LABEL_REPEATED if field.is_repeated else FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if field.message_type is not None:
        added.type_name = f".{names[field.message_type.full_name]}"
    elif field.is_repeated:
        added.options.packed = field.is_packed
    if field.is_repeated:
        return
    oneof = shared_oneof(field)
    if oneof is not None:
        added.oneof_index = [declared.name for declared in out.oneof_decl].index(oneof)
    elif field.message_type is None:
        added.proto3_optional = True
        added.oneof_index = len(out.oneof_decl)
        out.oneof_decl.add(name=f"_f{field.number}")
