"""`verify` reads records of a real topic again by their offsets, whatever lies between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from distributary.audit.judge import raw_records
from distributary.audit.judge.raw_records import KafkaRecords, Place
from distributary.config import KafkaSource
from distributary.errors import SourceDown
from tests.services.kafka import Kafka

pytestmark = pytest.mark.services


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_records, "TIMEOUT_SEC", 60.0)
    monkeypatch.setattr(raw_records, "READ_SEC", 60.0)


@pytest.fixture
def topic(kafka: Kafka) -> Iterator[str]:
    """Partition 0: 0 and 1 gone, 2 to 4 there, 5 and 6 aborted (7 ends it), 8 and 9 committed. Partition 1: 0 to 3."""
    with kafka.topic(partitions=2) as name:
        kafka.send(name, ((0, b"a%d" % n) for n in range(5)))
        kafka.send(name, ((1, b"b%d" % n) for n in range(4)))
        with kafka.transaction(name, [b"a5", b"a6"], commit=False):
            pass
        with kafka.transaction(name, [b"a8", b"a9"]):
            pass
        part = TopicPartition(name, 0, 2)
        admin = AdminClient(kafka.client())  # held until the answer is there
        admin.delete_records([part])[part].result(120)
        yield name


def read(kafka: Kafka, topic: str, partition: int, offsets: range | list[int], **options: str) -> dict[int, bytes]:
    records = KafkaRecords(KafkaSource.model_validate({**kafka.source(topic), "options": options}))
    try:
        found = records.get("a", [Place(topic, partition, offset) for offset in offsets])
    finally:
        records.close()
    return {place.offset: value for place, (value, *_) in found.items()}


def test_records_are_found_by_offset_between_lost_and_aborted_ones(kafka: Kafka, topic: str) -> None:
    there = {2: b"a2", 3: b"a3", 4: b"a4", 8: b"a8", 9: b"a9"}
    assert read(kafka, topic, 0, range(40)) == there
    assert read(kafka, topic, 1, range(40)) == {n: b"b%d" % n for n in range(4)}
    for offset in range(12):
        assert read(kafka, topic, 0, [offset]) == {n: v for n, v in there.items() if n == offset}


def test_aborted_records_are_found_where_the_pipeline_reads_them(kafka: Kafka, topic: str) -> None:
    found = read(kafka, topic, 0, range(40), **{"isolation.level": "read_uncommitted"})
    assert found == {n: b"a%d" % n for n in (2, 3, 4, 5, 6, 8, 9)}


def test_several_partitions_are_read_at_once(kafka: Kafka, topic: str) -> None:
    records = KafkaRecords(KafkaSource.model_validate(kafka.source(topic)))
    try:
        found = records.get("a", [Place(None, 1, 3), Place(topic, 0, 9), Place(topic, 1, 0), Place(topic, 0, 2)])
    finally:
        records.close()
    assert {place: value for place, (value, *_) in found.items()} == {
        Place(None, 1, 3): b"b3", Place(topic, 0, 9): b"a9", Place(topic, 1, 0): b"b0", Place(topic, 0, 2): b"a2",
    }  # fmt: skip


def test_a_topic_that_is_gone_is_said_and_no_record_is_called_lost(kafka: Kafka, topic: str) -> None:
    with pytest.raises(SourceDown):
        read(kafka, f"{topic}-gone", 0, [3])
