"""A batch from rows to decision: which tables to try, delivery, ledger, quarantine, limits.

    deliver (idempotent, marked) -> ledger commit = the decision -> quarantine commit -> [Spark commits the offsets]

Between deliver and ledger, and before the offsets, all is brought onto the disk where the store is one.
A crash before the ledger's commit replays the batch from its plan; a crash after it only completes the quarantine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import pyarrow.compute as pc
from pyspark.sql import DataFrame

from distributary.config import Pipeline
from distributary.engine.changes.ledger_fields import ledger_fields
from distributary.engine.first_batch import Example, is_first, structural_reason, unreadable
from distributary.engine.outcomes import Delivered, Outcome
from distributary.engine.replay import ReplayReport
from distributary.errors import QuarantineLimit, Reason
from distributary.state.ledger import Entry, Ledger, is_resting, quarantine_files, rests_until
from distributary.tables.durable import bring_to_disk
from distributary.tables.faults import writing
from distributary.tables.files import read_file
from distributary.tables.quarantine import commit_quarantine
from distributary.tables.store import Store


@dataclass(frozen=True)
class BatchReport:
    """What a finished batch did, for progress displays. `parked`: routes whose table could not be
    written; `recovered`: those that could be again. `already`: an earlier run finished it, and did not live to tell;
    only the stream's offsets were missing. `reasons`: of the quarantined rows. `excluded`: records of routes that the
    pipeline file leaves out; they are in no other count. `written`, `refused`: rows in the table and rows quarantined,
    by route."""

    stream: str
    batch: int
    rows_in: int
    rows_written: int
    rows_quarantined: int
    tombstones: int
    tables: int
    created: tuple[str, ...]
    evolved: tuple[str, ...]
    parked: tuple[str, ...]
    recovered: tuple[str, ...]
    seconds: Mapping[str, float]
    widened: tuple[str, ...] = ()
    already: bool = False
    reasons: Mapping[str, int] = field(default_factory=dict)
    excluded: int = 0
    written: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)


class Delivery(Protocol):
    """What writes a batch's rows to their tables. `on_spark`: routes that engine `spark` writes."""

    store: Store
    quarantine: str

    @property
    def on_spark(self) -> set[str]: ...

    def write(self, rows: DataFrame, stream: str, batch: int, parked: Mapping[str, str]) -> Delivered:
        """Write one batch, idempotently. `parked`: routes that are not tried, and why. Raises Outage."""
        ...


class Replayer(Protocol):
    """What brings rows back out of the quarantine."""

    def run(self, route: str | None = None, reasons: Collection[Reason] | None = None) -> ReplayReport: ...

    def routes(self, reason: Reason) -> set[str]: ...


