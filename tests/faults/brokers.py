"""A real Kafka broker that stops, comes back, forgets, grows, compacts, and holds what nobody committed."""

from __future__ import annotations

import os
import signal
import time

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from tests.chaos.messages import ENVELOPE
from tests.chaos.wire import block, framed, text, whole
from tests.faults.pipelines import Going, Piped, Place, Seen, concluded, expect
from tests.services import wait_until
from tests.services.kafka import Kafka

FAST = {"options": {"request.timeout.ms": "3000", "default.api.timeout.ms": "5000"}}


def _goes_on(run: Going, seen: Seen) -> None:
    if run.wait_right():
        seen.went_on = "by itself"
    else:
        seen.wrong.append("it did not go on by itself")


def stopped(place: Place) -> Seen:
    """The broker's process stands still for longer than all time-outs, then goes on."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, {"source": FAST}, broker=kafka)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        piped.feed()
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            time.sleep(20)
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        wait_until(kafka.is_ready, 60, "the broker")
        piped.feed()
        _goes_on(run, seen)
    return concluded(piped, seen)


def killed(place: Place) -> Seen:
    """The broker is killed in the middle, is away for a while, and starts again."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, {"source": FAST}, broker=kafka)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        piped.feed()
        kafka.kill()
        time.sleep(8)
        kafka.start()
        piped.feed()
        _goes_on(run, seen)
    return concluded(piped, seen)


def away(place: Place) -> Seen:
    """`run --once` while there is no broker."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, {"source": FAST}, broker=kafka)
    piped.feed()
    kafka.kill()
    try:
        expect(seen, piped.run(), "SOURCE_DOWN", names=(kafka.bootstrap_servers,))
    finally:
        kafka.start()
    seen.went_on = "by the next run"
    return concluded(piped, seen)


def retention(place: Place) -> Seen:
    """Records that were never read are gone: said with their offsets; with consent the run goes on with the rest."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, broker=kafka)
    piped.feed()
    piped.run()
    before = _sent(piped)
    piped.feed(40)
    _drop_all(kafka, piped.topic)
    expect(seen, piped.run(), "SOURCE_DATA_LOST", names=(piped.topic, "on_data_loss"))
    return _with_consent(piped, before, seen)


def retention_while_running(place: Place) -> Seen:
    """The same between two batches of a run that goes on."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, {"trigger": {"every": "20 seconds"}}, broker=kafka)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        before = _sent(piped)
        piped.feed(40)
        _drop_all(kafka, piped.topic)
        run.wait(lambda: bool(run.errors), 60)
    if piped.attempts:
        expect(seen, piped.attempts[-1], "SOURCE_DATA_LOST", names=(piped.topic,))
    else:
        seen.wrong.append("it went on and said nothing")
    return _with_consent(piped, before, seen)


def _sent(piped: Piped) -> tuple[dict[str, int], int]:
    """Good rows of each game, and bad ones, up to now."""
    truth = piped.producer.truth
    return {game: len(rows) for game, rows in truth.rows.items()}, truth.bad


def _with_consent(piped: Piped, read: tuple[dict[str, int], int], seen: Seen) -> Seen:
    """What came after `read` is gone, and the run may go on without it."""
    truth = piped.producer.truth
    good, truth.bad = read
    truth.rows = {game: rows[: good[game]] for game, rows in truth.rows.items() if good.get(game)}
    piped.configure({"source": {"on_data_loss": "continue"}})
    piped.feed(40)
    seen.went_on = "with on_data_loss: continue"
    return concluded(piped, seen)


def _drop_all(kafka: Kafka, topic: str) -> None:
    """As retention does it: the log begins behind what is there now."""
    from confluent_kafka import OFFSET_END, TopicPartition

    admin = AdminClient(kafka.client())
    parts = [TopicPartition(topic, number, OFFSET_END) for number in range(2)]
    for done in admin.delete_records(parts).values():
        done.result(30)


def partitions_added(place: Place) -> Seen:
    """A topic gets more partitions in the middle of a run."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, {"source": {"options": {"metadata.max.age.ms": "1000"}}}, broker=kafka)
    piped.feed()
    with piped.going() as run:
        run.wait_right()
        admin = AdminClient(kafka.client())
        for done in admin.create_partitions([NewPartitions(piped.topic, 4)]).values():
            done.result(30)
        wait_until(lambda: len(admin.list_topics(piped.topic, timeout=10).topics[piped.topic].partitions) == 4, 30, "4")
        piped.send(list(piped.producer.records(40, 1.0)), partition=3)
        piped.send(list(piped.producer.records(40, 1.0)), partition=0)
        _goes_on(run, seen)
    return concluded(piped, seen)


def compacted(place: Place) -> Seen:
    """A compacted topic has holes: offsets that are gone between such as are there."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, broker=kafka)
    admin = AdminClient(kafka.client())
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000"}
    settings |= {"max.compaction.lag.ms": "2000", "min.compaction.lag.ms": "0"}
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, piped.topic, incremental_configs=entries)]
    ).values():
        done.result(30)
    piped.feed()
    # All have one key: of those that are read before the cleaner comes, all are kept here.
    seen.wrong += [a.words for a in (piped.run(),) if a.condition]
    for _ in range(3):
        piped.feed(30)
        seen.wrong += [a.words for a in (piped.run(),) if a.condition]
        time.sleep(4)
    seen.went_on = "by itself"
    return concluded(piped, seen)


def large_records(place: Place) -> Seen:
    """Records of 10 MB among small ones, where the topic allows them."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, broker=kafka)
    admin = AdminClient(kafka.client())
    entry = ConfigEntry("max.message.bytes", str(12 << 20), incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, piped.topic, incremental_configs=[entry])]
    ).values():
        done.result(30)
    piped.feed()
    game, number = "ash", 10**6
    producer = piped.producer
    envelope, schema = producer._register("events-value", ENVELOPE), producer._id(game, 1)
    from confluent_kafka import Producer

    sender = Producer(kafka.client(**{"message.max.bytes": str(12 << 20)}))
    for n in range(4):
        body = whole(1, number + n) + text(2, "x" * (10 << 20))
        value = framed(envelope, text(1, game) + whole(2, schema) + block(3, framed(schema, body)))
        sender.produce(piped.topic, value, b"key", partition=n % 2)
        producer.truth.rows.setdefault(game, []).append(
            {"number": number + n, "player": "x" * (10 << 20), "score": None}
        )
    sender.flush(60)
    piped.feed()
    seen.went_on = "by itself"
    return concluded(piped, seen)


def aborted(place: Place) -> Seen:
    """Transactions that were aborted, and one that is open while a run reads."""
    kafka, seen = place.kafka(), Seen()
    piped = Piped(place.folder, broker=kafka)
    piped.feed()
    other = Piped(place.folder / "other", seed=2)
    never = [v for v in other.producer.records(20, 0.0) if v is not None]
    with kafka.transaction(piped.topic, never, commit=False):
        seen.wrong += [a.words for a in (piped.run(),) if a.condition]
    piped.feed()
    with kafka.transaction(piped.topic, never, commit=False):
        pass
    seen.went_on = "by itself"
    return concluded(piped, seen)


SCENARIOS = {
    "broker stands still, goes on": stopped,
    "broker killed, started again": killed,
    "no broker at a start": away,
    "retention passes unread records": retention,
    "retention passes them in a run": retention_while_running,
    "partitions added in a run": partitions_added,
    "compacted topic": compacted,
    "records of 10 MB": large_records,
    "aborted and open transactions": aborted,
}
