"""A message inside a message as what is decoded: the member of a oneof that is set, or the value of an Any.

Who wrote a payload is told by schema id and message (`Writer`). A message is an index path or a full name, and may lead
on into a part of it:

    0                      the first message of the schema
    0/order_created        its field order_created: that message (or, of another type, that one column)
    0/body.order_created   the same, one message deeper
    0/details/acme.Order   its field details, an Any: the value, as a message acme.Order of the same schema

So a record's bytes stay what they are on every way (chunks, bronze, quarantine): a part is found in them anew.

What surrounds a part is read `shallow`: messages that are not on the way to it are the bytes that they are on the wire.
Nothing is left out, so ptars can vouch for the rows as for any other (`weight`). Of a field that is written twice,
which no writer does, the later one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from distributary.schemas.decoding import Decoder
from distributary.schemas.protobuf import protobuf
from distributary.schemas.protobuf.protobuf import BadIndex, MessageDecoder, Split
from distributary.schemas.registry.compile import ProtobufSchema

STEP: Final = "/"
_CACHE: Final = 1_024


def decoder_for(
    schema: ProtobufSchema, message: str = "0", *, raw_nested_indexes: bool = False, null_out_of_range: bool = False
) -> Decoder:
    """The decoder of a message, or of a part of it; see `protobuf.decoder_for`.

    Raises:
        BadIndex: there is no such message, or no such part of it.
        SchemaBroken: as there.
    """
    if STEP not in message:
        return protobuf.decoder_for(
            schema, message, raw_nested_indexes=raw_nested_indexes, null_out_of_range=null_out_of_range
        )
    return _part_for(schema, message, raw_nested_indexes, null_out_of_range)


def whole_of(message: str) -> str:
    """The message that a record's header names, of a message or a part of it."""
    return message.partition(STEP)[0]


@lru_cache(maxsize=_CACHE)
def _part_for(schema: ProtobufSchema, message: str, raw: bool, null: bool) -> Decoder:
    root_name, path, *type_name = message.split(STEP, 2)
    steps = path.split(".")
    around = shallow_for(schema, root_name, tuple(steps[:-1]), raw_nested_indexes=raw)
    field = _field(around.descriptor, steps)
    around.type_at(steps)
    if type_name:
        inner = protobuf.decoder_for(schema, type_name[0], null_out_of_range=null)
        return _Part(around.decoder, steps, inner, in_any=True)
    if around.was_message(field):
        name = around.type_of(field)
        return _Part(around.decoder, steps, protobuf.decoder_for(schema, name, null_out_of_range=null))
    return _Column(around.decoder, steps)


class _Part:
    """Decodes a message that lies in a field of another one."""

    def __init__(self, around: MessageDecoder, steps: Sequence[str], inner: MessageDecoder, *, in_any: bool = False):
        self._around, self._steps, self._inner, self._in_any = around, steps, inner, in_any
        self.full_name, self.columns = inner.full_name, inner.columns
        self.engine: str = inner.engine

    def decode(self, payloads: pa.BinaryArray) -> Split:
        outer = self._around.decode(payloads)
        bodies = column_at(outer.rows, self._steps)
        if self._in_any:
            named = any_decoder().decode(bodies.fill_null(b""))
            outer = _chained(outer, named, len(payloads))
            bodies = named.rows.column("value")
        return _chained(outer, self._inner.decode(bodies.fill_null(b"")), len(payloads))


class _Column:
    """A field of a message that is none itself, as the one column of a row."""

    engine: str

    def __init__(self, around: MessageDecoder, steps: Sequence[str]) -> None:
        self._around, self._steps = around, steps
        self.full_name = f"{around.full_name}.{'.'.join(steps)}"
        self.engine = around.engine
        self.columns = pa.schema([pa.field(steps[-1], field_at(around.columns, steps).type)])

    def decode(self, payloads: pa.BinaryArray) -> Split:
        outer = self._around.decode(payloads)
        rows = pa.RecordBatch.from_arrays([column_at(outer.rows, self._steps)], schema=self.columns)
        return replace(outer, rows=rows)


def _chained(outer: Split, inner: Split, count: int) -> Split:
    """What became of `count` payloads whose parts (the rows of `outer`) were decoded in their turn."""
    places = np.arange(count) if outer.positions is None else np.asarray(outer.positions)
    lost = [replace(rejection, position=int(places[rejection.position])) for rejection in inner.rejected]
    good = places if inner.positions is None else places[np.asarray(inner.positions)]
    rejected = sorted([*outer.rejected, *lost], key=lambda rejection: rejection.position)
    positions = None if len(good) == count else pa.array(good, pa.int64())
    return Split(inner.rows, positions, rejected, inner.warnings)


# -- what surrounds a part -----------------------------------------------------------------------------------


