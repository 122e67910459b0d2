"""Topics as other programs write them: with the serializers of Confluent's client and a registry, and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.services.kafka import Kafka
from tests.services.registry import Registry
from tests.test_routes_kafka import Shop, ran, reasons, rows

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]

PLAYED: dict[str, Any] = {
    "type": "record",
    "name": "acme.Played",
    "fields": [
        {"name": "player", "type": "string"},
        {"name": "meta", "type": {"type": "record", "name": "Meta", "fields": [{"name": "kind", "type": "string"}]}},
    ],
}
NEWER = {**PLAYED, "fields": [*PLAYED["fields"], {"name": "score", "type": ["null", "int"], "default": None}]}
BARE = {"format": "json", "framing": "none", "columns": {"n": "bigint"}}


def test_topics_of_other_programs_come_into_tables(lake: Path, kafka: Kafka, registry_server: Registry) -> None:
    shop = Shop(lake, kafka, 0)
    served = {"url": registry_server.url}

    with kafka.topic(1) as played, SchemaRegistryClient(served) as client:
        context = SerializationContext(played, MessageField.VALUE)
        producer = Producer(kafka.client())
        for schema, kind, more in ((PLAYED, "go", {}), (NEWER, "chess", {"score": 7}), (NEWER, "go", {"score": 8})):
            write = AvroSerializer(client, json.dumps(schema))
            value = write({"player": "ann", "meta": {"kind": kind}, **more}, context)
            producer.produce(played, value=value, key=kind)
        assert producer.flush(30) == 0
        for name, route in (("by_field", "meta.kind"), ("by_key", {"from": "key"})):
            config = shop.pipeline(
                name, played, registry=served, envelope={"format": "none", "route": route}, payload={"format": "avro"}
            )
            ran(config)
            assert {table: [row["score"] for row in found] for table, found in rows(config).items()} == {
                "chess": [7],
                "go": [None, 8],
            }

    with kafka.topic(1) as enveloped:
        values = [
            b'{"meta": {"kind": "go"}, "data": {"n": 1, "x": 1.50}}',
            b'{"meta": {"kind": "chess"}, "data": "{\\"n\\": 2}"}',
            b'{"meta": {"kind": "go"}, "data": {"n": "3"}}',
            b'{"meta": {"kind": "go"}, "data": null}',
            b'{"meta": {"kind": "go"}}',
            b"no JSON",
        ]
        shop.send(enveloped, [{"value": value} for value in values])
        envelope = {"format": "json", "route": "meta.kind", "payload": "data"}
        config = shop.pipeline("declared", enveloped, registry=None, envelope=envelope, payload=BARE)
        ran(config)
        assert rows(config) == {
            "chess": [{"n": 2, "_undeclared": None}],
            "go": [{"n": 1, "_undeclared": '{"x":1.50}'}],
        }
        assert reasons(config) == {("go", "CORRUPT_PAYLOAD"): 1, (None, "CORRUPT_ENVELOPE"): 2}

        inferred = {"format": "json", "framing": "none", "types": "inferred"}
        config = shop.pipeline(
            "inferred", enveloped, registry=None, envelope=envelope, payload=inferred, layout="two_hop"
        )
        ran(config)
        found = rows(config)
        assert [found["chess"], found["go"]] == [
            [{"n__bigint": 2, "_undeclared": None}],
            [
                {"n__bigint": 1, "n__string": None, "x__double": 1.5, "_undeclared": None},
                {"n__bigint": None, "n__string": "3", "x__double": None, "_undeclared": None},
            ],
        ]
        assert reasons(config) == {(None, "CORRUPT_ENVELOPE"): 2}
