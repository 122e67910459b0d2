"""What tables that a catalog keeps (`tables.managed`) need of the rest of a pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributary.config.base import fault, is_given
from distributary.config.places import BY_NAME

if TYPE_CHECKING:
    from distributary.config.pipeline import Pipeline

_BESIDE = "of managed tables only the rows are in the catalog: give a folder of their own to"


def check_managed(config: Pipeline) -> None:
    """Raises ValueError, which names the key and what is allowed."""
    tables = config.tables
    if not tables.managed:
        if tables.root.startswith(BY_NAME):
            raise fault("tables.root", "allowed: a folder; tables by name have managed: true and database, and no root")
        return
    if tables.database is None:
        raise fault("tables.database", "managed tables are made there: give catalog and schema, as in main.silver")
    if tables.root != f"{BY_NAME}{tables.database}":
        raise fault("tables.root", "the catalog says where managed tables lie: leave root out")
    if config.state is None:
        raise fault("state", f"{_BESIDE} ledger, quarantine and checkpoint, as in s3a://acme-lake/_distributary/games")
    if config.layout == "two_hop" and config.bronze.path is None:
        raise fault("bronze.path", f"{_BESIDE} bronze")
    _check_kind(config)
    for key, engine in tables.each("engine").items():
        if engine == "task":
            raise fault(key, "managed tables are written by engine spark: leave engine out")
    if tables.unity is not None and tables.unity.names:
        raise fault("tables.unity.names", "managed tables are made by Spark, which must know the catalog: leave it out")


def _check_kind(config: Pipeline) -> None:
    """What tasks would have to write themselves."""
    if config.is_declarative and config.declarative.silver_as == "sink":
        raise fault("declarative.silver_as", "a sink writes below tables.root, which managed tables do not have: table")
    if config.shared_table is not None:
        raise fault("layout", "a wide table is written by tasks, which managed tables do not let: give layout fanout")
    if config.holds_changes or config.envelope.is_debezium:
        detail = "allowed with messages only; of change files and Debezium give root and database: external tables"
        raise fault("tables.managed", detail)
    if config.source.is_given:
        raise fault("tables.managed", "a DataFrame's rows are written by tasks: give root and database")
    if is_given(config.tables, "history"):
        raise fault("tables.history", "histories are written by tasks, which managed tables do not let: leave it out")
