"""Pipelines of change files: a log and a merged table per source table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING

from distributary.errors import Reason
from distributary.kinds.kind import HandedToStream, PipelineKind, Rebuilt

if TYPE_CHECKING:
    from distributary.audit.plan import PlanReport
    from distributary.audit.status import Status
    from distributary.audit.verify import Verification
    from distributary.engine.changes.ledger_fields import MergeBacklog
    from distributary.engine.replay import ReplayReport


class Changes(PipelineKind):
    """`source.type: datastream`."""

    one_stream = (
        "a pipeline of change files is one stream: it gives each file to the stream once, and the tasks of one Spark "
        "share them out. Give it more cores or workers in place of more clusters"
    )

    def check_runs_here(self) -> None:
        return

    def plan(self) -> PlanReport:
        from distributary.audit.plan import plan_changes

        return plan_changes(self.config)

    def status(self) -> Status:
        from distributary.audit.status import status

        return status(self.config)

    def verify(self, *, deep: bool) -> Verification:
        """All files are read again by code of its own; every event and every row is judged anyhow."""
        from distributary.audit.judge.changes import verify_changes
        from distributary.audit.judge.histories import judge_histories

        return judge_histories(self.config, verify_changes(self.config))

    def replay(self, route: str | None, reasons: Collection[Reason] | None) -> ReplayReport | HandedToStream:
        """The files of what is kept aside are given to the stream once more, and taken here unless a run is on that
        does."""
        from distributary.engine.changes.retries import EventQuarantine
        from distributary.engine.replay import ReplayReport
        from distributary.errors import AlreadyRunning
        from distributary.running.stream import Run, run, session_of
        from distributary.state.cleaning import at_work
        from distributary.tables.quarantine import quarantine_uri
        from distributary.tables.store import Store

        config, store = self.config, Store.of(self.config.tables)
        quarantined = EventQuarantine(quarantine_uri(config.state_root), store)

        def waiting() -> Counter[str]:
            rows = (row for row in quarantined.open_rows() if route in (None, row.route))
            return Counter(row.route or "" for row in rows if reasons is None or row.reason in reasons)

        before = waiting()
        with at_work(config, store, "replay"):
            failed = Run(config, session_of(config), lambda _: None).replay.run(route, reasons).failed
        try:
            run(config, once=True)
        except AlreadyRunning:
            return HandedToStream(before.total())
        still_waiting = waiting()
        return ReplayReport(dict(before - still_waiting), dict(still_waiting), failed=failed)

    def resync(self, route: str) -> Rebuilt:
        """The merged table, from its log."""
        from distributary.repair.resync_changes import in_words, rebuild

        about = self.known(route)
        rebuilt = rebuild(self.config, route, about)
        return Rebuilt(asdict(rebuilt), tuple(in_words(rebuilt, about.keys)))

    def known(self, route: str) -> MergeBacklog:
        from distributary.repair.resync_changes import known_route

        return known_route(self.config, route)
