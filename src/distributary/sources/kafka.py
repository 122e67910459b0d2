"""What a broker says of topics: their ids and offsets; and how both of our clients are let in."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from distributary.config import KafkaSecurity, KafkaSource
from distributary.errors import SourceDataLost, SourceDown, SourceMissing

TIMEOUT_SEC = 10.0

ISOLATION = "isolation.level"
CLIENT_DEFAULTS = {
    "default.api.timeout.ms": "30000",
    "request.timeout.ms": "15000",
    ISOLATION: "read_committed",
}
"""Kafka's own defaults let a broker that is away hang a batch for minutes, and give records of aborted transactions."""


def spark_security(source: KafkaSource) -> dict[str, str]:
    """Security settings as the Java client spells them (KIP-651: PEM files)."""
    security = source.security
    if security is None:
        return {}
    found: dict[str, str] = {"security.protocol": security.protocol}
    if security.mechanism and security.password:
        module = "plain.PlainLoginModule" if security.mechanism == "PLAIN" else "scram.ScramLoginModule"
        found["sasl.mechanism"] = security.mechanism
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_jaas(security.username or '')} password={_jaas(security.password.get_secret_value())};"
        )
    if security.ca_file:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca_file}
    if security.cert_file and security.key_file:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": _text(security.cert_file)}
        found |= {"ssl.keystore.key": _text(security.key_file)}
        if security.key_password:
            found["ssl.key.password"] = security.key_password.get_secret_value()
    return found


def _jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def client_security(security: KafkaSecurity | None) -> dict[str, str]:
    """Security settings as librdkafka spells them."""
    if security is None:
        return {}
    given = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password.get_secret_value() if security.password else None,
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.cert_file,
        "ssl.key.location": security.key_file,
        "ssl.key.password": security.key_password.get_secret_value() if security.key_password else None,
    }
    return {k: v for k, v in given.items() if v is not None}


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it. `id` changes when a topic is deleted and made again. Offsets per partition;
    `latest` is where this source's reader ends: by default before the first transaction that is open."""

    name: str
    id: str
    earliest: dict[int, int]
    latest: dict[int, int]


def describe_topics(source: KafkaSource) -> list[Topic]:
    """Ask the broker for the source's topics: ids and offset ranges.

    Raises SourceDown when no broker answers (or refuses the credentials), SourceMissing when a topic is not there.
    """
    errors = _Errors()
    client = _client(source, errors)
    admin = AdminClient(client)
    try:
        known = admin.list_topics(timeout=TIMEOUT_SEC).topics
    except KafkaException as e:
        # A refused password shows only in the callback, and that only when polled; the call says "transport failure".
        admin.poll(1)
        raise SourceDown(source=f"Kafka at {source.bootstrap_servers}", detail=errors.cause() or str(e)) from e
    names = list(source.topics) or _matching(source, known)
    for name in names:
        if name not in known:
            raise SourceMissing(source=f"Kafka at {source.bootstrap_servers}", what=f"topic {name!r}")
    isolation = {ISOLATION: source.options.get(ISOLATION, CLIENT_DEFAULTS[ISOLATION])}
    consumer = Consumer({**client, **isolation, "group.id": "distributary-lookup", "enable.auto.commit": False})
    try:
        return [_describe(admin, consumer, name, list(known[name].partitions)) for name in names]
    except KafkaException as e:
        raise SourceDown(source=f"Kafka at {source.bootstrap_servers}", detail=str(e)) from e
    finally:
        consumer.close()


def _client(source: KafkaSource, on_error: Callable[[Any], None]) -> dict[str, Any]:
    return {
        "bootstrap.servers": source.bootstrap_servers,
        "error_cb": on_error,
        "logger": _Silent(),
        "socket.timeout.ms": int(TIMEOUT_SEC * 1000),
        **client_security(source.security),
    }


def _matching(source: KafkaSource, known: Iterable[str]) -> list[str]:
    return sorted(name for name in known if re.fullmatch(source.topic_pattern or "", name))


