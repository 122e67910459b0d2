"""Keys that say what a payload is."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Text


class Payload(Model):
    format: Literal["protobuf", "avro", "bytes", "text", "json"] = Field(
        default="protobuf",
        description="What a payload is. `protobuf`, `avro`, `json`: by the schema of its writer. `bytes`, `text`: as "
        "it is, in one column `value`, without any schema. See docs/payloads.md.",
    )
    framing: Literal["confluent", "none"] = Field(
        default="confluent",
        description="`confluent`: the payload's own header gives its schema id. `none`: the envelope's schema_id does. "
        "Of no meaning for `bytes` and `text`, which are taken whole.",
    )
    message: Text | None = Field(
        default=None, description="The message by full name, where framing is none; else the first."
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
        return self

    @property
    def has_schema(self) -> bool:
        """Does a payload need the schema of its writer?"""
        return self.format not in ("bytes", "text")

    @property
    def is_framed(self) -> bool:
        """Does a payload alone tell how it is read: by its header, or since it needs no schema?"""
        return self.framing == "confluent" or not self.has_schema
