"""The services that other tests rest on are what they claim to be: real, reachable, closed to strangers."""

from __future__ import annotations

import time
import urllib.error
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests import services
from tests.conftest import needed
from tests.services import ServiceFailed, ServiceMissing, maven, wait_until
from tests.services.kafka import Kafka, Mechanism
from tests.services.registry import Registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.services

V1 = 'syntax = "proto3"; message M { string a = 1; }'
V2 = 'syntax = "proto3"; message M { string a = 1; optional int64 b = 2; }'
OTHER_TYPE = 'syntax = "proto3"; message M { int64 a = 1; }'


def produce(conf: dict[str, str], topic: str, *values: bytes) -> None:
    producer = Producer(conf)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def consume(conf: dict[str, str], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**conf, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])  # a group would take seconds to form
    try:
        found: list[bytes] = []
        end = time.monotonic() + 120
        while len(found) < count and time.monotonic() < end:
            for message in consumer.consume(count - len(found), timeout=1):
                assert message.error() is None
                found.append(message.value())
        return found
    finally:
        consumer.close()


def test_records_come_back_from_the_broker(kafka: Kafka) -> None:
    with kafka.topic(partitions=1) as topic:
        produce(kafka.client(), topic, b"1", b"2")
        assert consume(kafka.client(), topic, 2) == [b"1", b"2"]


def test_a_topic_is_not_created_by_being_asked_for(kafka: Kafka) -> None:
    found = Producer(kafka.client()).list_topics("never-created", timeout=10).topics["never-created"]
    assert found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_spark_reads_a_topic(spark: SparkSession, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        produce(kafka.client(), topic, *(str(number).encode() for number in range(10)))
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        rows = reader.option("subscribe", topic).load().selectExpr("cast(value as string) as v").collect()
        assert sorted(row.v for row in rows) == [str(number) for number in range(10)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_broker_with_sasl_takes_the_right_password_only(tmp_path: Path, mechanism: Mechanism) -> None:
    users = {"alice": "right", "bob": "other"}
    with needed():
        broker = Kafka(tmp_path / "kafka", mechanism=mechanism, users=users)
    with broker:
        topic = broker.create_topic("t", partitions=1)
        produce(broker.client("bob"), topic, b"1")
        assert consume(broker.client("alice"), topic, 1) == [b"1"]
        for stranger in ({"sasl.password": "wrong"}, {"security.protocol": "PLAINTEXT"}):
            client = Consumer({**broker.client(), **stranger, "group.id": "g", "log_level": "0"})
            with pytest.raises(KafkaException):
                client.list_topics(timeout=2)
            client.close()


def test_a_broker_keeps_its_records_over_an_outage(tmp_path: Path) -> None:
    with needed():
        broker = Kafka(tmp_path / "kafka")
    with broker:
        topic = broker.create_topic("t", partitions=1)
        produce(broker.client(), topic, b"before")
        pid = broker.pid
        broker.kill()
        assert not psutil.pid_exists(pid)
        broker.start()
        produce(broker.client(), topic, b"after")
        assert consume(broker.client(), topic, 2) == [b"before", b"after"]


def test_the_registry_holds_full_compatibility_as_the_product_needs_it(registry_server: Registry) -> None:
    subject = f"/subjects/{uuid.uuid4().hex}-value"
    registry_server.request("PUT", f"/config{subject.removeprefix('/subjects')}", {"compatibility": "FULL"})
    for text in (V1, V2):
        registry_server.request("POST", f"{subject}/versions", {"schema": text, "schemaType": "PROTOBUF"})
    assert registry_server.request("GET", f"{subject}/versions") == [1, 2]
    with pytest.raises(urllib.error.HTTPError) as caught:
        body = {"schema": OTHER_TYPE, "schemaType": "PROTOBUF"}
        registry_server.request("POST", f"{subject}/versions", body)
    assert caught.value.code == 409


def test_the_registry_is_set_to_confluents_default_level(registry_server: Registry) -> None:
    assert registry_server.request("GET", "/config") == {"compatibilityLevel": "BACKWARD"}


@pytest.fixture(scope="module")
def kept_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with needed():
        server = Registry(tmp_path_factory.mktemp("kept"), users={"alice": "right"}, keep=True)
    with server:
        yield server


def test_a_registry_with_users_refuses_a_wrong_password(kept_registry: Registry) -> None:
    kept_registry.users = {"alice": "wrong"}
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            kept_registry.request("GET", "/subjects")
        assert caught.value.code == 401
    finally:
        kept_registry.users = {"alice": "right"}


def test_a_registry_that_keeps_its_data_has_them_after_an_outage(kept_registry: Registry) -> None:
    body = {"schema": V1, "schemaType": "PROTOBUF"}
    answer = kept_registry.request("POST", "/subjects/s-value/versions", body)
    kept_registry.stop()
    with pytest.raises(urllib.error.URLError):
        kept_registry.request("GET", "/subjects")
    kept_registry.start()
    assert kept_registry.request("POST", "/subjects/s-value/versions", body) == answer


def test_a_missing_maven_names_the_service_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceMissing, match=r"kafka: no mvn on the PATH.*Install Maven"):
        maven.jars("kafka", "a:b:1")
    assert [path.name for path in (tmp_path / "distributary-test").iterdir()] == ["kafka.lock"]


def test_a_server_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    class Broken(services.Server):
        name = "broken"

        def command(self) -> list[str]:
            return ["sh", "-c", "echo the reason; exit 3"]

        def is_ready(self) -> bool:
            raise ConnectionRefusedError

    with needed():
        server = Broken(tmp_path)
    with pytest.raises(ServiceFailed, match=r"(?s)ended with 3.*the reason"):
        server.start()
    assert server not in services.STARTED


def test_waiting_ends(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"waited 0\.01 s for a sign"):
        wait_until(lambda: False, 0.01, "a sign")
