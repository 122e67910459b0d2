"""May a protobuf schema follow another under one subject? The rules of the embedded registry.

After Confluent Schema Registry (`SchemaDiff`, `MessageSchemaDiff`, `FieldSchemaDiff` and `OneOfDiff` in
https://github.com/confluentinc/schema-registry, protobuf-provider) and the protobuf language guide, "Updating a
message type" (https://protobuf.dev/programming-guides/proto3/#updating). Adding, removing and renaming a field is
compatible, and so is a change of type inside one wire group (`_GROUPS`). Three rules differ on purpose:

- A field that keeps its name and changes its number is refused (Confluent sees one field removed and one added),
  because a table has one column of that name.
- A numeric field that turns repeated, or stops being it, is refused (the packed encoding differs).
- Removing a message is refused in the backward direction only, so that adding one is compatible at every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

__all__ = ["problems"]

_Field = FieldDescriptorProto

#: Types that read each other's bytes: a member's group is its first element.
_GROUPS = (
    ("a varint (int32, int64, uint32, uint64, bool, enum)", "int32 int64 uint32 uint64 bool enum"),
    ("a zigzag varint (sint32, sint64)", "sint32 sint64"),
    ("string or bytes", "string bytes"),
    ("fixed32 or sfixed32", "fixed32 sfixed32"),
    ("fixed64 or sfixed64", "fixed64 sfixed64"),
)
_GROUP_OF = {kind: group for group, kinds in _GROUPS for kind in kinds.split()}
_LENGTH_DELIMITED = {"string", "bytes", "message"}


def problems(new: bytes, old: bytes, level: str) -> list[str]:
    """Why `new` may not follow `old` at `level`; empty where it may.

    Both are serialised FileDescriptorSets whose last file is the schema itself, the others its imports. `level` is
    one of `registry.LEVELS`; which old versions are looked at (the _TRANSITIVE ones) is the caller's part.
    """
    earlier, later = _Types(old), _Types(new)
    problems_found: list[str] = []
    if level.startswith(("BACKWARD", "FULL")):
        problems_found += _Comparison(earlier, later).removed_messages() + _Comparison(earlier, later).run()
    if level.startswith(("FORWARD", "FULL")):
        problems_found += _Comparison(later, earlier).run()
    return list(dict.fromkeys(problems_found))


class _Types:
    """The messages of a schema by name without its package, as Confluent compares them."""

    def __init__(self, descriptor_set: bytes) -> None:
        files = FileDescriptorSet.FromString(descriptor_set).file
        self.package: str = files[-1].package
        self.by_full_name: dict[str, DescriptorProto] = {}
        self.root: dict[str, DescriptorProto] = {}
        for file in files:
            for message in file.message_type:
                for path, nested in _walk(message):
                    self.by_full_name[f".{file.package}.{path}" if file.package else f".{path}"] = nested
                    if file is files[-1] and not nested.options.map_entry:
                        self.root[path] = nested

    def local(self, type_name: str) -> str:
        """A type's name as it is compared: without the package of the schema, without the leading dot."""
        return type_name.removeprefix(f".{self.package}.").removeprefix(".")

    def map_entry(self, fld: _Field) -> DescriptorProto | None:
        target = self.by_full_name.get(fld.type_name)
        return target if target is not None and target.options.map_entry else None


def _walk(message: DescriptorProto, prefix: str = "") -> Iterator[tuple[str, DescriptorProto]]:
    path = prefix + message.name
    yield path, message
    for nested in message.nested_type:
        yield from _walk(nested, path + ".")


