"""Records as the source still has them: from Kafka by offset, from a table of its records, or from the raw table of
`layout: two_hop`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from distributary.audit.judge.opened_records import Record
from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.errors import SourceDown
from distributary.sources.kafka import consumer_of
from distributary.tables.store import Store
from distributary.tables.table import Table

TIMEOUT_SEC = 5.0
READ_SEC = 30.0
_FAR = 2_000
"""Offsets that are stepped over rather than sought."""


class Place(NamedTuple):
    topic: str | None
    partition: int
    offset: int


class PlacedRecord(NamedTuple):
    """A record of the source. `gone`: it has no value; its body is empty then."""

    at: Place
    record: Record
    gone: bool
    time_us: int | None


class Records(Protocol):
    """Finds records by their places."""

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        """Those that are still there. Raises SourceDown, TableFault, OSError."""

    def close(self) -> None: ...


class KafkaRecords:
    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._name = f"Kafka at {source.bootstrap_servers}"
        self._consumer = consumer_of(source, "verify", **{"enable.partition.eof": True})

    def close(self) -> None:
        self._consumer.close()

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        records: dict[Place, Record] = {}
        by_partition: dict[tuple[str | None, int], list[Place]] = {}
        for place in sorted(places, key=lambda p: (p.topic or "", p.partition, p.offset)):
            by_partition.setdefault((place.topic, place.partition), []).append(place)
        for (topic, partition), asked_places in by_partition.items():
            self._read(str(topic or self._source.topic), partition, asked_places, records)
        return records

    def every(self, ends: Mapping[tuple[str, int], int]) -> Iterator[PlacedRecord]:
        """All records that are there, up to the offsets `ends` of each (topic, partition). Raises SourceDown."""
        for (topic, partition), end in ends.items():
            try:
                yield from self._every(topic, partition, end)
            except KafkaException as e:
                raise SourceDown(source=self._name, detail=str(e)) from e

    def _every(self, topic: str, partition: int, end: int) -> Iterator[PlacedRecord]:
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            message = self._consumer.poll(READ_SEC)
            if message is None:
                raise SourceDown(source=self._name, detail=f"no record in {READ_SEC:.0f} s")
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                raise SourceDown(source=self._name, detail=str(error))
            offset, (kind, stamp) = int(message.offset() or 0), message.timestamp()
            if offset >= end:
                return
            body = message.value()
            time_us = stamp * 1000 if kind else None
            yield PlacedRecord(Place(topic, partition, offset), _record(message, topic), body is None, time_us)

    def _read(self, topic: str, partition: int, asked_places: list[Place], records: dict[Place, Record]) -> None:
        try:
            first, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_SEC)
            next_offset = OFFSET_BEGINNING
            for place in asked_places:
                if not first <= place.offset < end:
                    continue
                if next_offset < 0 or not 0 <= place.offset - next_offset <= _FAR:
                    self._consumer.assign([TopicPartition(topic, partition, place.offset)])
                    next_offset = place.offset
                while next_offset <= place.offset:
                    message = self._consumer.poll(READ_SEC)
                    if message is None:
                        raise SourceDown(source=self._name, detail=f"no record in {READ_SEC:.0f} s")
                    if (error := message.error()) is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            return  # behind it are only records that were compacted or aborted
                        raise SourceDown(source=self._name, detail=str(error))
                    offset, value = message.offset(), message.value()
                    next_offset = (offset or 0) + 1
                    if offset == place.offset and isinstance(value, bytes):
                        records[place] = _record(message, topic)
        except KafkaException as e:
            raise SourceDown(source=self._name, detail=str(e)) from e


class BronzeRecords:
    def __init__(self, config: Pipeline, store: Store) -> None:
        self._table = Table(config.bronze_path, store).open()
        self._columns = config.envelope.columns
        self._has_keys = config.source.record_key is not None

    def close(self) -> None:
        self._table = None

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        asked_places = set(places)
        if self._table is None or not asked_places:
            return {}
        offsets = pa.array(sorted({p.offset for p in asked_places}), pa.int64())
        column, *names = self._columns
        route_is: Any = pc.field(column) == route
        dataset = self._table.dataset()
        # Before the pipeline file asked for keys, bronze kept none.
        key = ["record_key"] if self._has_keys and "record_key" in dataset.schema.names else []
        rows = dataset.to_table(
            columns=["topic", "partition", "offset", *names, *key], filter=route_is & pc.field("offset").isin(offsets)
        )
        records = {}
        columns = (column.to_pylist() for column in rows.columns)
        for topic, partition, offset, schema_id, payload, *keys in zip(*columns, strict=True):
            if payload is not None and Place(topic, partition, offset) in asked_places:
                record = Record(payload, schema_id, whole=False, key=keys[0] if keys else None)
                records[Place(topic, partition, offset)] = record
        return records


class TableRecords:
    """Of a Delta table that holds records of Kafka."""

    def __init__(self, source: DeltaSource, store: Store) -> None:
        self._table = Table(source.path, store).open()
        self._value = source.value

    def close(self) -> None:
        self._table = None

    def get(self, route: str, places: Iterable[Place]) -> Mapping[Place, Record]:
        asked_places = set(places)
        if self._table is None or not asked_places:
            return {}
        offsets = pa.array(sorted({p.offset for p in asked_places}), pa.int64())
        names = ["topic", "partition", "offset", "key", self._value]
        rows = self._table.dataset().to_table(columns=names, filter=pc.field("offset").cast("int64").isin(offsets))
        records = {}
        for topic, partition, offset, key, value in zip(*(c.to_pylist() for c in rows.columns), strict=True):
            place = Place(topic, partition, offset)
            if value is not None and place in asked_places:
                records[place] = Record(_bytes(value), topic=topic, key=None if key is None else _bytes(key))
        return records


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _record(message: Any, topic: str) -> Record:
    headers = tuple((str(name), value) for name, value in message.headers() or ())
    return Record(message.value() or b"", topic=topic, key=message.key(), headers=headers)
