"""Kafka topics as a source (`sources.port`): a stream of `value`, `partition`, `offset`, `timestamp`, with `topic`
where several are read."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from distributary.config import KafkaSource, Pipeline
from distributary.config.quantities import milliseconds
from distributary.errors import SourceDown
from distributary.sources.kafka import (
    Topic,
    TopicIds,
    admin_of,
    check_client,
    consumer_of,
    describe_topics,
    gone,
    made_anew,
    refuse_loss,
    set_offsets,
)
from distributary.sources.kafka_settings import java_settings
from distributary.sources.port import ORIGIN, AnswerCache, Position, SeenIds, Sight, Source, SourceLag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_SEC = 15.0
FURTHER = 16
log = logging.getLogger("distributary")
_EARLIEST = -2


class KafkaTopics(Source):
    def __init__(self, config: Pipeline) -> None:
        super().__init__(config)
        assert isinstance(config.source, KafkaSource)
        self.keys = config.source
        self._admin: Any = None

    @property
    def name(self) -> str:
        return f"Kafka {self.keys.bootstrap_servers}"

    def check_here(self) -> None:
        check_client(self.keys)

    def look(self) -> list[Sight]:
        sights = []
        for topic in describe_topics(self.keys):
            rows = sum(topic.latest[p] - topic.earliest[p] for p in topic.latest)
            text = f"topic {topic.name}: {len(topic.latest)} partitions, {rows:,} offsets"
            sights.append(Sight(text) if rows else Sight(f"{text}: nothing was sent yet", "Is it the right topic?"))
        return sights

    def stream(self, spark: SparkSession, *, all_shares: bool = False) -> DataFrame:
        return kafka_stream(spark, self.keys, key=self.config.reads_keys)

    def lag(self, read: Position | None, answers: AnswerCache, last_file_batch: Callable[[], int]) -> SourceLag:
        return kafka_lag(self.keys, answers.once("topics", lambda: describe_topics(self.keys)), read)

    def ids(self) -> TopicIds:
        return TopicIds(self.keys)

    def lost(self, read: Position, seen: SeenIds) -> list[str]:
        topics = describe_topics(self.keys)
        now = {topic.name: topic.id for topic in topics}
        new = made_anew(seen.ids, now)
        lost = [*new.values()]
        for topic in topics:
            lost += gone(topic, read) if topic.name not in new else []
        refuse_loss(lost, self.keys)
        seen.add(now)
        return lost

    def decided(self, position: Callable[[], Position | None]) -> None:
        """Sets the offsets of `group_id`, in which there is no member: only tools that watch it read them."""
        if self.keys.group_id is None or (offsets := position()) is None:
            return
        share = self.config.share
        group = self.keys.group_id if share is None else f"{self.keys.group_id}-{share.name}"
        try:
            self._admin = self._admin or admin_of(self.keys)
            set_offsets(self._admin, group, offsets)
        except KafkaException as e:
            log.warning("the offsets of group %s could not be set: %s", group, e)

    def newest(self, count: int) -> pa.Table:
        return newest_of_topic(self.keys, count)

    def beginning_at(self, position: Position) -> KafkaTopics:
        """Partitions of which `position` has nothing are read from their beginning."""
        offsets = {
            topic.name: {str(p): position.get(topic.name, {}).get(str(p), _EARLIEST) for p in topic.latest}
            for topic in describe_topics(self.keys)
        }
        keys = self.keys.model_copy(update={"starting_offsets": offsets, "starting_timestamp": None})
        return KafkaTopics(self.config.model_copy(update={"source": keys}))


def kafka_stream(spark: SparkSession, source: KafkaSource, *, key: bool = False) -> DataFrame:
    """The streaming DataFrame, with the records' keys where asked for. Build it anew for every start: a plan that is
    kept goes stale (delta-io/delta#6050)."""
    options = {f"kafka.{k}": v for k, v in java_settings(source).items()}
    options["kafka.bootstrap.servers"] = source.bootstrap_servers
    if source.topics:
        options["subscribe"] = ",".join(source.topics)
    else:
        options["subscribePattern"] = str(source.topic_pattern)
    offsets = source.starting_offsets
    if source.starting_timestamp is None:
        options["startingOffsets"] = offsets if isinstance(offsets, str) else json.dumps(offsets)
    else:
        options["startingTimestamp"] = str(milliseconds(source.starting_timestamp))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    options["failOnDataLoss"] = "true" if source.on_data_loss == "fail" else "false"
    if source.max_offsets_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_batch)
    if (partitions := tasks_at_least(source, _cores(spark))) is not None:
        options["minPartitions"] = str(partitions)
    columns = ["value", "partition", "offset", "timestamp"]
    if source.headers:
        options["includeHeaders"] = "true"
        columns.append("headers")
    if key:
        columns.append("key")
    if len(source.topics) != 1:
        columns.append("topic")
    return spark.readStream.format("kafka").options(**options).load().select(*columns)


