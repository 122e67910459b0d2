"""What the fields of a protobuf message stand for in Kafka Connect (`changes.debezium.connect_protobuf`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, MessageOptions
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from distributary.changes.debezium.connect import Connect
from distributary.changes.debezium.connect_protobuf import DECIMAL_MESSAGE, MESSAGE, message_kind
from distributary.changes.debezium.stored_columns import AS_IS
from distributary.schemas.protobuf.columns import Field, MessageFields, message_columns
from distributary.schemas.protobuf.protobuf import descriptor_of
from distributary.schemas.registry.compile import ProtobufSchema

FIELD_META = 1088
"""Number of the option `confluent.field_meta`."""


@lru_cache(512)
def kind_of(schema: ProtobufSchema, message: str) -> Connect:
    """The type of a message. Raises SchemaBroken, BadIndex."""
    descriptor = descriptor_of(schema, message)
    return _struct(message_columns(descriptor), descriptor)


def _struct(message: MessageFields, descriptor: Descriptor) -> Connect:
    fields = tuple((field.column, _kind(field, descriptor.fields_by_number[field.number])) for field in message.fields)
    return Connect(MESSAGE, descriptor.name, fields=fields)


def _kind(field: Field, declared: FieldDescriptor) -> Connect:
    if field.entry is not None:
        return Connect("map")
    if field.form != "struct" or field.message is None or declared.message_type is None:
        return AS_IS
    precision, scale = _digits(declared) if field.full_name == DECIMAL_MESSAGE else (None, None)
    value_kind = message_kind(field.full_name, precision, scale)
    if field.repeated:
        return AS_IS if value_kind is None else Connect("array", item=value_kind)
    return value_kind or _struct(field.message, declared.message_type)


def _digits(declared: FieldDescriptor) -> tuple[int | None, int | None]:
    """Precision and scale of a decimal, where the schema says them."""
    options = _options_class().FromString(declared.GetOptions().SerializeToString())
    params = dict(options.meta.params)
    precision, scale = (params.get(name, "") for name in ("precision", "scale"))
    return int(precision) if precision.isdigit() else None, int(scale) if scale.lstrip("-").isdigit() else None


@lru_cache(1)
def _options_class() -> Any:
    """A field's options, as far as Confluent's converter writes them: `confluent/meta.proto`."""
    texts, own = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_MESSAGE
    optional, repeated = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    entry = DescriptorProto(name="ParamsEntry", options=MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=texts, label=optional)
    entry.field.add(name="value", number=2, type=texts, label=optional)
    meta = DescriptorProto(name="Meta", nested_type=[entry])
    meta.field.add(name="params", number=2, type=own, label=repeated, type_name=".Meta.ParamsEntry")
    options = DescriptorProto(name="Options")
    options.field.add(name="meta", number=FIELD_META, type=own, label=optional, type_name=".Meta")
    pool = DescriptorPool()
    pool.Add(FileDescriptorProto(name="options.proto", syntax="proto3", message_type=[meta, options]))
    return GetMessageClass(pool.FindMessageTypeByName("Options"))
