"""Gold: how many events each player has, and the first and last of them; per route and over all routes.

Persisted views by default. A materialized view is emptied when its refresh begins and filled when it ends, in commits
of their own, and stays empty when the refresh fails; a view has neither moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets
from distributary.declarative.known_routes import KnownRoutes
from distributary.names import literal, quoted
from distributary.tables.snapshot import Owner

COUNT, FIRST, LAST = "events", "first_event", "last_event"


@dataclass(frozen=True)
class Gold:
    """Gold of one route. `player`, `time`: columns of its silver table, quoted paths. `kinds`: their types."""

    datasets: Datasets
    route: str
    name: str
    silver: str
    player: str
    time: str
    alias: str
    kinds: tuple[Any, Any]

    def sql(self) -> str:
        return (
            f"SELECT {self.player} AS {quoted(self.alias)}, count(*) AS {COUNT}, min({self.time}) AS {FIRST}, "
            f"max({self.time}) AS {LAST} FROM {self.datasets.sql(self.silver)} GROUP BY {self.player}"
        )


@dataclass(frozen=True)
class GoldPlan:
    """Gold of all routes. `casts`: types of player and time over all routes, where they differ."""

    pipeline: str
    unified: str
    golds: tuple[Gold, ...]
    problems: tuple[str, ...] = ()

    def materialized(self) -> dict[str, dict[str, Any]]:
        """The columns and types of all gold datasets, where they are tables."""
        columns_of = {
            g.name: {g.alias: g.kinds[0], COUNT: pa.int64(), FIRST: g.kinds[1], LAST: g.kinds[1]} for g in self.golds
        }
        for gold in self.golds[:1]:
            player, time = (pa.string() if text else kind for text, kind in zip(self._texts(), gold.kinds, strict=True))
            route = {"route": pa.string(), gold.alias: player}
            columns_of[self.unified] = {**route, COUNT: pa.int64(), FIRST: time, LAST: time}
        return columns_of

    def _texts(self) -> list[bool]:
        """Do routes differ in the type of the player, or of the time?"""
        return [len({g.kinds[n] for g in self.golds}) > 1 for n in (0, 1)]

    def columns(self) -> list[str]:
        """The columns of every gold dataset, for the union: as text where routes differ in a type."""
        if not self.golds:
            return []
        texts = self._texts()
        names = [quoted(self.golds[0].alias), COUNT, FIRST, LAST]
        as_text = [texts[0], False, texts[1], texts[1]]
        return [
            f"CAST({name} AS STRING) AS {name}" if text else name for name, text in zip(names, as_text, strict=True)
        ]

    def unified_sql(self) -> str:
        columns = ", ".join(self.columns())
        return " UNION ALL ".join(
            f"SELECT {literal(g.route)} AS route, {columns} FROM {g.datasets.sql(g.name)}" for g in self.golds
        )


def plan(config: Pipeline, known_routes: KnownRoutes, datasets: Datasets) -> GoldPlan:
    """Gold for every route that has the columns for it."""
    section = config.declarative
    golds: list[Gold] = []
    problems: list[str] = []
    for route in known_routes.routes.values() if section.gold_as != "none" else ():
        kinds = [_kind(route.columns, path.split(".")) for path in (section.player, section.time)]
        missing = [p for p, kind in zip((section.player, section.time), kinds, strict=True) if kind is None]
        if missing:
            problems.append(f"{route.route}: no gold, for its schemas have no field {' and no field '.join(missing)}")
            continue
        player, time = (".".join(map(quoted, path.split("."))) for path in (section.player, section.time))
        golds.append(
            Gold(
                datasets,
                route.route,
                datasets.gold(route.route),
                datasets.silver(route.route),
                player,
                time,
                section.player.replace(".", "_"),
                (kinds[0], kinds[1]),
            )
        )
    return GoldPlan(config.pipeline, datasets.unified, tuple(golds), tuple(problems))


def materialized(spark: SparkSession, plan: GoldPlan) -> None:
    """Register gold as materialized views."""
    for gold in plan.golds:
        _materialize(spark, plan.pipeline, gold)
    if not plan.golds:
        return

    def unified() -> DataFrame:
        frames = [
            spark.read.table(g.name).selectExpr(f"{literal(g.route)} AS route", *plan.columns()) for g in plan.golds
        ]
        return reduce(lambda a, b: a.unionByName(b), frames)

    dp.materialized_view(name=plan.unified, table_properties=Owner(plan.pipeline, "").properties())(unified)


def _materialize(spark: SparkSession, pipeline: str, gold: Gold) -> None:
    def rows() -> DataFrame:
        aggregates = [F.count(F.lit(1)).alias(COUNT), F.min(gold.time).alias(FIRST), F.max(gold.time).alias(LAST)]
        return spark.read.table(gold.silver).groupBy(F.col(gold.player).alias(gold.alias)).agg(*aggregates)

    dp.materialized_view(name=gold.name, table_properties=Owner(pipeline, gold.route).properties())(rows)


def _kind(columns: Iterable[pa.Field], path: Sequence[str]) -> Any:
    """Type of the field at `path`; None where there is none."""
    for field in columns:
        if field.name == path[0]:
            if len(path) == 1:
                return field.type
            return _kind(list(field.type), path[1:]) if pa.types.is_struct(field.type) else None
    return None
