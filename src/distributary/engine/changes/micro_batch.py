"""One micro-batch of change files, from references to tables.

    references -> [driver: which table each file holds, which task reads it] -> read, log, reduce, merge -> outcomes

Every write is idempotent under the batch's transaction, so a batch can be attempted again at any moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.engine.attempts import attempted, killers_after
from distributary.engine.changes.attempt import Attempt, AttemptResult
from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.ledger_fields import MergeBacklog
from distributary.engine.changes.retries import EventQuarantine, RejectedEvent, narrowed, previous
from distributary.engine.changes.routing import FileRoutes
from distributary.engine.changes.table_settings import Named, reading_of
from distributary.engine.changes.task_spec import ChangeSpec, WorkFile
from distributary.engine.changes.tasks import run_killers
from distributary.engine.decisions import Decision
from distributary.engine.outcomes import Delivered, Fault, Outcome
from distributary.sources.bodies import source_options
from distributary.state.journal import Journal
from distributary.tables.merge_tip import MergeTip
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, quarantine_uri, write_rejected
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.tip import Tip


@dataclass
class ChangesDelivered(Delivered):
    """`released`: ids of quarantine rows whose events are in a table now. `beyond`: times that are null since no reader
    can hold them, by `route.column`."""

    released: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    unknown_fields: tuple[str, ...] = ()
    beyond: Counter[str] = field(default_factory=Counter)


class Changes:
    """Writes batches of one pipeline of change files. Keeps what is known of folders and tables."""

    def __init__(self, spark: SparkSession, config: Pipeline, store: Store) -> None:
        self.config = config
        self.store = store
        self.named = Named.of(config)
        self.options = source_options(config)
        self.reading = reading_of(config)
        self.quarantine = quarantine_uri(config.state_root)
        self.event_quarantine = EventQuarantine(self.quarantine, store)
        self.files = FileRoutes(self.reading, self.options, config.quarantine.read_sec)
        self.journal = Journal(config.state_root, store)
        self.by_spark = BySpark(spark, store)
        self.tips: dict[str, Tip] = {}
        """What the last batch's commits left behind in the log tables, by route."""
        self.merge_tips: dict[str, MergeTip] = {}
        """And those in the merged tables."""
        self.brought: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """By route, the columns of every schema that has come; only where `dropped_columns` is `keep`."""
        self.behind: dict[str, MergeBacklog] = {}
        """Routes whose log has rows that are not merged yet."""
        self.resting: set[str] = set()
        """Routes whose merged table could not be written: only their log is, until its rest is over."""
        self._waiting: dict[str, list[tuple[str, bytes]]] | None = None
        """Events that wait for another one to be merged; None: ask the quarantine."""
        self.file_batch: int | None = None
        """The last batch's file batch in the file ledger."""
        self.reached: Callable[[int], None] = lambda _: None
        """Hears of each batch's file batch as the batch begins."""
        self.will_write: Callable[[Mapping[str, Sequence[str]], str, int], None] = lambda *_: None
        """Hears which tables a stream is to write in a batch, by route, and may raise (`state.provenance`)."""
        self._slots = spark.sparkContext.defaultParallelism
        self._last: tuple[str, int] | None = None

    @property
    def on_spark(self) -> set[str]:
        """Routes of which a table is written by Spark."""
        return self.by_spark.routes

    def write(self, rows: DataFrame, stream: str, batch: int, parked: Mapping[str, str]) -> ChangesDelivered:
        """Write one batch. `parked`: routes of which a table is not tried, and why.

        Raises Outage (source, store): nothing is advanced, and the same batch can be written again.
        """
        started = time.monotonic()
        if self._last is not None and self._last >= (stream, batch):
            # An earlier attempt may have committed: only an opened table shows its transactions.
            self.tips.clear()
            self.merge_tips.clear()
        files, aside = self._files(rows)
        routes = self._settle(files, stream, batch)
        self.will_write(self._tables(routes), stream, batch)
        self._last = (stream, batch)
        # Only this batch's tips: the spec travels with every task.
        routes_here = {route for routes_of_file in routes.values() for route in routes_of_file}
        spec = replace(
            self.spec(stream, batch, self._decisions(routes, parked)),
            killed=self.journal.killed(stream, batch),
            tips={route: tip for route, tip in self.tips.items() if route in routes_here},
            merge_tips={route: tip for route, tip in self.merge_tips.items() if route in routes_here},
        )
        looked = time.monotonic()
        result = self._attempt(files, routes, spec)
        self.files.learn(files, result.seen)
        whole_files = {f.path for f in files if f.only is None}
        delivered = self._delivered(result, _released(result, aside, whole_files), spec)
        delivered.seconds = {"look": looked - started, "deliver": time.monotonic() - looked, **_spent(result)}
        return delivered

    def _tables(self, routes: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
        """Addresses of the tables, as far as their names in the source are known."""
        sources = {
            r: self.files.sources[r]
            for routes_of_file in routes.values()
            for r in routes_of_file
            if r in self.files.sources
        }
        return {route: self.named.all_of(source) for route, source in sources.items()}

    def _settle(self, files: Sequence[WorkFile], stream: str, batch: int) -> Mapping[str, tuple[str, ...]]:
        """The routes of the files; where the batch was attempted before, those of that attempt. Raises OSError."""
        if self._last is None or self._last >= (stream, batch):
            before = self.journal.routes(stream, batch)
            if before is not None and before.keys() == {f.path for f in files}:
                return before
        routes = self.files.routes(files)
        self.journal.write_routes(stream, batch, routes)
        return routes

    def spec(self, stream: str, batch: int, decisions: Mapping[str, Decision]) -> ChangeSpec:
        if self._waiting is None:
            self._waiting = self.event_quarantine.waiting()
        return ChangeSpec(
            pipeline=self.config.pipeline,
            stream=stream,
            batch=batch,
            named=self.named,
            reading=self.reading,
            store=self.store,
            source_options=self.options,
            quarantine=self.quarantine,
            parts=self.config.state_folder.parts,
            decisions=decisions,
            waiting=self._waiting,
            read_sec=self.config.quarantine.read_sec,
        )

    # -- before --------------------------------------------------------------------------------------------

    def _files(self, rows: DataFrame) -> tuple[list[WorkFile], dict[str, list[RejectedEvent]]]:
        """The batch's files, and what the quarantine has of those that come again."""
        refs = rows.toArrow().to_pylist()
        # Spark may make a batch without files, of a commit that holds none.
        if refs:
            self.file_batch = max(r["parcel"] for r in refs)
            self.reached(self.file_batch)
        files = [
            WorkFile(r["path"], r["size"], r["mtime_ms"], r["folder"], r["attempt"], r["etag"] or "") for r in refs
        ]
        again = [f for f in files if f.attempt > 1]
        if not again:
            return files, {}
        before = previous(Table(self.config.state_folder.files, self.store).open(), again)
        aside = self.event_quarantine.of_files({f.path for f in again})
        return [narrowed(f, before[f.path], aside.get(f.path, ())) if f.path in before else f for f in files], aside

    def _decisions(self, routes: Mapping[str, tuple[str, ...]], parked: Mapping[str, str]) -> dict[str, Decision]:
        decisions: dict[str, Decision] = {}
        waits = self.named.tables.merge_every > 0
        for route in {*(r for routes_of_file in routes.values() for r in routes_of_file), *parked, *self.behind}:
            if route in parked and route not in self.resting:
                decisions[route] = Decision("parked", "parked", why=parked[route])
            elif route in parked:
                decisions[route] = Decision(merge="parked", why=parked[route])
            elif waits or route in self.behind:
                decisions[route] = Decision(merge="later")
        return decisions

    # -- the batch -----------------------------------------------------------------------------------------

    def _attempt(
        self, files: Sequence[WorkFile], routes: Mapping[str, tuple[str, ...]], spec: ChangeSpec
    ) -> AttemptResult:
        """Attempt the batch until every table is either written or parked."""

        def attempt(spec: ChangeSpec) -> AttemptResult:
            return Attempt(self.by_spark, spec, self._slots).run(files, routes)

        def killed(spec: ChangeSpec, error: Exception) -> dict[str, str]:
            unread = [file for file in files if file.path not in spec.killed]
            spark, slots = self.by_spark.spark, self._slots
            killers = killers_after(error, spec.killed, lambda: run_killers(spark, unread, spec, slots))
            # Written down before a table is touched without them.
            self.journal.write_killed(spec.stream, spec.batch, killers)
            return killers

        return attempted(spec, attempt, killed)

    # -- after ---------------------------------------------------------------------------------------------

    def _delivered(
        self, result: AttemptResult, released: Sequence[RejectedEvent], spec: ChangeSpec
    ) -> ChangesDelivered:
        bad: dict[str | None, Counter[str]] = {None: Counter()}
        for file_seen in result.seen.values():
            bad[None].update(file_seen.nameless)
        for row in released:
            bad.setdefault(row.route, Counter())[row.reason] -= 1
        merges = [outcome.merge for outcome in result.outcomes.values() if outcome.merge is not None]
        late = [rows for merge in merges for rows in merge.late]
        if late:
            result.quarantine.append(
                write_rejected(
                    self.quarantine, late, spec.stream, spec.batch, "late", self.store, EVENT_QUARANTINE_SCHEMA
                )
            )
        if late or any(merge.resolved or merge.late_rows for merge in merges):
            self._waiting = None
        outcomes = {route: self._remember(outcome) for route, outcome in result.outcomes.items()}
        fields = {name for file_seen in result.seen.values() for name in file_seen.unknown_fields}
        beyond: Counter[str] = Counter()
        for file_seen in result.seen.values():
            beyond.update(file_seen.beyond)
        return ChangesDelivered(
            outcomes=outcomes,
            quarantine=result.quarantine,
            bad={route: +counts if route is None and not released else counts for route, counts in bad.items()},
            newest={route: ms * 1000 for route, ms in _newest_ms(outcomes).items()},
            released=[*(row.id for row in released), *(i for merge in merges for i in merge.resolved)],
            broken={file_seen.path: file_seen.broken for file_seen in result.seen.values() if file_seen.broken},
            unknown_fields=tuple(sorted(fields)),
            beyond=beyond,
        )

    def _remember(self, outcome: Outcome) -> Outcome:
        """Keep what later batches need of a route; returns the outcome as the ledger is to have it."""
        route, merge, events = outcome.route, outcome.merge, outcome.events
        assert merge is not None and events is not None
        _keep(self.tips, route, outcome.append.tip)
        _keep(self.merge_tips, route, merge.tip)
        self.by_spark.note(outcome)
        if events.keeps:
            # By schema key: names only come in addition.
            events = replace(events, brought={**self.brought.get(route, {}), **events.brought})
            self.brought[route] = events.brought
        if outcome.state == "failed" and merge.state == "off":
            # It is the log that cannot be written; what waits in it to be merged goes on waiting.
            self.resting.discard(route)
            merge = replace(merge, state="waiting" if route in self.behind else None)
        elif merge.state in ("waiting", "parked") and events.has_log:
            before = self.behind.get(route)
            merge = replace(merge, anew=merge.anew or (before is not None and before.anew))
            self.behind[route] = MergeBacklog(events.source, events.keys, anew=merge.anew)
        fault = outcome.fault
        if merge.state == "parked" and fault is None:
            self.resting.add(route)
            # The log is fine. For the ledger the route is parked all the same, until its merged table works again.
            fault = Fault(f"merged table: {merge.error or 'parked'}")
        return replace(outcome, merge=merge, events=events, fault=fault)


T = TypeVar("T")


def _keep(tips: dict[str, T], route: str, tip: T | None) -> None:
    """What is known of a route's table now; what was known before is stale."""
    if tip is not None:
        tips[route] = tip
    else:
        tips.pop(route, None)


def _newest_ms(outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    newest_of = ((route, None if o.events is None else o.events.newest_ms) for route, o in outcomes.items())
    return {route: ms for route, ms in newest_of if ms is not None}


def _spent(result: AttemptResult) -> dict[str, float]:
    """Seconds of all tasks together, by what they did."""
    spent = {"tasks read": sum(file_seen.seconds for file_seen in result.seen.values())}
    for outcome in result.outcomes.values():
        merge = {} if outcome.merge is None else outcome.merge.seconds
        for name, seconds in (*outcome.seconds.items(), *merge.items()):
            spent[f"tasks {name}"] = spent.get(f"tasks {name}", 0.0) + seconds
    return spent


def _released(
    result: AttemptResult, aside: Mapping[str, Sequence[RejectedEvent]], fresh: Collection[str]
) -> list[RejectedEvent]:
    """Rows of the quarantine that this batch has brought into a table. `fresh`: files that were delivered as new."""
    good = {
        (path, n)
        for outcome in result.outcomes.values()
        if outcome.events is not None
        for path, numbers in outcome.events.again.items()
        for n in numbers
    }
    released = []
    for path, rows in aside.items():
        file_seen = result.seen.get(path)
        anew = path in fresh and file_seen is not None and file_seen.broken is None
        still = set() if file_seen is None else set(file_seen.still)
        released += [
            row for row in rows if (anew and row.level != "merge" and row.row not in still) or (path, row.row) in good
        ]
    return released
