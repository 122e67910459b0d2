"""A schema reduced to what the wire needs, for schemas that do not compile as they stand.

Registries hold texts that protoc refuses although every byte of their payloads can be read: options that a registry's
own formatter wrote wrongly, imports that only options use and nobody registered, fields whose JSON names clash. So
options, services, extensions of options and JSON names go, and imports that cannot be had; what decides about bytes
or columns stays: `packed`, `default`, `allow_alias`, `message_set_wire_format` and the features of editions.
protoc also refuses enum values whose names differ in case or in the enum's name before them only, and two of one number
(`KIND_ONE` and `ONE`). So that it takes them they get other names, and from the descriptors their own again. It refuses
enums of proto3 whose first value is not zero, too: these get one before it (`is_made_up`), which is never shown.

Lines stay where they are, so that messages about what is still wrong name the right line.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File

_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\s+|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z0-9_.]+|.""", re.DOTALL
)
_STATEMENTS: Final = ("allow_alias", "message_set_wire_format")
_IN_BRACKETS: Final = ("packed", "default")
_SCALARS: Final = frozenset(
    {"double", "float", "bool", "string", "bytes"}
    | {f"{sign}{kind}{bits}" for sign in ("", "u", "s") for kind in ("int", "fixed") for bits in (32, 64)}
)
_LABELS: Final = ("optional", "required", "repeated")
_NO_JSON: Final = " option deprecated_legacy_json_field_conflicts = true;"
"""Lets protoc take fields and enum values whose JSON names clash."""
_OWN: Final = re.compile("^wire_[0-9a-f]{8}_")
_ZERO: Final = "wire_zero_of_"
_OPENING, _CLOSING = frozenset("{[("), frozenset("}])")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Change:
    start: int
    end: int
    by: str = ""


def is_made_up(name: str) -> bool:
    """Is this enum value there for protoc only, so that the schema's own author has no name for its number?"""
    return name.startswith(_ZERO)


def wire_text(text: str, absent: Collection[str] = (), *, rename: bool = False) -> str:
    """A .proto text without what the wire does not need. `absent`: import paths that cannot be had. `rename`: as the
    last resort, extensions go too, and enum values get names that protoc takes; `own_names` gives them back."""
    tokens = [
        _Token(match[0], match.start(), match.end())
        for match in _TOKEN.finditer(text)
        if not match[0].isspace() and not match[0].startswith(("//", "/*"))
    ]
    changes = list(_changes(tokens, absent, rename))
    if rename:
        changes = sorted([*changes, *_renamed(tokens)], key=lambda change: (change.start, change.end))
    return _apply(text, changes)


def _changes(tokens: list[_Token], absent: Collection[str], rename: bool) -> Iterator[_Change]:
    place, begin = 0, 0
    while place < len(tokens):
        word, first = tokens[place].text, place == begin
        end = place + 1
        if first and word == "option":
            end = _end_of_statement(tokens, place)
            yield from _statement(tokens[place:end])
        elif first and word == "import":
            end = _end_of_statement(tokens, place)
            if _imported(tokens[place:end]) in absent:
                yield _cut(tokens[place:end])
        elif first and (word == "service" or (word == "extend" and (rename or _is_of_options(tokens, place)))):
            end = _end_of_block(tokens, place)
            yield _cut(tokens[place:end])
        elif first and word in ("message", "enum") and [t.text for t in tokens[place + 2 : place + 3]] == ["{"]:
            end = place + 3
            yield _Change(tokens[place + 2].end, tokens[place + 2].end, _NO_JSON)
        elif word == "[":
            end = _close(tokens, place)
            yield _bracket(tokens[begin:place], tokens[place:end], rename)
        last = tokens[end - 1].text
        if end > place + 1 or last in ("{", "}", ";"):
            begin = end if last in ("{", "}", ";") else begin
        place = end