class BatchWriter:
    """Takes a stream's batches, each to its end, exactly once."""

    def __init__(self, config: Pipeline, delivery: Delivery, ledger: Ledger, *, force: bool = False) -> None:
        """`force`: take a first batch also where no record of it can be read."""
        self.config = config
        self.force = force
        self.delivery = delivery
        self.ledger = ledger
        self.bad_batches = 0
        self._returning: set[str] | None = None
        self._coming: dict[str, tuple[int, int | None]] = {}
        """Routes of which the stream was given all rows once more, and the failure after which."""

    def take(self, rows: DataFrame, stream: str, batch: int) -> BatchReport:
        """Write one batch; nothing more than to complete it when it was finished before (only its offsets were not).

        Raises Outage when nothing was advanced, QuarantineLimit when the batch is finished but the stream must stop,
        FirstBatchUnreadable where the pipeline has taken no batch yet, and nothing of this one can be read.
        """
        with writing(self.config.state_root):
            if self.ledger.is_finished(stream, batch):
                details = self.ledger.details(stream, batch)
                self._complete(stream, batch, details)
                self._bring_to_disk()
                return self._finished(stream, batch, details)
            started = time.monotonic()
            delivered = self.delivery.write(rows, stream, batch, self._parked())
            entries = self._entries(stream, batch, delivered)
            report = self._report(stream, batch, entries, delivered, started)
            self._check_first(report, delivered)
            details = self._details(delivered, report)
            self._bring_to_disk()
            self.ledger.record(stream, batch, entries, details)
            self._complete(stream, batch, details)
            self._bring_to_disk()
        self._check_limits(report, entries)
        return report

    def _check_first(self, report: BatchReport, delivered: Delivered) -> None:
        """Raises FirstBatchUnreadable."""
        first = is_first(self.config, self.ledger.finished)
        reason = structural_reason(report.rows_in, report.reasons)
        if self.force or not first or reason is None:
            return
        uri, store = self.delivery.quarantine, self.delivery.store
        names = ["reason", "detail", "level", "value"]
        pieces = (piece for file in delivered.quarantine for piece in read_file(uri, file.path, names, store))
        examples = (piece.filter(pc.equal(piece.column("reason"), reason)).slice(0, 1).to_pylist() for piece in pieces)
        row = next(rows[0] for rows in examples if rows)
        for file in delivered.quarantine:
            store.delete(uri, file.path)
        raise unreadable(self.config, report.rows_in, Example(**row))

    def _bring_to_disk(self) -> None:
        """A power cut leaves no decision without its rows, and no offsets of Spark's without the decision."""
        bring_to_disk((self.config.tables.root, self.config.state_root, self.config.checkpoint_path))

    def _details(self, delivered: Delivered, report: BatchReport) -> dict[str, Any]:
        """What the batch's decision says beside the counts: enough to complete the batch after a crash."""
        return {"quarantine": [f.to_json() for f in delivered.quarantine], "seconds": dict(report.seconds)}

    def _complete(self, stream: str, batch: int, details: Mapping[str, Any]) -> None:
        """What is left to do once the batch is decided. Safe to repeat."""
        if files := quarantine_files(details):
            delivery = self.delivery
            commit_quarantine(delivery.quarantine, self.config.pipeline, files, stream, batch, delivery.store)

    # -- parked tables -------------------------------------------------------------------------------------

    def _parked(self) -> dict[str, str]:
        """Routes that are not tried yet again, and why."""
        return self.ledger.resting(time.time())

    def _was_parked(self, route: str) -> bool:
        before = self.ledger.newest.get(route)
        return before is not None and before.state == "parked"

    def retry(self, replay: Replayer, recovered: Collection[str]) -> None:
        """Between batches: bring back the rows of tables that work again, and try those whose rest is over."""
        if self._returning is None:
            # Also what a run that died just here had still to bring back.
            self._returning = replay.routes(Reason.TABLE_PARKED)
        due = {e.route for e in self.ledger.newest.values() if e.state == "parked" and e.route}
        self._returning |= {*recovered, *due}
        for route in sorted(self._returning - self._parked().keys()):
            before = self.ledger.newest.get(route)
            if before is not None and self._coming.get(route) == (before.failures, before.retry_at):
                continue
            report = replay.run(route, {Reason.TABLE_PARKED})
            if route not in report.failed:
                self._returning.discard(route)
            before = self.ledger.newest.get(route)
            if before is None or before.state != "parked":
                continue
            if route in report.failed:
                self.ledger.newest[route] = self._rests_longer(before, report.failed[route])
            elif route in report.coming:
                # Whether its table works, the batch that brings them will show.
                self._coming[route] = (before.failures, before.retry_at)
            else:
                # Another process has brought its rows back.
                self.ledger.newest[route] = replace(before, state="empty", error=None)

    def retry_later(self) -> None:
        """In place of `retry`: the next one asks the quarantine anew what there is to bring back."""
        self._returning = None

    def _rests_longer(self, before: Entry, error: str) -> Entry:
        failures = before.failures + 1
        retry_at = rests_until(failures, self.config.tables.retry_after, time.time())
        return replace(before, failures=failures, retry_at=retry_at, error=error)

    def _failures(self, outcome: Outcome) -> dict[str, Any]:
        """The state of a table that could not be written: it rests, twice as long after each failure."""
        before = self.ledger.newest.get(outcome.route)
        if before is not None and before.state == "parked" and is_resting(before.retry_at, time.time()):
            return {"state": "parked", "failures": before.failures, "retry_at": before.retry_at}
        failures = 1 + (before.failures if before is not None else 0)
        retry_at = rests_until(failures, self.config.tables.retry_after, time.time())
        return {"state": "parked", "failures": failures, "retry_at": retry_at}

    def _untried(self, route: str) -> dict[str, Any]:
        """The state of a table that this batch had nothing to write to: a parked one stays parked."""
        before = self.ledger.newest.get(route)
        if before is None or before.state != "parked":
            return {"state": "empty"}
        return {n: getattr(before, n) for n in ("state", "error", "failures", "retry_at")}

    def _is_new(self, entry: Entry) -> bool:
        """Its table was made by this batch, or by an attempt at it that nobody was told of."""
        return entry.created or (entry.state == "replayed" and entry.route not in self.ledger.newest)

    # -- entries -------------------------------------------------------------------------------------------

    def _entries(self, stream: str, batch: int, delivered: Delivered) -> list[Entry]:
        entries = [self._entry(stream, batch, o, delivered) for o in delivered.outcomes.values()]
        # Routes of which nothing could be delivered, and last the batch's own entry: what has no route at all.
        others = (delivered.tombstones.keys() | delivered.bad.keys()) - delivered.outcomes.keys() - {None}
        for route in (*sorted(r for r in others if r is not None), None):
            reasons = delivered.bad.get(route, {})
            bad = sum(reasons.values())
            entries.append(
                Entry(
                    stream,
                    batch,
                    route,
                    rows_in=bad,
                    rows_quarantined=bad,
                    tombstones=delivered.tombstones.get(route, 0),
                    reasons=reasons,
                    excluded=0 if route is not None else delivered.excluded,
                    **({"state": "ok"} if route is None else self._untried(route)),
                )
            )
        return entries

    def _entry(self, stream: str, batch: int, outcome: Outcome, delivered: Delivered) -> Entry:
        state: dict[str, Any] = {"state": outcome.state, "error": outcome.error}
        if outcome.state == "failed":
            state |= self._failures(outcome)
        elif outcome.state == "empty":
            state |= self._untried(outcome.route)
        early = delivered.bad.get(outcome.route, {})
        reasons = Counter(outcome.reasons)
        reasons.update(early)
        events = {} if outcome.merge is None else ledger_fields(outcome)
        return Entry(
            stream,
            batch,
            outcome.route,
            table=outcome.table,
            engine="spark" if outcome.route in self.delivery.on_spark else "task",
            rows_in=outcome.rows_in + sum(early.values()),
            rows_written=outcome.rows_written,
            bytes_written=outcome.append.size,
            rows_quarantined=reasons.total(),
            tombstones=delivered.tombstones.get(outcome.route, 0),
            schema_ids=outcome.schema_ids,
            reasons=reasons,
            decoders=outcome.decoders,
            warnings=outcome.warnings,
            widened=outcome.widened,
            newest=delivered.newest.get(outcome.route),
            created=outcome.append.created,
            evolved=outcome.append.evolved,
            **state,
            **events,
        )

    def _report(
        self, stream: str, batch: int, entries: list[Entry], delivered: Delivered, started: float
    ) -> BatchReport:
        return _counted(
            stream,
            batch,
            entries,
            created=tuple(e.route for e in entries if e.route and self._is_new(e)),
            recovered=tuple(e.route for e in entries if e.state != "parked" and e.route and self._was_parked(e.route)),
            seconds={**delivered.seconds, "total": time.monotonic() - started},
        )

    def _finished(self, stream: str, batch: int, details: Mapping[str, Any]) -> BatchReport:
        """What a batch of an earlier run did, out of the ledger. Raises TableFault, OSError."""
        entries = [e for e in self.ledger.entries() if (e.stream, e.batch) == (stream, batch)]
        return _counted(
            stream,
            batch,
            entries,
            created=tuple(e.route for e in entries if e.created and e.route),
            seconds=details.get("seconds", {}),
            already=True,
        )

    def _check_limits(self, report: BatchReport, entries: list[Entry]) -> None:
        parked = sum(e.rows_quarantined for e in entries if e.state == "parked")
        bad = report.rows_quarantined - parked
        self.bad_batches = self.bad_batches + 1 if bad else 0
        if limit := self.config.quarantine.passed(report.rows_in, bad, self.bad_batches):
            common = Counter(report.reasons).most_common(1)
            reason = common[0][0] if common else "the envelope could not be read"
            raise QuarantineLimit(batch=report.batch, bad=bad, rows=report.rows_in, limit=limit, reason=reason)


