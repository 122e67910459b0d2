"""The pipeline file as a whole, and the keys that say how it runs.

The models' descriptions are the text of docs/configuration.md and docs/pipeline.schema.json.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from distributary.config.addresses import Folder
from distributary.config.base import Model, fault, is_given
from distributary.config.databricks import Databricks
from distributary.config.declarative import Declarative
from distributary.config.file_sources import ChangeFilesSource
from distributary.config.layouts import Bronze, Wide
from distributary.config.operating import Grant, Maintenance, Metrics, Notices
from distributary.config.payload import Payload
from distributary.config.quantities import REFERENCE, Database, Duration, Option, Text
from distributary.config.reading import (
    Envelope,
    RegistryConfig,
)
from distributary.config.secrets import KeyPath, literal_secrets, looks_secret
from distributary.config.sources import Source
from distributary.config.state_folder import StateFolder
from distributary.config.together import check_together
from distributary.config.writing import Place, Quarantine, Tables
from distributary.errors import ConfigError, NotYet
from distributary.redaction import MASK
from distributary.shares import Share

_MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[[\d, ]+\]|yarn|(spark|k8s)://.+")
_OF_SPARK = frozenset(
    ("driver", "executor", "sql", "jars", "hadoop", "shuffle", "memory", "dynamicAllocation", "cores", "network", "ui")
)
"""What Spark's settings begin with, once `spark.` is left out."""


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

    def ends(self, once: bool) -> bool:
        """Whether a run takes what is there, then ends. `once`: its caller asks for that, whatever the file says."""
        return once or self.mode == "once"


class Spark(Model):
    master: Text | None = Field(
        default=None, description="Spark master, as `local[4]`; without it, that of the environment."
    )
    conf: dict[str, Option] = Field(default={}, repr=False, description="Spark settings, over the product's own.")

    @field_validator("master")
    @classmethod
    def _check_master(cls, master: str | None) -> str | None:
        if master is not None and not _MASTER.fullmatch(master) and not REFERENCE.fullmatch(master):
            raise ValueError("allowed: local[4], local[*], spark://host:7077, yarn, k8s://https://host:6443")
        return master

    @field_validator("conf")
    @classmethod
    def _check_prefix(cls, conf: dict[str, str]) -> dict[str, str]:
        if key := next((key for key in conf if key.partition(".")[0] in _OF_SPARK), None):
            raise ValueError(f"Spark passes over {key!r}: write {f'spark.{key}'!r}")
        return conf


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
    state_database: Database | None = Field(
        default=None,
        description="Make ledger, quarantine and bronze known by name here: `db`, `catalog.db`. See docs/unity.md.",
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
    _all_shares: Self | None = PrivateAttr(default=None)
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
        if value not in ("none", "debezium", "maxwell", "openlogreplicator"):
            raise ValueError(
                "allowed: 'none', 'debezium', 'maxwell', 'openlogreplicator', or keys as in {format: protobuf, route: "
                "game_name}"
            )
        return {"format": value}

    @field_validator("trigger", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if isinstance(value, dict | Trigger):
            return value
        if value not in ("once", "continuous"):
            raise ValueError("allowed: 'once', 'continuous', or an interval as in {every: 10 seconds}")
        return {"mode": value}

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_together(self)
        self._tell_places()
        return self

    def _tell_places(self) -> None:
        """Folders besides `tables.root` that credentials are needed for; a checkpoint elsewhere is Spark's, which has a
        way of its own."""
        folders = [self.state_root, self.bronze_path if self.layout == "two_hop" else None]
        places: list[Place] = [(path, "PATH_READ_WRITE") for path in folders if path]
        if self.source.address is not None:
            places.append((self.source.address, "PATH_READ"))
        root = self.tables.root
        if self.checkpoint and not any(_is_below(self.checkpoint, path) for path, _ in places):
            places.append((self.checkpoint, None))
        self.tables.with_places((path, use) for path, use in places if "://" in path and not _is_below(path, root))

    @property
    def holds_changes(self) -> bool:
        """Are its records change events? Then a source table has a log table and a merged one, in place of a route's
        one table."""
        return self.source.reads_files

    @property
    def change_files(self) -> ChangeFilesSource:
        """The source of a pipeline of change files (`source.reads_files`)."""
        assert isinstance(self.source, ChangeFilesSource)
        return self.source

    @property
    def holds_rows(self) -> bool:
        """Are the source's rows those of the tables already, without a message in them?"""
        return self.source.is_given and "payload" not in self.model_fields_set

    @property
    def is_declarative(self) -> bool:
        """Does Spark run it as a declarative pipeline, with datasets in place of a stream of ours?"""
        return self.layout == "declarative"

    @property
    def is_fanout(self) -> bool:
        return self.layout == "fanout"

    @property
    def reads_keys(self) -> bool:
        """Are the records' keys read?"""
        named = self.source.record_key is not None or self.envelope.route.place == "key"
        return named or self.envelope.is_debezium

    @property
    def optional_columns(self) -> frozenset[str]:
        """Columns that rows of the source may lack; they are null then. Of payloads that say their schema themselves,
        or have none, that is the envelope's schema id, unless the pipeline file names a column for it."""
        envelope = self.envelope
        may_lack = envelope.format == "columns" and self.payload.is_framed and not is_given(envelope, "schema_id")
        return frozenset({envelope.schema_id} if may_lack else ())

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
        also where there is no envelope, or one without a schema."""
        if self.envelope.format in ("none", "json"):
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
        return self.all_shares.state_root

    @property
    def all_shares(self) -> Self:
        """The pipeline that this is one stream of; itself where it is no part of another."""
        return self._all_shares or self

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
        copy = self.model_copy(update={"state": f"{self.state_root}/{folder}", "checkpoint": checkpoint})
        copy._all_shares = self.all_shares
        copy._share = share
        return copy

    @property
    def relative_folders(self) -> tuple[str, ...]:
        """Keys of folders that the pipeline file gives from the working folder; their values here are absolute."""
        return self._relative

    def check_portable(self, file: str) -> None:
        """For a copy of the pipeline file that goes elsewhere. Raises ConfigError: it holds a secret itself."""
        if secrets := literal_secrets(self.model_dump(), self._references):
            detail = "the file goes along as it is, with the secret in it: write ${databricks:SCOPE/KEY} or ${env:NAME}"
            raise ConfigError(file=file, key=", ".join(secrets), detail=detail)

    def as_dict_masked(self) -> dict[str, Any]:
        """All keys with their values, for printing: a value from a reference as the reference, a secret as stars."""
        masked: dict[str, Any] = _masked(self.model_dump(mode="json"), (), self._references)
        return masked


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _masked(value: Any, path: KeyPath, references: dict[KeyPath, str]) -> Any:
    if path in references:
        return references[path]
    if isinstance(value, dict):
        return {key: _masked(item, (*path, key), references) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, (*path, index), references) for index, item in enumerate(value)]
    return MASK if isinstance(value, str) and looks_secret(path) else value
