"""A steady load into Kafka, to measure how soon a record is visible in its table."""

from __future__ import annotations

import time
from collections.abc import Callable

from distributary_simulate.games.kafka import KafkaWriter
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth

#: Records go out in small portions at this interval, which is the unevenness of the load.
TICK_SEC = 0.02


def produce_live(
    bootstrap_servers: str,
    topic: str,
    games: Games,
    *,
    rate: int,
    seconds: float,
    version: int = 1,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    on_written: Callable[[Truth], None] | None = None,
) -> Truth:
    """Send `rate` records a second, the games taking turns, for so many seconds; returns what was confirmed.

    `event_timestamp` in the event and Kafka's timestamp are the moment of sending. A producer that falls behind
    catches up, so the mean rate holds. Counts are passed on about once a second. Raises KafkaDown.
    """
    games.register(version)
    writer = KafkaWriter(bootstrap_servers, topic, partitions=partitions, config=config, manifest=games.manifest)
    total, sent = round(rate * seconds), 0
    truth, fresh = Truth(), Truth()
    began = confirmed = time.monotonic()
    while sent < total:
        now = time.monotonic()
        due = min(total, int(rate * (now - began)) + 1)
        pairs = []
        for number in range(sent, due):
            position, game = divmod(number, len(games.names))
            record = games.record(games.names[game], version, position, instant_us=time.time_ns() // 1000)
            fresh.add(record)
            pairs.append((record.key, record.value))
        writer.send(pairs)
        sent = due
        if now - confirmed >= 1 or sent == total:
            writer.flush()
            confirmed = now
            truth.merge(fresh)
            if on_written is not None:
                on_written(fresh)
            fresh = Truth()
        time.sleep(max(0.0, TICK_SEC - (time.monotonic() - now)))
    return truth
