"""Keys that say what is read: source, registry, envelope, payload."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, SecretStr, field_validator, model_validator

from distributary.config.addresses import Brokers, Place, Url
from distributary.config.base import Model, fault
from distributary.config.quantities import ColumnType, CommitTime, Duration, Offsets, Option, Size, Text, Time, Topics
from distributary.config.routing import RouteFrom


class KafkaSecurity(Model):
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        description="How clients talk to the brokers. The SASL protocols need mechanism, username and password."
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="The SASL mechanism."
    )
    username: Text | None = Field(default=None, description="The SASL user.")
    password: SecretStr | None = Field(default=None, description="The SASL password.")
    ca_file: Place | None = Field(
        default=None, description="PEM file of the authority that signed the brokers' certificates."
    )
    cert_file: Place | None = Field(default=None, description="PEM file of the client's certificate.")
    key_file: Place | None = Field(default=None, description="PEM file of the client's private key (PKCS#8).")
    key_password: SecretStr | None = Field(default=None, description="The password of key_file.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        sasl = ("mechanism", "username", "password")
        for key in sasl:
            if self.protocol.startswith("SASL") and getattr(self, key) is None:
                raise fault(key, f"protocol {self.protocol} needs {', '.join(sasl)}; {key} is missing")
            if not self.protocol.startswith("SASL") and getattr(self, key) is not None:
                raise fault(key, f"protocol {self.protocol} does not use it; allowed with SASL_PLAINTEXT, SASL_SSL")
        if (self.cert_file is None) != (self.key_file is None):
            raise fault("key_file", "cert_file and key_file go together: give both or none")
        if not self.protocol.endswith("SSL") and (self.ca_file or self.cert_file):
            raise fault("ca_file", f"protocol {self.protocol} does not use certificates; allowed with SSL, SASL_SSL")
        return self


class KafkaSource(Model):
    type: Literal["kafka"] = Field(description="A Kafka topic (or several).")
    bootstrap_servers: Brokers = Field(description="Brokers to begin with: `host:port`, several separated by commas.")
    topic: Topics = Field(default=None, description="The topic, or a list of topics. Either topic or topic_pattern.")
    topic_pattern: Text | None = Field(
        default=None, description="A Java regular expression; every topic whose name it matches is read."
    )
    starting_offsets: Offsets = Field(
        default="earliest",
        description="Where the first run begins; later runs go on from the checkpoint. A mapping of topic to partition "
        "to offset must name all partitions (-2 is earliest, -1 is latest).",
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        default="fail",
        description="When offsets are gone at the broker: stop with an error, or record the range and go on.",
    )
    max_offsets_per_batch: int | None = Field(default=None, ge=1, description="The most records in one batch.")
    min_partitions: int | None = Field(
        default=None, ge=1, description="Read with at least this many tasks, also from topics with fewer partitions."
    )
    headers: bool = Field(default=False, description="Read record headers too.")
    security: KafkaSecurity | None = Field(
        default=None, description="Encryption and credentials; without it PLAINTEXT."
    )
    options: dict[str, Option] = Field(
        default={},
        repr=False,
        description="More Kafka client settings, without the `kafka.` prefix. `isolation.level` is "
        "`read_committed`: records of aborted transactions are not read, and those of an open one hold up what is "
        "behind them in their partition; `read_uncommitted` reads all.",
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, str]) -> dict[str, str]:
        for key in options:
            if key.startswith("kafka."):
                raise ValueError(f"leave out the prefix: write {key.removeprefix('kafka.')!r}, not {key!r}")
        return options

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.topic is None) == (self.topic_pattern is None):
            raise fault("topic", "give exactly one of topic and topic_pattern")
        if isinstance(self.starting_offsets, dict) and self.topics:
            unknown = sorted(self.starting_offsets.keys() - set(self.topics))
            if unknown:
                raise fault("starting_offsets", f"names {unknown[0]!r}, which source.topic does not read")
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; empty where `topic_pattern` is used."""
        return (self.topic,) if isinstance(self.topic, str) else tuple(self.topic or ())


