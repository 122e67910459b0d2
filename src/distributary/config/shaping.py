"""Keys that say what a row should be, and which columns are written."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from distributary.config.base import Model
from distributary.config.quantities import Text


class Expectation(Model):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_ -]*$", max_length=100)] = Field(
        description="What it is called in the ledger and in the quarantine."
    )
    that: Text = Field(
        description="A condition in SQL over the fields of a message, as `score >= 0`. A row breaks it where it is "
        "false; null is not false, and a field that a schema version lacks is null."
    )
    otherwise: Literal["warn", "drop", "fail"] = Field(
        default="warn",
        description="What becomes of a row that breaks it. `warn`: it is written and counted. `drop`: it goes to the "
        "quarantine. `fail`: its table is not written until the cause is fixed; other tables go on.",
    )


SelectList: TypeAlias = Annotated[list[Text], Field(min_length=1)]
