"""A replay of everything that a pipeline has kept aside: stream by stream, each into the books of its own."""

from __future__ import annotations

from collections.abc import Collection

from distributary.config import Pipeline
from distributary.engine.replay import ReplayReport
from distributary.errors import Reason
from distributary.running.stream import Run, session_of
from distributary.state.cleaning import at_work
from distributary.state.divisions import parts
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store
from distributary.tables.table import Table


def replay(config: Pipeline, route: str | None = None, reasons: Collection[Reason] | None = None) -> ReplayReport:
    """Bring back the rows of one route, or of all; of some reasons, or of all but KILLED_READER.

    Raises AlreadyRunning, CleanUnfinished, StoreDown, RegistryDown.
    """
    store, total = Store.of(config.tables), ReplayReport()
    for stream in parts(config, store):
        has_quarantine = Table(quarantine_uri(stream.state_root), store).open() is not None
        if not has_quarantine and not config.holds_changes:
            continue
        with at_work(stream, store, "replay"):
            report = Run(stream, session_of(stream), lambda _: None).replay.run(route, reasons)
        for name, rows in report.rows.items():
            total.rows[name] = total.rows.get(name, 0) + rows
        for name, rows in report.left.items():
            total.left[name] = total.left.get(name, 0) + rows
        for name, rows in report.killed.items():
            total.killed[name] = total.killed.get(name, 0) + rows
        for name, rows in report.unsure.items():
            total.unsure[name] = total.unsure.get(name, 0) + rows
        total.failed.update(report.failed)
    return total