def _describe(admin: Any, consumer: Any, name: str, partitions: list[int]) -> Topic:
    found = admin.describe_topics(TopicCollection([name]), request_timeout=TIMEOUT_SEC)[name].result()
    ranges = {p: consumer.get_watermark_offsets(TopicPartition(name, p), timeout=TIMEOUT_SEC) for p in partitions}
    return Topic(name, str(found.topic_id), {p: r[0] for p, r in ranges.items()}, {p: r[1] for p, r in ranges.items()})


class TopicIds:
    """Asks for the ids of a source's topics, over a connection that is kept: one call, or two for a pattern.

    It goes to tasks as the source's settings; there, all tasks of a worker have one connection.
    """

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.in_positions = False
        self.agreed = source.on_data_loss == "continue"
        self._admin = AdminClient(_client(source, lambda _: None))

    def __reduce__(self) -> tuple[Callable[[bytes], TopicIds], tuple[bytes]]:
        return _of_worker, (pickle.dumps(self.source),)

    def now(self) -> dict[str, str]:
        """Topic -> id, as the broker has them now. Raises SourceDown, SourceMissing."""
        where = f"Kafka at {self.source.bootstrap_servers}"
        try:
            names = list(self.source.topics)
            names = names or _matching(self.source, self._admin.list_topics(timeout=TIMEOUT_SEC).topics)
            asked = self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_SEC) if names else {}
            return {name: str(answer.result().topic_id) for name, answer in asked.items()}
        except KafkaException as e:
            if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceMissing(source=where, what=f"topic (one of {', '.join(names)})") from e
            raise SourceDown(source=where, detail=str(e)) from e

    def begun(self, position: Mapping[str, object]) -> dict[str, str]:
        return {}

    def refuse(self, seen: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
        lost = [*made_anew(seen, now).values()]
        refuse_loss(lost, self.source)
        return lost


@lru_cache(maxsize=4)
def _of_worker(source: bytes) -> TopicIds:
    return TopicIds(pickle.loads(source))


def made_anew(seen: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Topics that have another id now, and that in words. Both: topic -> id."""
    return {
        name: f"topic {name} was deleted and made again (id {seen[name]} is now {found})"
        for name, found in now.items()
        if seen.get(name, found) != found
    }


def gone(topic: Topic, offsets: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Offsets that were never read and are gone, in words. `offsets`: topic -> partition -> the next one."""
    found = []
    for partition, offset in offsets.get(topic.name, {}).items():
        earliest = topic.earliest.get(int(partition))
        if earliest is not None and earliest > offset:
            found.append(f"topic {topic.name} partition {partition}: offsets {offset} to {earliest - 1} are gone")
    return found


def refuse_loss(lost: Sequence[str], source: KafkaSource) -> None:
    """Raises SourceDataLost where something is lost, and nobody has agreed to it (`source.on_data_loss`)."""
    if lost and source.on_data_loss == "fail":
        raise SourceDataLost(source=f"Kafka at {source.bootstrap_servers}", detail="; ".join(lost))


class _Errors:
    """Hears of librdkafka's errors as they come."""

    def __init__(self) -> None:
        self._heard: list[KafkaError] = []

    def __call__(self, error: KafkaError) -> None:
        self._heard.append(error)

    def cause(self) -> str | None:
        """The newest one that says why: a certificate or a password that was refused, rather than the broken connection
        or the `all brokers are down` that comes of it. None where none was heard."""
        ranked = sorted(self._heard, key=lambda error: _TELLING.get(error.code(), 1))
        return str(ranked[-1]) if ranked else None


_TELLING = {KafkaError._ALL_BROKERS_DOWN: 0, KafkaError._SSL: 2, KafkaError._AUTHENTICATION: 2}


class _Silent:
    """librdkafka's own log lines are not for users; what matters comes back as an error."""

    def log(self, *_: object) -> None:
        return