def _counted(
    stream: str,
    batch: int,
    entries: Sequence[Entry],
    *,
    created: tuple[str, ...],
    seconds: Mapping[str, float],
    recovered: tuple[str, ...] = (),
    already: bool = False,
) -> BatchReport:
    """A batch's report out of its ledger entries."""
    reasons: Counter[str] = Counter()
    for entry in entries:
        reasons.update(entry.reasons)
    return BatchReport(
        stream=stream,
        batch=batch,
        rows_in=sum(e.rows_in for e in entries),
        rows_written=sum(e.rows_written for e in entries),
        rows_quarantined=sum(e.rows_quarantined for e in entries),
        tombstones=sum(e.tombstones for e in entries),
        tables=sum(e.rows_written > 0 for e in entries),
        created=created,
        evolved=tuple(e.route for e in entries if e.evolved and e.route),
        widened=tuple(e.route for e in entries if e.widened and e.route),
        parked=tuple(e.route for e in entries if e.state == "parked" and e.route),
        recovered=recovered,
        seconds=seconds,
        already=already,
        reasons=dict(+reasons),
        excluded=sum(e.excluded for e in entries),
        written={e.route: e.rows_written for e in entries if e.route and e.rows_written > 0},
        refused={e.route: e.rows_quarantined for e in entries if e.route and e.rows_quarantined > 0},
    )


def as_json(report: BatchReport) -> dict[str, Any]:
    return asdict(report)
