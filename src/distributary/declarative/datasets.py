"""Names and places of a declarative pipeline's datasets."""

from __future__ import annotations

from dataclasses import dataclass

from distributary.config import DeclarativeFolder, Pipeline
from distributary.names import quoted, table_name
from distributary.tables.store import join

CATALOG = "spark_catalog"


@dataclass(frozen=True)
class Datasets:
    """What a pipeline's datasets are called. Names are without catalog and database."""

    catalog: str
    database: str
    root: str
    bronze: str
    unified: str
    quarantine: str
    silver_template: str
    gold_template: str

    @classmethod
    def of(cls, config: Pipeline) -> Datasets:
        section = config.declarative
        name = config.tables.database or config.pipeline.replace("-", "_")
        catalog, _, database = name.rpartition(".")
        return cls(
            catalog or CATALOG, database, config.tables.root, section.bronze, section.unified, section.quarantine,
            section.silver, section.gold,
        )  # fmt: skip

    def silver(self, route: str) -> str:
        return table_name(route, self.silver_template)

    def gold(self, route: str) -> str:
        return table_name(route, self.gold_template)

    def uri(self, name: str) -> str:
        """Where a table is: the database's location is the pipeline's `tables.root`."""
        return join(self.root, name)

    @property
    def place(self) -> str:
        """The database's whole name for Spark SQL."""
        return f"{quoted(self.catalog)}.{quoted(self.database)}"

    def sql(self, name: str) -> str:
        """A dataset's whole name for Spark SQL."""
        return f"{self.place}.{quoted(name)}"


def state_folder(config: Pipeline) -> str:
    """Where a declarative pipeline keeps what is neither a table nor the ledger."""
    return config.state_folder.declarative


def storage(config: Pipeline) -> str:
    """Where Spark keeps the checkpoints of its flows."""
    return config.checkpoint or DeclarativeFolder(state_folder(config)).storage


def flow_checkpoints(storage: str, names: Datasets, table: str) -> str:
    """Where Spark keeps the checkpoints of the flows into a table."""
    return join(storage, "_checkpoints", names.catalog, names.database, table)


def quarantine_sql(datasets: Datasets) -> str:
    """Rows that bronze has set aside and no replay has taken up."""
    names = ("id", "route", "reason", "detail", "schema_id", "envelope_schema_id", "topic", "partition", "offset")
    columns = ", ".join(f"b.{quoted(n)}" for n in (*names, "timestamp", "level"))
    bronze = datasets.sql(datasets.bronze)
    return (
        f"SELECT {columns}, b.payload AS value, b.bronze_at AS quarantined_at FROM {bronze} AS b LEFT ANTI JOIN "
        f"(SELECT replay_of FROM {bronze} WHERE replay_of IS NOT NULL) AS r ON b.id = r.replay_of "
        "WHERE b.reason IS NOT NULL"
    )
