"""One set of settings reaches both Kafka clients, each in its own spelling; no broker is asked."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import ValidationError

from distributary.config import KafkaSource, Pipeline
from distributary.config.secrets import looks_secret
from distributary.errors import BadInput
from distributary.kinds import kind_of
from distributary.sources import kafka_source
from distributary.sources.kafka import Topic, check_client
from distributary.sources.kafka_settings import (
    FETCHES,
    PATIENCE,
    RDKAFKA_ONLY,
    RENAMED,
    SAME,
    client_settings,
    java_settings,
    producer_options,
)
from distributary.sources.kafka_source import tasks_at_least

OAUTH = {"token_url": "http://127.0.0.1:1/token", "client_id": "id", "client_secret": 'se"c', "scope": "kafka"}
SIGNER = "aws_msk_iam_sasl_signer.MSKAuthTokenProvider"


def source(**keys: Any) -> KafkaSource:
    return KafkaSource.model_validate({"type": "kafka", "bootstrap_servers": "b:9092", "topic": "t", **keys})


def secured(mechanism: str, **keys: Any) -> KafkaSource:
    return source(security={"protocol": "SASL_SSL", "mechanism": mechanism, **keys})


def both(**options: str) -> tuple[dict[str, str], dict[str, Any]]:
    found = source(options=options)
    return java_settings(found), client_settings(found)


def test_librdkafka_knows_every_name_that_it_is_given() -> None:
    for name in SAME | RDKAFKA_ONLY | set(RENAMED.values()):
        try:
            Consumer({"group.id": "g", "log_level": 0, name: "not a value of it"})
        except KafkaException as e:
            assert "No such configuration property" not in e.args[0].str(), name


@pytest.mark.spark
def test_java_knows_every_name_that_it_is_given(spark: Any) -> None:
    known = set(spark._jvm.org.apache.kafka.clients.consumer.ConsumerConfig.configNames())
    assert (SAME | set(RENAMED) | set(PATIENCE) | set(FETCHES)) - known == set()


@pytest.mark.parametrize(("theirs", "ours"), sorted(RENAMED.items()))
def test_an_option_of_either_spelling_reaches_both_clients(theirs: str, ours: str) -> None:
    for name in (theirs, ours):
        java, rust = both(**{name: "7"})
        assert (java[theirs], rust[ours]) == ("7", "7")
        assert ours not in java and theirs not in rust


def test_what_one_client_alone_knows_is_kept_from_the_other() -> None:
    java, rust = both(**{"max.poll.records": "9", "broker.address.family": "v4"})
    assert java["max.poll.records"] == "9" and "max.poll.records" not in rust
    assert rust["broker.address.family"] == "v4" and "broker.address.family" not in java


def test_options_win_over_our_defaults_at_both_clients() -> None:
    assert [found["isolation.level"] for found in both()] == ["read_committed"] * 2
    assert [found["isolation.level"] for found in both(**{"isolation.level": "read_uncommitted"})] == [
        "read_uncommitted"
    ] * 2


def test_sparks_tasks_do_not_wait_at_the_end_of_a_topic_unless_options_say_so() -> None:
    java, rust = both()
    assert java["fetch.max.wait.ms"] == "5" and "fetch.wait.max.ms" not in rust
    assert int(java["max.partition.fetch.bytes"]) > 1 << 20 and "max.partition.fetch.bytes" not in rust
    for name in ("fetch.max.wait.ms", "fetch.wait.max.ms"):
        java, _ = both(**{name: "70", "max.poll.records": "9", "max.partition.fetch.bytes": "5"})
        assert (java["fetch.max.wait.ms"], java["max.poll.records"]) == ("70", "9")
        assert java["max.partition.fetch.bytes"] == "5"


@pytest.mark.parametrize("given", ["", "none"])
def test_a_host_name_that_is_not_checked_is_said_in_both_ways(given: str) -> None:
    java, rust = both(**{"ssl.endpoint.identification.algorithm": given})
    name = "ssl.endpoint.identification.algorithm"
    assert (java[name], rust[name]) == ("", "none")


def test_stores_and_a_login_in_the_form_of_java_reach_librdkafka() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="a\\"b\\\\c";'
    stores = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}
    keys = {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "p"}
    java, rust = both(**{"sasl.jaas.config": jaas, **stores, **keys})
    assert (rust["sasl.username"], rust["sasl.password"]) == ("ann", 'a"b\\c')
    assert (rust["ssl.ca.location"], rust["ssl.keystore.location"]) == ("/ca.pem", "/me.p12")
    assert java["sasl.jaas.config"] == jaas and "ssl.truststore.location" not in rust
    _, pem = both(**{"ssl.keystore.type": "PEM", "ssl.keystore.location": "/me.pem"})
    assert (pem["ssl.certificate.location"], pem["ssl.key.location"]) == ("/me.pem", "/me.pem")


@pytest.mark.parametrize("mechanism", ["sasl.mechanism", "sasl.mechanisms"])
def test_files_and_a_login_in_the_form_of_librdkafka_reach_java(tmp_path: Path, mechanism: str) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text(f"--{name}--")
    files = {"ssl.certificate.location": str(tmp_path / "cert"), "ssl.key.location": str(tmp_path / "key")}
    login = {mechanism: "SCRAM-SHA-512", "sasl.username": "ann", "sasl.password": "word"}
    java, rust = both(**{"ssl.ca.location": "/ca.pem", **files, **login})
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", "/ca.pem")
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == ("--cert--", "--key--")
    assert "ScramLoginModule required username=" in java["sasl.jaas.config"] and "sasl.password" not in java
    assert (java["sasl.mechanism"], rust["sasl.mechanisms"], rust["sasl.password"]) == ("SCRAM-SHA-512",) * 2 + (
        "word",
    )


def test_a_producer_gets_its_own_settings_beside_those_of_both() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="word";'
    given = {"linger.ms": "5", "request.timeout.ms": "7", "sasl.jaas.config": jaas, "security.protocol": "SASL_SSL"}
    login = {"security.protocol": "SASL_SSL", "sasl.username": "ann", "sasl.password": "word"}
    assert producer_options(given) == {"linger.ms": "5", "socket.timeout.ms": "7", **login}


def test_a_store_that_only_java_reads_is_refused_with_what_to_give_instead() -> None:
    for name in ("ssl.truststore", "ssl.keystore"):
        with pytest.raises(ValidationError, match="PEM"):
            source(options={f"{name}.location": "/store.jks"})
    ours = {"protocol": "SSL", "ca_file": "/ca.pem"}
    source(options={"ssl.truststore.location": "/store.jks"}, security=ours)


def test_oidc_is_told_to_both_clients() -> None:
    found = secured("OAUTHBEARER", oauth={**OAUTH, "extensions": {"logicalCluster": "lkc-1"}})
    java, rust = java_settings(found), client_settings(found)
    assert java["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    assert java["sasl.oauthbearer.token.endpoint.url"] == OAUTH["token_url"]
    for said in ('clientId="id"', 'clientSecret="se\\"c"', 'scope="kafka"', 'extension_logicalCluster="lkc-1"'):
        assert said in java["sasl.jaas.config"]
    assert rust["sasl.oauthbearer.method"] == "oidc" and rust["sasl.oauthbearer.client.secret"] == 'se"c'
    assert rust["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1"
    assert 'se"c' not in repr(found) and 'se"c' not in str(found.model_dump())
    check_client(found)


def test_classes_of_kafka_have_their_other_name_on_databricks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    java = java_settings(secured("OAUTHBEARER", oauth=OAUTH))
    assert java["sasl.jaas.config"].startswith("kafkashaded.org.apache.kafka.")
    assert java["sasl.login.callback.handler.class"].startswith("kafkashaded.org.apache.kafka.")


class Signer(ModuleType):
    """Stands for Amazon's: tokens of the default chain, of a profile and of a role."""

    def __init__(self) -> None:
        super().__init__(SIGNER)
        self.asked: list[tuple[str, ...]] = []

    def generate_auth_token(self, *given: str) -> tuple[str, int]:
        self.asked.append(given)
        return "token", 1_900_000_000_000

    generate_auth_token_from_profile = generate_auth_token_from_role_arn = generate_auth_token


