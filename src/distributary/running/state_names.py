"""Names of what a pipeline keeps beside its tables: ledger, quarantine, the list of change files, bronze."""

from __future__ import annotations

from contextlib import nullcontext

from pyspark.sql import SparkSession

from distributary.config import Pipeline
from distributary.names import quoted_parts, table_name
from distributary.running.catalog import entering, name_tables, one_name
from distributary.tables.store import Store
from distributary.tables.table import Table


def state_tables(config: Pipeline) -> dict[str, str]:
    """Name -> address, of one stream of a pipeline. Spark's own catalog has no names with a dash, so a pipeline's and
    its share's are written as a route's is: no two of them meet in one name."""
    share, folder = config.share, config.state_folder
    own = table_name(config.pipeline)
    # With a sign that neither part may have.
    stem = own if share is None else table_name(f"{config.pipeline}/{share.generation}/{share.name}")
    named = {f"{stem}_ledger": folder.ledger, f"{stem}_quarantine": folder.quarantine}
    if config.source.reads_files:
        named[f"{stem}_files"] = folder.files
    if config.bronze_table is not None:
        named[f"{own}_bronze"] = config.bronze_table
    return named


class StateNames:
    """Gives each of these tables its name in `state_database`, once in a run, as soon as it is there."""

    def __init__(self, spark: SparkSession, config: Pipeline, store: Store) -> None:
        self._spark, self._config, self._store = spark, config, store
        self._left = {} if config.state_database is None else state_tables(config)

    def give(self) -> None:
        """After a batch. What Spark's catalog refuses is said, and tried again by the next run. Raises CatalogDown."""
        if not self._left or self._config.state_database is None:
            return
        written = {name: path for name, path in self._left.items() if self._is_there(path)}
        if written:
            database, tables = self._config.state_database, self._config.tables
            with one_name(quoted_parts(database)) if entering(tables) is None else nullcontext():
                name_tables(self._spark, tables, database, written)
        self._left = {name: path for name, path in self._left.items() if name not in written}

    def _is_there(self, path: str) -> bool:
        """Nothing but a name depends on it, so what cannot be opened now is asked for after the next batch."""
        try:
            return Table(path, self._store).open() is not None
        except OSError:
            return False
