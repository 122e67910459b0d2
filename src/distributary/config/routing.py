"""Keys that say where a record's route comes from."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Text


class RouteFrom(Model):
    """Exactly one key."""

    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=False)

    place: Literal["topic", "key", "message_type"] | None = Field(
        default=None,
        alias="from",
        description="`topic`: the topic's name. `key`: the record's key, as text. `message_type`: the full name of the "
        "message that the record's header names, for several types in one topic.",
    )
    header: Text | None = Field(
        default=None, description="The record's header of that name, as text; of several, the last."
    )
    constant: Text | None = Field(default=None, description="All records have this one route.")
    field: Text | None = Field(
        default=None,
        description="A field (or column) by its path, as `meta.event_type`; `route: PATH` is short.",
    )
    oneof: Text | None = Field(
        default=None,
        description="A oneof of the message, by its path: the route is the name of the member that is set, and the row "
        "is what the member holds.",
    )
    any: Text | None = Field(
        default=None,
        description="A field `google.protobuf.Any` of the message, by its path: the route is its type's full name, and "
        "the row is its value. The type must be part of the schema, by an import.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        keys_given = self.model_dump(exclude_none=True)
        if len(keys_given) != 1:
            keys = ", ".join(keys_given) or "none"
            raise fault("from", f"give exactly one of from, header, constant, field, oneof, any; given: {keys}")
        for key in ("field", "oneof", "any"):
            path = getattr(self, key)
            if path is not None and not all(path.split(".")):
                raise fault(key, "allowed: names with dots between them, as in meta.event_type")
        return self

    @property
    def of_record(self) -> bool:
        """Is it known before anything of the record is read?"""
        return self.place in ("topic", "key") or self.header is not None or self.constant is not None

    @property
    def of_message(self) -> bool:
        """Does the message itself say it, so that it must be the payload?"""
        return self.place == "message_type" or self.oneof is not None or self.any is not None
