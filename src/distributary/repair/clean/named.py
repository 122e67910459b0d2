"""Names that a pipeline gave its tables in the catalog: of tables, and of the views over them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from distributary.config import DeclarativeFolder
from distributary.names import quoted, quoted_parts
from distributary.repair.clean.inventory import CleaningBooks
from distributary.running import wide_views
from distributary.running.catalog import CatalogEntry, last_part, living_rows, view_name
from distributary.running.state_names import state_tables
from distributary.state.ledger import totals


def names_of(books: CleaningBooks, removed: Collection[str]) -> Iterator[CatalogEntry]:
    """The names of the tables that are removed; views first. Raises OSError."""
    config = books.config
    if config.is_declarative:
        yield from _of_datasets(books, removed)
        return
    if config.tables.database is None or config.tables.managed:  # whose names go with the tables
        return
    schema = quoted_parts(config.tables.database)
    if config.wide_path in removed:
        for name, text in wide_views.kept(config, books.store).items():
            yield CatalogEntry(f"{schema}.{quoted(name)}", config.wide_path, text)
    for entry in totals(books.entries).values():
        view, merged = view_name(config, entry), entry.merged
        if view is not None and merged is not None and merged in removed:
            yield CatalogEntry(f"{schema}.{quoted(view)}", merged, living_rows(schema, merged))
    for path in sorted(removed):
        if path != config.bronze_path:
            yield CatalogEntry(f"{schema}.{quoted(last_part(path))}", path)


def state_names_of(books: CleaningBooks, removed: Collection[str]) -> Iterator[CatalogEntry]:
    """Those of ledger, quarantine and bronze, as far as they go. `removed`: tables and state folders."""
    if (database := books.config.state_database) is None:
        return
    schema = quoted_parts(database)
    for name, path in {n: p for share in books.parts for n, p in state_tables(share).items()}.items():
        is_removed = path in removed or (path != books.config.bronze_path and books.config.state_root in removed)
        if is_removed:
            yield CatalogEntry(f"{schema}.{quoted(name)}", path)


def _of_datasets(books: CleaningBooks, removed: Collection[str]) -> Iterator[CatalogEntry]:
    """A metastore below the state goes with it; in one of the user's own, the names are to be dropped."""
    from distributary.declarative.datasets import Datasets, state_folder
    from distributary.declarative.server import METASTORES

    config, datasets = books.config, Datasets.of(books.config)
    if not any(key in config.spark.conf for key in METASTORES):
        return
    texts: dict[str, str] = json.loads(books.store.get(state_folder(config), DeclarativeFolder.views.name) or b"{}")
    for name, text in texts.items():
        yield CatalogEntry(datasets.sql(name), datasets.uri(name), text)
    for path in sorted(removed):
        yield CatalogEntry(datasets.sql(last_part(path)), path)
