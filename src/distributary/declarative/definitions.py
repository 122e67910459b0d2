"""The datasets of a declarative pipeline, registered with `pyspark.pipelines`.

    source -> bronze (a verdict per record) -> silver_<route>_events -> gold_<route>_player_agg -> unified_gold
                                            -> quarantine (what bronze has set aside and no replay has taken up)

Only operations that leave the planning to the run are used on the pipeline's own tables: others are resolved when they
are written down, and then a table that exists already is no dependency any more (docs/declarative.md, `lint`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from distributary.config import Pipeline, load
from distributary.declarative.datasets import Datasets, quarantine_sql
from distributary.declarative.gold import materialized
from distributary.declarative.gold import plan as plan_gold
from distributary.declarative.judge import VERDICT_SCHEMA
from distributary.declarative.known_routes import (
    ROUTE_PROPERTY,
    WRITERS_PROPERTY,
    KnownRoutes,
    Route,
    discover,
    write_down,
)
from distributary.declarative.lakeflow import is_lakeflow
from distributary.declarative.libraries import load_function
from distributary.declarative.persisted_views import Columns, View, apart, keep_current, make_way
from distributary.declarative.silver_sink import good_rows, prepare_silver, silver_flow, sink_options
from distributary.declarative.trials import decode_in_task, judge_in_task
from distributary.engine.messages.task_spec import ORIGIN
from distributary.engine.schemas import Schemas, schemas_of
from distributary.errors import TableCollision
from distributary.errors.border import contained
from distributary.names import quoted
from distributary.running.stream import source_stream
from distributary.schemas.row_sql import check_sql
from distributary.sink.sink_options import FORMAT
from distributary.sources.bronze_rows import RECORD_KEY
from distributary.tables.snapshot import Owner
from distributary.tables.spark_engine import ddl

ORIGIN_DDL = {"topic": "string", "partition": "int", "offset": "bigint", "timestamp": "timestamp"}
"""Columns of bronze that say where a record came from; null where the source does not say."""


@dataclass(frozen=True)
class Defined:
    """What was registered. `kinds`: bronze, silver, gold and so on by dataset. `views`: by name. `there`:
    tables and views that were there before. `problems`: in words, what could not be defined."""

    known_routes: KnownRoutes
    kinds: Mapping[str, str]
    views: Mapping[str, View]
    there: Collection[str] = ()
    problems: tuple[str, ...] = ()


def define(file: str | Path, spark: SparkSession) -> Defined:
    """Register all datasets of a pipeline file. `spark`: the session that the definitions file is given.

    Raises ConfigError, and what `register` raises.
    """
    return register(load(file), Path(file).resolve().parent, spark)


def register(
    config: Pipeline,
    base: Path,
    spark: SparkSession,
    *,
    schemas: Schemas | None = None,
    dry: bool = False,
    careful: bool = False,
    refill: bool = False,
) -> Defined:
    """Register all datasets of a pipeline. `base`: the folder of its file. `schemas`: what earlier updates have looked
    up. `dry`: change nothing that is there. `careful`: tasks look for records that end their reader (`trials`).
    `refill`: the silver tables of one flow begin anew.

    Raises SqlInvalid, TableCollision, RegistryDown, RegistryDenied, SourceMissing, StoreUnreadable.
    """
    check_sql(config.tables)
    known_routes = discover(config, schemas or schemas_of(config))
    return _Definitions(config, spark, known_routes, base, careful).register(dry, refill)


class _Definitions:
    def __init__(
        self, config: Pipeline, spark: SparkSession, known_routes: KnownRoutes, base: Path, careful: bool
    ) -> None:
        self.config = config
        self.careful = careful
        self.one_flow = silver_flow(config) is not None
        self.lakeflow = is_lakeflow(config)
        self.base = base
        self.spark = spark
        self.known_routes = known_routes
        self.datasets = Datasets.of(config)
        self.kinds: dict[str, str] = {}
        self.views: dict[str, View] = {}
        self.made_here: set[str] = set()
        """Views over tables that the graph does not have: nothing in it comes before them, and each would be resolved
        in every update."""
        self.materialized: Mapping[str, Columns] = {}
        self.problems: list[str] = []

    def register(self, dry: bool, refill: bool) -> Defined:
        self._bronze()
        if self.one_flow:
            self._silver_sink()
        else:
            for route in self.known_routes.routes.values():
                self._silver(route)
        self._gold()
        present = set() if dry or self.lakeflow else apart(partial(self._prepare, refill))
        return Defined(self.known_routes, self.kinds, self.views, present, tuple(self.problems))

    def _prepare(self, refill: bool) -> set[str]:
        """What Spark's pipelines do not do with tables and views that are there."""
        for change in () if self.one_flow else growth(self.datasets, self.known_routes):
            try:
                self.spark.sql(change)
            except BaseException as e:  # its flow fails by it, and the others go on
                self.problems.append(f"{change}: {contained(e)}")
        present = make_way(self.spark, self.config, self.views, self.materialized)
        if self.one_flow:
            present |= prepare_silver(self.spark, self.config, self.known_routes, present, refill=refill)
        self.problems += keep_current(self.spark, self.config, self.views, present, made_here=self.made_here)
        return present

    def _note(self, name: str, kind: str, route: str | None = None) -> str:
        if name in self.kinds:
            raise TableCollision(route=route, table=name, owner=f"this pipeline's {self.kinds[name]} dataset")
        self.kinds[name] = kind
        return name

    def _bronze(self) -> None:
        # Built out here: what looks at the source's columns may not be called while a dataset is being defined.
        rows = bronze_rows(source_stream(self.spark, self.config), self.config, self.known_routes, self.careful)

        owner = Owner(self.config.pipeline, "").properties()

        @dp.table(name=self._note(self.datasets.bronze, "bronze"), table_properties=owner, partition_cols=["route"])
        def bronze() -> DataFrame:
            return rows

        view = View(quarantine_sql(self.datasets), (self.datasets.bronze,))
        self._view(self._note(self.datasets.quarantine, "quarantine"), view)

    def _silver(self, route: Route) -> None:
        spark, source = self.spark, self.datasets.bronze
        decode = partial(decode_in_task, route=route, read_sec=self.known_routes.reader.read_sec, careful=self.careful)
        properties = {
            **self.config.tables.properties,
            **Owner(self.config.pipeline, route.route).properties(),
            ROUTE_PROPERTY: route.route,
            WRITERS_PROPERTY: write_down(route.slots),
        }
        origin = self.config.tables.origin
        function = load_function(self.config, route.route, self.base)
        name = self._note(self.datasets.silver(route.route), "silver", route.route)

        @dp.table(name=name, table_properties=properties)
        def silver() -> DataFrame:
            rows = silver_rows(spark.readStream.table(source), route, decode, origin)
            return rows if function is None else function(rows)

    def _silver_sink(self) -> None:
        """One flow into all silver tables."""
        spark, source = self.spark, self.datasets.bronze
        for route in self.known_routes.routes:
            self._note(self.datasets.silver(route), "silver", route)
        name = self._note(self.config.declarative.silver_flow, "flow")
        has_keys = self.config.source.record_key is not None
        dp.create_sink(name, FORMAT, sink_options(self.config, self.known_routes, self.careful))

        @dp.append_flow(target=name, name=name)
        def silver() -> DataFrame:
            return good_rows(spark.readStream.table(source), has_keys=has_keys)

    def _gold(self) -> None:
        plan = plan_gold(self.config, self.known_routes, self.datasets)
        self.problems += plan.problems
        for gold in plan.golds:
            self._note(gold.name, "gold", gold.route)
        if plan.golds:
            self._note(self.datasets.unified, "unified gold")
        if self.config.declarative.gold_as == "view" and not self.lakeflow:
            for gold in plan.golds:
                self._view(gold.name, View(gold.sql(), (gold.silver,)), made_here=self.one_flow)
            if plan.golds:
                over = View(plan.unified_sql(), tuple(g.name for g in plan.golds))
                self._view(self.datasets.unified, over, made_here=self.one_flow)
        else:
            self.materialized = plan.materialized()
            materialized(self.spark, plan)

    def _view(self, name: str, view: View, *, made_here: bool = False) -> None:
        """A view that is kept in the catalog: SQL is the only word for one (`dp` has temporary views). Lakeflow has it
        from a file."""
        if self.lakeflow:
            return
        self.views[name] = view
        if made_here:
            self.made_here.add(name)
            return
        # Open-source Spark's own registry, which the documented module does not show.
        from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry

        get_active_graph_element_registry().register_sql(
            f"CREATE VIEW {quoted(name)} AS {view.query}", Path(f"{name}.sql")
        )


