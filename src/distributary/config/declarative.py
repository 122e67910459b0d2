"""Keys of `layout: declarative`: the datasets of the pipeline, and the user's own files beside them."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from distributary.config.base import Model, fault
from distributary.config.quantities import Text
from distributary.names import check_template, rules_of


class Declarative(Model):
    bronze: Text = Field(
        default="bronze",
        description="Name of the bronze table, partitioned by route: every record with its bytes, set aside or not.",
    )
    bronze_as: Literal["table"] = Field(
        default="table", description="Always `table`: see docs/declarative.md for what is lost and doubled by a view."
    )
    silver: Text = Field(
        default="silver_{route}_events", description="Name of a route's silver table; must hold {route} once."
    )
    silver_as: Literal["table", "sink"] = Field(
        default="table",
        description="`table`: a streaming table of Spark's for each route. `sink`: one flow for all routes, which "
        "writes the same tables: an update is two queries then, however many games there are. See docs/declarative.md.",
    )
    gold: Text = Field(
        default="gold_{route}_player_agg",
        description="Name of a route's gold dataset; must hold {route} once.",
    )
    gold_as: Literal["view", "materialized_view", "none"] = Field(
        default="view",
        description="`view`: computed when it is read, never empty and never stale. `materialized_view`: computed by "
        "each update; its readers see no rows while it is being refreshed. `none`: no gold.",
    )
    unified: Text = Field(default="unified_gold", description="Name of the gold dataset over all routes.")
    quarantine: Text = Field(default="quarantine", description="Name of the view of the rows that are set aside.")
    player: Text = Field(default="user_name", description="Column by which gold counts.")
    time: Text = Field(
        default="event_timestamp", description="Column of which gold keeps the first and the last value."
    )
    subject: Text | None = Field(
        default="{route}-value",
        description="Registry subject of a route's schemas. Routes whose subject is there have their tables from the "
        "start; others one update after their first record. `null`: all of them so.",
    )
    libraries: list[Text] = Field(
        default=[],
        description="Your own definitions beside these: files (`.py`, `.sql`), or folders as `folder/**`. Relative "
        "paths count from the pipeline file's folder.",
    )

    silver_flow: ClassVar = "silver"
    """With `silver_as: sink`: the name of the flow into all silver tables."""

    @field_validator("bronze_as", mode="before")
    @classmethod
    def _check_bronze_as(cls, kind: object) -> object:
        if kind == "view":
            raise ValueError(
                "allowed: table. Over a view each table would read the source for itself, and rows whose schema is "
                "registered meanwhile would be lost, or be in silver and in quarantine (docs/declarative.md)"
            )
        return kind

    @field_validator("silver", "gold")
    @classmethod
    def _check_names(cls, template: str) -> str:
        check_template(template)
        if rules_of(template):
            raise ValueError("rules are not allowed here, by which two routes could meet: give {route} without them")
        return template

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, template: str | None) -> str | None:
        if template is not None and template.count("{route}") != 1:
            raise ValueError("must hold {route} exactly once, as in '{route}-value'")
        return template

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.silver == self.gold:
            raise fault("gold", "silver and gold need different names")
        if self.silver_as == "sink" and self.gold_as == "materialized_view":
            detail = "allowed with silver_as: sink: view, none. Spark would not wait for silver before it computes them"
            raise fault("gold_as", detail)
        single = [self.bronze, self.unified, self.quarantine]
        if len(set(single)) < len(single):
            raise fault("unified", "bronze, unified and quarantine need different names")
        if self.silver_as == "sink" and self.silver_flow in single:
            raise fault("silver_as", f"the name {self.silver_flow!r} is that of the flow: give the dataset another")
        return self
