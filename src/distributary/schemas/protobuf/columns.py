"""Protobuf descriptor to table columns: one rule set, fixed for ever, since a later change would break tables.

| protobuf                                   | column                                                            |
|--------------------------------------------|-------------------------------------------------------------------|
| int32, sint32, sfixed32                    | int                                                               |
| int64, sint64, sfixed64                    | bigint                                                            |
| uint32, fixed32                            | bigint                                                            |
| uint64, fixed64                            | decimal(20,0)                                                     |
| float, double, bool, string                | float, double, boolean, string                                    |
| bytes                                      | binary                                                            |
| enum                                       | string: the value's name; a number without a name as text, "7"    |
| google.protobuf.*Value wrappers            | the wrapped type, null where unset                                |
| google.protobuf.Timestamp                  | timestamp (UTC, microseconds, rounded down); seconds or nanos out |
|                                            | of the type's range set the row aside                             |
| google.protobuf.Duration                   | bigint: microseconds, rounded down; the same                      |
| google.protobuf.Struct, Value, ListValue   | string: JSON                                                      |
| google.protobuf.Any                        | struct<type_url string, value binary, json string>; `json` where  |
|                                            | the type is part of the schema, else null                         |
| message                                    | struct; without fields: struct<_empty boolean>, true where present|
| message inside itself                      | binary: serialised, from the point of recursion on; where that    |
|                                            | makes too many fields, from the second message of its cycle on    |
| message nested too deep (`DEEPEST`)        | binary: serialised                                                |
| group                                      | as a message                                                      |
| repeated T                                 | array<T>                                                          |
| map<K, V>                                  | map<K, V>; the last entry of a key wins                           |

Presence: a field without presence (implicit, proto3) that is unset is its type's default value. A field with
presence (`optional`, `required`, member of a oneof, message) that is unset is null, or its declared default (proto2
`[default = 42]`). Repeated fields and maps that are unset are empty, never null.

Names are those of the schema, in the order of declaration. Delta compares names without case: a field whose name is
another column's but for case, in this message or in the table, is stored as `<name>__<field number>`. So a column is
always one field's: it is found by exact name first, then by name and number, and never by a name of another case.

Extensions and unknown fields have no column. No type depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from distributary.errors import SchemaBroken
from distributary.schemas.decoding import distinct_names
from distributary.schemas.registry.lenient import is_made_up

FieldForm = Literal["scalar", "enum", "wrapper", "timestamp", "duration", "json", "any", "empty", "struct", "cut"]
OPAQUE: Final = ("json", "any", "cut")
"""Forms that only the official library makes, each from the bytes of its own field."""

MAX_FIELDS: Final = 10_000
"""Fields of one message with all nested ones; mutual recursion of many messages would multiply without bound."""
# What an Arrow field says of the field it comes from: its number, its name where the column has another, its comment.
NUMBER: Final = b"number"
NAME: Final = b"name"
COMMENT: Final = b"comment"
NONE: Final[Mapping[str, str]] = MappingProxyType({})
DEEPEST: Final = (122, 61)
"""What columns may nest: brackets of a Delta schema's JSON (delta-rs stops at 126), levels of an Arrow schema (Arrow
stops at 64). A struct takes 3 and 1 of them, an array 1 and 1, a map 1 and 2: 39 messages inside each other, 28 if each
is repeated, 19 if each is the value of a map. There is room for one more struct, that of a table of many routes."""
_STRUCT, _ARRAY, _MAP = (3, 1), (1, 1), (1, 2)
EMPTY_COLUMN: Final = "_empty"
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ANY: Final = pa.struct([("type_url", pa.string()), ("value", pa.binary()), ("json", pa.string())])
EMPTY: Final = pa.struct([(EMPTY_COLUMN, pa.bool_())])

_F: Final = FieldDescriptor
SCALARS: Final[Mapping[int, Any]] = {
    _F.TYPE_INT32: pa.int32(),
    _F.TYPE_SINT32: pa.int32(),
    _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_INT64: pa.int64(),
    _F.TYPE_SINT64: pa.int64(),
    _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT32: pa.int64(),
    _F.TYPE_FIXED32: pa.int64(),
    _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
}
_ANY: Final = "google.protobuf.Any"
_WELL_KNOWN: Final[Mapping[str, tuple[FieldForm, Any]]] = {
    "google.protobuf.Timestamp": ("timestamp", TIMESTAMP),
    "google.protobuf.Duration": ("duration", pa.int64()),
    "google.protobuf.Struct": ("json", pa.string()),
    "google.protobuf.Value": ("json", pa.string()),
    "google.protobuf.ListValue": ("json", pa.string()),
    _ANY: ("any", ANY),
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field and the column it becomes."""

    number: int
    column: str
    kind: int
    """`FieldDescriptor.TYPE_*`; of a wrapper: of the wrapped value."""
    form: FieldForm
    type: Any
    """Arrow type of the column."""
    presence: bool = False
    """Whether unset is null (or `default`) in the column; without, unset is the type's default value."""
    repeated: bool = False
    packed: bool = False
    oneof: str | None = None
    default: Any = None
    """The declared default of a field with presence; None where unset means null."""
    names: Mapping[int, str] | None = None
    """Names by number, of an enum."""
    message: MessageFields | None = None
    """What a struct holds."""
    entry: tuple[Field, Field] | None = None
    """Key and value, of a map."""
    full_name: str = ""
    """Full name of the message type; empty unless the field holds messages."""
    name: str = ""
    """As the schema declares it."""
    comment: str | None = None
    """As the schema's text has it."""


