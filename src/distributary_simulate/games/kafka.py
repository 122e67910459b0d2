"""The Kafka client of the producers: an idempotent producer, and the few admin calls they need."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from distributary_simulate.errors import KafkaDown
from distributary_simulate.games.manifest import Manifest

REQUEST_TIMEOUT_SEC: Final = 15.0
FLUSH_TIMEOUT_SEC: Final = 120.0

#: Idempotence orders and de-duplicates the producer's own retries; it implies acks=all.
PRODUCER: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "linger.ms": 20,
    "compression.type": "lz4",
    "message.timeout.ms": int(FLUSH_TIMEOUT_SEC * 1000),
    "queue.buffering.max.messages": 500_000,
}


#: The client would write each failed attempt to stderr; the error callback has the same text.
QUIET: Final[dict[str, Any]] = {"log_level": 2}


class KafkaWriter:
    """Sends to one topic, which it creates if it is not there (and then notes in `manifest`).

    Not for several threads. Raises KafkaDown from every method.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        self.servers = bootstrap_servers
        self.topic = topic
        self._failed: KafkaError | None = None
        self._cause: KafkaError | None = None
        settings = {"bootstrap.servers": bootstrap_servers, **QUIET, **(config or {})}
        self._ensure_topic(AdminClient({**settings, "error_cb": self._on_error}), partitions, manifest)
        self._producer = Producer({**PRODUCER, **settings, "error_cb": self._on_error})

    def _ensure_topic(self, admin: Any, partitions: int, manifest: Manifest | None) -> None:
        new = NewTopic(self.topic, num_partitions=partitions, replication_factor=-1)
        try:
            admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_SEC)[self.topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                admin.poll(0)
                raise self._down(error) from error
            return
        if manifest is not None:
            manifest.add_topic(self.servers, self.topic, self._topic_id(admin))
            manifest.save()

    def _topic_id(self, admin: Any) -> str:
        """The new topic's id. Metadata follows the creation, so the first answers may not know the topic yet."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_SEC
        while (new_id := topic_id(admin, self.topic)) is None:
            if time.monotonic() > deadline:
                raise KafkaDown(servers=self.servers, topic=self.topic, detail="created, but it does not appear")
            time.sleep(0.05)
        return new_id

    def send(self, pairs: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Queue (key, value) pairs; waits while the queue is full. Nothing is confirmed before `flush`."""
        produce, poll = self._producer.produce, self._producer.poll
        for key, value in pairs:
            while True:
                try:
                    produce(self.topic, value, key, on_delivery=self._on_delivery)
                    break
                except BufferError:
                    poll(0.1)
                    self._check(0)
                except KafkaException as error:
                    raise self._down(error) from error
        poll(0)

    def flush(self) -> None:
        """Wait until the broker has confirmed every record sent."""
        self._check(self._producer.flush(FLUSH_TIMEOUT_SEC))

    def _check(self, unconfirmed: int) -> None:
        if self._failed is None and not unconfirmed:
            return
        detail = f"{unconfirmed} records not confirmed" if self._failed is None else self._failed.str()
        raise KafkaDown(servers=self.servers, topic=self.topic, detail=self._with_cause(detail))

    def _down(self, error: KafkaException) -> KafkaDown:
        return KafkaDown(servers=self.servers, topic=self.topic, detail=self._with_cause(error.args[0].str()))

    def _with_cause(self, detail: str) -> str:
        # A wrong password shows only here; the failed call itself says no more than "timed out".
        return detail if self._cause is None else f"{detail} ({self._cause.str()})"

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failed = error

    def _on_error(self, error: KafkaError) -> None:
        self._cause = error


def topic_id(admin: Any, topic: str) -> str | None:
    """The id that the broker gave the topic, None if it has no such topic. Raises KafkaException."""
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_SEC)
    try:
        return str(described[topic].result().topic_id)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
