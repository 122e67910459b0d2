"""Keys of `source`: where the stream is read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from distributary.config.addresses import Address, Brokers
from distributary.config.base import fault
from distributary.config.file_sources import DatastreamSource, DebeziumFilesSource, DmsFilesSource
from distributary.config.kafka_security import KafkaSecurity
from distributary.config.quantities import (
    BatchSize,
    CommitTime,
    Offsets,
    Option,
    Text,
    Time,
    TopicPattern,
    Topics,
)
from distributary.config.source_keys import RecordKey, SourceKeys

_NO_OPTIONS = {
    "auto.offset.reset": "give source.starting_offsets",
    "bootstrap.servers": "give source.bootstrap_servers",
    "enable.auto.commit": "the checkpoint says where the stream is",
    "group.id": "give source.group_id",
    "interceptor.classes": "Spark takes none",
    "key.deserializer": "records are read as bytes",
    "value.deserializer": "records are read as bytes",
}
"""Options of Kafka's client that Spark refuses when it starts, or that a key of ours says."""


class KafkaSource(SourceKeys):
    has_offsets = True

    type: Literal["kafka"] = Field(description="A Kafka topic (or several).")
    bootstrap_servers: Brokers = Field(description="Brokers to begin with: `host:port`, several separated by commas.")
    topic: Topics = Field(default=None, description="The topic, or a list of topics. Either topic or topic_pattern.")
    topic_pattern: TopicPattern | None = Field(
        default=None, description="A Java regular expression; every topic whose name it matches is read."
    )
    starting_offsets: Offsets = Field(
        default="earliest",
        description="Where the first run begins; later runs go on from the checkpoint. A mapping of topic to partition "
        "to offset must name all partitions (-2 is earliest, -1 is latest).",
    )
    starting_timestamp: Time | None = Field(
        default=None,
        description="The first run begins with the records since, by their timestamps, in place of starting_offsets: "
        "`2026-01-31 12:00:00` (UTC). A partition that has none since is read from its end.",
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="When offsets are gone at the broker: stop with an error, or record the range and go on.",
    )
    max_offsets_per_batch: int | None = Field(default=None, ge=1, description="The most records in one batch.")
    min_partitions: int | None = Field(
        default=None,
        ge=1,
        description="Read with at least this many tasks, also from topics with fewer partitions. Without effect under "
        "`on_data_loss: continue`: there a partition is read by one task, for two would share Spark's consumer after a "
        "loss.",
    )
    headers: bool = Field(default=False, description="Read record headers too.")
    key: RecordKey | None = Field(
        default=None,
        description="The record's key is a column, or several. In tables with keys, a record without a value deletes "
        "the row of its key. `key: player_id` is short for `{column: player_id}`. See docs/upserts.md.",
    )
    security: KafkaSecurity | None = Field(
        default=None, description="Encryption and credentials; without it PLAINTEXT."
    )
    group_id: Text | None = Field(
        default=None,
        description="A consumer group whose offsets are set after each batch, for tools that watch it (a share's has "
        "its name at the end). Nothing is read from it: the checkpoint says where a stream is. Also the beginning of "
        "the groups' names that lookups use (`<group_id>-lookup`), for brokers that allow some groups only.",
    )
    options: dict[str, Option] = Field(
        default={},
        repr=False,
        description="More settings of Kafka's clients, without the `kafka.` prefix, as Java or librdkafka spells them: "
        "each client gets what it knows (docs/kafka.md). `isolation.level` is "
        "`read_committed`: records of aborted transactions are not read, and those of an open one hold up what is "
        "behind them in their partition; `read_uncommitted` reads all.",
    )

    @field_validator("key", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return {"column": value} if isinstance(value, str) else value

    @field_validator("group_id")
    @classmethod
    def _check_group(cls, name: str | None) -> str | None:
        if name is not None and name != name.strip():
            raise ValueError("allowed: a group's name, without spaces around it")
        return name

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        for key in options:
            if key.startswith("kafka."):
                raise ValueError(f"leave out the prefix: write {key.removeprefix('kafka.')!r}, not {key!r}")
            if key in _NO_OPTIONS:
                raise ValueError(f"{key!r} is not allowed: {_NO_OPTIONS[key]}")
        return options

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.topic is None) == (self.topic_pattern is None):
            raise fault("topic", "give exactly one of topic and topic_pattern")
        if isinstance(self.starting_offsets, dict) and self.topics:
            unknown = sorted(self.starting_offsets.keys() - set(self.topics))
            if unknown:
                raise fault("starting_offsets", f"names {unknown[0]!r}, which source.topic does not read")
        if self.starting_timestamp is not None and self.starting_offsets != "earliest":
            raise fault("starting_timestamp", "give starting_offsets or starting_timestamp, not both")
        self._check_stores()
        return self

    def _check_stores(self) -> None:
        """Files of certificates that one of the two clients could not read."""
        options, security = self.options, self.security
        kinds = {"ssl.truststore": ("PEM",), "ssl.keystore": ("PEM", "PKCS12")}
        section_files = {
            "ssl.truststore": security and security.ca_file,
            "ssl.keystore": security and security.cert_file,
        }
        for store, allowed in kinds.items():
            kind = options.get(f"{store}.type", "JKS")
            if f"{store}.location" in options and kind not in allowed and not section_files[store]:
                detail = f"{store}.location of type {kind} is Java's alone, and lag and verify read Kafka without Java"
                raise fault("options", f"{detail}: give security.ca_file, cert_file and key_file (PEM)")

    def group_of(self, use: str) -> str:
        """The consumer group of a client that looks something up."""
        return f"{self.group_id or 'distributary'}-{use}"

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,) if isinstance(self.topic, str) else tuple(self.topic or ())

    @property
    def of_kafka(self) -> tuple[str | None, Mapping[str, str]]:
        return self.topic_pattern, self.options

    @property
    def with_headers(self) -> bool:
        return self.headers

    @property
    def record_key(self) -> RecordKey | None:
        return self.key

    @property
    def needs_library(self) -> bool:
        return self.security is not None and self.security.mechanism in ("GSSAPI", "AWS_MSK_IAM")


