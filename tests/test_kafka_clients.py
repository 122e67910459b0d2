"""Kafka as companies run it: tokens, the time where a stream begins, offsets for those who watch. With real brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession

from distributary.config import KafkaSource, Pipeline
from distributary.errors import SourceDown
from distributary.sources.kafka import describe_topics
from distributary.sources.kafka_source import KafkaTopics
from tests.conftest import needed
from tests.services.kafka import Kafka
from tests.services.tokens import CLIENT_ID, SECRET, Tokens
from tests.source_contract import run
from tests.test_sources import REGISTRY, KafkaStage, pipeline

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def tokens() -> Iterator[Tokens]:
    with Tokens() as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, tokens: Tokens) -> Iterator[Kafka]:
    """A broker that lets in who brings a token of the identity provider."""
    with needed():
        broker = Kafka(tmp_path_factory.mktemp("oauth"), mechanism="OAUTHBEARER", tokens=tokens)
    with broker:
        yield broker


@pytest.fixture
def topic(guarded: Kafka) -> Iterator[str]:
    with guarded.topic(partitions=1) as name:
        guarded.send(name, [(0, b"one"), (0, b"two")])
        yield name


def secured(broker: Kafka, topic: str, **security: Any) -> dict[str, Any]:
    return {**broker.source(topic), "security": {"protocol": "SASL_PLAINTEXT", **security}}


def oauth(tokens: Tokens, secret: str = SECRET) -> dict[str, Any]:
    given = {"token_url": tokens.token_url, "client_id": CLIENT_ID, "client_secret": secret, "scope": "kafka"}
    return {"mechanism": "OAUTHBEARER", "oauth": given}


@pytest.mark.spark
def test_both_clients_get_in_with_tokens_of_an_identity_provider(
    lake: Path, spark: SparkSession, guarded: Kafka, tokens: Tokens, topic: str
) -> None:
    config = pipeline(lake, secured(guarded, topic, **oauth(tokens)), **REGISTRY)
    source = KafkaTopics(config)
    source.look()
    assert source.newest(9).column("value").to_pylist() == [b"one", b"two"]
    asked = len(tokens.asked)
    stage = KafkaStage(lake, guarded, topic)
    stage.config = config
    assert run(stage, spark, "a") == 2
    assert len(tokens.asked) > asked and set(tokens.asked[asked:]) == {"kafka"}, "Java's client asks too"


def test_a_secret_that_is_refused_is_said_without_it(guarded: Kafka, tokens: Tokens, topic: str) -> None:
    wrong = KafkaSource.model_validate(secured(guarded, topic, **oauth(tokens, "not-the-secret")))
    with pytest.raises(SourceDown) as caught:
        describe_topics(wrong)
    assert "not-the-secret" not in str(caught.value)


def test_iam_of_msk_brings_the_token_that_amazons_library_makes(
    guarded: Kafka, tokens: Tokens, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is faked at its border: to a broker its token is one like any other."""
    signer: Any = ModuleType("signer")
    signer.generate_auth_token = lambda region: (tokens.token(), 4_000_000_000_000)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", ModuleType("aws_msk_iam_sasl_signer"))
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", signer)
    given = {"type": "kafka", "topic": topic, "bootstrap_servers": guarded.bootstrap_servers}
    security = {"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM", "aws": {"region": "eu-west-1"}}
    source = KafkaSource.model_validate({**given, "security": security})
    assert source.security is not None
    plain = source.security.model_copy(update={"protocol": "SASL_PLAINTEXT"})  # our broker has no certificate
    found = describe_topics(source.model_copy(update={"security": plain}))
    assert found[0].latest == {0: 2}


@pytest.mark.spark
def test_a_stream_begins_with_the_records_since_a_time(lake: Path, spark: SparkSession, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        producer = Producer(kafka.client())
        for n, at in enumerate((1_000, 2_000, 3_000, 4_000)):
            producer.produce(topic, b"%d" % n, partition=0, timestamp=at * 1000)
        producer.produce(topic, b"old", partition=1, timestamp=1_000_000)
        assert producer.flush(30) == 0
        stage = KafkaStage(lake, kafka, topic)
        since = {**kafka.source(topic), "starting_timestamp": "1970-01-01 00:50:00"}
        stage.config = pipeline(lake, since, **REGISTRY)
        assert stage.waiting(None) is None, "how many these are, nobody has asked yet"
        assert run(stage, spark, "a") == 2, "and none of a partition that has none since"
        kafka.send(topic, [(1, b"new")])
        assert run(stage, spark, "a") == 1


def test_the_offsets_of_a_group_are_set_for_those_who_watch_it(lake: Path, kafka: Kafka) -> None:
    with kafka.topic(partitions=2) as topic:
        kafka.send(topic, [(0, b"x")] * 5 + [(1, b"y")] * 3)
        config = pipeline(lake, {**kafka.source(topic), "group_id": f"watch-{topic}"}, **REGISTRY)
        source = KafkaTopics(config)
        for first in (2, 5):
            position = {topic: {"0": first, "1": 3}}
            source.decided(partial(dict, position))
            assert group_offsets(config, topic) == {0: first, 1: 3}


def test_offsets_that_cannot_be_set_are_a_line_in_the_log(
    lake: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributary.sources.kafka.TIMEOUT_SEC", 0.5)
    away = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "topic": "t", "group_id": "watch"}
    KafkaTopics(pipeline(lake, away, **REGISTRY)).decided(lambda: {"t": {"0": 1}})
    assert "the offsets of group watch could not be set" in caplog.text


def group_offsets(config: Pipeline, topic: str) -> dict[int, int]:
    """As a tool that watches the group sees them."""
    from confluent_kafka import Consumer

    assert isinstance(config.source, KafkaSource)
    watcher = Consumer({"bootstrap.servers": config.source.bootstrap_servers, "group.id": config.source.group_id})
    try:
        found = watcher.committed([TopicPartition(topic, p) for p in (0, 1)], timeout=120)
    finally:
        watcher.close()
    return {place.partition: place.offset for place in found}
