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

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from distributary.formats.columns import Message, shared_oneof

ROOT: Final = "M0"
MAX_FAST_NUMBER: Final = 65_535
"""ptars allocates 16 bytes per possible field number and message, on each call: 8 GB for the highest number."""


def reduced(root: Descriptor) -> FileDescriptorProto:
    """Descriptors of a message, given as the writer schema declares it, and of all it reaches; see above."""
    names = {message.full_name: f"M{number}" for number, message in enumerate(reachable(root))}
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
                for part in target.fields:
                    _add_field(entry, part, names)
                _add_field(out, field, {target.full_name: f"{out.name}.E{field.number}"})
            else:
                _add_field(out, field, names)
    return file


def reachable(root: Descriptor) -> list[Descriptor]:
    """The message and all message types that its fields lead to, once each, without map entries."""
    found = {root.full_name: root}
    todo = [root]
    while todo:
        for target in _targets(todo.pop()):
            if target.full_name not in found:
                found[target.full_name] = target
                todo.append(target)
    return list(found.values())


def why_official(root: Descriptor, message: Message) -> str | None:
    """Why a schema is read by the official library from the start; None where ptars may read it."""
    if not message.fields:
        return "the message has no fields"
    for descriptor in reachable(root):
        if descriptor.full_name in ("google.protobuf.Value", "google.protobuf.Any"):
            return f"{descriptor.full_name} is written as JSON"
        for field in descriptor.fields:
            if field.type == FieldDescriptor.TYPE_GROUP:
                return f"{field.full_name} is a group"
            if field.number > MAX_FAST_NUMBER:
                return f"{field.full_name} has number {field.number}"
    return "a message contains itself" if _is_cut(message) else None


def _targets(message: Descriptor) -> Iterator[Descriptor]:
    for field in message.fields:
        target = field.message_type
        if target is not None and target.GetOptions().map_entry:
            target = target.fields_by_name["value"].message_type
        if target is not None:
            yield target


def _is_cut(message: Message) -> bool:
    fields = [part for field in message.fields for part in field.entry or (field,)]
    return any(field.shape == "cut" or (field.message and _is_cut(field.message)) for field in fields)


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
