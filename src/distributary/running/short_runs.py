"""Which runs are over before their JVM has had many rows: it is started for that (`spark.session.SHORT_JAVA`)."""

from __future__ import annotations

from distributary.config import Pipeline, Tables
from distributary.running.bronze.bronze_table import first_hop
from distributary.running.source_lag import source_lag
from distributary.tables.engines import by_settings
from distributary.tables.store import Store

FEW_ROWS = 1_000_000
"""Rows of a topic that a JVM without its second compiler reads in less time than one that has it, both from their
start. At 2,000,000 they are even (pyspark 4.2.0, 10 tables: 27 s of CPU each)."""


def is_short(config: Pipeline, once: bool) -> bool:
    """Whether a run is over before its JVM has had many rows: it ends by itself, its tables are none of Spark's, and
    few rows wait, or the tasks read them themselves (files, of a Delta table too). `once`: as of `Trigger.ends`."""
    if not config.trigger.ends(once) or _writes_by_spark(config.tables):
        return False
    if not config.source.has_offsets:
        return True
    reader = config if config.bronze_table is None else first_hop(config)
    try:
        rows = source_lag(reader, Store.of(config.tables)).rows
    except OSError:
        return False  # the run says what is wrong
    return rows is not None and rows <= FEW_ROWS


def _writes_by_spark(tables: Tables) -> bool:
    """Whether the settings leave a table to Spark, or the widening of its columns, which writes its rows anew."""
    routes = ("", *tables.routes)
    widens = any(tables.for_route(route)[1].type_change == "type_widening" for route in routes)
    return widens or any(by_settings(tables, route) is not None for route in routes)