@dataclass(frozen=True, slots=True)
class MessageFields:
    """A message type and the columns of its fields."""

    full_name: str
    fields: tuple[Field, ...]

    @property
    def type(self) -> Any:
        """Arrow type of a column that holds this message; its fields say which field of the schema they are."""
        return pa.struct([_arrow_field(field) for field in self.fields]) if self.fields else EMPTY

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of a table of this message."""
        return pa.schema(list(self.type))


def _arrow_field(field: Field) -> pa.Field:
    renamed = {NAME: field.name} if field.name != field.column else {}
    comment = {COMMENT: field.comment.encode()} if field.comment is not None else {}
    return pa.field(field.column, field.type, metadata={NUMBER: str(field.number), **renamed, **comment})


def message_columns(descriptor: Descriptor, comments: Mapping[str, str] = NONE) -> MessageFields:
    """The columns of a message, by the rules above. `comments`: of fields, by full name.

    Raises:
        SchemaBroken: the message has more than `MAX_FIELDS` fields with all nested ones.
    """
    room = _within(DEEPEST, _STRUCT)
    try:
        return _Columns(descriptor.full_name, {}, comments).message(descriptor, (), room)
    except SchemaBroken:
        cycles = cycles_of(descriptor)
        if len(set(cycles.values())) == len(cycles):
            raise
        return _Columns(descriptor.full_name, cycles, comments).message(descriptor, (), room)


Room = tuple[int, int]
"""How much deeper columns may nest, as `DEEPEST` counts."""


def _within(room: Room, used: Room) -> Room:
    return room[0] - used[0], room[1] - used[1]


def _takes_struct(room: Room) -> bool:
    """Whether a struct has room, and a map of scalars in it."""
    json, arrow = _within(_within(room, _STRUCT), _MAP)
    return json >= 0 and arrow >= 1


class _Columns:
    """Walks one message type; counts fields, for nested types multiply.

    `cycles`: of each message type the cycle it is part of, where one message of a cycle is all that is expanded.
    """

    def __init__(self, root: str, cycles: Mapping[str, int], comments: Mapping[str, str]) -> None:
        self._root, self._left, self._enums = root, MAX_FIELDS, dict[str, Mapping[int, str]]()
        self._cycles, self._comments = cycles, comments

    def message(self, descriptor: Descriptor, path: tuple[str, ...], room: Room) -> MessageFields:
        self._left -= len(descriptor.fields)
        if self._left < 0:
            detail = f"it has more than {MAX_FIELDS} fields with all nested ones"
            raise SchemaBroken(what=f"of message {self._root}", detail=detail)
        path = (*path, descriptor.full_name)
        names = _column_names(descriptor.fields)
        return MessageFields(
            descriptor.full_name,
            tuple(self._field(field, name, path, room) for field, name in zip(descriptor.fields, names, strict=True)),
        )

    def _field(self, field: FieldDescriptor, column: str, path: tuple[str, ...], room: Room) -> Field:
        target = field.message_type
        if target is not None and target.GetOptions().map_entry:
            inside = _within(room, _MAP)
            key, value = (self._entry_part(target.fields_by_name[member], path, inside) for member in ("key", "value"))
            type_ = pa.map_(key.type, value.type)
            entry, comment = (key, value), self._comments.get(field.full_name)
            return Field(
                field.number,
                column,
                field.type,
                "struct",
                type_,
                repeated=True,
                entry=entry,
                name=field.name,
                comment=comment,
            )
        form, type_, message = self._target(field, path, _within(room, _ARRAY) if field.is_repeated else room)
        wrapped = target.fields_by_name["value"] if target is not None and form == "wrapper" else field
        return Field(
            number=field.number,
            column=column,
            kind=wrapped.type,
            form=form,
            type=pa.list_(pa.field("element", type_)) if field.is_repeated else type_,
            presence=field.has_presence,
            repeated=field.is_repeated,
            packed=field.is_packed,
            oneof=shared_oneof(field),
            default=self._default(field),
            names=self._names(field.enum_type) if field.enum_type is not None else None,
            message=message,
            full_name=target.full_name if target is not None else "",
            name=field.name,
            comment=self._comments.get(field.full_name),
        )

    def _entry_part(self, field: FieldDescriptor, path: tuple[str, ...], room: Room) -> Field:
        """Key or value of a map: on the wire it may be absent, in the column it is its type's default then."""
        member = self._field(field, field.name, path, room)
        if field.enum_type is not None and field.default_value != 0:
            return replace(member, presence=True, default=self._names(field.enum_type)[field.default_value])
        return replace(member, presence=False, default=None)

    def _target(
        self, field: FieldDescriptor, path: tuple[str, ...], room: Room
    ) -> tuple[FieldForm, Any, MessageFields | None]:
        """Form and Arrow type of one value of a field."""
        target = field.message_type
        if target is None:
            return ("enum", pa.string(), None) if field.enum_type is not None else ("scalar", SCALARS[field.type], None)
        if target.full_name == _ANY and not _takes_struct(room):
            return "cut", pa.binary(), None
        if target.full_name in _WELL_KNOWN:
            return (*_WELL_KNOWN[target.full_name], None)
        if target.full_name in _WRAPPERS:
            return "wrapper", SCALARS[target.fields_by_name["value"].type], None
        if target.full_name in path or not _takes_struct(room):
            return "cut", pa.binary(), None
        if self._cycles.get(target.full_name, -1) in map(self._cycles.get, path):
            return "cut", pa.binary(), None
        if not target.fields:
            return "empty", EMPTY, None
        message = self.message(target, path, _within(room, _STRUCT))
        return "struct", message.type, message

    def _names(self, enum: EnumDescriptor) -> Mapping[int, str]:
        """Of several names for one number (`allow_alias`) the first declared."""
        if enum.full_name not in self._enums:
            named = [value for value in reversed(enum.values) if not is_made_up(value.name)]
            self._enums[enum.full_name] = {value.number: value.name for value in named}
        return self._enums[enum.full_name]

    def _default(self, field: FieldDescriptor) -> Any:
        if not field.has_presence or not field.has_default_value:
            return None
        return self._names(field.enum_type)[field.default_value] if field.enum_type else field.default_value


