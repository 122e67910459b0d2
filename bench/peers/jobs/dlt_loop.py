"""dlt from Kafka to Delta tables, load after load in one process, in dlt's own environment: imports nothing of ours.

The resource does what dlt's verified source for Kafka does (that one is copied from a repository, not installed): it
reads up to the topic's end as it is when a load begins, and keeps the offsets in dlt's state, which is loaded with
the rows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import dlt
from confluent_kafka import Consumer, TopicPartition

PAGE = 5_000
LONGEST_LOAD = 50_000
"""Records of a load."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("brokers", "topic", "lake", "state", "tolerant"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    consumer = Consumer({"bootstrap.servers": given.brokers, "group.id": "dlt", "enable.auto.commit": False})
    destination = dlt.destinations.filesystem(bucket_url=f"file://{given.lake}")
    pipeline = dlt.pipeline("peer", pipelines_dir=given.state, destination=destination, dataset_name="lake")

    def events() -> Iterator[list[dict[str, Any]]]:
        yield from pages(consumer, given.topic, dlt.current.resource_state(), given.tolerant == "yes")

    def kind(item: dict[str, Any]) -> str:
        return str(item["kind"])

    resource = dlt.resource(events, name="events", table_name=kind, table_format="delta", write_disposition="append")

    while True:
        if waiting(consumer, given.topic, pipeline) or pipeline.has_pending_data:
            pipeline.run(resource())
        else:
            time.sleep(0.2)


def pages(consumer: Any, topic: str, state: dict[str, Any], tolerant: bool) -> Iterator[list[dict[str, Any]]]:
    offsets = state.setdefault("offsets", {})
    ends = {part: end for part, end in ends_of(consumer, topic).items() if end > offsets.get(part, 0)}
    consumer.assign([TopicPartition(topic, int(part), offsets.get(part, 0)) for part in ends])
    taken = 0
    while taken < LONGEST_LOAD and any(offsets.get(part, 0) < end for part, end in ends.items()):
        page = []
        for message in consumer.consume(PAGE, 0.5):
            if message.error():
                raise RuntimeError(str(message.error()))
            part = str(message.partition())
            if message.offset() >= ends[part]:
                continue
            page += read(message.value(), tolerant)
            offsets[part] = message.offset() + 1
        taken += len(page)
        yield page


def read(value: bytes, tolerant: bool) -> list[dict[str, Any]]:
    try:
        return [json.loads(value)]
    except ValueError:
        if not tolerant:
            raise
        return [{"kind": "bad_records", "value": value.decode(errors="replace")}]


def ends_of(consumer: Any, topic: str) -> dict[str, int]:
    """Partition -> the offset behind its last record."""
    parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    return {str(part): consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=10)[1] for part in parts}


def waiting(consumer: Any, topic: str, pipeline: Any) -> bool:
    """Whether the topic has records that no load has taken: an empty load costs as much as a small one."""
    source = pipeline.state.get("sources", {})
    known: dict[str, Any] = next((one["resources"]["events"] for one in source.values() if "resources" in one), {})
    return any(end > known.get("offsets", {}).get(part, 0) for part, end in ends_of(consumer, topic).items())


if __name__ == "__main__":
    main()
