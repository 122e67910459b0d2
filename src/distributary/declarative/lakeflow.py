"""What Lakeflow does of a declarative pipeline by itself, and by which words of its own.

There definitions only define: by what Databricks documents of `pyspark.pipelines`, and by files of SQL. Tables that are
there are the platform's to change.
"""

from __future__ import annotations

from distributary.config import Pipeline
from distributary.config.environment import environment
from distributary.declarative.datasets import Datasets, quarantine_sql
from distributary.names import quoted

QUARANTINE = "quarantine.sql"


def is_lakeflow(config: Pipeline) -> bool:
    """Does Lakeflow run these definitions, or will it?"""
    return config.tables.managed or "DATABRICKS_RUNTIME_VERSION" in environment()


def quarantine_view(config: Pipeline) -> str:
    """The quarantine as a file of SQL, in which alone Lakeflow has views that stay ("CREATE VIEW (pipelines)")."""
    datasets = Datasets.of(config)
    return f"CREATE VIEW {quoted(datasets.quarantine)}\nAS {quarantine_sql(datasets)}\n"