def growth(datasets: Datasets, known_routes: KnownRoutes) -> list[str]:
    """Commands that add the new fields of structs to the silver tables.

    Spark's pipelines add columns by themselves, but replace a struct as a whole, which Delta refuses
    (DELTA_CANNOT_UPDATE_STRUCT_FIELD).
    """
    return [
        f"ALTER TABLE {datasets.sql(datasets.silver(r.route))} ADD COLUMNS ({', '.join(added)})"
        for r in known_routes.routes.values()
        if (added := [f"{path} {ddl(kind)}" for path, kind in grown(r.before, r.columns)])
    ]


def grown(before: Iterable[pa.Field] | None, after: Iterable[pa.Field], path: str = "") -> Iterator[tuple[str, Any]]:
    """(path as ALTER TABLE spells it, type) of the fields that are new inside columns that are there."""
    types_before = {f.name: f.type for f in before or ()}
    for new in after:
        column_path = f"{path}{quoted(new.name)}"
        if new.name in types_before:
            yield from _grown(types_before[new.name], new.type, column_path)
        elif path:
            yield column_path, new.type


def _grown(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any]]:
    if old == new:
        return
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        yield from grown(list(old), list(new), f"{path}.")
    elif pa.types.is_list(old) and pa.types.is_list(new):
        yield from _grown(old.value_type, new.value_type, f"{path}.element")
    elif pa.types.is_map(old) and pa.types.is_map(new):
        yield from _grown(old.item_type, new.item_type, f"{path}.value")


