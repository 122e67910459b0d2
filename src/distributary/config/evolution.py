"""Keys that say what a change of schema does to a table's columns."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import Field, model_validator

from distributary.config.base import Model
from distributary.config.quantities import Size

NewColumn: TypeAlias = Literal["add", "quarantine", "freeze"]
TypeChange: TypeAlias = Literal["widen", "type_widening", "new_column", "quarantine", "freeze"]

SHORT_EVOLUTION: dict[str, dict[str, str]] = {
    "merge": {"new_column": "add", "type_change": "widen"},
    "overwrite": {"new_column": "add", "type_change": "new_column"},
    "none": {"new_column": "freeze", "type_change": "freeze"},
}
"""One word for both rules, as other connectors name them."""


class Evolution(Model):
    new_column: NewColumn = Field(
        default="add",
        description="A field without a column: add the column; `quarantine` the rows that have a value in it; or "
        "`freeze`: the same, for tables whose columns are never to change (reason FROZEN_COLUMN).",
    )
    type_change: TypeChange = Field(
        default="widen",
        description="A field of another type than its column. `widen`: where no value is lost, the column gets the "
        "wider type and the table's files are written anew, so that every reader can open it; else, and for a table "
        "above rewrite_up_to, as new_column. `type_widening`: the same by Delta's feature of that name, which writes "
        "nothing anew, makes Spark the table's writer, and shuts out most readers but Spark. `new_column`: a second "
        "column (`score__string`). `quarantine` the rows that have a value in it. `freeze`: values that fit the "
        "column's type are written, rows with others are quarantined.",
    )
    rewrite_up_to: Size = Field(
        default=2**30, description="The largest table that `widen` writes anew, by the size of its files."
    )
    max_columns: int = Field(
        default=20_000,
        ge=1,
        description="The most columns of a table, those inside of structs counted. A schema that would bring more adds "
        "none; rows that have a value in one of those are quarantined (reason TOO_MANY_COLUMNS).",
    )

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in SHORT_EVOLUTION:
            raise ValueError("allowed: 'merge', 'overwrite', 'none', or keys as in {new_column: add}")
        return SHORT_EVOLUTION[value]


class EvolutionOverride(Model):
    new_column: NewColumn | None = Field(default=None, description="In place of tables.evolution.new_column.")
    type_change: TypeChange | None = Field(default=None, description="In place of tables.evolution.type_change.")
    rewrite_up_to: Size | None = Field(default=None, description="In place of tables.evolution.rewrite_up_to.")
    max_columns: int | None = Field(default=None, ge=1, description="In place of tables.evolution.max_columns.")
