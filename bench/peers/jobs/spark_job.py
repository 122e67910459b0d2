"""What both of Spark's jobs have in common: a session of two cores, the topic, the schema."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.peers.records import COLUMNS
from bench.workload import CORES, SHUFFLE
from distributary.spark.session import build_session

DDL = ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items())


@dataclass(frozen=True)
class Options:
    brokers: str
    topic: str
    lake: str
    checkpoints: str
    kinds: tuple[str, ...]


def options() -> Options:
    parser = argparse.ArgumentParser()
    for name in ("brokers", "topic", "lake", "checkpoints", "kinds"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    return Options(given.brokers, given.topic, given.lake, given.checkpoints, tuple(given.kinds.split(",")))


def session() -> SparkSession:
    """As shipped (adaptive execution too), but for two cores: 4 shuffle partitions in place of 200, and what our own
    sessions have for local files."""
    conf = {"spark.driver.memory": "2g", SHUFFLE: str(2 * CORES), "spark.sql.adaptive.enabled": "true"}
    return build_session("peer", master=f"local[{CORES}]", conf=conf, local_state=True)


def records(spark: SparkSession, given: Options) -> DataFrame:
    """The topic from its beginning; its values as text."""
    asked = {"kafka.bootstrap.servers": given.brokers, "subscribe": given.topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**asked).load().select(F.col("value").cast("string"))


def row() -> Column:
    return F.from_json(F.col("value"), DDL).alias("row")