class Shallow:
    """A message of which only the top is read, and the messages on one way down.

    `decoder`: gives its columns. `descriptor`: of the message as the schema declares it.
    """

    def __init__(self, decoder: MessageDecoder, descriptor: Descriptor) -> None:
        self.decoder, self.descriptor = decoder, descriptor

    @staticmethod
    def was_message(field: FieldDescriptor) -> bool:
        return field.type == FieldDescriptor.TYPE_MESSAGE

    @staticmethod
    def type_of(field: FieldDescriptor) -> str:
        assert field.message_type is not None
        return field.message_type.full_name

    def type_at(self, steps: Sequence[str]) -> pa.DataType:
        """The type of the column at a path. Raises BadIndex: there is none."""
        try:
            return field_at(self.decoder.columns, steps).type
        except KeyError as e:
            detail = "; it leads through a message inside itself" if len(steps) > 1 else ""
            raise BadIndex(f"the message {self.decoder.full_name} has no column {'.'.join(steps)!r}{detail}") from e

    def members(self, oneof: Sequence[str]) -> list[str]:
        """The members of a oneof. Raises BadIndex."""
        *steps, name = oneof
        holder = _message(self.descriptor, steps)
        if name not in holder.oneofs_by_name:
            has = ", ".join(oneof_group.name for oneof_group in holder.oneofs if len(oneof_group.fields) > 1) or "none"
            raise BadIndex(f"the message {holder.full_name} has no oneof {name!r}; it has: {has}")
        names = [field.name for field in holder.oneofs_by_name[name].fields]
        for member in names:
            self.type_at([*steps, member])
        return names


@lru_cache(maxsize=_CACHE)
def shallow_for(
    schema: ProtobufSchema,
    message: str,
    steps: tuple[str, ...] = (),
    leaf: str | None = None,
    *,
    raw_nested_indexes: bool = False,
) -> Shallow:
    """A message as it is read around a part of it. `steps`: fields that lead down to where the part is; `leaf`: the
    field there that keeps its type.

    Raises BadIndex: there is no such message or field. SchemaBroken.
    """
    descriptor = protobuf.descriptor_of(schema, message, raw_nested_indexes=raw_nested_indexes)
    kept_fields: dict[str, set[str]] = {descriptor.full_name: set()}
    current = descriptor
    for step in steps:
        kept_fields.setdefault(current.full_name, set()).add(step)
        current = _message(current, [step])
    kept_fields.setdefault(current.full_name, set()).update([leaf] if leaf is not None else ())
    files = FileDescriptorSet.FromString(schema.descriptor_set)
    for file in files.file:
        for scope, declared in _declared(file):
            if scope in kept_fields:
                _flatten(declared, kept_fields[scope])
    flat = replace(schema, descriptor_set=files.SerializeToString())
    return Shallow(protobuf.decoder_for.__wrapped__(flat, descriptor.full_name), descriptor)


def _flatten(declared: DescriptorProto, kept_fields: set[str]) -> None:
    """Make the bytes that they are of all messages that a message holds, but for `kept_fields` and for maps."""
    entries = {nested.name for nested in declared.nested_type if nested.options.map_entry}
    for field in declared.field:
        is_map = field.type_name.rpartition(".")[2] in entries
        if field.type == FieldDescriptorProto.TYPE_MESSAGE and field.name not in kept_fields and not is_map:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
            field.ClearField("options")


def _declared(file: FileDescriptorProto) -> list[tuple[str, DescriptorProto]]:
    """All messages of a file by full name."""
    todo = [(f"{file.package}.{message.name}".lstrip("."), message) for message in file.message_type]
    messages = []
    while todo:
        name, message = todo.pop()
        messages.append((name, message))
        todo += [(f"{name}.{nested.name}", nested) for nested in message.nested_type]
    return messages


def _message(root: Descriptor, steps: Sequence[str]) -> Descriptor:
    for step in steps:
        field = root.fields_by_name.get(step)
        if field is None or field.type != FieldDescriptor.TYPE_MESSAGE or field.is_repeated:
            has = ", ".join(
                child.name for child in root.fields if child.message_type is not None and not child.is_repeated
            )
            raise BadIndex(f"the message {root.full_name} has no single message {step!r}; it has: {has or 'none'}")
        assert field.message_type is not None
        root = field.message_type
    return root


def _field(root: Descriptor, steps: Sequence[str]) -> FieldDescriptor:
    holder = _message(root, steps[:-1])
    field = holder.fields_by_name.get(steps[-1])
    if field is None or field.is_repeated:
        raise BadIndex(f"the message {holder.full_name} has no single field {steps[-1]!r}")
    return field


def field_at(columns: pa.Schema, steps: Sequence[str]) -> pa.Field:
    """The column (or the field of a struct) at a path. Raises KeyError: there is none."""
    name, *rest = steps
    if name not in columns.names:
        raise KeyError(name)
    field = columns.field(name)
    if not rest:
        return field
    if not pa.types.is_struct(field.type):
        raise KeyError(rest[0])
    return field_at(pa.schema(list(field.type)), rest)


def column_at(rows: pa.RecordBatch, steps: Sequence[str]) -> pa.Array:
    """The values at a path; null where a message on the way is not there."""
    name, *rest = steps
    column = rows.column(name)
    return pc.struct_field(column, rest) if rest else column


@lru_cache(maxsize=1)
def any_decoder() -> MessageDecoder:
    """`google.protobuf.Any` as its two plain fields: `type_url`, `value`."""
    file = FileDescriptorProto()
    AnyMessage.DESCRIPTOR.file.CopyToProto(file)
    file.package, file.name = "distributary", "any.proto"
    plain = ProtobufSchema(0, file.name, FileDescriptorSet(file=[file]).SerializeToString())
    return protobuf.decoder_for.__wrapped__(plain, "0")