def _renamed(tokens: list[_Token]) -> Iterator[_Change]:
    """Other names for all enum values; those of one number are said to be meant so, and open enums begin with zero."""
    is_open = _has_open_enums([token.text for token in tokens])
    for index, token in enumerate(tokens):
        before = tokens[index - 1].text if index else ";"
        if (
            token.text != "enum"
            or before not in (";", "{", "}")
            or [t.text for t in tokens[index + 2 : index + 3]] != ["{"]
        ):
            continue
        begins = [
            place for place in range(index + 3, _close(tokens, index + 2) - 2) if tokens[place - 1].text in ("{", ";")
        ]
        values = [p for p in begins if tokens[p + 1].text == "=" and tokens[p].text != "option"]
        for place in values:
            yield _cut(tokens[place : place + 1], _stand_in(tokens[place].text))
        numbers = [tokens[p + 2].text + (tokens[p + 3].text if tokens[p + 2].text == "-" else "") for p in values]
        has_option = any(t.text == "allow_alias" for t in tokens[index + 3 : _close(tokens, index + 2)])
        if is_open and numbers and _number(numbers[0]) != 0:
            yield _Change(tokens[index + 2].end, tokens[index + 2].end, f" {_ZERO}{tokens[index + 1].text} = 0;")
            numbers = ["0", *("0" if _number(number) == 0 else number for number in numbers)]
        if len(set(numbers)) < len(numbers) and not has_option:
            yield _Change(tokens[index + 2].end, tokens[index + 2].end, " option allow_alias = true;")


def _has_open_enums(words: list[str]) -> bool:
    """proto3, or an edition that says nothing else."""
    if words[:2] == ["syntax", "="]:
        return _unquoted(words[2]) == "proto3"
    return words[:2] == ["edition", "="] and "CLOSED" not in words


def _number(word: str) -> int | None:
    """A number as protoc reads it; None for what is none."""
    try:
        return int(word, 8) if re.fullmatch("0[0-7]+", word) else int(word, 0)
    except ValueError:
        return None


def _stand_in(name: str) -> str:
    """The same in every file, for a default may name a value of another."""
    return f"wire_{zlib.crc32(name.encode()):08x}_{name}"


def own_names(file: File) -> None:
    """Give enum values back the names that `wire_text` has taken from them."""
    messages, enums = list(file.message_type), list(file.enum_type)
    for message in messages:
        messages += message.nested_type
        enums += message.enum_type
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_ENUM and field.HasField("default_value"):
                field.default_value = _OWN.sub("", field.default_value)
    for enum in enums:
        for value in enum.value:
            value.name = _OWN.sub("", value.name)


def _apply(text: str, changes: Iterable[_Change]) -> str:
    pieces, position = [], 0
    for change in changes:
        lines = "\n" * text.count("\n", change.start, change.end)
        pieces += [text[position : change.start], change.by, lines]
        position = change.end
    return "".join([*pieces, text[position:]])


def _cut(tokens: list[_Token], by: str = "") -> _Change:
    return _Change(tokens[0].start, tokens[-1].end, by)


def _close(tokens: list[_Token], begin: int) -> int:
    """The place behind the bracket that closes the one at `begin`; the end of the text where none does."""
    depth = 0
    for place in range(begin, len(tokens)):
        depth += (tokens[place].text in _OPENING) - (tokens[place].text in _CLOSING)
        if depth == 0:
            return place + 1
    return len(tokens)


def _end_of_statement(tokens: list[_Token], begin: int) -> int:
    depth = 0
    for place in range(begin, len(tokens)):
        depth += (tokens[place].text in _OPENING) - (tokens[place].text in _CLOSING)
        if depth == 0 and tokens[place].text == ";":
            return place + 1
    return len(tokens)


def _end_of_block(tokens: list[_Token], begin: int) -> int:
    for place in range(begin, len(tokens)):
        if tokens[place].text == "{":
            return _close(tokens, place)
        if tokens[place].text == ";":
            return place + 1
    return len(tokens)


def _imported(statement: list[_Token]) -> str:
    return "".join(token.text[1:-1] for token in statement if token.text[0] in "\"'")


def _is_of_options(tokens: list[_Token], index: int) -> bool:
    return bool(
        re.fullmatch(r"\.?(google\.protobuf\.)?\w+Options", tokens[index + 1].text if index + 1 < len(tokens) else "")
    )


def _statement(tokens: list[_Token]) -> Iterator[_Change]:
    name, value = _named([token.text for token in tokens[1:-1]])
    if name in _STATEMENTS or _is_feature(name):
        yield _cut(tokens, f"option {name} = {_unquoted(value)};")
    else:
        yield _cut(tokens)


