"""Upkeep of a running stream's tables in the gaps that it leaves: between two batches, and while nothing comes.

A table is due when it has too many small files, or when its time for the rest of upkeep (tombstones, old files) has
come. What a batch adds is counted here, so a table is opened only to be joined; one that the run knows nothing of yet
is looked at once, when it is its turn. Turns follow from the batch's number and times from the clock, so runs that end
soon and begin again lose none of them.

A table is begun in a gap only, the worst first, and a busy stream gives it `SHARE` of its time; a quiet one as much as
it needs. A batch that comes meanwhile goes on beside it, as beside `distributary maintain`. Only for the quarantine,
and for tables that Spark writes, it waits: there a change that comes too late would end as an outage.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Collection
from contextlib import ExitStack

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.engine.memory import give_back
from distributary.errors import AlreadyRunning
from distributary.errors.border import contained
from distributary.running.maintain import Carer, Maintained, OwnTable, Spark, tables_of
from distributary.state.ledger import Entry, Ledger
from distributary.state.lock import only_run
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store

SHARE = 0.05
"""Of a busy stream's time, for upkeep."""
QUIET_SEC = 1.0
"""So long no batch must have come for a stream to be a quiet one."""
LOOK_SEC = 0.25
CLOCK_SEC = 60.0
"""How often the clock is asked whose time has come."""
MOST_SAVED_SEC = 5.0
"""So much unused time is kept for later."""
LAST_SEC = 5.0
"""How long a run that has taken all goes on with upkeep."""
TURN_BATCHES = 16
"""A table of which nothing is known is looked at in one of so many batches, and in none of the first ones."""
NEVER_SEEN = 1 << 30

log = logging.getLogger("distributary")