@dataclass
class _Comparison:
    """Can a reader with `reader` read what was written with `writer`?"""

    writer: _Types
    reader: _Types
    found: list[str] = field(default_factory=list)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def removed_messages(self) -> list[str]:
        return [f"message {name} is removed" for name in self.writer.root if name not in self.reader.root]

    def run(self) -> list[str]:
        if self.writer.package != self.reader.package:
            packages = sorted((self.writer.package, self.reader.package))
            self.found.append(f"the package differs ({packages[0] or 'none'}, {packages[1] or 'none'})")
        for name, message in self.writer.root.items():
            other = self.reader.root.get(name)
            if other is not None:
                self._messages(name, message, other)
        return self.found

    def _messages(self, name: str, old: DescriptorProto, new: DescriptorProto) -> None:
        if (id(old), id(new)) in self.seen:  # recursive messages
            return
        self.seen.add((id(old), id(new)))
        new_by_number = {fld.number: fld for fld in new.field}
        old_by_number = {fld.number: fld for fld in old.field}
        self._renumbered(name, old, new)
        for number in sorted(old_by_number.keys() | new_by_number.keys()):
            before, after = old_by_number.get(number), new_by_number.get(number)
            if before is not None and after is not None:
                self._fields(name, before, after)
                continue
            only = before or after
            if only is not None and only.label == _Field.LABEL_REQUIRED:
                self.found.append(f"{_where(name, only)}: a required field is added or removed")
        self._oneofs(name, old, new)

    def _renumbered(self, name: str, old: DescriptorProto, new: DescriptorProto) -> None:
        numbers = {fld.name: fld.number for fld in new.field}
        for fld in old.field:
            other = numbers.get(fld.name, fld.number)
            if other != fld.number:
                low, high = sorted((fld.number, other))
                self.found.append(f"message {name}, field {fld.name}: its number differs ({low}, {high})")

    def _fields(self, message: str, old: _Field, new: _Field) -> None:
        place = _where(message, new)
        before, after = self.writer.map_entry(old), self.reader.map_entry(new)
        if before is not None and after is not None:
            for old_part, new_part in zip(before.field, after.field, strict=True):
                self._types(f"{place}, map {new_part.name}", old_part, new_part)
            return
        if before is not None or after is not None:
            self.found.append(f"{place}: a map and {_kind(old if after is not None else new)} do not mix")
            return
        self._types(place, old, new)
        repeated = {old.label == _Field.LABEL_REPEATED, new.label == _Field.LABEL_REPEATED}
        if len(repeated) == 2 and _kind(old) not in _LENGTH_DELIMITED and _kind(old) != "group":
            self.found.append(f"{place}: a number that is repeated and one that is not do not mix")

    def _types(self, place: str, old: _Field, new: _Field) -> None:
        before, after = _kind(old), _kind(new)
        if _GROUP_OF.get(before, before) != _GROUP_OF.get(after, after):
            self.found.append(f"{place}: {_typed(old)} cannot be read as {_typed(new)}")
        elif before in ("message", "group"):
            local, other = self.writer.local(old.type_name), self.reader.local(new.type_name)
            if local != other:
                self.found.append(f"{place}: message {local} cannot be read as {other}")
                return
            old_type = self.writer.by_full_name.get(old.type_name)
            new_type = self.reader.by_full_name.get(new.type_name)
            if old_type is not None and new_type is not None:
                self._messages(local, old_type, new_type)

    def _oneofs(self, name: str, old: DescriptorProto, new: DescriptorProto) -> None:
        old_oneofs, new_oneofs = _oneofs(old), _oneofs(new)
        new_numbers = {fld.number for fld in new.field}
        old_plain = {fld.number for fld in old.field if _oneof(old, fld) is None}
        members_before = {number for numbers in old_oneofs.values() for number in numbers}
        for oneof, numbers in old_oneofs.items():
            for number in sorted(numbers - new_numbers if oneof in new_oneofs else ()):
                self.found.append(f"message {name}, oneof {oneof}: its field number {number} is missing on one side")
        for oneof, numbers in new_oneofs.items():
            moved, existing = numbers & old_plain, numbers & members_before
            if len(moved) > 1 or (moved and existing):
                self.found.append(
                    f"message {name}, oneof {oneof}: fields {sorted(moved)} move into it and would clear each other"
                )


def _oneof(message: DescriptorProto, fld: _Field) -> str | None:
    # `optional` of proto3 is stored as a oneof of one field; it is none to the user.
    if fld.HasField("oneof_index") and not fld.proto3_optional:
        return message.oneof_decl[fld.oneof_index].name
    return None


def _oneofs(message: DescriptorProto) -> dict[str, set[int]]:
    numbers_of: dict[str, set[int]] = {}
    for fld in message.field:
        name = _oneof(message, fld)
        if name is not None:
            numbers_of.setdefault(name, set()).add(fld.number)
    return numbers_of


def _where(message: str, fld: _Field) -> str:
    return f"message {message}, field {fld.name} (number {fld.number})"


def _kind(fld: _Field) -> str:
    return _Field.Type.Name(fld.type).removeprefix("TYPE_").lower()


def _typed(fld: _Field) -> str:
    return fld.type_name.removeprefix(".") if fld.type_name else _kind(fld)
