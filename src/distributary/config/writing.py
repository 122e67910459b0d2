"""Keys that say what is written: tables, their evolution, the quarantine."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field, SecretStr, field_validator

from distributary.config.base import Model
from distributary.config.quantities import Duration, Option, Text
from distributary.names import check_template

Engine: TypeAlias = Literal["auto", "task", "spark"]
NewColumn: TypeAlias = Literal["add", "quarantine", "freeze"]
TypeChange: TypeAlias = Literal["widen", "new_column", "quarantine", "freeze"]


class Evolution(Model):
    new_column: NewColumn = Field(
        default="add",
        description="A field without a column: add the column; `quarantine` the rows that have a value in it; or "
        "`freeze`: the same, for tables whose columns are never to change (reason FROZEN_COLUMN).",
    )
    type_change: TypeChange = Field(
        default="widen",
        description="A field of another type than its column: widen the column where no value is lost (else as "
        "new_column), write to a second column (`score__string`), `quarantine` the rows that have a value in it, or "
        "`freeze`: values that fit the column's type are written, rows with others are quarantined.",
    )


class EvolutionOverride(Model):
    new_column: NewColumn | None = Field(default=None, description="In place of tables.evolution.new_column.")
    type_change: TypeChange | None = Field(default=None, description="In place of tables.evolution.type_change.")


class RouteOverride(Model):
    engine: Engine | None = Field(default=None, description="The engine of this route's table.")
    evolution: EvolutionOverride | None = Field(
        default=None, description="What a change of schema does to this route's table."
    )


class Tables(Model):
    root: Text = Field(description="Folder of the tables; each table is a folder below it.")
    name: Text = Field(default="{route}", description="Table name; must hold {route} once. The rest: a-z, 0-9, _.")
    engine: Engine = Field(
        default="auto",
        description="`task`: written inside Spark's tasks by delta-rs. `spark`: by Spark's Delta writer, a job each. "
        "`auto`: task, and spark for tables whose protocol needs it.",
    )
    evolution: Evolution = Field(default=Evolution(), description="What a change of schema does to a table.")
    routes: dict[str, RouteOverride] = Field(
        default={}, description="Settings of single routes, by the route as it is sent."
    )
    origin: bool = Field(
        default=True, description="Each table gets one struct column that tells where a row came from."
    )
    database: Text | None = Field(default=None, description="Register the tables by name here: `db` or `catalog.db`.")
    storage_options: dict[str, SecretStr] = Field(
        default={}, description="Settings and credentials of the store for the task engine, as delta-rs names them."
    )
    properties: dict[str, Option] = Field(
        default={}, description="Delta table properties, set when a table is created."
    )
    retry_after: Duration = Field(
        default=60.0, description="First retry of a parked table; the wait doubles with each, up to 1 hour."
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, template: str) -> str:
        check_template(template)
        return template

    @field_validator("root")
    @classmethod
    def _strip_root(cls, root: str) -> str:
        return root.rstrip("/") or "/"

    def for_route(self, route: str) -> tuple[Engine, Evolution]:
        """The engine and the evolution rules of `route` (as it is sent): its own, where given, over the common ones."""
        own = self.routes.get(route)
        if own is None:
            return self.engine, self.evolution
        given = own.evolution.model_dump(exclude_none=True) if own.evolution else {}
        return own.engine or self.engine, self.evolution.model_copy(update=given)


class Quarantine(Model):
    max_ratio: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="A batch with a larger share of bad rows stops the stream once it is written.",
    )
    min_rows: int = Field(default=100, ge=0, description="A batch with fewer rows never trips max_ratio.")
    max_bad_batches: int | None = Field(
        default=None, ge=1, description="More consecutive batches than this with any bad row stop the stream."
    )