class DeltaSource(SourceKeys):
    has_columns = True

    type: Literal["delta"] = Field(description="A Delta table.")
    path: Address = Field(default="", description="The table's path. Either path or table.")
    table: Text | None = Field(
        default=None,
        description="The table by its name in Spark's catalog: `main.bronze.events`. See docs/stores.md.",
    )
    value: Text = Field(
        default="value", description="The binary column of envelopes, where envelope.format is protobuf."
    )
    starting_version: int | None = Field(
        default=None, ge=0, description="Table version where the first run begins; without it, all rows."
    )
    starting_timestamp: CommitTime | None = Field(
        default=None, description="The first run begins with the commits since: `2026-01-31` or `2026-01-31 12:00:00`."
    )
    max_files_per_batch: int | None = Field(
        default=None, ge=1, description="The most data files in one batch. Spark's own: 1,000."
    )
    max_bytes_per_batch: BatchSize | None = Field(
        default=None, description="About the most bytes of data files in one batch: `64 MB`, or a number of bytes."
    )
    skip_change_commits: bool = Field(
        default=False,
        description="Step over commits that delete or rewrite rows (GDPR deletes) in place of failing. Such a delete "
        "must be repeated in the tables.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise fault("starting_timestamp", "give starting_version or starting_timestamp, not both")
        if bool(self.path) == (self.table is not None):
            raise fault("path", "give exactly one of path (where the table is) and table (its name in the catalog)")
        return self

    @field_validator("table")
    @classmethod
    def _parts(cls, table: str | None) -> str | None:
        if table is not None and ("`" in table or not all(name and name == name.strip() for name in table.split("."))):
            raise ValueError("allowed: names with dots between them, without quotes, as in main.bronze.events")
        return table

    @property
    def address(self) -> str | None:
        return self.path or None


class DataFrameSource(SourceKeys):
    has_columns = True
    is_given = True

    type: Literal["dataframe"] = Field(
        description='Rows of a DataFrame that your own query writes by `format("distributary")`. The file is for '
        "`status`, `verify`, `maintain` and `clean`: `pipeline` is the sink's option `name`. See docs/sink.md."
    )


Source: TypeAlias = Annotated[
    KafkaSource | DeltaSource | DatastreamSource | DebeziumFilesSource | DmsFilesSource | DataFrameSource,
    Field(discriminator="type"),
]