def cycles_of(root: Descriptor) -> dict[str, int]:
    """Of each message type that a message leads to, the number of its cycle: types that contain each other share one.

    The strongly connected components of the types, by Tarjan's algorithm without recursion (SIAM J. Comput. 1(2),
    1972).
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    cycles: dict[str, int] = {}
    open_types: list[str] = []
    way: list[tuple[Descriptor, Iterator[Descriptor]]] = []

    def enter(message: Descriptor) -> None:
        order[message.full_name] = low[message.full_name] = len(order)
        open_types.append(message.full_name)
        way.append((message, targets(message)))

    enter(root)
    while way:
        message, rest = way[-1]
        name = message.full_name
        target = next(rest, None)
        if target is None:
            way.pop()
            if way:
                parent = way[-1][0].full_name
                low[parent] = min(low[parent], low[name])
            if low[name] == order[name]:
                while name not in cycles:
                    cycles[open_types.pop()] = order[name]
        elif target.full_name not in order:
            enter(target)
        elif target.full_name not in cycles:
            low[name] = min(low[name], order[target.full_name])
    return cycles


def targets(message: Descriptor) -> Iterator[Descriptor]:
    """The message types of a message's fields, of a map that of its values."""
    for field in message.fields:
        target = field.message_type
        if target is not None and target.GetOptions().map_entry:
            target = target.fields_by_name["value"].message_type
        if target is not None:
            yield target


def shared_oneof(field: FieldDescriptor) -> str | None:
    """Name of the oneof that a field shares; alone in one, as under proto3's `optional`, it is just optional."""
    oneof = field.containing_oneof
    return oneof.name if oneof is not None and len(oneof.fields) > 1 else None


def _column_names(fields: Iterable[FieldDescriptor]) -> list[str]:
    return distinct_names((field.number, field.name) for field in fields)


def wrapped(kind: int) -> MessageFields:
    """A wrapper of `google.protobuf`, as a message. `kind`: `FieldDescriptor.TYPE_*`."""
    return MessageFields("", (_scalar(1, kind),))


def _scalar(number: int, kind: int) -> Field:
    return Field(number, "", kind, "scalar", None)


INSTANT: Final = MessageFields("", (_scalar(1, _F.TYPE_INT64), _scalar(2, _F.TYPE_INT32)))
"""A Timestamp or a Duration: seconds, nanos."""
