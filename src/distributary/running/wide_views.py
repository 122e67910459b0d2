"""A view per route over the wide table: made with the route, made anew when its struct has grown.

A view's text is kept in the pipeline's state folder, with or without a catalog: what is there says which views are
this pipeline's own, and whether one is out of date. A view that is there is altered (`catalog.put_view`), so that its
readers see the old columns or the new ones, never none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.engine.messages.task_spec import ORIGIN
from distributary.errors import BadInput
from distributary.names import quoted, quoted_parts, table_name
from distributary.running.catalog import entering, name_tables, one_name, put_view
from distributary.state.ledger import Ledger
from distributary.tables.faults import writing
from distributary.tables.files import names_in
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.wide import KEY


@dataclass(frozen=True)
class View:
    """`name`: of the view. `text`: its SELECT."""

    route: str
    name: str
    text: str


def views(config: Pipeline, schema: pa.Schema, routes: Iterable[str]) -> list[View]:
    """The views of `routes` over a wide table with these columns."""
    return [View(route, table_name(route, config.tables.name), _select(config, schema, route)) for route in routes]


def _select(config: Pipeline, schema: pa.Schema, route: str) -> str:
    """Columns one by one: a struct's `*` would be frozen in the view all the same, and hide what it has."""
    key = table_name(route)
    index = schema.get_field_index(key)
    fields = list(schema.field(index).type) if index >= 0 else []
    columns = [f"{quoted(key)}.{quoted(field.name)} AS {quoted(field.name)}" for field in fields]
    columns += [quoted(ORIGIN)] if ORIGIN in schema.names else []
    return f"SELECT {', '.join(columns) or quoted(KEY)} FROM {source(config)} WHERE {quoted(KEY)} = '{key}'"


def source(config: Pipeline) -> str:
    """The wide table in SQL: by its name in the catalog, or by its path."""
    if config.tables.database is None:
        return f"delta.{quoted(config.wide_path)}"
    return f"{quoted_parts(config.tables.database)}.{quoted(config.wide.name)}"


def refresh(
    spark: SparkSession,
    config: Pipeline,
    ledger: Ledger,
    routes: Collection[str] | None = None,
    *,
    anew: bool = False,
) -> list[View]:
    """Make the views of `routes` (None: of all) that are not there or out of date, or all of them (`anew`); returns
    those that were made. Safe to repeat: one that the catalog refuses is said, and tried again by the next run.

    Raises StoreDown when the table or the state folder cannot be used.
    """
    store, refreshed = ledger.store, list[View]()
    with writing(config.wide_path):
        table = Table(config.wide_path, store).open()
        if table is None:
            return []
        every = sorted(e.route for e in ledger.newest.values() if e.route and e.table) if routes is None else routes
        asked_views = views(config, table.schema, every)
        stale = [
            v for v in asked_views if anew or _kept(config, store, v.name) != v.text or not _is_there(spark, config, v)
        ]
        if stale and config.tables.database is not None:
            name_tables(spark, config.tables, config.tables.database, {config.wide.name: config.wide_path})
        for view in stale:
            if _put(spark, config, view):
                store.put_whole(config.state_folder.views, f"{view.name}.sql", view.text.encode())
                refreshed.append(view)
    return refreshed


def _put(spark: SparkSession, config: Pipeline, view: View) -> bool:
    """Let the catalog have the view, if there is one that takes views; False where it refuses it."""
    if not _has_views(config):
        return True
    accepted = False
    with one_name(_in_catalog(str(config.tables.database), view)) as name:
        put_view(spark, name, view.text)
        accepted = True
    return accepted


def kept(config: Pipeline, store: Store) -> dict[str, str]:
    """Name -> text of the views that this pipeline has made. Raises OSError."""
    files = names_in(config.state_folder.views, store)
    names = [file.removesuffix(".sql") for file in files if file.endswith(".sql")]
    return {name: _kept(config, store, name) or "" for name in names}


def _kept(config: Pipeline, store: Store, name: str) -> str | None:
    body = store.get(config.state_folder.views, f"{name}.sql")
    return None if body is None else body.decode()


def read(spark: SparkSession, config: Pipeline, route: str) -> DataFrame:
    """A route's view as a DataFrame, also where no catalog holds it. Raises BadInput: there is no such view."""
    return spark.sql(view_text(config, route))


def view_text(config: Pipeline, route: str) -> str:
    """The SELECT of a route's view. Raises BadInput: there is no such view."""
    text = _kept(config, Store.of(config.tables), table_name(route, config.tables.name))
    if text is None:
        raise BadInput(detail=f"pipeline {config.pipeline} has no view of route {route!r} yet")
    return text


def _is_there(spark: SparkSession, config: Pipeline, view: View) -> bool:
    """A catalog in memory forgets its views when the session ends."""
    return not _has_views(config) or spark.catalog.tableExists(_in_catalog(str(config.tables.database), view))


def _has_views(config: Pipeline) -> bool:
    """Is there a catalog that Spark makes views in? By its REST API, a catalog takes the table only."""
    return config.tables.database is not None and entering(config.tables) is None


def _in_catalog(database: str, view: View) -> str:
    return f"{quoted_parts(database)}.{quoted(view.name)}"
