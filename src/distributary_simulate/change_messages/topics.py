"""Debezium's messages of an invented history to topics: of Kafka, or in a Delta table as Kafka's records look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from distributary.errors import StoreDown
from distributary_simulate.change_messages.debezium import ChangeMessage
from distributary_simulate.games.kafka import KafkaWriter
from distributary_simulate.games.sinks import write_delta

RECORDS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
AT_ONCE: Final = 20_000
"""Messages of one commit, or between two confirmations by the broker."""


class Offsets:
    """Gives each message its place, as a broker does. `ends`: topic -> its next offset; else it is empty."""

    def __init__(self, ends: Mapping[str, int] | None = None) -> None:
        self._ends = dict(ends or {})

    def records(self, messages: Iterable[ChangeMessage]) -> pa.Table:
        return pa.Table.from_pylist([self._record(message) for message in messages], schema=RECORDS)

    def _record(self, message: ChangeMessage) -> dict[str, Any]:
        offset = self._ends.get(message.topic, 0)
        self._ends[message.topic] = offset + 1
        at = {"topic": message.topic, "partition": 0, "offset": offset, "timestamp": datetime.now(UTC)}
        return {"key": message.key, "value": message.value, **at}


def to_table(path: str, messages: Iterator[ChangeMessage]) -> int:
    """Append to a Delta table, creating it, behind what its topics have. Returns the messages written. Raises
    StoreDown."""
    offsets = Offsets(_ends(path))
    return sum(write_delta(path, offsets.records(some)) for some in _parts(messages))


def _ends(path: str) -> dict[str, int]:
    """Topic -> its next offset, of those that are in a table. Raises StoreDown."""
    try:
        if not DeltaTable.is_deltatable(path):
            return {}
        rows = DeltaTable(path).to_pyarrow_table(columns=["topic", "offset"])
    except (DeltaError, OSError) as error:
        raise StoreDown(path=path, detail=str(error)) from error
    newest = rows.group_by("topic").aggregate([("offset", "max")]).to_pylist()
    return {row["topic"]: row["offset_max"] + 1 for row in newest}


def to_kafka(servers: str, messages: Iterator[ChangeMessage], config: Mapping[str, str]) -> int:
    """Send to a topic for each table, of one partition each. Returns the messages confirmed. Raises KafkaDown."""
    writers: dict[str, KafkaWriter] = {}
    sent = 0
    for some in _parts(messages):
        for message in some:
            if message.topic not in writers:
                writers[message.topic] = KafkaWriter(servers, message.topic, config=dict(config))
            writers[message.topic].send([(message.key, message.value)])
        for writer in writers.values():
            writer.flush()
        sent += len(some)
    return sent


def _parts(messages: Iterator[ChangeMessage]) -> Iterator[Sequence[ChangeMessage]]:
    while some := list(islice(messages, AT_ONCE)):
        yield some
