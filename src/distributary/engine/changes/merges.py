"""Merges between batches: what is in the logs and not in the merged tables yet, because it was to wait
(`tables.merge_every`) or because a merged table could not be written.

A merged table carries the transaction of the newest batch that it has; the log's rows know their batch. So what is
missing is always known, and a merge that dies is simply done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from distributary.config import Pipeline
from distributary.engine.changes.key_columns import key_columns, key_types
from distributary.engine.changes.ledger_fields import MergeBacklog, about, ledger_fields
from distributary.engine.changes.log_rows import files_of
from distributary.engine.changes.merging import MergeWork, begun_merge
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.engine.changes.tasks import run_merges
from distributary.engine.outcomes import Merge, Outcome
from distributary.state.ledger import MERGE, Entry, Ledger, rests_until
from distributary.tables.faults import writing
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, write_rejected
from distributary.tables.table import Table


class Merges:
    """Merges of one pipeline, outside of its batches. Not while a batch is being written."""

    def __init__(
        self, config: Pipeline, changes: Changes, ledger: Ledger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.changes = changes
        self.ledger = ledger
        self._clock = clock
        self._last = clock()
        self._created: set[str] = set()
        for entry in ledger.newest.values():
            behind = about(entry)
            if behind is None or entry.route is None:
                continue
            if behind.brought:
                changes.brought[entry.route] = behind.brought
            if entry.merge_state in ("waiting", "parked"):
                changes.behind[entry.route] = behind
                # Else it is the log that is parked.
                if entry.state == "parked" and entry.merge_state == "parked":
                    changes.resting.add(entry.route)

    def drained(self) -> set[str]:
        """Routes whose merged table has been made since the last call."""
        created, self._created = self._created, set()
        return created

    def run(self, routes: Collection[str] | None, anyway: bool = False) -> dict[str, str | None]:
        """Merge what is due; by route None, or why it could not be done. `anyway`: also what could wait, or rests.

        Raises StoreDown.
        """
        late = self._clock() - self._last >= self.config.tables.merge_every
        due = sorted(
            route
            for route in self.changes.behind
            if (routes is None or route in routes) and (anyway or (late and route not in self.changes.resting))
        )
        stream = self.ledger.stream
        if not due or stream is None:
            return {}
        if routes is None:
            self._last = self._clock()
        with writing(self.config.state_root):
            return self._merge(due, stream)

    def _merge(self, routes: list[str], stream: str) -> dict[str, str | None]:
        spec = self.changes.spec(stream, self.ledger.finished[stream], {})
        outcomes: dict[str, Outcome] = {}
        work = []
        for route in routes:
            behind = self.changes.behind[route]
            try:
                work.append(self._work(route, behind, stream))
            except BaseException as e:
                begun = begun_merge(behind.source, behind.keys, spec)
                outcomes[route] = replace(begun, merge=_merge_of(begun).parked(e))
        for outcome in run_merges(self.changes.by_spark.spark, work, spec):
            by_spark = _merge_of(outcome).why_spark is not None
            outcomes[outcome.route] = self.changes.by_spark.merge(outcome, spec) if by_spark else outcome
        outcomes = {route: self._heard(outcome) for route, outcome in outcomes.items()}
        self._record([o for o in outcomes.values() if _is_merged(o) or self._newly_parked(o)], spec)
        return {route: _merge_of(outcome).error for route, outcome in outcomes.items()}

    def _heard(self, outcome: Outcome) -> Outcome:
        """Take in what became of a route's merge. Raises StoreDown."""
        route, merge = outcome.route, _merge_of(outcome)
        if merge.state == "merged":
            self.changes.by_spark.note(outcome)
            self.changes.behind.pop(route, None)
            self.changes.resting.discard(route)
            if merge.created:
                self._created.add(route)
        elif merge.state == "parked":
            if merge.fault is not None:
                merge.fault.own(str(merge.table))
            behind = self.changes.behind[route]
            merge = replace(merge, anew=merge.anew or behind.anew)
            self.changes.behind[route] = replace(behind, anew=merge.anew)
            self.changes.resting.add(route)
        return replace(outcome, merge=merge)

    def _work(self, route: str, behind: MergeBacklog, stream: str) -> MergeWork:
        """The files of the route's log that hold batches which its merged table does not have."""
        named, store = self.changes.named, self.changes.store
        uri, merged = named.log(behind.source), named.merged(behind.source)
        log = None if uri is None else Table(uri, store).open()
        if uri is None or merged is None or log is None:
            return MergeWork(behind.source, behind.keys, "", (), -1)
        table = Table(merged, store).open()
        after = -1 if table is None or behind.anew else table.newest(stream)
        upto = self.ledger.finished[stream]
        files = files_of(log, after + 1)
        brought = tuple(self.changes.brought.get(route, {}).items())
        columns = log.schema
        keys = key_columns(columns.names, behind.keys)
        types = key_types(columns, keys)
        return MergeWork(behind.source, keys, uri, tuple(files), upto, after, brought, types)

    def _newly_parked(self, outcome: Outcome) -> bool:
        """Does the ledger still take this merged table for one that works?"""
        before = self.ledger.newest.get(outcome.route)
        return _merge_of(outcome).state == "parked" and (before is None or before.state != "parked")

    def _record(self, outcomes: Collection[Outcome], spec: ChangeSpec) -> None:
        if not outcomes:
            return
        number = 1 + self.ledger.finished.get(MERGE, -1)
        late = [rows for outcome in outcomes for rows in _merge_of(outcome).late]
        files = []
        if late:
            files.append(
                write_rejected(
                    spec.quarantine, late, MERGE, number, "late", self.changes.store, EVENT_QUARANTINE_SCHEMA
                )
            )
        entries = [
            Entry(
                MERGE,
                number,
                o.route,
                table=o.table,
                engine=_engine(o),
                batches=0,
                **ledger_fields(o),
                **self._state(o),
            )
            for o in outcomes
        ]
        details = {"quarantine": [f.to_json() for f in files]}
        self.ledger.record(MERGE, number, [*entries, Entry(MERGE, number, None, batches=0)], details)

    def _state(self, outcome: Outcome) -> dict[str, Any]:
        """A merged table that could not be written rests, as one that a batch cannot write to."""
        if _is_merged(outcome):
            return {"state": "merged"}
        why = f"merged table: {_merge_of(outcome).error or 'parked'}"
        retry_at = rests_until(1, self.config.tables.retry_after, time.time())
        return {"state": "parked", "error": why, "failures": 1, "retry_at": retry_at}


def _merge_of(outcome: Outcome) -> Merge:
    assert outcome.merge is not None
    return outcome.merge


def _is_merged(outcome: Outcome) -> bool:
    return _merge_of(outcome).state == "merged"


def _engine(outcome: Outcome) -> str:
    return "spark" if outcome.by_spark else "task"
