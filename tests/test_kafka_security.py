"""Credentials, certificates and headers: what Spark's Kafka client and librdkafka are told, and a broker that asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pydantic import SecretStr

from distributary.config import KafkaSecurity, KafkaSource
from distributary.errors import SourceDown
from distributary.sources.kafka import describe_topics
from distributary.sources.kafka_settings import client_security, java_security
from tests.conftest import needed
from tests.scenarios import message
from tests.services.kafka import Kafka
from tests.test_kafka_pipeline import EVENT, KafkaScenario
from tests.test_registry_confluent import Authority

PASSWORD = 'se"cr\\et'


def source(**security: Any) -> KafkaSource:
    given = KafkaSecurity(**security) if security else None
    return KafkaSource(type="kafka", bootstrap_servers="b:9092", topic="t", security=given)


def test_without_security_nothing_is_set() -> None:
    assert java_security(source().security) == {}
    assert client_security(None) == {}


def test_quotes_and_backslashes_of_a_password_survive_the_jaas_line() -> None:
    said = java_security(
        KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="ann", password=SecretStr(PASSWORD))
    )
    assert said["sasl.mechanism"] == "PLAIN"
    assert said["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="se\\"cr\\\\et";'
    )


def test_certificates_are_given_to_both_clients(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    for name, file in files.items():
        file.write_text(f"-----{name}-----")
    security: dict[str, Any] = {
        "protocol": "SSL",
        "ca_file": str(files["ca"]),
        "cert_file": str(files["cert"]),
        "key_file": str(files["key"]),
        "key_password": SecretStr("k"),
    }
    java = java_security(KafkaSecurity(**security))
    assert java["ssl.truststore.location"] == str(files["ca"])
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == ("-----cert-----", "-----key-----")
    assert (java["ssl.truststore.type"], java["ssl.keystore.type"], java["ssl.key.password"]) == ("PEM", "PEM", "k")
    rust = client_security(KafkaSecurity(**security))
    assert rust["ssl.ca.location"] == str(files["ca"])
    assert (rust["ssl.certificate.location"], rust["ssl.key.location"]) == (str(files["cert"]), str(files["key"]))


@pytest.mark.spark
@pytest.mark.services
@pytest.mark.usefixtures("spark")
def test_a_broker_that_asks_for_a_password_is_read_with_headers_over_tls(
    lake: Path, tmp_path: Path, registry_url: str
) -> None:
    """And not before its certificate is verified, and its password right; with PLAIN in tests/test_doors.py."""
    authority = Authority(tmp_path, "private authority")
    with needed():
        certificate = authority.issue("broker")
        broker = Kafka(
            tmp_path / "kafka", mechanism="SCRAM-SHA-512", users={"ann": "s3cret;x"}, certificate=certificate
        )
    with broker, broker.topic(partitions=1) as topic:
        security = {
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "username": "ann",
            "password": "s3cret;x",
            "ca_file": authority.file,
        }
        secure = {"bootstrap_servers": broker.secure_servers, "headers": True, "security": security}
        scenario = KafkaScenario(lake, broker, topic, registry_url, source=secure)
        schema = scenario.schema(scenario.named("event"), EVENT)
        producer = Producer(broker.client())
        value = scenario.event("a", schema, message(EVENT, "event", user="x"))
        producer.produce(topic, value, b"key", headers={"trace": b"7"})
        assert producer.flush(30) == 0
        del producer  # else it complains of the broker that is stopped below
        nobody = {name: value for name, value in security.items() if name != "ca_file"}
        for unknown in (nobody, {**nobody, "ca_file": Authority(tmp_path, "another authority").file}):
            # A whole run, so that it is the product that refuses, whichever of its clients asks first.
            scenario.configure(source={**secure, "security": unknown})
            with pytest.raises(SourceDown) as refused:
                scenario.run()
            assert refused.value.parameters["source"] == f"Kafka at {broker.secure_servers}"
            assert "certificate verify failed" in refused.value.parameters["detail"]
        scenario.configure(source=secure)
        scenario.run()
        (row,) = scenario.rows("a")
        assert row["user"] == "x"
        assert row["_origin"]["headers"] == [{"key": "trace", "value": b"7"}]

        wrong = source(**{**security, "password": SecretStr("wrong")})
        with pytest.raises(SourceDown) as raised:
            describe_topics(wrong.model_copy(update={"bootstrap_servers": broker.secure_servers, "topic": topic}))
        assert "uthentication" in raised.value.parameters["detail"]
        assert "wrong" not in str(raised.value)
