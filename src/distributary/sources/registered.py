"""Which source a pipeline has: the one place that chooses. A new one is its module and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from distributary.config import Pipeline
from distributary.sources.bronze import Bronze
from distributary.sources.change_files import ChangeFiles
from distributary.sources.dataframe import DataFrameRows
from distributary.sources.delta_source import DeltaRows
from distributary.sources.kafka_source import KafkaTopics
from distributary.sources.port import Source

SOURCES: Mapping[str, type[Source]] = {
    "kafka": KafkaTopics,
    "delta": DeltaRows,
    "datastream": ChangeFiles,
    "debezium_files": ChangeFiles,
    "dms_files": ChangeFiles,
    "dataframe": DataFrameRows,
}
"""`source.type` -> what it is."""


def source_of(config: Pipeline) -> Source:
    """What the pipeline's stream reads: its source, or bronze, where it is the second of two hops."""
    return origin_of(config) if config.bronze_table is None else Bronze(config)


def origin_of(config: Pipeline) -> Source:
    """The source that the pipeline file names."""
    return SOURCES[config.source.type](config)