def tasks_at_least(source: KafkaSource, cores: int | None) -> int | None:
    """How many tasks a batch is read by at least (`minPartitions`), where two may read one partition of the topic;
    None: one task a partition.

    So it is where a run goes on after a loss. A task of Spark's that meets an offset which is gone gives its consumer
    back to the pool and reads on with it (KafkaDataConsumer.get, Spark 4.2); another task of the same partition takes
    it meanwhile, and one's seek moves the other's next record: rows would be left out, or the batch fails.
    """
    return None if source.on_data_loss == "continue" else source.min_partitions or cores


def _cores(spark: SparkSession) -> int | None:
    """How many tasks run at a time; None over Spark Connect, which does not say it."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext.defaultParallelism
    except PySparkAttributeError:
        return None


# -- what waits ------------------------------------------------------------------------------------------


def kafka_lag(source: KafkaSource, topics: list[Topic], read: Mapping[str, Mapping[str, int]] | None) -> SourceLag:
    """End offsets less the offsets in `read`; before the first batch, less where it will begin."""
    if read is None and (source.starting_offsets != "earliest" or source.starting_timestamp is not None):
        return SourceLag(note="no batch has been read yet")
    rows, shrunk = 0, []
    for topic in topics:
        next_offsets = (read or {}).get(topic.name, {})
        for partition, latest in topic.latest.items():
            # A partition that is new since the last batch is read from its beginning.
            begin = next_offsets.get(str(partition), topic.earliest[partition])
            if begin > latest:
                shrunk.append(f"{topic.name} partition {partition} ends at {latest}, but was read up to {begin}")
            rows += max(0, latest - begin)
    note = "was the topic made anew? " + "; ".join(shrunk) if shrunk else None
    return SourceLag(rows, note)


# -- the newest records ------------------------------------------------------------------------------------


def newest_of_topic(source: KafkaSource, count: int) -> pa.Table:
    topics = describe_topics(source)
    ends = [(topic, p, end) for topic in topics for p, end in topic.latest.items() if end > topic.earliest[p]]
    if not ends:
        return pa.table([], schema=pa.schema([*ORIGIN, ("value", pa.binary())]))
    ends = ends[: max(count, 1)]
    back, until = -(-count // len(ends)), time.monotonic() + READ_SEC
    consumer = consumer_of(source, "inspect", **{"enable.partition.eof": True})
    try:
        while True:
            begins = [max(topic.earliest[p], end - back) for topic, p, end in ends]
            consumer.assign([TopicPartition(t.name, p, begin) for (t, p, _), begin in zip(ends, begins, strict=True)])
            rows = list(_polled(consumer, topics, len(ends), f"Kafka at {source.bootstrap_servers}"))
            if (
                rows
                or time.monotonic() > until
                or all(begin == topic.earliest[p] for (topic, p, _), begin in zip(ends, begins, strict=True))
            ):
                break
            back *= FURTHER  # the last offsets may all be marks of transactions, or of records that are not there
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