def bronze_rows(rows: DataFrame, config: Pipeline, known_routes: KnownRoutes, careful: bool = False) -> DataFrame:
    """Source rows -> bronze rows: a verdict each, and where it came from."""
    names = list(config.envelope.columns) if config.envelope.format == "columns" else ["value"]
    has_keys = config.source.record_key is not None
    names += ["key"] if has_keys else []
    task = partial(judge_in_task, known_routes=known_routes, careful=careful)
    verdict = _arrow(task, from_arrow_schema(VERDICT_SCHEMA))(*(F.col(quoted(n)) for n in names)).alias("verdict")
    source_columns = rows.columns
    origin = [
        (F.col(quoted(n)) if n in source_columns else F.lit(None)).cast(kind).alias(n) for n, kind in ORIGIN_DDL.items()
    ]
    headers = [F.col("headers")] if "headers" in source_columns else []
    columns = [
        F.col(f"verdict.{f.name}").cast(ddl(f.type)).alias(f.name)
        for f in VERDICT_SCHEMA
        if has_keys or f.name != RECORD_KEY
    ]
    origin_columns = [*(F.col(n) for n in ORIGIN_DDL), *headers]
    return rows.select(verdict, *origin, *headers).select(
        *columns,
        *origin_columns,
        F.lit(None).cast("string").alias("replay_of"),
        F.current_timestamp().alias("bronze_at"),
    )


def silver_rows(bronze: DataFrame, route: Route, task: Callable[..., pa.Array], origin: bool) -> DataFrame:
    """Good bronze rows of one route -> its silver rows. `task`: (schema id, message, payload and, where it makes
    columns, the record's key) -> columns of `route`."""
    decode = _arrow(task, from_arrow_schema(route.columns))
    fields = [F.col(f"row.{quoted(f.name)}").cast(ddl(f.type)).alias(f.name) for f in route.columns]
    origin_struct = F.struct(*(F.col(n) for n in (*ORIGIN_DDL, "schema_id", "envelope_schema_id"))).alias(ORIGIN)
    good = bronze.where((F.col("route") == F.lit(route.route)) & F.col("reason").isNull())
    names = ["schema_id", "message", "payload", *([RECORD_KEY] if route.record_key is not None else [])]
    rows = good.select(decode(*(F.col(name) for name in names)).alias("row"), origin_struct)
    return rows.select(*fields, *([F.col(ORIGIN)] if origin else []))


def _arrow(task: Callable[..., pa.Array], kind: Any) -> Callable[..., Column]:
    """An Arrow function for Spark's tasks. What it closes over ships with it; its module is imported there."""

    def run(*columns: pa.Array) -> pa.Array:
        return task(*columns)

    function: Callable[..., Column] = cast(Any, arrow_udf)(run, kind)
    return function
