"""Tables by name: entered once, when they are made, in the session's catalog or by the REST API of Unity Catalog."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from distributary.config import Pipeline, Tables
from distributary.engine.changes.table_settings import history_of
from distributary.errors.border import contained
from distributary.names import literal, pattern_name, quoted, quoted_parts, shown
from distributary.state.ledger import Entry, Ledger
from distributary.tables.snapshot import columns_of
from distributary.tables.spark_engine import spark_ended
from distributary.tables.store import Store, catalog_of, join
from distributary.tables.table import Table
from distributary.tables.unity import AGAIN, CatalogDown, UnityCatalog
from distributary.tables.unity_names import UnitySchema

log = logging.getLogger("distributary")


def register_tables(spark: SparkSession, config: Pipeline, ledger: Ledger, created: Sequence[str]) -> None:
    """Register new tables under `tables.database`; does nothing where none is configured, or the names are there with
    the tables.

    Of change files, both tables of a route, and the view of its living rows.
    """
    database = config.tables.database
    if database is None or not created or config.tables.managed:
        return
    named = {last_part(uri): uri for route in created for uri in _locations(config, ledger, route)}
    name_tables(spark, config.tables, database, named)
    if config.tables.view is None:
        return
    schema = quoted_parts(database)
    for route in created:
        if (view := view_of(config, ledger.newest.get(route))) is not None:
            name, merged = view
            # Made anew whenever columns may have come: a view keeps the columns that it was made with.
            with one_name(f"{schema}.{quoted(name)}") as qualified:
                put_view(spark, qualified, living_rows(schema, merged))


def name_tables(spark: SparkSession, tables: Tables, database: str, named: Mapping[str, str]) -> None:
    """Make the tables at these addresses known in `database`. `named`: name -> address. Raises CatalogDown."""
    if (catalog := entering(tables)) is not None:
        enter(UnitySchema(catalog, database), named, Store.of(tables))
    else:
        register(spark, database, named)


def entering(tables: Tables) -> UnityCatalog | None:
    """Where names are entered by the catalog's REST API; None where Spark does it."""
    return catalog_of(tables.unity) if tables.unity is not None and tables.unity.names else None


def enter(names: UnitySchema, named: Mapping[str, str], store: Store) -> None:
    """As `register`, without Spark. What the catalog refuses is said, and stops nothing else. Raises CatalogDown (an
    OSError): it does not answer."""
    try:
        names.make()
    except CatalogDown as e:
        _refused(names.name, e)
        return
    for name, location in named.items():
        try:
            names.enter(name, location, columns_of(Table(location, store).open()))
        except CatalogDown as e:
            _refused(f"{names.name}.{name}", e)


def _refused(name: str, error: CatalogDown) -> None:
    if error.status is None or error.status in AGAIN or error.status >= 500:
        raise error
    log.warning("%s cannot be made in the catalog: %s", shown(name), shown(str(error), 1000))


def register(spark: SparkSession, database: str, named: Mapping[str, str]) -> None:
    """Make the tables at these addresses known in `database`, as Spark's catalog does it. `named`: name -> address."""
    schema = quoted_parts(database)
    if not _has_schema(spark, schema):
        return
    for short, location in named.items():
        with one_name(f"{schema}.{quoted(short)}") as name:
            spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING DELTA LOCATION {literal(location)}")


def _has_schema(spark: SparkSession, schema: str) -> bool:
    """Is it there, if need be made now? The rows are written by then, so a refusal is said, and stops nothing."""
    is_there = False
    with one_name(schema):
        # Who may not make one may use one that is there.
        if not spark.catalog.databaseExists(schema):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {schema}")
        is_there = True
    return is_there


@contextmanager
def one_name(name: str) -> Iterator[str]:
    """What the catalog refuses of one name is said, and stops no other. Raises what says that Spark itself is gone."""
    try:
        yield name
    except BaseException as e:
        why = contained(e)
        if isinstance(e, Exception) and spark_ended(e):
            raise
        log.warning("%s cannot be made in the catalog: %s", shown(name), shown(why, 1000))


def put_view(spark: SparkSession, name: str, text: str) -> None:
    """Make the view `name` (quoted), or let the one that is there say `text`; a reader sees the old one or the new one.

    Spark 4.2 drops a view that is to be replaced, and then creates it: a reader in between misses it.
    """
    do = "ALTER" if spark.catalog.tableExists(name) else "CREATE OR REPLACE"
    spark.sql(f"{do} VIEW {name} AS {text}")


