"""The status of a declarative pipeline: bronze is its quarantine, and bronze's flow has read the source."""

from __future__ import annotations

import pyarrow as pa

from distributary.audit.recount import QuarantineCount
from distributary.audit.status.facts import Status
from distributary.audit.status.facts import status as facts
from distributary.config import Pipeline
from distributary.declarative.bronze_counts import Bronze
from distributary.declarative.datasets import Datasets
from distributary.declarative.flows import Flows
from distributary.declarative.update_ledger import Books
from distributary.running.named_tables import with_session
from distributary.running.source_lag import source_lag
from distributary.sources.port import SourceLag
from distributary.state.ledger import Entry, totals
from distributary.tables.faults import reading
from distributary.tables.quarantine import QUARANTINE_SCHEMA
from distributary.tables.store import Store, join


def status(config: Pipeline) -> Status:
    """The state of a pipeline after its last update. Raises StoreUnreadable."""
    with_session(config)
    return facts(config, books=_books, lag_of=_lag)


def _books(config: Pipeline, store: Store) -> tuple[list[Entry], QuarantineCount]:
    """The ledger, what came into bronze since (Spark's own command knows of no ledger), and what they say of rows that
    are set aside: they count in bronze."""
    books = Books(config)
    entries = [*books.ledger.entries(), *books.unsettled()]
    quarantine_count = QuarantineCount()
    for route, entry in totals(entries).items():
        quarantine_count.rows[route] = entry.rows_quarantined
        quarantine_count.states["open"] += entry.rows_quarantined
        quarantine_count.reasons.update({(route, reason): rows for reason, rows in entry.reasons.items() if rows > 0})
    return entries, quarantine_count


def _lag(config: Pipeline, store: Store) -> SourceLag:
    """Rows that bronze has not read. Raises OSError."""
    if config.tables.managed:
        return SourceLag(note="how far bronze has read is Lakeflow's to know")
    flows = Flows.of(config, store)
    checkpoint = flows.checkpoint(Datasets.of(config).bronze) or join(flows.storage, "none")
    return source_lag(config.model_copy(update={"checkpoint": checkpoint}), store)


def quarantined_rows(config: Pipeline) -> pa.Table:
    """The rows of bronze that are set aside and not replayed, as a quarantine has them (`QUARANTINE_SCHEMA`).

    Raises StoreUnreadable.
    """
    with_session(config)
    store = Store.of(config.tables)
    bronze = Bronze.of(Datasets.of(config), store)
    with reading(bronze.uri):
        rows = bronze.quarantined_rows()
    renamed = {"value": "payload", "quarantined_at": "bronze_at"}
    columns = []
    for kind in QUARANTINE_SCHEMA:
        name = renamed.get(kind.name, kind.name)
        has_column = name in rows.column_names
        columns.append(rows.column(name).cast(kind.type) if has_column else pa.nulls(rows.num_rows, kind.type))
    return pa.table(columns, schema=QUARANTINE_SCHEMA)
