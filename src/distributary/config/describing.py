"""Keys that say what a table is like for its readers, from its creation on: of all tables, by pattern, of one route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from distributary.config.base import Model
from distributary.config.quantities import Option, Text

ROUTE = "{route}"
"""In a table's comment: the route."""


class Describing(Model):
    comment: Text | None = Field(
        default=None,
        description="The table's comment, given when it is created; `{route}` in it is the route. Later on it is "
        "people's: `COMMENT ON TABLE` changes it.",
    )
    column_comments: dict[str, Text] = Field(
        default={},
        description="Comments of columns, given when a column is made; of a field inside a struct by its path, as "
        "`player.name`. They go before the comments that the schema has (docs/tables.md).",
    )
    properties: dict[str, Option] = Field(
        default={}, description="Delta table properties, set when a table is created."
    )
    partition_by: list[Text] | None = Field(
        default=None,
        description="The columns that a table is partitioned by when it is created, in this order. Spark writes such a "
        "table.",
    )
    cluster_by: Annotated[list[Text], Field(max_length=4)] | None = Field(
        default=None,
        description="The columns of Delta's liquid clustering, given when a table is created. Spark writes such a "
        "table; `OPTIMIZE` clusters it.",
    )


class Pattern(Describing):
    routes: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Which routes these settings are of, by patterns with `*`, `?` and `[ab]`."
    )

    def takes(self, route: str) -> bool:
        return any(fnmatchcase(route, pattern) for pattern in self.routes)


@dataclass(frozen=True)
class Description:
    """What a route's table gets when it is made. `column_comments`: by the column's path."""

    comment: str | None = None
    column_comments: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()


def description_of(route: str, layers: Iterable[Describing]) -> Description:
    """`layers`: what is said of the route, from the most common to its own; a later one counts where both speak."""
    comment, comments, properties = None, dict[str, str](), dict[str, str]()
    partition_by: list[str] = []
    cluster_by: list[str] = []
    for layer in layers:
        comment = comment if layer.comment is None else layer.comment
        comments |= layer.column_comments
        properties |= layer.properties
        partition_by = partition_by if layer.partition_by is None else layer.partition_by
        cluster_by = cluster_by if layer.cluster_by is None else layer.cluster_by
    comment = None if comment is None else comment.replace(ROUTE, route)
    return Description(comment, comments, properties, tuple(partition_by), tuple(cluster_by))
