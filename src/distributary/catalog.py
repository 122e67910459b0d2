"""Tables by name: registered in the session's catalog once, when they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from distributary.config import Pipeline
from distributary.names import quoted, table_name
from distributary.state.ledger import Ledger
from distributary.tables.store import join


def register_tables(spark: SparkSession, config: Pipeline, ledger: Ledger, created: Sequence[str]) -> None:
    """Register new tables under `tables.database`; does nothing where none is configured."""
    database = config.tables.database
    if database is None or not created:
        return
    schema = ".".join(quoted(part) for part in database.split("."))
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {schema}")
    for route in created:
        name = table_name(route, config.tables.name)
        location = join(config.tables.root, name).replace("'", "\\'")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {schema}.{quoted(name)} USING DELTA LOCATION '{location}'")


def drop_names(spark: SparkSession, locations: Mapping[str, str]) -> None:
    """Take tables out of the catalog: quoted name -> the path it must still stand for. Files are left alone."""
    for name, path in locations.items():
        if not spark.catalog.tableExists(name):
            continue
        found = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"]
        if str(found).removeprefix("file:").rstrip("/") == path.removeprefix("file:").rstrip("/"):
            spark.sql(f"DROP TABLE {name}")
