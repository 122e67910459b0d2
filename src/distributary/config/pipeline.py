"""The pipeline file as a whole, and the keys that say how it runs.

The models' descriptions are the text of docs/configuration.md and docs/pipeline.schema.json.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from distributary.config.addresses import Folder
from distributary.config.base import Model, fault
from distributary.config.databricks import Databricks, not_on_databricks
from distributary.config.declarative import Declarative
from distributary.config.environment import environment
from distributary.config.keyed import check_keyed
from distributary.config.layouts import Bronze, Wide
from distributary.config.operating import Grant, Metrics, Notices
from distributary.config.payload import Payload
from distributary.config.quantities import Duration, Option, Text
from distributary.config.reading import (
    Envelope,
    RegistryConfig,
)
from distributary.config.secrets import KeyPath, literal_secrets, looks_secret
from distributary.config.sources import (
    DatastreamSource,
    Source,
)
from distributary.config.state_folder import StateFolder
from distributary.config.writing import Maintenance, Quarantine, RouteOverride, Tables
from distributary.errors import ConfigError, NotYet
from distributary.names import rules_of
from distributary.redaction import MASK
from distributary.shares import Share


class Trigger(Model):
    mode: Literal["every", "once", "continuous"] = Field(
        default="every",
        description="`every`: a batch each interval. `once`: what is there, then end. `continuous`: batch after batch. "
        "`trigger: once` is short for `trigger: {mode: once}`.",
    )
    every: Duration = Field(default=10.0, description="The interval: `10 seconds`, `500 ms`, or a number of seconds.")
    stop_within: Duration | None = Field(
        default=None,
        description="When a run is to stop (SIGTERM, Ctrl-C), how long the batch that is being written may still take; "
        "after that the process ends, and the next run finishes the batch. Without it, a second signal ends it.",
    )


class Spark(Model):
    master: Text | None = Field(
        default=None, description="Spark master, as `local[4]`; without it, that of the environment."
    )
    conf: dict[str, Option] = Field(default={}, repr=False, description="Spark settings, over the product's own.")


class Pipeline(Model):
    """One pipeline file. Build it with `load`, or directly; both check the same rules.

    Raises:
        NotYet: a source that is planned but not there.
    """

    PLANNED_SOURCES: ClassVar = ("files",)

    pipeline: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64, description="Name: a-z, 0-9, _ and -, at most 64 characters."
    )
    source: Source = Field(description="Where the stream comes from; `type` decides the other keys.")
    registry: RegistryConfig | None = Field(
        default=None, description="The schema registry; required where payloads or envelopes have schemas."
    )
    envelope: Envelope = Field(default=Envelope(), description="The outer message.")
    payload: Payload = Field(default=Payload(), description="The inner message, one row of a table.")
    layout: Literal["fanout", "two_hop", "wide", "declarative"] = Field(
        default="fanout",
        description="`fanout`: source to all tables in one hop. `two_hop`: a bronze table between. `wide`: one "
        "table, a struct and a view per route. See docs/layouts.md. `declarative`: see docs/declarative.md.",
    )
    bronze: Bronze = Field(default=Bronze(), description="The table between the hops of `layout: two_hop`.")
    wide: Wide = Field(default=Wide(), description="The table of `layout: wide`.")
    declarative: Declarative = Field(
        default=Declarative(), description="Datasets of `layout: declarative`. See docs/declarative.md."
    )
    tables: Tables = Field(description="The tables that are written.")
    quarantine: Quarantine = Field(default=Quarantine(), description="When too many bad rows stop the stream.")
    maintenance: Maintenance = Field(default=Maintenance(), description="Upkeep of the tables: compaction, vacuum.")
    trigger: Trigger = Field(default=Trigger(), description="When a batch begins.")
    state: Folder | None = Field(
        default=None,
        description="Folder of ledger, quarantine and plans; without it `<tables.root>/_distributary/<pipeline>`.",
    )
    new_state: Literal["refuse", "continue"] = Field(
        default="refuse",
        description="What a run does over tables of this pipeline of which its state knows nothing, since `state` was "
        "changed or the folder lost. `refuse`: end with an error. `continue`: write to them all the same; the source "
        "is read from its beginning, so rows come twice. Needed until each of these tables has got rows again.",
    )
    checkpoint: Folder | None = Field(
        default=None, description="Folder of Spark's checkpoint; without it `<state>/checkpoint`."
    )
    spark: Spark = Field(default=Spark(), description="The Spark session.")
    notices: Notices = Field(default=Notices(), description="Who is told when a stream falls. See docs/workflow.md.")
    metrics: Metrics = Field(default=Metrics(), description="Figures of a run for monitoring. See docs/monitoring.md.")
    grants: list[Grant] = Field(
        default=[], description="Who may read which table, for `distributary grants`; needs tables.database."
    )
    databricks: Databricks = Field(
        default=Databricks(), description="The jobs that `distributary workflow databricks` makes."
    )

    _references: dict[KeyPath, str] = PrivateAttr(default_factory=dict)
    _share: Share | None = PrivateAttr(default=None)
    _whole: Self | None = PrivateAttr(default=None)
    _relative: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _not_yet(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "hop" in data:
            detail = "hop 2 is one stream: take the key away. For checkpoints of their own, spread routes over shares"
            raise fault("hop", f"{detail} (distributary workflow)")
        source = data.get("source")
        kind = source.get("type") if isinstance(source, dict) else None
        if kind in cls.PLANNED_SOURCES:
            raise NotYet(what=f"source.type {kind}", available="kafka, delta, datastream")
        return data

    @field_validator("envelope", mode="before")
    @classmethod
    def _no_envelope(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value != "none":
            raise ValueError("allowed: 'none', or keys as in {format: protobuf, route: game_name}")
        return {"format": "none"}

    @field_validator("trigger", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value not in ("once", "continuous"):
            raise ValueError("allowed: 'once', 'continuous', or an interval as in {every: 10 seconds}")
        return {"mode": value}

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_changes()
        check_keyed(self)
        self._check_stores()
        self._check_declarative()
        self._check_layout()
        self._check_names()
        if self.holds_changes:
            return self
        if self.registry is None and (self.payload.has_schema or self.envelope.format == "protobuf"):
            what = f"{self.payload.format} payloads" if self.payload.has_schema else "protobuf envelopes"
            raise fault("registry", f"{what} need a registry: give url (a server) or path (embedded)")
        self._check_route()
        bare = self.envelope.format == "protobuf" and self.envelope.framing == "none"
        if bare and self.envelope.proto is None and self.envelope_subject is None:
            raise fault("envelope.proto", "a bare envelope (framing none) needs its schema: give proto or subject")
        return self

    def _check_route(self) -> None:
        """What the route needs of the source, the payload and the layout."""
        source, envelope, route = self.source, self.envelope, self.envelope.route
        if envelope.format == "columns" and not source.has_columns:
            raise fault("envelope.format", "a record of Kafka has no columns: allowed are protobuf and none")
        if envelope.format == "none" and not self.payload.is_framed:
            detail = "without an envelope, only the header in front of a message tells its schema: framing confluent"
            raise fault("payload.framing", detail)
        if envelope.format == "none" and not route.of_record:
            kind = self.payload.format
            if kind in ("bytes", "text"):
                raise fault("envelope.route", f"{kind} payloads are not read: allowed are from, header and constant")
            if not self.payload.has_schema and route.place == "message_type":
                raise fault(
                    "envelope.route", "without a schema a record has no type: give a field, or where else it is"
                )
            if kind != "protobuf" and (route.oneof is not None or route.any is not None):
                raise fault("envelope.route", f"{kind} has no oneof and no Any: give a field, or where else it is")
        if not source.has_offsets and (route.place == "key" or route.header is not None):
            raise fault("envelope.route", "allowed with source.type kafka only, whose records have keys and headers")
        if route.header is not None and not source.with_headers:
            raise fault("source.headers", "the route is a header: headers must be read, so give source.headers: true")
        if self.is_declarative and route.of_record:
            detail = "with layout declarative the envelope or the message says the route; other layouts take this too"
            raise fault("envelope.route", detail)

    def _check_changes(self) -> None:
        """Keys that mean nothing for this kind of source are faults, not silence."""
        if self.holds_changes:
            for key in ("expectations", "select", "include", "exclude"):
                if _is_given(self.tables, key):
                    raise fault(f"tables.{key}", "not allowed with change files")
            for route, own in self.tables.routes.items():
                if own.name is not None:
                    raise fault(f"tables.routes.{route}.name", "change files make two tables each: give log and merged")
            for key in ("registry", "envelope", "payload"):
                if _is_given(self, key):
                    raise fault(key, "change files carry their schemas themselves: leave it out")
            if _is_given(self.tables, "name"):
                raise fault("tables.name", "change files make two tables each: give tables.log and tables.merged")
            return
        for key in Tables.CHANGE_KEYS:
            if _is_given(self.tables, key):
                raise fault(f"tables.{key}", "allowed with source.type datastream only")
        for route, own in self.tables.routes.items():
            for key in RouteOverride.CHANGE_KEYS:
                if _is_given(own, key):
                    raise fault(f"tables.routes.{route}.{key}", "allowed with source.type datastream only")

    def _check_stores(self) -> None:
        """Spark has a connector for `s3://` on some platforms only; `s3a://` is the one that anybody can add.

        Tables that tasks write, and a state without a checkpoint, need none.
        """
        if "DATABRICKS_RUNTIME_VERSION" in environment():
            for key, why in not_on_databricks(self):
                raise fault(key, why)
            return
        if any("fs.s3." in key for key in self.spark.conf) or "databricks" in self.model_fields_set:
            return
        checkpoint = "checkpoint" if self.checkpoint else "state" if self.state else "tables.root"
        places = [
            ("source.path", self.source.table),
            (checkpoint, self.checkpoint_path),
            ("bronze.path" if self.bronze.path else "tables.root", self.bronze_table),
            ("tables.root", self.tables.root if self.is_declarative else None),
        ]
        for key, place in places:
            if place is not None and place.startswith("s3://"):
                detail = "write s3a://, or name the connector of s3:// as spark.conf's spark.hadoop.fs.s3.impl"
                raise fault(key, f"Spark has no connector for s3:// here: {detail}")

    def _check_declarative(self) -> None:
        if not self.is_declarative:
            if _is_given(self, "declarative"):
                raise fault("declarative", "allowed with layout: declarative only")
            for key, function in self.tables.each("function").items():
                if function is not None:
                    raise fault(key, "allowed with layout: declarative only; use select")
        else:
            for key in ("include", "exclude"):
                if _is_given(self.tables, key):
                    detail = "with layout declarative, declarative.subject says which routes there are"
                    raise fault(f"tables.{key}", detail)

    def _check_names(self) -> None:
        """Names that two routes could share, where nobody could tell whose a view or a dataset is."""
        if self.layout not in ("wide", "declarative"):
            return
        if rules_of(self.tables.name):
            raise fault("tables.name", f"rules are not allowed with layout {self.layout}; give {{route}} without them")
        for route, own in self.tables.routes.items():
            if own.name is not None:
                raise fault(f"tables.routes.{route}.name", f"not allowed with layout {self.layout}")

    def _check_layout(self) -> None:
        for layout, key in (("two_hop", "bronze"), ("wide", "wide")):
            if self.layout != layout and _is_given(self, key):
                raise fault(key, f"allowed with layout: {layout} only")
        if self.holds_changes and self.layout != "fanout":
            raise fault("layout", "change files have one layout; leave it out")
        if self.bronze.new_checkpoint == "continue" and not self.source.has_offsets:
            raise fault("bronze.new_checkpoint", "continue: allowed with source.type kafka only, which has offsets")
        if self.bronze_table is not None:
            names = self.envelope.columns
            for key, name in zip(("route", "schema_id", "payload"), names, strict=True):
                if name.lower() in Bronze.COLUMNS or len({n.lower() for n in names}) < len(names):
                    raise fault(f"envelope.{key}", f"bronze has a column {name!r} of its own; give the envelope others")
        if self.shared_table is not None:
            for key, engine in self.tables.each("engine").items():
                if engine == "spark":
                    raise fault(key, "a wide table is written by engine task only")

    @property
    def holds_changes(self) -> bool:
        """Are its records change events? Then a source table has a log table and a merged one, in place of a route's
        one table."""
        return self.source.reads_files

    @property
    def change_files(self) -> DatastreamSource:
        """The source of a pipeline of change files (`source.reads_files`)."""
        assert isinstance(self.source, DatastreamSource)
        return self.source

    @property
    def is_declarative(self) -> bool:
        """Does Spark run it as a declarative pipeline, with datasets in place of a stream of ours?"""
        return self.layout == "declarative"

    @property
    def reads_keys(self) -> bool:
        """Are the records' keys read?"""
        return self.source.record_key is not None or self.envelope.route.place == "key"

    @property
    def bronze_table(self) -> str | None:
        """The table by way of which messages come, where the layout has one: hop 1 fills it, the stream reads it."""
        return self.bronze_path if self.layout == "two_hop" else None

    @property
    def shared_table(self) -> str | None:
        """The one table of all routes, where the layout has one."""
        return self.wide_path if self.layout == "wide" else None

    @property
    def bronze_path(self) -> str:
        """Folder of the bronze table of `layout: two_hop`: the same for all of the pipeline's streams."""
        return (self.bronze.path or f"{self.tables.root}/_bronze/{self.pipeline}").rstrip("/")

    @property
    def wide_path(self) -> str:
        """Folder of the table of `layout: wide`."""
        return f"{self.tables.root}/{self.wide.name}"

    @property
    def envelope_subject(self) -> str | None:
        """The registry subject of the envelope's schema: `envelope.subject`, or `<topic>-value` of a single topic. None
        also where there is no envelope."""
        if self.envelope.format == "none":
            return None
        if self.envelope.subject is None and len(self.source.topics) == 1:
            return f"{self.source.topics[0]}-value"
        return self.envelope.subject

    @property
    def state_root(self) -> str:
        """Folder of the ledger, the quarantine, plans and, unless set apart, the checkpoint."""
        return (self.state or f"{self.tables.root}/_distributary/{self.pipeline}").rstrip("/")

    @property
    def state_folder(self) -> StateFolder:
        """`state_root`, with the places in it."""
        return StateFolder(self.state_root)

    @property
    def whole_state(self) -> str:
        """`state_root` of the whole pipeline: what its streams share lies there."""
        return self.whole.state_root

    @property
    def whole(self) -> Self:
        """The pipeline that this is one stream of; itself where it is no part of another."""
        return self._whole or self

    @property
    def checkpoint_path(self) -> str:
        """Folder of the streaming query's checkpoint."""
        return self.checkpoint or self.state_folder.checkpoint

    @property
    def share(self) -> Share | None:
        """The share of the routes that this process takes; None for all of them."""
        return self._share

    def for_share(self, share: Share) -> Self:
        """This pipeline for one share: with a state (ledger, quarantine, checkpoint) of its own, below this one's."""
        folder = f"{StateFolder.shares.name}/{share.generation}/{share.name}"
        checkpoint = None if self.checkpoint is None else f"{self.checkpoint.rstrip('/')}/{folder}"
        found = self.model_copy(update={"state": f"{self.state_root}/{folder}", "checkpoint": checkpoint})
        found._whole = self.whole
        found._share = share
        return found

    @property
    def relative_folders(self) -> tuple[str, ...]:
        """Keys of folders that the pipeline file gives from the working folder; their values here are absolute."""
        return self._relative

    def check_portable(self, file: str) -> None:
        """For a copy of the pipeline file that goes elsewhere. Raises ConfigError: it holds a secret itself."""
        if found := literal_secrets(self.model_dump(), self._references):
            detail = "the file goes along as it is, with the secret in it: write ${databricks:SCOPE/KEY} or ${env:NAME}"
            raise ConfigError(file=file, key=", ".join(found), detail=detail)

    def as_dict_masked(self) -> dict[str, Any]:
        """All keys with their values, for printing: a value from a reference as the reference, a secret as stars."""
        masked: dict[str, Any] = _masked(self.model_dump(mode="json"), (), self._references)
        return masked


def _is_given(model: Model, key: str) -> bool:
    return bool(getattr(model, key) != type(model).model_fields[key].get_default())


def _masked(value: Any, path: KeyPath, references: dict[KeyPath, str]) -> Any:
    if path in references:
        return references[path]
    if isinstance(value, dict):
        return {key: _masked(item, (*path, key), references) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, (*path, index), references) for index, item in enumerate(value)]
    return MASK if isinstance(value, str) and looks_secret(path) else value
