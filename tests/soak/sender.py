"""The producer, a process of its own: `python -m tests.soak.sender SERVERS TOPIC FOLDER ...`.

It sends at a steady rate to its routes by Zipf's law, keeps to what it is told by lines of JSON on its input (a new
route, a new version), and notes what the broker acknowledged: `status.json` while it goes on, `truth.json` at its end.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer

from tests.soak.records import BAD, Sent, Shape, Truth

PARTITIONS = 4
STEP_SEC = 0.05
DRAWN = 20_000
SETTINGS = {
    # No record is doubled by a retry, however long the broker is away.
    "enable.idempotence": "true",
    "delivery.timeout.ms": "600000",
    "linger.ms": "50",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "4000000",
    "queue.buffering.max.kbytes": "1000000",
    "log_level": "0",
}


class Sender:
    """`bad_share`: of how many records one is damaged."""

    def __init__(self, producer: Any, topic: str, envelope_id: int, seed: int, bad_every: int) -> None:
        self._producer, self._topic, self._envelope_id = producer, topic, envelope_id
        self._dice = random.Random(seed)
        self._ranks = np.random.default_rng(seed)
        self._bad_every = bad_every
        self._ways = [*BAD]
        self._shapes: list[list[Shape]] = []
        self._drawn: Iterator[int] = iter(())
        self.truth = Truth()
        self.sent = 0
        self.acknowledged = 0

    def tell(self, order: dict[str, Any]) -> None:
        """A route's new version; a route that is new has the next rank."""
        shape = Shape(self._envelope_id, order["schema_id"], order["route"], order["version"])
        for shapes in self._shapes:
            if shapes[0].route == shape.route:
                shapes.append(shape)
                return
        self._shapes.append([shape])
        self.truth.routes[shape.route] = Sent()
        self._drawn = iter(())

    def send(self, count: int) -> None:
        for _ in range(count):
            shapes = self._shapes[self._rank()]
            # One in five is of a producer that is a version behind.
            shape = shapes[-2] if len(shapes) > 1 and self._dice.random() < 0.2 else shapes[-1]
            number = self.sent = self.sent + 1
            if number % self._bad_every:
                value, noted = shape.good(number), self._good(shape, number)
            else:
                way = self._ways[number // self._bad_every % len(self._ways)]
                value, noted = shape.bad(number, way), self._bad(BAD[way])
            self._produce(value, number % PARTITIONS, noted)

    def _produce(self, value: bytes, partition: int, noted: Callable[[Any, Any], None]) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=noted)
                return
            except BufferError:
                # The broker is away for long.
                self._producer.poll(0.5)

    def _rank(self) -> int:
        rank = next(self._drawn, None)
        if rank is None:
            weights = 1 / np.arange(1, len(self._shapes) + 1)
            drawn = self._ranks.choice(len(self._shapes), DRAWN, p=weights / weights.sum())
            self._drawn = iter(drawn.tolist())
            rank = next(self._drawn)
        return rank

    def _good(self, shape: Shape, number: int) -> Callable[[Any, Any], None]:
        sent, version = self.truth.routes[shape.route], shape.version

        def noted(error: Any, _record: Any) -> None:
            if error is None:
                sent.add(number, version)
                self.acknowledged += 1
            else:
                self.truth.failed += 1

        return noted

    def _bad(self, reason: str) -> Callable[[Any, Any], None]:
        def noted(error: Any, record: Any) -> None:
            if error is None:
                self.truth.bad[record.partition(), record.offset()] = reason
                self.acknowledged += 1
            else:
                self.truth.failed += 1

        return noted


def main() -> int:
    asked = _arguments()
    producer = Producer({"bootstrap.servers": asked.servers, **SETTINGS})
    sender = Sender(producer, asked.topic, asked.envelope_id, asked.seed, asked.bad_every)
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    for _ in range(asked.routes):
        sender.tell(orders.get(timeout=60))
    _send_all(sender, orders, producer, asked)
    left = producer.flush(900)
    sender.truth.failed += left
    _write(asked.folder / "status.json", _status(sender, done=True))
    _write(asked.folder / "truth.json", sender.truth.as_json())
    return int(bool(sender.truth.failed))


def _send_all(sender: Sender, orders: queue.Queue[dict[str, Any]], producer: Any, asked: argparse.Namespace) -> None:
    """At a steady rate; after a stop (a full queue) it is caught up with."""
    began = told = time.monotonic()
    while sender.sent < asked.events:
        while not orders.empty():
            order = orders.get()
            if "end" in order:
                return
            sender.tell(order)
        now = time.monotonic()
        due = min(asked.events, int((now - began) * asked.rate))
        sender.send(min(due - sender.sent, 5 * int(asked.rate * STEP_SEC) + 1))
        producer.poll(0)
        if now - told > 2:
            told = now
            _write(asked.folder / "status.json", _status(sender, done=False))
        time.sleep(max(0.0, STEP_SEC - (time.monotonic() - now)))


def _listen(orders: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put({"end": True})


def _status(sender: Sender, done: bool) -> dict[str, Any]:
    return {"sent": sender.sent, "acknowledged": sender.acknowledged, "failed": sender.truth.failed, "done": done}


def _write(file: Path, body: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(body))
    part.rename(file)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sender")
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--envelope-id", type=int, required=True)
    parser.add_argument("--routes", type=int, required=True, help="so many are told before it begins")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="records a second")
    parser.add_argument("--bad-every", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
