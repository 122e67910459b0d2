"""Keys of the layouts `two_hop` and `wide`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from distributary.config.addresses import Folder
from distributary.config.base import Model, fault
from distributary.config.quantities import BatchSize, CommitTime, Option, Text


class Bronze(Model):
    COLUMNS: ClassVar = (
        "received_at",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "headers",
        "rejected",
        "route_key",
    )
    """Columns that bronze has besides those of the envelope."""

    path: Folder | None = Field(
        default=None, description="Folder of the bronze table; without it `<tables.root>/_bronze/<pipeline>`."
    )
    properties: dict[str, Option] = Field(
        default={},
        description="Delta table properties, set when bronze is created: `delta.logRetentionDuration` and "
        "`delta.deletedFileRetentionDuration` must be longer than hop 2 may be down.",
    )
    new_checkpoint: Literal["refuse", "continue"] = Field(
        default="refuse",
        description="What hop 1 does over a bronze table with rows when its checkpoint is gone or a new one. `refuse`: "
        "end with an error. `continue`, from Kafka only: go on where bronze ends, by its offsets.",
    )
    starting_version: int | None = Field(
        default=None, ge=0, description="Bronze version where hop 2's first run begins; without it, all rows."
    )
    starting_timestamp: CommitTime | None = Field(
        default=None, description="Hop 2's first run begins with the commits since: `2026-01-31 12:00:00`."
    )
    max_files_per_batch: int | None = Field(
        default=None,
        ge=1,
        description="The most bronze files in one batch of hop 2; hop 1 adds one per route and batch. Spark's: 1,000.",
    )
    max_bytes_per_batch: BatchSize | None = Field(
        default=None, description="About the most bytes of bronze files in one batch of hop 2."
    )
    skip_change_commits: bool = Field(
        default=False,
        description="Hop 2 steps over commits that delete or rewrite bronze's rows (GDPR deletes) in place of failing. "
        "Such a delete must be repeated in the tables.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise fault("starting_timestamp", "give starting_version or starting_timestamp, not both")
        return self


class Wide(Model):
    name: Text = Field(
        default="wide",
        pattern=r"^[a-z0-9][a-z0-9_]*$",
        max_length=100,
        description="The wide table's name: its folder below tables.root, and its name in tables.database. Views are "
        "named by tables.name.",
    )
