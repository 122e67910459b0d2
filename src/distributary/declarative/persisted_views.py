"""Persisted views: Spark's pipelines make them once and never change them (4.2.0), so that is done here.

ALTER VIEW changes a view in one step: a reader sees the old one or the new one, never none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.config import DeclarativeFolder, Pipeline
from distributary.declarative.datasets import Datasets, state_folder
from distributary.errors import StoreUnreadable, TableCollision, without_stack
from distributary.errors.border import contained
from distributary.tables.outage import own_fault
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

"""What each view was last made to say."""

T = TypeVar("T")
Columns = Mapping[str, pa.DataType]
"""Types by column."""


@dataclass(frozen=True)
class View:
    """A query, and the datasets that it reads."""

    query: str
    needs: tuple[str, ...]


def keep_current(
    spark: SparkSession,
    config: Pipeline,
    views: Mapping[str, View],
    present: Collection[str] | None = None,
    new: Collection[str] = (),
    made_here: Collection[str] = (),
) -> list[str]:
    """Change the views that are there and say something else.

    A view that reads what is not there yet keeps saying what it said; the next call changes it. `present`: the names of
    all tables and views, where they are known. `new`: views that were made just now, as they are to be. `made_here`:
    views that no graph makes: they are made, too. Returns in words which could not be changed: they are tried again.
    Raises OSError.
    """
    datasets, store, folder = Datasets.of(config), Store.of(config.tables), state_folder(config)
    queries: dict[str, str] = json.loads(store.get(folder, DeclarativeFolder.views.name) or b"{}")
    missing = set() if present is None else {name for name in made_here if name.lower() not in present}
    changed = {name: view for name, view in views.items() if name in missing or queries.get(name) != view.query}
    if changed and present is None:
        present = _tables(spark, datasets)
    names, replaced, problems = set(present or ()), {}, []
    for name, view in changed.items():
        if not {needed.lower() for needed in (*view.needs, *({name} - missing))} <= names:
            continue
        try:
            if name not in new:
                verb = "CREATE" if name in missing else "ALTER"
                spark.sql(f"{verb} VIEW {datasets.sql(name)} AS {view.query}")
            replaced[name] = view.query
            names.add(name.lower())
        except BaseException as e:
            was = "is not there" if name in missing else "still says what it said"
            problems.append(
                f"view {name} {was}, for it cannot be {'made' if name in missing else 'changed'}: {_line(e)}"
            )
    if replaced:
        store.put_whole(
            folder, DeclarativeFolder.views.name, json.dumps({**queries, **replaced}, ensure_ascii=False).encode()
        )
    return problems


def _line(error: BaseException) -> str:
    why = contained(error)
    return without_stack(error) if isinstance(error, PySparkException) else why


def make_way(
    spark: SparkSession, config: Pipeline, views: Collection[str], materialized: Mapping[str, Columns]
) -> set[str]:
    """Drop what has to become something else, which Spark's pipelines refuse: a materialized view that is to be a view
    or the other way round, and one that is to lose a column or to change its type. Returns the names of all tables and
    views that stay.

    All of it is computed from other tables, and by the update that follows. Raises TableCollision, TableFault, OSError.
    """
    datasets, store = Datasets.of(config), Store.of(config.tables)
    present = _tables(spark, datasets)
    as_views = {str(row["viewName"]) for row in spark.sql(f"SHOW VIEWS IN {datasets.place}").collect()}
    dropped = as_views & materialized.keys()
    for name in sorted(dropped):
        spark.sql(f"DROP VIEW {datasets.sql(name)}")
    for name in sorted((present - as_views) & {*views, *materialized}):
        try:
            table = Table(datasets.uri(name), store).open()
        except BaseException as e:
            own_fault(e, datasets.uri(name), StoreUnreadable)
            continue  # its own flow says what is wrong with it
        owner = None if table is None else table.owner
        if table is None or owner is None or owner.pipeline != config.pipeline:
            whose = "somebody else" if owner is None else f"pipeline {owner.pipeline}"
            raise TableCollision(route=None, table=datasets.uri(name), owner=whose)
        if name in views or _columns(table) != dict(materialized[name]):
            spark.sql(f"DROP TABLE {datasets.sql(name)}")
            dropped.add(name)
    return present - dropped


def _tables(spark: SparkSession, datasets: Datasets) -> set[str]:
    """The names of all tables and views of the database."""
    return {str(row["tableName"]) for row in spark.sql(f"SHOW TABLES IN {datasets.place}").collect()}


def _columns(table: Snapshot) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in table.schema}


def apart(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own: the commands of a definition's thread are marked, and may not change anything
    (UNSUPPORTED_PIPELINE_SPARK_SQL_COMMAND). Raises what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
