"""Keys of `source`: where the stream is read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, field_validator, model_validator

from distributary.config.addresses import Address, Brokers
from distributary.config.base import Model, fault
from distributary.config.column_types import check_columns
from distributary.config.kafka_security import KafkaSecurity
from distributary.config.quantities import (
    BatchSize,
    ColumnType,
    CommitTime,
    Duration,
    Offsets,
    Option,
    Size,
    Text,
    Time,
    TopicPattern,
    Topics,
)

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


class RecordKey(Model):
    column: Text | None = Field(
        default=None,
        description="The column that the record's key, as text, is. A message's own field goes first.",
    )
    type: ColumnType | None = Field(
        default=None,
        description="The column's type, as `bigint`. Without it that of the messages' field of this name; else text.",
    )
    format: Literal["text", "json", "avro", "protobuf"] = Field(
        default="text",
        description="What the key is. `text`: one column. `json`, `avro`, `protobuf`: a record, of which `columns` are "
        "columns; of the latter two by the schema of its writer, which the key's header names.",
    )
    columns: dict[Text, Text] = Field(
        default={},
        description="Fields of a key that is a record, by their paths, and their types, as `payload.columns` has them.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.format == "text":
            if self.column is None:
                raise fault("column", "give the column that the key is; or its format and columns")
            if self.columns:
                raise fault("columns", "a text has no fields: give format json, avro or protobuf")
            return self
        if self.column is not None or self.type is not None:
            raise fault("column", f"a key of format {self.format} is a record: give columns")
        if not self.columns:
            raise fault("columns", "give the fields that are columns, as in {player_id: bigint}")
        check_columns(self.columns)
        return self

    @property
    def names(self) -> list[str]:
        """The columns that the key is."""
        if self.column is not None:
            return [self.column]
        return list(dict.fromkeys(path.partition(".")[0] for path in self.columns))

    @property
    def has_schema(self) -> bool:
        """Does a registry have the schema of its writer?"""
        return self.format in ("avro", "protobuf")


class SourceKeys(Model):
    """What others ask of a source, so that they need not know which one it is."""

    has_offsets: ClassVar[bool] = False
    """Has each record a topic, a partition and an offset, by which it is found again, and a key and headers?"""
    has_columns: ClassVar[bool] = False
    """Has each record columns, as `envelope.format: columns` needs them?"""
    reads_files: ClassVar[bool] = False
    """Is a batch some files, given out by the file ledger, so that it comes again as it was?"""

    @property
    def needs_library(self) -> bool:
        """Does reading it take a library that may not be installed?"""
        return False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; empty where there are none, or where they are found by a pattern."""
        return ()

    @property
    def address(self) -> str | None:
        """Address of the Delta table that it is; None where it is none, or where only the catalog knows it."""
        return None

    @property
    def of_kafka(self) -> tuple[str | None, Mapping[str, str]]:
        """The expression by which topics are found, and settings of the clients; of Kafka alone."""
        return None, {}

    @property
    def with_headers(self) -> bool:
        """Are the records' headers read?"""
        return False

    @property
    def record_key(self) -> RecordKey | None:
        """The column that a record's key is, where it is one."""
        return None


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


class DatastreamSource(SourceKeys):
    reads_files = True

    type: Literal["datastream"] = Field(
        description="Files of change events, as Google Datastream writes them. See docs/datastream.md."
    )
    path: Address = Field(
        description="Where the files are: a folder, `gs://bucket/prefix` or `s3a://bucket/prefix`. Folders of new "
        "tables and late files in old folders are found while it runs."
    )
    format: Literal["auto", "avro", "json", "parquet"] = Field(
        default="auto", description="What the files are; `auto` tells by their name and first bytes."
    )
    kind: Literal["auto", "mysql", "oracle", "postgresql", "sqlserver", "mongodb", "generic"] = Field(
        default="auto",
        description="The database they come from, which decides the order of events; `auto`: each event says.",
    )
    stray_files: Literal["ignore", "read"] = Field(
        default="ignore",
        description="Files that are none of Datastream's by their place: not straight in a folder "
        "`[table]/yyyy/mm/dd/hh/mm`, below a folder that begins with `_`, or with another ending than .avro, .json, "
        ".jsonl, .parquet (also with .gz). `ignore`: they are left alone and told of; `read`: they are read as well, "
        "which a folder of loose files needs.",
    )
    start_date: Time | None = Field(
        default=None, description="Leave out files in folders of an earlier time than this (source time, UTC)."
    )
    max_files_per_batch: int = Field(default=1000, ge=1, description="The most files in one batch, of all tables.")
    max_bytes_per_batch: BatchSize = Field(
        default=256 * 2**20, description="About the most bytes of files in one batch: a backlog is cut by this."
    )
    max_unpacked_bytes: Size = Field(
        default=512 * 2**20,
        description="The most bytes of one file that is packed (gzip, avro's codecs, Parquet) once it is unpacked. A "
        "larger one is set aside, lest a small file fill the machine.",
    )
    columns: dict[str, ColumnType] = Field(
        default={},
        description="Columns that get another type than their file says, by route and column or for all routes: "
        "`{shop.orders.born: date, '*.flag': boolean}`.",
    )
    json_bytes: Literal["base64", "hex"] = Field(
        default="base64", description="How JSON files write BYTES. Datastream's documents do not say."
    )
    text_bytes: Literal["base64", "hex"] = Field(
        default="hex",
        description="How binary columns that a source writes as text are written (MySQL: hex), where `columns` asks "
        "for binary.",
    )
    json_numbers: ColumnType = Field(
        default="string",
        description="Type of JSON numbers with a fraction, where no `.schema` file says better; `string` loses none.",
    )
    out_of_range: Literal["null", "reject"] = Field(
        default="null",
        description="Times that no Delta reader can hold (PostgreSQL's infinity): null, or the event is quarantined.",
    )
    wide_decimals: Literal["string", "decimal"] = Field(
        default="string",
        description="Decimals of more than 38 digits: as text, or decimal(38) where the values fit.",
    )
    epochs: list[Time] = Field(
        default=[],
        description="Times (of the source) since which logs count anew, because the server was replaced: later events "
        "beat all earlier ones. Also per route.",
    )
    restart_margin: Duration = Field(
        default=7200.0,
        description="A change that is later than another one of its row by more than that, but stands before it in the "
        "source's log: the log has begun anew, and the merge waits for `epochs`. More than clocks are wrong by, and "
        "than a statement runs.",
    )
    storage_options: dict[str, SecretStr] = Field(
        default={},
        description="Settings and credentials of the store that holds the files, as delta-rs names them; without it "
        "`tables.storage_options`.",
    )

    @field_validator("columns")
    @classmethod
    def _of_a_route(cls, columns: dict[str, str]) -> dict[str, str]:
        if wrong := next((name for name in columns if "." not in name.strip(".")), None):
            raise ValueError(f"allowed: route and column, as shop.orders.born or '*.flag', not {wrong!r}")
        return columns


Source: TypeAlias = Annotated[KafkaSource | DeltaSource | DatastreamSource, Field(discriminator="type")]
