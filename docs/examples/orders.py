"""Sends orders to a topic, as a service with the registry's protobuf serializer would: for the tutorial.

    python orders.py BROKER REGISTRY [VERSION]

Version 2 of the schema has one field more. One record in a hundred is cut off in the middle.
"""

from __future__ import annotations

import random
import struct
import sys

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELDS = [("shop", 1, 9), ("order_id", 2, 3), ("amount", 3, 1), ("coupon", 4, 9)]
TYPES = {9: "string", 3: "int64", 1: "double"}


def delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def main(broker: str, registry: str, version: str = "1") -> None:
    fields = FIELDS[: 2 + int(version)]
    lines = "".join(f"  {TYPES[kind]} {name} = {number};\n" for name, number, kind in fields)
    text = f'syntax = "proto3";\nmessage Order {{\n{lines}}}\n'
    id = SchemaRegistryClient({"url": registry}).register_schema("orders-value", Schema(text, "PROTOBUF"))

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    message = file.message_type.add(name="Order")
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))

    admin = AdminClient({"bootstrap.servers": broker})
    try:
        admin.create_topics([NewTopic("orders", 2)])["orders"].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise

    producer, rng = Producer({"bootstrap.servers": broker}), random.Random(version)
    for number in range(1000):
        values = {"shop": rng.choice(["berlin", "lagos", "lima"]), "order_id": number, "amount": number / 100}
        if int(version) > 1:
            values["coupon"] = f"spring-{number % 7}"
        body = order(**values).SerializeToString()
        # Magic byte, schema id, message index 0: the registry's framing.
        record = struct.pack(">bI", 0, id) + b"\0" + (body[:-3] if number % 100 == 99 else body)
        producer.produce("orders", record, on_delivery=delivered)
    producer.flush()
    print(f"sent 1,000 orders by version {version} of the schema, id {id}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
