"""What a broker says of topics: their ids and offsets."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from distributary.backoff import Backoff
from distributary.config import KafkaSource
from distributary.errors import BadInput, SourceDataLost, SourceDown, SourceMissing
from distributary.sources.kafka_settings import client_settings

TIMEOUT_SEC = 10.0
SET_ATTEMPTS = 12
_LOADING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
"""For a moment after a broker has started, or has taken a group over."""

NO_KERBEROS = (
    "the confluent-kafka that is installed cannot do Kerberos: build it with libsasl2 "
    "(pip install --no-binary confluent-kafka confluent-kafka); see docs/kafka.md"
)


def check_client(source: KafkaSource) -> None:
    """Can a client be made of the settings? Asks no broker. Raises BadInput."""
    settings = {key: value for key, value in client_settings(source).items() if key != "bootstrap.servers"}
    if settings.get("sasl.oauthbearer.method") == "oidc":
        settings["sasl.oauthbearer.method"] = "default"  # else it asks for a token at once
    settings.pop("oauth_cb", None)
    _made(Consumer, {**settings, "group.id": "distributary-check", "logger": _Silent()})


def consumer_of(source: KafkaSource, name: str, **settings: Any) -> Any:
    """A consumer that commits nothing; `name`: of its group. Raises BadInput where the settings make no client."""
    consumer_settings = {
        "group.id": source.group_of(name),
        "enable.auto.commit": False,
        "logger": _Silent(),
        **settings,
    }
    return _made(Consumer, {**client_settings(source), **consumer_settings})


def admin_of(source: KafkaSource, on_error: Callable[[Any], None] = lambda _: None) -> Any:
    """Raises BadInput where the settings make no client."""
    admin_settings = {"error_cb": on_error, "logger": _Silent(), "socket.timeout.ms": int(TIMEOUT_SEC * 1000)}
    return _made(AdminClient, {**client_settings(source), **admin_settings})


def _made(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    try:
        return kind(settings)
    except KafkaException as e:
        detail = NO_KERBEROS if "GSSAPI" in str(e) else _said(e)
        raise BadInput(detail=f"source: no client of Kafka can be made of its settings: {detail}") from e


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
    admin = admin_of(source, errors)
    try:
        topics = admin.list_topics(timeout=TIMEOUT_SEC).topics
    except KafkaException as e:
        # A refused password shows only in the callback, and that only when polled; the call says "transport failure".
        admin.poll(1)
        raise SourceDown(source=f"Kafka at {source.bootstrap_servers}", detail=errors.cause() or _said(e)) from e
    names = list(source.topics) or _matching(source, topics)
    for name in names:
        if name not in topics:
            raise SourceMissing(source=f"Kafka at {source.bootstrap_servers}", what=f"topic {name!r}")
    consumer = consumer_of(source, "lookup", error_cb=errors)
    try:
        return [_describe(admin, consumer, name, list(topics[name].partitions)) for name in names]
    except KafkaException as e:
        raise SourceDown(source=f"Kafka at {source.bootstrap_servers}", detail=_said(e)) from e
    finally:
        consumer.close()


def _said(error: KafkaException) -> str:
    """librdkafka's words, without what they are wrapped in."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if isinstance(cause, KafkaError) else str(error)


def _matching(source: KafkaSource, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if re.fullmatch(source.topic_pattern or "", name))


def _describe(admin: Any, consumer: Any, name: str, partitions: list[int]) -> Topic:
    description = admin.describe_topics(TopicCollection([name]), request_timeout=TIMEOUT_SEC)[name].result()
    ranges = {p: consumer.get_watermark_offsets(TopicPartition(name, p), timeout=TIMEOUT_SEC) for p in partitions}
    return Topic(
        name, str(description.topic_id), {p: r[0] for p, r in ranges.items()}, {p: r[1] for p, r in ranges.items()}
    )


def set_offsets(admin: Any, group: str, position: Mapping[str, Mapping[str, int]]) -> None:
    """Say to the broker that `group` is there: topic -> partition -> next offset. Raises KafkaException."""
    places = [TopicPartition(t, int(p), offset) for t, offsets in position.items() for p, offset in offsets.items()]
    rests = Backoff(0.1, 1.0)
    for attempt in range(1, SET_ATTEMPTS + 1):
        requests = [ConsumerGroupTopicPartitions(group, places)]
        answer = admin.alter_consumer_group_offsets(requests, request_timeout=TIMEOUT_SEC)[group].result()
        wrong = next((place.error for place in answer.topic_partitions if place.error is not None), None)
        if wrong is None:
            return
        if wrong.code() not in _LOADING or attempt == SET_ATTEMPTS:
            raise KafkaException(wrong)
        time.sleep(rests.rest_sec(attempt))


class TopicIds:
    """Asks for the ids of a source's topics, over a connection that is kept: one call, or two for a pattern.

    It goes to tasks as the source's settings; there, all tasks of a worker have one connection.
    """

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.in_positions = False
        self.agreed = source.on_data_loss == "continue"
        self._admin = admin_of(source)

    def __reduce__(self) -> tuple[Callable[[bytes], TopicIds], tuple[bytes]]:
        return _of_worker, (pickle.dumps(self.source),)

    def now(self) -> dict[str, str]:
        """Topic -> id, as the broker has them now. Raises SourceDown, SourceMissing."""
        broker = f"Kafka at {self.source.bootstrap_servers}"
        try:
            names = list(self.source.topics)
            names = names or _matching(self.source, self._admin.list_topics(timeout=TIMEOUT_SEC).topics)
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_SEC) if names else {}
            return {name: str(answer.result().topic_id) for name, answer in answers.items()}
        except KafkaException as e:
            if e.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise SourceMissing(source=broker, what=f"topic (one of {', '.join(names)})") from e
            raise SourceDown(source=broker, detail=_said(e)) from e

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
        name: f"topic {name} was deleted and made again (id {seen[name]} is now {new_id})"
        for name, new_id in now.items()
        if seen.get(name, new_id) != new_id
    }


def gone(topic: Topic, offsets: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Offsets that were never read and are gone, in words. `offsets`: topic -> partition -> the next one."""
    lost = []
    for partition, offset in offsets.get(topic.name, {}).items():
        earliest = topic.earliest.get(int(partition))
        if earliest is not None and earliest > offset:
            lost.append(f"topic {topic.name} partition {partition}: offsets {offset} to {earliest - 1} are gone")
    return lost


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
        return ranked[-1].str() if ranked else None


_TELLING = {KafkaError._ALL_BROKERS_DOWN: 0, KafkaError._SSL: 2, KafkaError._AUTHENTICATION: 2}


class _Silent:
    """librdkafka's own log lines are not for users; what matters comes back as an error."""

    def log(self, *_: object) -> None:
        return