def _bracket(statement: list[_Token], tokens: list[_Token], rename: bool) -> _Change:
    """The options of a field: those that stay, each with its value as protoc wants it."""
    words = [token.text for token in statement if token.text not in _LABELS]
    is_text = words[:1] in (["string"], ["bytes"])
    options = []
    for option in _split([token.text for token in tokens[1:-1]]):
        name, value = _named(option)
        if name in _IN_BRACKETS or _is_feature(name):
            value = value if name == "default" and is_text else _unquoted(value)
            is_enum = name == "default" and not set(words[:1]) & _SCALARS
            options.append(f"{name} = {_stand_in(value) if rename and is_enum else value}")
    return _cut(tokens, f"[{', '.join(options)}]" if options else "")


def _split(words: list[str]) -> Iterator[list[str]]:
    option: list[str] = []
    depth = 0
    for word in words:
        depth += (word in _OPENING) - (word in _CLOSING)
        if word == "," and depth == 0:
            yield option
            option = []
        else:
            option.append(word)
    yield option


def _named(words: list[str]) -> tuple[str, str]:
    """Name and value of an option."""
    equals = words.index("=") if "=" in words else len(words)
    return "".join(words[:equals]), " ".join(words[equals + 1 :]).replace("- ", "-")


def _is_feature(name: str) -> bool:
    """A feature of protobuf itself; those in parentheses belong to a language."""
    return (name == "features" or name.startswith("features.")) and "(" not in name


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] in "\"'" else value


# -- descriptors -------------------------------------------------------------------------------------------


def wire_file(file: File, absent: Collection[str] = ()) -> File:
    """The same for a file that came as a descriptor. `absent`: dependencies that cannot be had."""
    out = File()
    out.CopyFrom(file)
    for name in ("service", "source_code_info", "dependency", "public_dependency", "weak_dependency"):
        out.ClearField(name)
    public = {file.dependency[index] for index in file.public_dependency if index < len(file.dependency)}
    for name in file.dependency:
        if name not in absent:
            if name in public:
                out.public_dependency.append(len(out.dependency))
            out.dependency.append(name)
    _keep(out, "features")
    _strip_extensions(out)
    for enum in out.enum_type:
        _strip_enum(enum, file.syntax == "proto3")
    messages = list(out.message_type)
    while messages:
        message = messages.pop()
        _strip_message(message, file.syntax == "proto3")
        messages += message.nested_type
    return out


def _strip_message(message: DescriptorProto, is_open: bool) -> None:
    _keep(message, "features", "map_entry", "message_set_wire_format")
    if not message.options.map_entry:
        message.options.deprecated_legacy_json_field_conflicts = True
    _strip_extensions(message)
    for field in message.field:
        _strip_field(field)
    for oneof in message.oneof_decl:
        _keep(oneof, "features")
    for numbers in message.extension_range:
        _keep(numbers)
    for enum in message.enum_type:
        _strip_enum(enum, is_open)


def _strip_enum(enum: EnumDescriptorProto, is_open: bool) -> None:
    _keep(enum, "features", "allow_alias")
    enum.options.deprecated_legacy_json_field_conflicts = True
    for value in enum.value:
        _keep(value)
    if is_open and enum.value and enum.value[0].number != 0:
        values = list(enum.value)
        if any(value.number == 0 for value in values):
            enum.options.allow_alias = True
        del enum.value[:]
        enum.value.add(name=f"{_ZERO}{enum.name}", number=0)
        enum.value.extend(values)


def _strip_field(field: FieldDescriptorProto) -> None:
    _keep(field, "features", "packed")
    field.ClearField("json_name")


def _strip_extensions(scope: File | DescriptorProto) -> None:
    extensions = [e for e in scope.extension if not re.fullmatch(r"\.google\.protobuf\.\w+Options", e.extendee)]
    del scope.extension[:]
    scope.extension.extend(extensions)
    for field in scope.extension:
        _strip_field(field)


def _keep(scope: Any, *names: str) -> None:
    """Of the options of something only those named, and none that is an extension."""
    before = type(scope.options)()
    before.CopyFrom(scope.options)
    scope.ClearField("options")
    for name in names:
        if before.HasField(name):
            value = getattr(before, name)
            if name == "features":
                for feature, setting in value.ListFields():
                    if not feature.is_extension:
                        setattr(scope.options.features, feature.name, setting)
            else:
                setattr(scope.options, name, value)
