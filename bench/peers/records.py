"""The records that every peer gets: JSON objects of ten fields, numbered, of many kinds in one topic."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

PARTITIONS = 2
COLUMNS = {
    "kind": "string",
    "db_table": "string",
    "id": "bigint",
    "player": "string",
    "score": "bigint",
    "ratio": "double",
    "stable": "boolean",
    "boss": "string",
    "level": "bigint",
    "at": "string",
}
"""Field -> type, in the words that a pipeline file and Spark have in common."""
BAD = b'{"kind": "kind1", "db_table": "lake.kind1", "id": '
"""A record that was cut."""


def record(number: int, kind: str) -> dict[str, Any]:
    """`db_table`: the route as Iceberg's sink wants it, with a namespace in front. The same number, the same record."""
    return {
        "kind": kind,
        "db_table": f"lake.{kind}",
        "id": number,
        "player": f"player {number * 7919 % 100_003}",
        "score": number * 31 % 1_000_003,
        "ratio": number % 1000 / 1000 + 0.0005,
        "stable": number % 9 > 0,
        "boss": None if number % 3 == 0 else f"boss {number % 100}",
        "level": number % 60,
        "at": f"2026-11-30T{number % 24:02}:{number % 60:02}:00Z",
    }


class Feed:
    """A topic's only producer. `sent`: the kind of each record that the broker has confirmed."""

    def __init__(self, brokers: str, topic: str) -> None:
        self.topic = topic
        self.sent: dict[int, str] = {}
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})

    def send(self, kinds: Iterable[str], **more: Any) -> None:
        """A record of each of these kinds, with `more` fields, and wait for the broker."""
        for kind in kinds:
            self._put(kind, more)
        self._flush()

    def send_bad(self) -> None:
        self._producer.produce(self.topic, BAD, partition=0)
        self._flush()

    def steadily(self, kinds: list[str], rate: int, seconds: float) -> list[float]:
        """`rate` records a second, ten times a second a tenth of them. When each was sent, by the monotonic clock."""
        times: list[float] = []
        began = time.monotonic()
        while len(times) < rate * seconds:
            due = min(int((time.monotonic() - began) * rate) + 1, int(rate * seconds))
            for number in range(len(times), due):
                self._put(kinds[number % len(kinds)], {})
                times.append(time.monotonic())
            self._producer.poll(0)
            time.sleep(0.1)
        self._flush()
        return times

    def _put(self, kind: str, more: dict[str, Any]) -> None:
        number = len(self.sent)
        value = json.dumps({**record(number, kind), **more}).encode()
        while True:
            try:
                self._producer.produce(self.topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                self._producer.poll(0.1)
        self.sent[number] = kind

    def _flush(self) -> None:
        if left := self._producer.flush(60):
            raise RuntimeError(f"the broker did not take {left} records")
