"""The newest records of a source, for a person who wants to see what it holds: a few, read without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from distributary.config import DeltaSource, KafkaSource, Pipeline
from distributary.errors import SourceDown, SourceMissing
from distributary.sources.delta import ORIGIN_COLUMNS, needed_columns
from distributary.sources.delta_batch import store_of_source
from distributary.sources.kafka import Topic, client_security, describe_topics
from distributary.tables.faults import reading
from distributary.tables.files import TableFiles
from distributary.tables.store import Store
from distributary.tables.table import Table

READ_SEC = 15.0
ORIGIN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("key", pa.binary()),
    ]
)


def newest_records(source: KafkaSource | DeltaSource, config: Pipeline, count: int) -> pa.Table:
    """At most `count` records, the newest last: the columns of `ORIGIN`, and what the stream has besides: `value`, or
    the envelope's own columns.

    Raises SourceDown, SourceMissing, StoreUnreadable.
    """
    return _of_topic(source, count) if isinstance(source, KafkaSource) else _of_table(source, config, count)


# -- Kafka -------------------------------------------------------------------------------------------------


def _of_topic(source: KafkaSource, count: int) -> pa.Table:
    topics = describe_topics(source)
    ends = [(topic, p, end) for topic in topics for p, end in topic.latest.items() if end > topic.earliest[p]]
    if not ends:
        return pa.table([], schema=pa.schema([*ORIGIN, ("value", pa.binary())]))
    each = -(-count // len(ends))
    places = [
        TopicPartition(topic.name, p, max(topic.earliest[p], end - each)) for topic, p, end in ends[: max(count, 1)]
    ]
    client = {"bootstrap.servers": source.bootstrap_servers, "group.id": "distributary-inspect", "log_level": 0}
    more = {"enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**client, **more, **client_security(source.security)})
    try:
        consumer.assign(places)
        rows = list(_polled(consumer, topics, len(places), f"Kafka at {source.bootstrap_servers}"))
    except KafkaException as e:
        raise SourceDown(source=f"Kafka at {source.bootstrap_servers}", detail=str(e)) from e
    finally:
        consumer.close()
    rows.sort(key=lambda row: (row["timestamp"], row["offset"]))
    return pa.Table.from_pylist(rows[-count:], schema=pa.schema([*ORIGIN, ("value", pa.binary())]))


def _polled(consumer: Consumer, topics: Sequence[Topic], partitions: int, name: str) -> Iterator[dict[str, object]]:
    """All records up to the end of each partition, or what comes in `READ_SEC`."""
    ended, until = 0, time.monotonic() + READ_SEC
    while ended < partitions and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise SourceDown(source=name, detail=str(error))
            ended += 1
            continue
        yield {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1] * 1000,
            "headers": [{"key": key, "value": value} for key, value in message.headers() or ()],
            "key": message.key(),
            "value": message.value(),
        }


# -- Delta -------------------------------------------------------------------------------------------------


def _of_table(source: DeltaSource, config: Pipeline, count: int) -> pa.Table:
    store = store_of_source(source, config.tables) or Store.of(config.tables)
    needed = needed_columns(source, config.envelope)
    with reading(source.path):
        table = Table(source.path, store).open()
        if table is None:
            raise SourceMissing(source=source.path, what="Delta table. Check source.path, or write to it first.")
        files = TableFiles(table)
        if missing := [name for name in needed if not files.has(name)]:
            raise SourceMissing(source=source.path, what=f"column {missing[0]!r}; it has: {', '.join(files.columns)}")
        origin = [name for name in ORIGIN_COLUMNS if files.has(name) and name not in needed]
        rows = _last(files, [*needed, *origin], count)
    columns = {alias: rows.column(name) for name, (alias, _) in needed.items()}
    given = {name: rows.column(name) for name in origin} | columns
    blank = {f.name: pa.nulls(rows.num_rows, f.type) for f in ORIGIN}
    return pa.table({**blank, **given})


def _last(files: TableFiles, names: Sequence[str], count: int) -> pa.Table:
    """The last rows of the last file that has any: names of files say nothing of time, so any will do."""
    for name in reversed(files.names):
        rows = pa.concat_tables([piece.slice(max(0, piece.num_rows - count)) for piece in files.read(name, names)])
        if rows.num_rows:
            return rows.slice(max(0, rows.num_rows - count))
    return pa.table({name: pa.array([], pa.binary()) for name in names})