@pytest.mark.parametrize(
    ("more", "asked", "jaas"),
    [
        ({}, ("eu-west-1",), ""),
        ({"profile": "p"}, ("eu-west-1", "p"), 'awsProfileName="p"'),
        ({"role_arn": "arn:r"}, ("eu-west-1", "arn:r", "distributary"), 'awsRoleArn="arn:r"'),
    ],
)
def test_iam_of_msk_is_a_library_to_java_and_a_token_to_librdkafka(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str], asked: tuple[str, ...], jaas: str
) -> None:
    signer = Signer()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", ModuleType("aws_msk_iam_sasl_signer"))
    monkeypatch.setitem(sys.modules, SIGNER, signer)
    found = secured("AWS_MSK_IAM", aws={"region": "eu-west-1", **more})
    java, rust = java_settings(found), client_settings(found)
    assert java["sasl.mechanism"] == "AWS_MSK_IAM" and jaas in java["sasl.jaas.config"]
    assert java["sasl.client.callback.handler.class"] == "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    assert rust["sasl.mechanism"] == "OAUTHBEARER" and rust["oauth_cb"]("") == ("token", 1_900_000_000)
    assert signer.asked == [asked] and time.time() < 1_900_000_000


@pytest.mark.parametrize(
    ("mechanism", "keys", "remedy"),
    [
        ("AWS_MSK_IAM", {"aws": {"region": "eu-west-1"}}, "distributary[msk]"),
        ("GSSAPI", {"kerberos": {"principal": "me", "keytab": "/me.keytab"}}, "libsasl2"),
    ],
)
def test_check_says_which_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mechanism: str, keys: dict[str, Any], remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, SIGNER, None)
    config = Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": secured(mechanism, **keys),
            "registry": {"path": str(tmp_path)},
            "tables": {"root": str(tmp_path)},
        }
    )
    with pytest.raises(BadInput) as caught:
        kind_of(config, tmp_path / "games.yaml").check()
    assert remedy in caught.value.parameters["detail"]


