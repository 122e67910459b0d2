"""The pipeline file as a whole, and the keys that say how it runs.

The models' descriptions are the text of docs/configuration.md and docs/pipeline.schema.json.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Duration, Option, Text
from distributary.config.reading import Envelope, KafkaSource, Payload, RegistryConfig, Source
from distributary.config.secrets import MASK, KeyPath, looks_secret
from distributary.config.writing import Quarantine, Tables
from distributary.errors import NotYet


class Trigger(Model):
    mode: Literal["every", "once", "continuous"] = Field(
        default="every",
        description="`every`: a batch each interval. `once`: what is there, then end. `continuous`: batch after batch. "
        "`trigger: once` is short for `trigger: {mode: once}`.",
    )
    every: Duration = Field(default=10.0, description="The interval: `10 seconds`, `500 ms`, or a number of seconds.")


class Spark(Model):
    master: Text | None = Field(
        default=None, description="Spark master, as `local[4]`; without it, that of the environment."
    )
    conf: dict[str, Option] = Field(default={}, repr=False, description="Spark settings, over the product's own.")


class Pipeline(Model):
    """One pipeline file. Build it with `load`, or directly; both check the same rules.

    Raises:
        NotYet: a source, layout or payload format that is planned but not there.
    """

    PLANNED_SOURCES: ClassVar = ("files", "datastream")
    PLANNED_LAYOUTS: ClassVar = ("two_hop", "wide", "declarative")
    PLANNED_PAYLOADS: ClassVar = ("avro", "json")

    pipeline: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64, description="Name: a-z, 0-9, _ and -, at most 64 characters."
    )
    source: Source = Field(description="Where the stream comes from; `type` decides the other keys.")
    registry: RegistryConfig | None = Field(
        default=None, description="The schema registry; required for protobuf payloads."
    )
    envelope: Envelope = Field(default=Envelope(), description="The outer message.")
    payload: Payload = Field(default=Payload(), description="The inner message, one row of a table.")
    layout: Literal["fanout", "two_hop", "wide", "declarative"] = Field(
        default="fanout", description="`fanout`: source to all tables in one hop. The others are not available yet."
    )
    tables: Tables = Field(description="The tables that are written.")
    quarantine: Quarantine = Field(default=Quarantine(), description="When too many bad rows stop the stream.")
    trigger: Trigger = Field(default=Trigger(), description="When a batch begins.")
    state: Text | None = Field(
        default=None,
        description="Folder of ledger, quarantine and plans; without it `<tables.root>/_distributary/<pipeline>`.",
    )
    checkpoint: Text | None = Field(
        default=None, description="Folder of Spark's checkpoint; without it `<state>/checkpoint`."
    )
    spark: Spark = Field(default=Spark(), description="The Spark session.")

    _references: dict[KeyPath, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _not_yet(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        source, payload = data.get("source"), data.get("payload")
        kind = source.get("type") if isinstance(source, dict) else None
        encoding = payload.get("format") if isinstance(payload, dict) else None
        if kind in cls.PLANNED_SOURCES:
            raise NotYet(what=f"source.type {kind}", available="kafka, delta")
        if data.get("layout") in cls.PLANNED_LAYOUTS:
            raise NotYet(what=f"layout {data['layout']}", available="fanout")
        if encoding in cls.PLANNED_PAYLOADS:
            raise NotYet(what=f"payload.format {encoding}", available="protobuf")
        return data

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
        if self.registry is None:
            raise fault("registry", "protobuf payloads need a registry: give url (a server) or path (embedded)")
        bare = self.envelope.format == "protobuf" and self.envelope.framing == "none"
        if bare and self.envelope.proto is None and self.envelope_subject is None:
            raise fault("envelope.proto", "a bare envelope (framing none) needs its schema: give proto or subject")
        return self

    @property
    def envelope_subject(self) -> str | None:
        """The registry subject of the envelope's schema: `envelope.subject`, or `<topic>-value` of a single topic."""
        if self.envelope.subject is None and isinstance(self.source, KafkaSource) and len(self.source.topics) == 1:
            return f"{self.source.topics[0]}-value"
        return self.envelope.subject

    @property
    def state_root(self) -> str:
        """Folder of the ledger, the quarantine, plans and, unless set apart, the checkpoint."""
        return (self.state or f"{self.tables.root}/_distributary/{self.pipeline}").rstrip("/")

    @property
    def checkpoint_path(self) -> str:
        """Folder of the streaming query's checkpoint."""
        return self.checkpoint or f"{self.state_root}/checkpoint"

    def as_dict_masked(self) -> dict[str, Any]:
        """All keys with their values, for printing: a value from a reference as the reference, a secret as stars."""
        masked: dict[str, Any] = _masked(self.model_dump(mode="json"), (), self._references)
        return masked


def _masked(value: Any, path: KeyPath, references: dict[KeyPath, str]) -> Any:
    if path in references:
        return references[path]
    if isinstance(value, dict):
        return {key: _masked(item, (*path, key), references) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, (*path, index), references) for index, item in enumerate(value)]
    return MASK if isinstance(value, str) and looks_secret(path) else value
