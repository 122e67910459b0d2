"""Runs a declarative pipeline: one warm server, update after update, and what Spark 4.2 leaves to whoever runs it.

Each update defines everything anew, so new routes and schema versions are in it. A dataset whose flow failed rests,
longer after each failure, while the others go on; what was set aside for a schema that is known by now comes back. One
run per pipeline at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from distributary.backoff import Backoff
from distributary.config import DeclarativeFolder, Pipeline
from distributary.declarative.bronze_counts import ENVELOPE
from distributary.declarative.datasets import Datasets, state_folder
from distributary.declarative.event_log import Event
from distributary.declarative.libraries import Library, find_libraries, forget_modules
from distributary.declarative.lint import own_files
from distributary.declarative.replay import ids_there, replay
from distributary.declarative.server import END_SEC, Server, client, server_conf
from distributary.declarative.silver_sink import silver_flow
from distributary.declarative.update import Selection, Update, prepare_database, run_update
from distributary.declarative.update_ledger import Books
from distributary.engine.schemas import schemas_of
from distributary.errors import AlreadyRunning, DistributaryError, Reason, ServerGone, UpdateFailed, without_stack
from distributary.schemas.registry import Registry
from distributary.schemas.row_sql import check_sql
from distributary.state.cleaning import at_work
from distributary.state.layout_claim import claim_layout
from distributary.state.lock import only_run
from distributary.tables.store import Store, local_path

FIRST_REST_SEC = 2.0
LONGEST_REST_SEC = 300.0
ATTEMPTS_ONCE = 3
"""Updates in which a run with `once` tries a dataset before it gives it up."""
EVENTS_BYTES = 16 << 20
"""Above it the older half of the events file goes."""
FAILURES_IN_A_ROW = 10
"""Updates that may fail as a whole before a run ends."""
CUT_OFF = (
    "stopped in the middle of an update: Spark was told to end too. Nothing is lost, the next run goes on from there"
)

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Options:
    """How to run. `every_sec`: from the begin of one update to that of the next. `remote`: a server that is there."""

    once: bool = False
    every_sec: float = 10.0
    selection: Selection = field(default_factory=Selection)
    remote: str | None = None


@dataclass
class Rest:
    """A dataset that failed: how often in a row, why, and when it is tried again (seconds, monotonic)."""

    failures: int
    why: str
    until: float


@dataclass
class RunReport:
    """The sum of a run. `rows`: by dataset; `kinds`: what each is. `set_aside`: rows that went to the quarantine, less
    those that came back. `failed`: datasets that did not work when it ended, and why. `problems`: in words."""

    pipeline: str
    updates: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    set_aside: int = 0
    replayed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        return not self.failed and self.error is None


def _rest(failures: int) -> float:
    """Seconds to rest after so many failures in a row."""
    return Backoff(FIRST_REST_SEC, LONGEST_REST_SEC).rest_sec(failures)


class Runner:
    """One run of one pipeline in this process. `base`: the folder of the pipeline file; `tell` gets every event;
    `after` gets the session at the end of each update; `started` is called when Spark is there."""

    def __init__(
        self,
        config: Pipeline,
        base: Path,
        options: Options,
        tell: Tell = lambda _: None,
        after: Callable[[SparkSession], None] = lambda _: None,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.options = options
        self.datasets = Datasets.of(config)
        self.libraries: list[Library] = find_libraries(config, base)
        self.base = base
        self.report = RunReport(config.pipeline)
        self.schemas = schemas_of(config)
        self.registry: Registry = self.schemas.registry
        self._tell_user = tell
        self._after = after
        self._started = started
        self._stopping = threading.Event()
        self._resting: dict[str, Rest] = {}
        self._tried: set[tuple[str, int]] = set()
        self._waited: set[str] = set()
        self._envelopes: frozenset[int] = frozenset()
        self._careful = False
        """A worker has died: tasks look for what has ended it, until no dataset rests for want of an update."""
        self._events = local_path(state_folder(config))
        self._is_alive: Callable[[], bool] | None = None

    def go(self) -> RunReport:
        """Run until all is done (`once`), or until `stop`.

        Raises AlreadyRunning, CleanUnfinished, LayoutChanged, BadInput, ConfigError, LintFailed, JavaMissing,
        SparkNotStarted, QuarantineLimit; UpdateFailed and Outage with `once` at once, else after many in a row.
        """
        own_files(self.config, self.base)
        check_sql(self.config.tables)
        store = Store.of(self.config.tables)
        with at_work(self.config, store):
            if not self.options.selection.dry_run:
                claim_layout(self.config, store)
            self.books = Books(self.config)
            failures, updates = 0, 0
            while True:
                try:
                    self._serve()
                    break
                except DistributaryError as e:
                    failures = 1 if self.report.updates > updates else failures + 1
                    updates = self.report.updates
                    if not e.retryable or self.options.once or failures > FAILURES_IN_A_ROW:
                        raise
                    self._tell({"kind": "error", "condition": e.condition, "text": str(e)})
                    if self._stopping.wait(_rest(failures)):
                        break
        self._tell({"kind": "run", "ok": self.report.ok, **asdict(self.report)})
        return self.report

    def stop(self) -> None:
        """End after the update that runs now. From any thread."""
        self._stopping.set()

    # -- the loop ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Updates on one server. Raises ServerGone when it ended, and what an update raises."""
        if self.options.remote is not None:
            self._started()
            self._loop(self.options.remote, None)
            return
        with Server(server_conf(self.config), self.config.spark.master) as server:
            self._started()
            self._loop(server.remote, server.is_alive)

    def _loop(self, remote: str, is_alive: Callable[[], bool] | None) -> None:
        """`is_alive`: of a server of our own."""
        self._is_alive = is_alive
        selection = self.options.selection
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                with client(remote, impatient=is_alive is not None) as spark:
                    update = self._update(spark, selection)
            except Exception as e:
                if self._is_cut_off():
                    self._tell({"kind": "stopped", "text": CUT_OFF})
                    return
                if is_alive is not None and not is_alive():
                    raise ServerGone(detail=f"{type(e).__name__}: {' '.join(str(e).split())[:200]}") from e
                if isinstance(e, PySparkException):
                    raise UpdateFailed(detail=without_stack(e)) from e
                raise
            if selection.dry_run or self._is_done(update):
                return
            # A full refresh is done once; what it has not filled is tried again as it is.
            refilled = selection.but_for(silver_flow(self.config)).full_refresh
            again = (*selection.refresh, *refilled) if self.options.once and not update.behind else selection.refresh
            selection = replace(selection, refresh=again, full_refresh=(), full_refresh_all=False)
            if not self.options.once:
                self._stopping.wait(max(0.0, began + self.options.every_sec - time.monotonic()))

    def _is_cut_off(self) -> bool:
        """Did whoever stops this run end its JVM too? A service manager signals all processes of a service at once."""
        if self._is_alive is None or not self._stopping.is_set():
            return False
        until = time.monotonic() + END_SEC
        while self._is_alive() and time.monotonic() < until:
            time.sleep(0.05)
        return not self._is_alive()

    def _is_done(self, update: Update) -> bool:
        """With `once`: is there nothing left to do that another update might?"""
        if not self.options.once:
            return False
        again = [rest.until for rest in self._resting.values() if rest.failures < ATTEMPTS_ONCE]
        if again:
            return self._stopping.wait(max(0.0, min(again) - time.monotonic()))
        if update.behind:
            return False
        return update.error is not None or not self._heal()

    def _update(self, spark: SparkSession, selection: Selection) -> Update:
        number = self.report.updates + 1
        prepare_database(spark, self.datasets)
        if not selection.dry_run:
            self._heal()
        forget_modules(self.libraries)
        now = time.monotonic()
        without = {name for name, rest in self._resting.items() if rest.until > now}
        update = run_update(
            spark,
            self.config,
            self.libraries,
            self.base,
            selection,
            lambda e: self._told(number, e),
            self.schemas,
            without,
            self._careful,
        )
        if (update.error is not None or update.failed) and self._is_cut_off():
            raise ServerGone(detail="in the middle of an update")
        self.report.updates = number
        self._note_envelopes(update)
        counts = {} if selection.dry_run else self.books.settle(update.states, update.reasons)
        aside = sum(count.aside for count in counts.values())
        self._conclude(number, update, aside)
        self._careful = update.died() or (self._careful and bool(self._resting or update.error))
        self.books.check_limits(counts)
        self._after(spark)
        return update

    def _conclude(self, number: int, update: Update, aside: int) -> None:
        """Let what failed rest, and say what the update did."""
        for name in update.failed:
            failures = 1 + (self._resting[name].failures if name in self._resting else 0)
            until = time.monotonic() + _rest(failures)
            self._resting[name] = Rest(failures, update.reasons.get(name, "it failed"), until)
        for name, state in update.states.items():
            if state == "COMPLETED":
                self._resting.pop(name, None)
        report = self.report
        for name, rows in update.rows.items():
            report.rows[name] = report.rows.get(name, 0) + rows
        report.failed = {name: rest.why for name, rest in sorted(self._resting.items())}
        report.problems = tuple(update.problems)
        report.error = None if update.failed else update.error
        report.kinds |= update.kinds()
        report.set_aside += aside
        self._tell({"kind": "update", "update": number, **update.to_json(), "set_aside": aside})

    def _note_envelopes(self, update: Update) -> None:
        """Rows whose envelope could not be read do not say which schema they wait for: try all when one is new."""
        schemas = update.defined.known_routes.reader.schemas if update.defined is not None else {}
        self._waited -= update.defined.known_routes.failed.keys() if update.defined is not None else set()
        if self._envelopes != (envelope_ids := frozenset(schemas)):
            self._envelopes = envelope_ids
            self._tried = {pair for pair in self._tried if pair[1] != ENVELOPE}

    def _heal(self) -> int:
        """Replay what was set aside for a schema that the registry has by now; rows that came back."""
        unknown = {(route, i) for route, ids in self.books.unknown().items() for i in ids} - self._tried
        registry = self.config.registry
        most = 1 if registry is None else registry.max_unknown_ids
        registered_ids = {
            ENVELOPE,
            *ids_there(self.config, self.registry, {schema_id for _, schema_id in unknown} - {ENVELOPE}, most),
        }
        registered = {pair for pair in unknown if pair[1] in registered_ids}
        waiting = self.books.waiting() - self._waited
        if not registered and not waiting:
            return 0
        try:
            with only_run(self.config.state_root, self.config.pipeline, "replay"):
                reasons = {Reason.UNKNOWN_SCHEMA_ID, Reason.TABLE_PARKED}
                report = replay(self.config, self.registry, reasons=reasons, most_ids=most)
        except AlreadyRunning:
            return 0
        rows = sum(report.rows.values())
        # What does not come back now has another fault: it is not read again by every update.
        self._tried |= {pair for pair in registered if pair[0] not in report.rows}
        self._waited |= waiting - report.rows.keys()
        if rows:
            self.report.replayed += rows
            self._tell({"kind": "replay", "rows": report.rows, "left": report.left})
        return rows

    # -- what is told --------------------------------------------------------------------------------------

    def _told(self, number: int, event: Event) -> None:
        self._tell({"update": number, **event.to_json()})

    def _tell(self, report: Mapping[str, Any]) -> None:
        """To the user, and to the events file of the pipeline."""
        self._tell_user(dict(report))
        if self._events is None:
            return
        self._events.mkdir(parents=True, exist_ok=True)
        path = self._events / DeclarativeFolder.events.name
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(report, ensure_ascii=False, default=str) + "\n")
            size = file.tell()
        if size > EVENTS_BYTES:
            newest = path.read_bytes()[-EVENTS_BYTES // 2 :].partition(b"\n")[2]
            Store().put_whole(str(self._events), path.name, newest)
