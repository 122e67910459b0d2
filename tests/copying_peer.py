"""A peer for tests of the trial: reads Kafka, appends Delta tables, commits its offsets afterwards. It has its faults.

python tests/copying_peer.py BROKERS TOPIC LAKE yes|no    (whether a record that is no JSON is passed over)
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer
from deltalake import write_deltalake


def main(brokers: str, topic: str, lake: str, tolerant: str) -> None:
    known = {"bootstrap.servers": brokers, "group.id": "copier", "enable.auto.commit": False}
    # A killed member must not hold its partitions for long.
    consumer = Consumer({**known, "auto.offset.reset": "earliest", "session.timeout.ms": 6_000})
    consumer.subscribe([topic])
    while True:
        tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            try:
                record = json.loads(message.value())
            except ValueError:
                if tolerant == "no":
                    raise
                continue
            tables[record["kind"]].append(record)
        for kind, records in tables.items():
            write_deltalake(f"{lake}/{kind}", pa.Table.from_pylist(records), mode="append", schema_mode="merge")
        if tables:
            consumer.commit(asynchronous=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
