"""A view per route over the wide table: made with the route, made anew when its struct has grown.

A view's text is kept in the pipeline's state folder, with or without a catalog: what is there says which views are
this pipeline's own, and whether one is out of date. CREATE OR REPLACE changes a view in one step, so that its readers
see the old columns or the new ones, never none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.errors import BadInput, StoreDown
from distributary.fanout.orders import ORIGIN
from distributary.names import quoted, table_name
from distributary.state.ledger import Ledger
from distributary.tables import append
from distributary.tables.files import filesystem
from distributary.tables.store import Store, join
from distributary.tables.wide import KEY

FOLDER = "views"
"""In the state folder: <view>.sql, the text of each view."""


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
    at = schema.get_field_index(key)
    own = list(schema.field(at).type) if at >= 0 else []
    columns = [f"{quoted(key)}.{quoted(field.name)} AS {quoted(field.name)}" for field in own]
    columns += [quoted(ORIGIN)] if ORIGIN in schema.names else []
    return f"SELECT {', '.join(columns) or quoted(KEY)} FROM {source(config)} WHERE {quoted(KEY)} = '{key}'"


def source(config: Pipeline) -> str:
    """The wide table in SQL: by its name in the catalog, or by its path."""
    if config.tables.database is None:
        return f"delta.{quoted(config.wide_path)}"
    return f"{_database(config)}.{quoted(config.wide.name)}"


def refresh(
    spark: SparkSession,
    config: Pipeline,
    ledger: Ledger,
    routes: Collection[str] | None = None,
    *,
    anew: bool = False,
) -> list[View]:
    """Make the views of `routes` (None: of all) that are not there or out of date, or all of them (`anew`); returns
    those that were made. Safe to repeat.

    Raises StoreDown when the table or the state folder cannot be used.
    """
    store = ledger.store
    try:
        table = append.open_table(config.wide_path, store)
        if table is None:
            return []
        known = kept(config, store)
        every = sorted(e.route for e in ledger.newest.values() if e.route and e.table) if routes is None else routes
        wanted = views(config, append.arrow_schema(table), every)
        stale = [v for v in wanted if anew or known.get(v.name) != v.text or not _is_there(spark, config, v)]
        for view in stale:
            _create(spark, config, view)
            store.put_whole(join(config.state_root, FOLDER), f"{view.name}.sql", view.text.encode())
    except (DeltaError, OSError) as e:
        raise StoreDown(path=config.wide_path, detail=append.in_words(e)) from e
    return stale


def kept(config: Pipeline, store: Store) -> dict[str, str]:
    """Name -> text of the views that this pipeline has made. Raises OSError."""
    folder = join(config.state_root, FOLDER)
    found = filesystem(folder, store).get_file_info(pafs.FileSelector("", allow_not_found=True))
    names = sorted(str(info.base_name) for info in found if str(info.base_name).endswith(".sql"))
    return {name.removesuffix(".sql"): (store.get(folder, name) or b"").decode() for name in names}


def read(spark: SparkSession, config: Pipeline, route: str) -> DataFrame:
    """A route's view as a DataFrame, also where no catalog holds it. Raises BadInput: there is no such view."""
    return spark.sql(view_text(config, route))


def view_text(config: Pipeline, route: str) -> str:
    """The SELECT of a route's view. Raises BadInput: there is no such view."""
    text = kept(config, Store.of(config.tables)).get(table_name(route, config.tables.name))
    if text is None:
        raise BadInput(detail=f"pipeline {config.pipeline} has no view of route {route!r} yet")
    return text


def _create(spark: SparkSession, config: Pipeline, view: View) -> None:
    if config.tables.database is None:
        return
    database = _database(config)
    location = config.wide_path.replace("'", "\\'")
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {source(config)} USING DELTA LOCATION '{location}'")
    spark.sql(f"CREATE OR REPLACE VIEW {database}.{quoted(view.name)} AS {view.text}")


def _is_there(spark: SparkSession, config: Pipeline, view: View) -> bool:
    """A catalog in memory forgets its views when the session ends."""
    if config.tables.database is None:
        return True
    return bool(spark.catalog.tableExists(f"{_database(config)}.{quoted(view.name)}"))


def _database(config: Pipeline) -> str:
    return ".".join(quoted(part) for part in str(config.tables.database).split("."))
