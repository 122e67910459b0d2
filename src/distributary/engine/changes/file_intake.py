"""What stands around the stream of a pipeline of change files: file discovery, retries, merges between batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from distributary.backoff import Backoff
from distributary.config import Pipeline
from distributary.config.quantities import moment
from distributary.engine.changes.merges import Merges
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.retries import RejectedEvent
from distributary.engine.replay import ReplayReport
from distributary.errors import Reason
from distributary.sources.discovery import FileDiscovery, open_tree, strays_left
from distributary.sources.file_ledger import FileLedger
from distributary.sources.listing import Round
from distributary.state.ledger import Ledger
from distributary.tables.faults import writing

RETRY = Backoff(first_sec=60.0, longest_sec=3600.0)
MOST_RETRIES = 12
"""After so many tries, in a run, a file waits until it changes or is replayed by hand."""


log = logging.getLogger("distributary")


class FileIntake:
    """Finds files and brings files back. Also the `Replayer` of its pipeline: what is in the quarantine comes back by
    giving its files to the stream once more."""

    def __init__(
        self,
        config: Pipeline,
        changes: Changes,
        ledger: Ledger,
        busy: threading.Lock,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`busy` is held while a batch is written: merges between batches wait for it."""
        self.config = config
        self.source = config.change_files
        self.changes = changes
        self.files = FileLedger(config.state_root, config.pipeline, changes.store)
        self.merges = Merges(config, changes, ledger)
        self._busy = busy
        self._clock = clock
        self._retries: dict[str, tuple[int, float]] = {}
        changes.reached = self._reached
        self._discovery: FileDiscovery | None = None
        self._once = False
        self.failure: BaseException | None = None

    def begin(self, once: bool, failed: Callable[[BaseException], None]) -> None:
        """Look for files: at everything (`once`), or from now on. Raises SourceDown, SourceMissing, StoreDown."""
        self._once = once
        self.files.create()
        start = None if self.source.start_date is None else moment(self.source.start_date)
        self._discovery = discovery = FileDiscovery(
            open_tree(self.source.path, self.changes.options),
            self.files,
            self.source.max_files_per_batch,
            self.source.max_bytes_per_batch,
            start,
            report=self._tick,
            strays=self.source.stray_files == "read",
        )
        discovery.look(full=once)
        self.retry_files()
        if not once:
            discovery.start(max(1.0, self.config.trigger.every), failed)

    def _reached(self, file_batch: int) -> None:
        """The stream has begun a batch with this file batch."""
        if self._discovery is not None:
            self._discovery.reached(file_batch)

    def _tick(self, listed: Round) -> None:
        """What a round of listing is the time for: to tell of strays, and merges that are due while no batch comes. A
        batch that is being written does them itself, once it is done."""
        if listed.strays:
            log.warning("%s", strays_left(listed.strays, self.source.path))
        if self._busy.acquire(blocking=False):
            try:
                self.merges.run(None)
            finally:
                self._busy.release()

    def take_all(self) -> None:
        """Look at everything once, and then no more. Raises SourceDown, SourceMissing, StoreDown."""
        if self._discovery is not None:
            self._discovery.stop()
            self._discovery.look(full=True)

    def end(self) -> None:
        """Stop looking."""
        if self._discovery is not None:
            self._discovery.stop()
            self._discovery = None

    def between_batches(self) -> None:
        """Merges that are due, and files that are to be tried again."""
        self.merges.run(None)
        if self._once:
            return  # its end is fixed when it starts: what is given to the stream now would only wait
        if any(due <= self._clock() for _, due in self._retries.values()) or not self._retries:
            self.retry_files()

    # -- what is in the quarantine -------------------------------------------------------------------------

    def retry_files(self) -> int:
        """Try files again that could not be read, with growing rests; how many. Raises StoreDown."""
        now = self._clock()
        with writing(self.changes.quarantine):
            unreadable = f"level = 'file' OR reason = '{Reason.FILE_BROKEN}'"
            broken = {row.file for row in self.changes.event_quarantine.open_rows(unreadable)}
        due = []
        for path in sorted(broken):
            tries, due_at = self._retries.setdefault(path, (0, now + RETRY.rest_sec(1)))
            if due_at <= now and tries < MOST_RETRIES:
                due.append(path)
                self._retries[path] = (tries + 1, now + RETRY.rest_sec(tries + 2))
        self._retries = {path: retry for path, retry in self._retries.items() if path in broken}
        return self._requeue(due)

    def run(self, route: str | None = None, reasons: Collection[Reason] | None = None) -> ReplayReport:
        """Give the files of what is kept aside to the stream once more, of one route or of all; and merge what waits
        for a merged table that rests. The next batches bring the events in. Raises StoreDown."""
        report = ReplayReport()
        with writing(self.changes.quarantine):
            rows = self._wanted(route, reasons)
        for row in rows:
            report.left[row.route or ""] = report.left.get(row.route or "", 0) + 1
        report.coming = {row.route for row in rows if row.route}
        self._requeue({row.file for row in rows})
        for name, error in self.merges.run([route] if route else None, anyway=True).items():
            if error is not None:
                report.failed[name] = error
        return report

    def routes(self, reason: Reason) -> set[str]:
        """Routes of the events that are kept aside for `reason`. Raises TableFault, OSError."""
        return {row.route for row in self.changes.event_quarantine.open_rows(f"reason = '{reason.value}'") if row.route}

    def _wanted(self, route: str | None, reasons: Collection[Reason] | None) -> list[RejectedEvent]:
        condition = "level <> 'merge'"
        if reasons is not None:
            condition += f" AND reason IN ({', '.join(repr(r.value) for r in reasons)})"
        return [row for row in self.changes.event_quarantine.open_rows(condition) if route in (None, row.route)]

    def _requeue(self, paths: Collection[str]) -> int:
        if not paths:
            return 0
        self.files.requeue(sorted(paths), self.source.max_files_per_batch, self.source.max_bytes_per_batch)
        return len(paths)
