"""Keys that say what a payload is."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from distributary.config.base import Model, fault
from distributary.config.column_types import check_columns
from distributary.config.quantities import Text


class Payload(Model):
    format: Literal["protobuf", "avro", "bytes", "text", "json"] = Field(
        default="protobuf",
        description="What a payload is. `protobuf`, `avro`, `json`: by the schema of its writer. `bytes`, `text`: as "
        "it is, in one column `value`, without any schema. See docs/payloads.md.",
    )
    framing: Literal["confluent", "none"] = Field(
        default="confluent",
        description="`confluent`: the payload's own header gives its schema id. `none`: the envelope's schema_id does; "
        "of `json`, there is no schema and no registry. Of no meaning for `bytes` and `text`, which are taken whole.",
    )
    message: Text | None = Field(
        default=None, description="The message by full name, where framing is none; else the first."
    )
    columns: dict[Text, Text] = Field(
        default={},
        description="Columns of JSON without a schema (`framing: none`): the field at a path, as in `meta.at`, and its "
        "type (bigint, double, boolean, string, date, timestamp, timestamp_ntz, binary, json, decimal(p,s), "
        "array<type>, map<string,type>). All other fields are kept in `_undeclared`.",
    )
    types: Literal["declared", "inferred"] = Field(
        default="declared",
        description="Of JSON without a schema. `declared`: only `columns` are columns. `inferred`: all other fields "
        "too, a column for each kind of value (`score__bigint`, `score__string`), so that the same value is always in "
        "the same column. See docs/payloads.md.",
    )
    legacy_varints: bool = Field(
        default=False, description="Message indexes are plain varints, as confluent-kafka-python before 1.8 wrote them."
    )
    raw_nested_indexes: bool = Field(
        default=False, description="Message indexes count map entry types too, as confluent-kafka-python does."
    )
    out_of_range: Literal["null", "reject"] = Field(
        default="reject",
        description="Dates, Timestamps and Durations that no reader can hold (years before 1 or after 9999, nanos out "
        "of 0 to 999,999,999 or of the other sign): the row is quarantined, or the column is null and the row is "
        "counted.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("message", "legacy_varints", "raw_nested_indexes"):
            if self.format != "protobuf" and getattr(self, key) != type(self).model_fields[key].get_default():
                raise fault(key, f"a payload of format {self.format} has no messages: leave it out")
        if self.is_inferred and self.encoding != "json_bare":
            raise fault("types", "allowed with format json and framing none only: a schema says the types itself")
        self._check_columns()
        return self

    def _check_columns(self) -> None:
        if self.columns and self.encoding != "json_bare":
            raise fault("columns", "allowed with format json and framing none only: a schema says the columns itself")
        check_columns(self.columns)

    @property
    def encoding(self) -> str:
        """The name in `schemas.formats.FORMATS`."""
        return "json_bare" if self.format == "json" and self.framing == "none" else self.format

    @property
    def is_inferred(self) -> bool:
        """Do fields have columns that nothing declares?"""
        return self.types == "inferred"

    @property
    def has_schema(self) -> bool:
        """Does a payload need the schema of its writer?"""
        return self.encoding not in ("bytes", "text", "json_bare")

    @property
    def is_framed(self) -> bool:
        """Does a payload alone tell how it is read: by its header, or since it needs no schema?"""
        return self.framing == "confluent" or not self.has_schema