class DeltaSource(Model):
    type: Literal["delta"] = Field(description="A Delta table.")
    path: Place = Field(description="The table's path.")
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
    max_bytes_per_batch: Size | None = Field(
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
        return self


class DatastreamSource(Model):
    type: Literal["datastream"] = Field(
        description="Files of change events, as Google Datastream writes them. See docs/datastream.md."
    )
    path: Place = Field(
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
    max_bytes_per_batch: Size = Field(
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


SchemaId: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]


class RegistryConfig(Model):
    url: Url | None = Field(
        default=None, description="Address of a registry with Confluent's REST API. Either url or path."
    )
    path: Place | None = Field(default=None, description="Folder of the embedded registry: plain files, no server.")
    username: Text | None = Field(default=None, description="User for basic authentication.")
    password: SecretStr | None = Field(default=None, description="Password for basic authentication.")
    token: SecretStr | None = Field(default=None, description="Bearer token, in place of username and password.")
    ca_file: Place | None = Field(
        default=None, description="PEM file of the authority that signed the server's certificate."
    )
    cert_file: Place | None = Field(default=None, description="PEM file of the client's certificate.")
    key_file: Place | None = Field(default=None, description="PEM file of the client's private key.")
    timeout_sec: float = Field(default=10.0, gt=0, description="How long one request may take, in seconds.")
    attempts: int = Field(default=5, ge=1, description="How often a request is tried before the batch fails.")
    cache: Place | None = Field(
        default=None,
        description="Folder of the disk cache: schema ids in it need no registry, also while it is down. Default: "
        "`<state>/schemas` where the state is on this machine.",
    )
    texts: dict[SchemaId, Text] = Field(
        default={},
        description="Schema ids whose text is a file of this machine in place of the registry's: `{7: fixed.proto}`, "
        "of Avro a .avsc file. Imports of a .proto file are looked for in its folder. The registry is not asked about "
        "them.",
    )
    compile_sec: float = Field(
        default=10.0, ge=1, description="The most seconds of CPU time that one schema may take to compile."
    )
    compile_memory: Size = Field(
        default=2**30,
        ge=2**28,
        description="The most memory that one schema may take to compile. A schema that needs more of either, or that "
        "crashes the compiler, is broken: its rows are quarantined as `BROKEN_SCHEMA`.",
    )
    max_schema_size: Size = Field(
        default=8 * 2**20, description="The largest text of one schema, with all its imports."
    )

    max_unknown_ids: int = Field(
        default=1_000,
        ge=1,
        description="After so many ids of one batch that the registry does not have, or that do not compile, no more "
        "of that batch are asked for: their rows are quarantined (reason TOO_MANY_SCHEMA_IDS) and come in by "
        "`distributary replay`, which asks for every id.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.url is None) == (self.path is None):
            raise fault("url", "give exactly one of url (a server) and path (the embedded registry)")
        if self.url is not None and "@" in self.url:
            raise fault("url", "may not hold credentials; use username and password, or token")
        if (self.username is None) != (self.password is None):
            raise fault("password", "username and password go together: give both or none")
        if self.token is not None and self.username is not None:
            raise fault("token", "give token or username and password, not both")
        if self.key_file is not None and self.cert_file is None:
            raise fault("cert_file", "key_file needs cert_file")
        return self


class Envelope(Model):
    format: Literal["protobuf", "columns", "none"] = Field(
        default="protobuf",
        description="`protobuf`: one binary value holds the envelope. `columns`: the source already has a column each. "
        "`none`: there is no envelope, the message itself is the payload; `envelope: none` is short for it, and each "
        "topic is a route then, unless `route` says otherwise.",
    )
    framing: Literal["confluent", "none"] = Field(
        default="confluent",
        description="`confluent`: magic byte, schema id and message indexes first. `none`: bare protobuf.",
    )
    subject: Text | None = Field(
        default=None, description="Registry subject of a bare envelope's schema. For one Kafka topic: `<topic>-value`."
    )
    proto: Place | None = Field(
        default=None, description="A .proto file with the envelope's schema, in place of subject."
    )
    message: Text | None = Field(
        default=None, description="The envelope's message by full name; without it, the first."
    )
    max_route_length: int = Field(
        default=4_096,
        ge=1,
        description="The longest route, in bytes, that a protobuf envelope may name: it stands in the ledger and in "
        "what people read. Records of longer ones are quarantined (reason ROUTE_TOO_LONG).",
    )
    route: RouteFrom = Field(
        default=RouteFrom(field="game_name"),
        description="What decides the table: a field (or column), by its path as in `meta.event_type`, an enum by its "
        "name; or where else the route comes from, as in `{from: topic}`, `{header: event-type}`, `{oneof: event}`. "
        "Without it `game_name`. See docs/routes.md.",
    )
    schema_id: Text = Field(default="schema_id", description="Field (or column) of the payload's schema id.")
    payload: Text = Field(default="payload", description="Field (or column) of the payload's bytes.")

    @field_validator("route", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return {"field": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _none_by_default(cls, data: Any) -> Any:
        """Without an envelope, `format` need not be said where the route says it."""
        if not isinstance(data, dict):
            return data
        route = data.get("route")
        if "format" not in data and isinstance(route, dict) and ("oneof" in route or "any" in route):
            data = {**data, "format": "none"}
        if "format" not in data and isinstance(route, dict) and route.get("from") == "message_type":
            data = {**data, "format": "none"}
        if data.get("format") == "none" and "route" not in data:
            data = {**data, "route": {"from": "topic"}}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = self.route
        if self.format != "none":
            if found.of_message:
                raise fault("route", "the message itself says this route: it needs format none, the message as payload")
            if found.place == "key":
                raise fault("route", "allowed with format none: of an envelope that cannot be read, no key is kept")
            if self.format == "columns" and found.field is None:
                raise fault("route", "with format columns the route is a column: give its name")
            return self
        for key in ("subject", "proto", "message", "schema_id", "payload", "framing"):
            if getattr(self, key) != type(self).model_fields[key].get_default():
                raise fault(key, "there is no envelope (format none): leave it out")
        return self

    @property
    def columns(self) -> tuple[str, str, str]:
        """The names of route, schema id and payload where they are columns: of the source (`format: columns`), and of
        bronze. Of a path, its end."""
        path = self.route.field
        route = "route" if path is None else path if self.format == "columns" else path.rpartition(".")[2]
        return route, self.schema_id, self.payload