def _locations(config: Pipeline, ledger: Ledger, route: str) -> list[str]:
    entry = ledger.newest.get(route)
    if not config.holds_changes and (entry is None or entry.merged is None):
        name = config.tables.table_name(route)
        return [entry.table if entry is not None and entry.table else join(config.tables.root, name)]
    if entry is None:
        return []
    merged = (entry.merged, history_of(config, entry.about, entry.table)) if entry.merge_state == "merged" else ()
    uris = (entry.table, *merged)
    return list(dict.fromkeys(uri for uri in uris if uri))


def view_of(config: Pipeline, entry: Entry | None) -> tuple[str, str] | None:
    """(name of the view, name of the merged table that it reads) of a route; None where there is no view."""
    if entry is None or entry.merged is None or entry.merge_state != "merged":
        return None
    name = view_name(config, entry)
    return None if name is None else (name, last_part(entry.merged))


def view_name(config: Pipeline, entry: Entry) -> str | None:
    """The view of a route's living rows, whether it is made already or not."""
    pattern = config.tables.view
    if pattern is None or entry.about is None:
        return None
    if entry.route in config.tables.routes and (configured := config.tables.routes[entry.route].view):
        return configured
    _, database, schema, table = json.loads(entry.about)["source"]
    return pattern_name(pattern, database, schema, table)


def living_rows(schema: str, merged: str) -> str:
    """The text of the view over a merged table. `schema`: quoted; `merged`: the table's address or its name."""
    return f"SELECT * FROM {schema}.{quoted(last_part(merged))} WHERE NOT coalesce(_deleted, false)"


def last_part(location: str) -> str:
    """The bare name of the table at `location`."""
    return location.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class CatalogEntry:
    """A name that a pipeline gave (quoted for Spark SQL): of the table at `path`, or of a view that says `text`."""

    name: str
    path: str
    text: str | None = None

    @property
    def parts(self) -> tuple[str, str]:
        """Its database and its own name, as they are."""
        *database, name = (text.replace("``", "`") for text in re.findall(r"`((?:[^`]|``)*)`", self.name))
        return ".".join(database), name


def drop_names(
    spark: SparkSession, entries: Iterable[CatalogEntry]
) -> tuple[list[CatalogEntry], list[tuple[CatalogEntry, str]]]:
    """Take names out of the catalog; files are left alone. Returns those that were dropped, and those that stay because
    they stand for something else, and for what. Names that are not there are neither."""
    dropped: list[CatalogEntry] = []
    others: list[tuple[CatalogEntry, str]] = []
    for entry in entries:
        if not spark.catalog.tableExists(entry.name):
            continue
        if (reason := _another(spark, entry)) is not None:
            others.append((entry, reason))
            continue
        spark.sql(f"DROP {'TABLE' if entry.text is None else 'VIEW'} {entry.name}")
        dropped.append(entry)
    return dropped, others


def leave_names(
    catalog: UnityCatalog, entries: Iterable[CatalogEntry]
) -> tuple[list[CatalogEntry], list[tuple[CatalogEntry, str]]]:
    """As `drop_names`, by the catalog's REST API. Raises CatalogDown."""
    dropped: list[CatalogEntry] = []
    others: list[tuple[CatalogEntry, str]] = []
    for entry in entries:
        database, name = entry.parts
        names = UnitySchema(catalog, database)
        if not names.has(name):
            continue
        if (reason := names.leave(name, entry.path)) is None:
            dropped.append(entry)
        else:
            others.append((entry, reason))
    return dropped, others


def _another(spark: SparkSession, entry: CatalogEntry) -> str | None:
    """What else a name stands for, in words; None where it is ours."""
    is_view = spark.catalog.getTable(entry.name).tableType == "VIEW"
    if is_view != (entry.text is not None):
        return f"it is a {'view' if is_view else 'table'}, and not this pipeline's"
    if entry.text is None:
        location = str(spark.sql(f"DESCRIBE DETAIL {entry.name}").collect()[0]["location"])
        return None if _plain(location) == _plain(entry.path) else f"it is the table at {location}"
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {entry.name}").collect()
    view_text = next((str(row["data_type"]) for row in rows if row["col_name"] == "View Text"), "")
    return None if view_text.split() == entry.text.split() else "it is a view that says something else"


def _plain(location: str) -> str:
    return location.removeprefix("file:").replace("//", "/").rstrip("/")