def test_kerberos_is_told_to_both_clients() -> None:
    found = secured("GSSAPI", kerberos={"principal": "me@EXAMPLE.ORG", "keytab": "/me.keytab"})
    java, rust = java_settings(found), client_settings(found)
    assert 'keyTab="/me.keytab" principal="me@EXAMPLE.ORG"' in java["sasl.jaas.config"]
    assert java["sasl.kerberos.service.name"] == rust["sasl.kerberos.service.name"] == "kafka"
    assert rust["sasl.kerberos.keytab"] == "/me.keytab"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mechanism": "OAUTHBEARER"}, "needs mechanism, oauth; oauth is missing"),
    ({"mechanism": "GSSAPI", "username": "a"}, "kerberos is missing"),
    ({"mechanism": "PLAIN", "username": "a", "password": "b", "oauth": OAUTH}, "does not use it"),
    ({"mechanism": "AWS_MSK_IAM", "aws": {"region": "r"}, "protocol": "SASL_PLAINTEXT"}, "needs SASL_SSL"),
    ({"mechanism": "AWS_MSK_IAM", "aws": {"region": "r", "profile": "p", "role_arn": "a"}}, "not both"),
]


@pytest.mark.parametrize(("keys", "words"), REFUSED)
def test_a_mechanism_has_what_it_needs_and_nothing_else(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        source(security={"protocol": "SASL_SSL", **keys})


def test_a_beginning_is_given_in_one_way() -> None:
    with pytest.raises(ValidationError, match="not both"):
        source(starting_offsets="latest", starting_timestamp="2026-01-31")


def test_lookups_have_groups_that_a_broker_can_be_told_to_allow() -> None:
    assert source().group_of("lookup") == "distributary-lookup"
    assert source(group_id="games").group_of("verify") == "games-verify"


def test_a_secret_in_the_options_is_known_as_one_in_either_spelling() -> None:
    secret = (
        "sasl.jaas.config sasl.password sasl.oauthbearer.client.secret ssl.key.pem ssl.keystore.key ssl.key.password"
    )
    assert all(looks_secret(("source", "options", name)) for name in secret.split())


class Marked:
    """A consumer of topics of which all offsets from `last` on are marks of transactions."""

    def __init__(self, last: int, end: int) -> None:
        self.last, self.end, self.begun = last, end, list[int]()

    def assign(self, places: list[TopicPartition]) -> None:
        self._left: list[Any] = []
        for place in places:
            self.begun.append(place.offset)
            self._left += [said(place.partition, n) for n in range(place.offset, self.last)] + [None]

    def poll(self, _: float) -> Any:
        one = self._left.pop(0)
        return SimpleNamespace(error=lambda: KafkaError(KafkaError._PARTITION_EOF)) if one is None else one

    def close(self) -> None: ...


def said(partition: int, offset: int) -> Any:
    given = {"topic": "t", "partition": partition, "offset": offset, "timestamp": (1, 1_700_000_000_000 + offset)}
    given |= {"headers": None, "key": None, "value": b"x", "error": None}
    return SimpleNamespace(**{name: (lambda value=value: value) for name, value in given.items()})


@pytest.mark.parametrize(("last", "found"), [(99, [98, 98]), (0, [])])
def test_the_newest_records_lie_before_the_marks_of_transactions(
    last: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = Marked(last, 100)
    monkeypatch.setattr(kafka_source, "consumer_of", lambda *_, **__: consumer)
    topic = Topic("t", "id", {0: 0, 1: 0}, {0: 100, 1: 100})
    monkeypatch.setattr(kafka_source, "describe_topics", lambda _: [topic])
    assert kafka_source.newest_of_topic(source(), 2)["offset"].to_pylist() == found
    assert consumer.begun[:4] == [99, 99, 84, 84]


@pytest.mark.parametrize(
    ("keys", "cores", "tasks"),
    [
        ({}, 2, 2),
        ({"min_partitions": 8}, 2, 8),
        ({}, None, None),
        ({"on_data_loss": "continue"}, 2, None),
        ({"on_data_loss": "continue", "min_partitions": 8}, 2, None),
    ],
)
def test_where_a_run_goes_on_after_a_loss_no_two_tasks_read_one_partition(
    keys: dict[str, Any], cores: int | None, tasks: int | None
) -> None:
    """They would share a consumer after the loss, and one would move the other's place in the partition."""
    source = KafkaSource(type="kafka", bootstrap_servers="127.0.0.1:9092", topic="t", **keys)
    assert tasks_at_least(source, cores) == tasks
