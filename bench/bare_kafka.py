"""The bare way from a Kafka topic to a table per game: what the libraries below a pipeline do by themselves.

A plain process for each partition has a consumer (confluent-kafka), reads envelopes and payloads (ptars) and appends
(deltalake). Nothing is checked, no row knows where it came from, nothing is written twice or left out only as long as
nothing goes wrong. The processes are started, and have consumed, decoded and written before, when a round is timed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from deltalake import CommitProperties, write_deltalake
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

from bench.workload import TOPIC, ReadyProcesses, Workload
from distributary.schemas.registry.compile import compile_text
from distributary_simulate.games.schemas import WRAPPER_TEXT

HEADER = 6
"""Bytes before a message: magic byte, schema id, index of the first message."""
LONGEST = 2**30
AT_A_TIME = 50_000
PATIENCE_SEC = 60.0


class BareKafka(ReadyProcesses):
    """A process for each partition of the topic; `round` takes all that has come since the last."""

    def __init__(self, work: Workload, servers: str, partitions: int) -> None:
        self.uris = {game: str(work.root / "bare" / game) for game in work.names}
        events = {game: (work.compiled(game).descriptor_set, uri) for game, uri in self.uris.items()}
        envelope = compile_text(WRAPPER_TEXT).descriptor_set
        super().__init__(
            prepare, [(number, servers, envelope, events) for number in range(partitions)], consume_and_write
        )

    @property
    def pids(self) -> set[int]:
        return set(self.prepared)


@dataclass
class _Reader:
    """A message of one schema as columns."""

    handlers: HandlerPool
    message: Any

    @classmethod
    def of(cls, descriptor_set: bytes, name: str) -> _Reader:
        files = FileDescriptorSet.FromString(descriptor_set).file
        pool = DescriptorPool()
        for file in files:
            pool.Add(file)
        message = pool.FindFileByName(files[-1].name).message_types_by_name[name]
        return cls(HandlerPool([message.file], PtarsConfig(timestamp_unit="us")), message)

    def read(self, framed: pa.Array) -> pa.RecordBatch:
        bodies = pc.binary_slice(framed, HEADER, LONGEST)
        return self.handlers.get_for_message(self.message).array_to_record_batch(bodies)


@dataclass
class _Part:
    """What a process has: its partition, and how to read and write each game."""

    consumer: Consumer
    number: int
    envelope: _Reader
    events: dict[str, tuple[_Reader, str]]
    done: int = 0

    def values(self) -> Iterator[pa.Array]:
        """All that its partition has now, from where the last call ended. Between two calls nothing is fetched."""
        partition = TopicPartition(TOPIC, self.number, self.done)
        _, end = self.consumer.get_watermark_offsets(partition, cached=False)
        self.consumer.assign([partition])
        while self.done < end:
            found = self.consumer.consume(min(AT_A_TIME, end - self.done), timeout=PATIENCE_SEC)
            if not found:
                raise TimeoutError(f"nothing came of {end - self.done:,} records in {PATIENCE_SEC:g} s")
            yield pa.array([message.value() for message in found], pa.binary())
            self.done = found[-1].offset() + 1
        self.consumer.unassign()


_PARTS: list[_Part] = []
"""What `prepare` left in this process."""


def prepare(number: int, servers: str, envelope: bytes, events: dict[str, tuple[bytes, str]]) -> int:
    """In a worker process, whose id it returns: a consumer, and the decoders."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bare",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "fetch.message.max.bytes": 8 * 2**20,
        }
    )
    readers = {game: (_Reader.of(descriptors, "event"), uri) for game, (descriptors, uri) in events.items()}
    _PARTS.append(_Part(consumer, number, _Reader.of(envelope, "wrapper"), readers))
    return os.getpid()


def consume_and_write() -> None:
    """In a worker process: one round of its partition."""
    (part,) = _PARTS
    opened = [part.envelope.read(values) for values in part.values()]
    if not opened:
        return
    table = pa.Table.from_batches(opened)
    names = table.column("game_name").combine_chunks().dictionary_encode()
    codes = np.asarray(names.indices)
    order = np.argsort(codes.astype(np.uint16), kind="stable")
    payloads = table.column("payload").combine_chunks().take(pa.array(order))
    begins = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
    retries = CommitProperties(max_commit_retries=100)
    for code, game in enumerate(names.dictionary.to_pylist()):
        reader, uri = part.events[game]
        rows = reader.read(payloads.slice(begins[code], begins[code + 1] - begins[code]))
        write_deltalake(uri, rows, mode="append", commit_properties=retries)