class Due:
    """Which tables are due, and how badly. Pure but for what it is told."""

    def __init__(self, small_files: int, every: float, since: float) -> None:
        """`every`: seconds between two times of a table; `since`: which of them are over (seconds since 1970)."""
        self._small_files = small_files
        self._every = every
        self._since = since
        self._files: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self.crowded: dict[str, int] = {}
        """Tables to be joined, with their small files as far as they are known."""
        self.timely: dict[str, None] = {}
        """Tables whose time has come, oldest first."""

    def written(self, batch: int, tables: Collection[str], all_tables: Collection[str]) -> None:
        """A batch has added a file to each of `tables`. `all_tables`: all tables of the stream."""
        for uri in tables:
            if uri in self._files:
                self._files[uri] += 1
                if self._is_crowded(uri):
                    self.crowded[uri] = self._files[uri]
        if batch >= TURN_BATCHES:
            turn = (uri for uri in all_tables if uri not in self._files and _is_turn(uri, batch))
            self.crowded.update((uri, NEVER_SEEN) for uri in turn)

    def _is_crowded(self, uri: str) -> bool:
        """Too many, and clearly more than were left too many by the last joining, for whatever reason."""
        files, more = self._files[uri], max(1, self._small_files // 2)
        return files > self._small_files and files >= self._left[uri] + more

    def seen(self, uri: str, files: int) -> None:
        """So many small files a table has now."""
        self.crowded.pop(uri, None)
        self._files[uri] = files
        self._left[uri] = files if files > self._small_files else 0

    def clock(self, now: float, all_tables: Collection[str]) -> None:
        """It is `now` (seconds since 1970)."""
        for uri in all_tables:
            if _times(uri, now, self._every) > _times(uri, self._since, self._every):
                self.timely[uri] = None
        self._since = max(self._since, now)

    def next(self) -> str | None:
        """The table that needs its files joined most."""
        return max(self.crowded, key=lambda uri: self.crowded[uri], default=None)


def _is_turn(uri: str, batch: int) -> bool:
    return (batch + zlib.crc32(uri.encode())) % TURN_BATCHES == 0


def _times(uri: str, at: float, every: float) -> int:
    """How many times of a table are over. Each table has its own phase, so that they do not all come together."""
    return int(at / every + zlib.crc32(uri.encode()) / 2**32)


class Gaps:
    """Looks after the tables of one stream, in a thread of its own."""

    def __init__(
        self,
        config: Pipeline,
        ledger: Ledger,
        spark: Spark,
        busy: threading.Lock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`busy` is held while a batch is written."""
        self.config = config
        self.ledger = ledger
        self._store = Store.of(config.tables)
        self._spark = spark
        self._busy = busy
        self._clock = clock
        rules, last = config.maintenance, max((e.finished_at for e in ledger.own.values()), default=0)
        self.due = Due(rules.small_files, rules.every, last / 1e6 or time.time())
        self._carer = self._new_carer()
        self._asked = self._batch_at = self._saved_at = clock()
        self._saved = 0.0
        self._has_worked = False
        self._known: dict[str, str | None] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    # -- what a run tells ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on."""
        if self.config.maintenance.automatic:
            self._over.clear()
            self._thread = threading.Thread(target=self._work, name="upkeep", daemon=True)
            self._thread.start()

    def batch(self, report: BatchReport) -> None:
        """A batch is done."""
        self._batch_at = self._clock()
        self._has_worked = True
        if not self.config.maintenance.automatic:
            return
        newest = self.ledger.newest
        written = {uri for route in report.written for uri in _places(newest.get(route))}
        if report.rows_quarantined:
            written.add(quarantine_uri(self.config.state_root))
        if report.created or not self._known:
            self._learn()
        with self._lock:
            self.due.written(report.batch, written, self._known)

    def end(self, drained: bool) -> None:
        """No more, once the table at hand is done. `drained`: the stream has taken all, and what is due is done first,
        as far as it goes."""
        self._over.set()
        if self._thread is None:
            return
        self._thread.join(LAST_SEC)
        is_free, self._thread = not self._thread.is_alive(), None
        until = self._clock() + LAST_SEC
        if drained and is_free:
            self._ask_clock()
            while self._clock() < until and self.one() is not None:
                pass

    # -- the work ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._over.wait(LOOK_SEC):
            try:
                self._look()
            except BaseException as e:
                log.warning("upkeep was left out: %s", contained(e))

    def _look(self) -> None:
        """Do one table, if one is due and it is the moment. Raises what the ledger's own books raise."""
        now = self._clock()
        self._saved = min(MOST_SAVED_SEC, self._saved + SHARE * (now - self._saved_at))
        self._saved_at = now
        if now - self._asked >= CLOCK_SEC:
            self._ask_clock()
            self._tidy()
        if not (self.due.crowded or self.due.timely):
            return
        quiet = not self._busy.locked() and now - self._batch_at >= QUIET_SEC
        if quiet or (self._saved > 0 and self._in_a_gap()):
            self.one()
            if not quiet:
                self._saved -= self._clock() - now

    def _tidy(self) -> None:
        """What opens and joins tables, or folds the ledger, leaves free memory in many pieces, more of it for hours."""
        if self._has_worked:
            self._has_worked = False
            give_back()

    def _in_a_gap(self) -> bool:
        """Wait for the end of the batch that is being written."""
        if not self._busy.acquire(timeout=LOOK_SEC):
            return False
        self._busy.release()
        return True

    def _ask_clock(self) -> None:
        self._asked = self._clock()
        self._carer = self._new_carer()
        self._learn()
        with self._lock:
            self.due.clock(time.time(), self._known)

    def one(self) -> Maintained | None:
        """Look after the table that needs it most; None where none does."""
        with self._lock:
            crowded, timely = self.due.next(), next(iter(self.due.timely), None)
        uri = crowded or timely
        if uri is None:
            return None
        self._has_worked = True
        table = self._table(uri)
        upkeep = Maintained(uri, None) if table is None else self._care(table, everything=not crowded)
        with self._lock:
            if crowded:
                self.due.seen(uri, upkeep.files_after)
            else:
                self.due.timely.pop(uri, None)
        if upkeep.skipped:
            log.info("upkeep of %s: %s", upkeep.table, upkeep.skipped)
        return upkeep

    def _care(self, table: OwnTable, *, everything: bool) -> Maintained:
        entry = self.ledger.newest.get(table.route)
        with ExitStack() as locks:
            try:
                if table.uri == quarantine_uri(self.config.state_root):
                    locks.enter_context(self._busy)
                    locks.enter_context(only_run(self.config.state_root, self.config.pipeline, "replay"))
                elif entry is not None and entry.engine == "spark":
                    locks.enter_context(self._busy)
            except AlreadyRunning:
                return Maintained(table.uri, None, busy=True)
            if everything:
                return self._carer.whole(table)
            return self._carer.join(table, self.config.maintenance.small_files)

    def _table(self, uri: str) -> OwnTable | None:
        """None for one that is parked: whoever cannot write it cannot join its files either."""
        route = self._known.get(uri)
        entry = self.ledger.newest.get(route)
        if route is not None and (entry is None or entry.state == "parked"):
            return None
        tables = tables_of(self.config, {} if entry is None else {route: entry})
        return next((table for table in tables if table.uri == uri), None)

    def _new_carer(self) -> Carer:
        """One is good for a moment: it remembers what waits at the source."""
        return Carer(self.config, self._store, self._spark)

    def _learn(self) -> None:
        """Which tables there are, and of which route (None: of all)."""
        sums: dict[str | None, Entry] = dict(self.ledger.newest)
        self._known = {table.uri: table.route for table in tables_of(self.config, sums)}


def _places(entry: Entry | None) -> tuple[str, ...]:
    return () if entry is None else tuple(uri for uri in (entry.table, entry.merged) if uri)
