"""Pipelines of messages: each route a table of its own (`fanout`), by way of bronze (`two_hop`), or one table of all
(`wide`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NoReturn

from distributary.errors import BadInput, Reason
from distributary.kinds.kind import PipelineKind, Rebuilt

if TYPE_CHECKING:
    from distributary.audit.plan import PlanReport
    from distributary.audit.status import Status
    from distributary.audit.verify import Verification
    from distributary.engine.replay import ReplayReport
    from distributary.running.wide_views import View


class Messages(PipelineKind):
    """Layout `fanout`."""

    reads_foreign_files = False

    def check_runs_here(self) -> None:
        return

    def plan(self) -> PlanReport:
        from distributary.audit.plan import plan

        return plan(self.config)

    def status(self) -> Status:
        from distributary.audit.status import status

        return status(self.config)

    def verify(self, *, deep: bool) -> Verification:
        from distributary.audit.judge.payloads import judge_payloads
        from distributary.audit.judge.upserts import judge_upserts
        from distributary.audit.verify import verify

        verification = judge_payloads(self.config, verify(self.config), deep=deep)
        verification = judge_upserts(self.config, verification, self.quarantined_rows(), deep=deep)
        if self.config.tables.history is None:
            return verification
        from distributary.audit.judge.histories import judge_histories

        return judge_histories(self.config, verification)

    def replay(self, route: str | None, reasons: Collection[Reason] | None) -> ReplayReport:
        from distributary.repair.replays import replay

        return replay(self.config, route, reasons)

    def resync(self, route: str) -> Rebuilt:
        """The merged table of a route with keys, from its log."""
        self._refuse_by_name()
        if self._log() is None:
            self._keeps_no_rows()
        from distributary.repair.resync_changes import in_words, known_route, rebuild

        backlog = known_route(self.config, route)
        rebuilt = rebuild(self.config, route, backlog)
        return Rebuilt(asdict(rebuilt), tuple(in_words(rebuilt, backlog.keys)))

    def _refuse_by_name(self) -> None:
        if self.config.tables.managed:
            detail = "resync puts files in place of others in one commit, which a managed table takes from nobody but "
            raise BadInput(detail=f"{detail}Spark: drop the table, and read the source anew by a pipeline of its own")

    def _log(self) -> str | None:
        tables = self.config.tables
        return tables.log if self.config.envelope.is_debezium else tables.message_log

    def known(self, route: str) -> NoReturn:
        self._keeps_no_rows()

    def _keeps_no_rows(self) -> NoReturn:
        kind = f"layout {self.config.layout} of source.type {self.config.source.type}"
        raise BadInput(
            detail=f"{kind} keeps no rows to rebuild a table from; layout two_hop does (bronze), and change files and "
            "messages with keys do (tables.log)"
        )


class Frames(Messages):
    """`source.type: dataframe`: Spark's sink has written the tables and the ledger, in a query of the user's own."""

    def check_runs_here(self) -> NoReturn:
        from distributary.sources.dataframe import refuse

        refuse(self.config.pipeline)

    def plan(self) -> NoReturn:
        self.check_runs_here()

    def verify(self, *, deep: bool) -> Verification:
        from distributary.audit.verify import verify

        counted = verify(self.config)
        return replace(counted, notes=(*counted.notes, "rows of a DataFrame are counted; values were not compared"))

    def replay(self, route: str | None, reasons: Collection[Reason] | None) -> ReplayReport:
        if self.config.holds_rows:
            raise BadInput(
                detail="rows of a DataFrame that were set aside are kept as JSON, without a schema: read them from "
                f"{self.config.state_folder.quarantine}, and write them again by your own query"
            )
        return super().replay(route, reasons)


class TwoHop(Messages):
    """Layout `two_hop`."""

    def resync(self, route: str) -> Rebuilt:
        self._refuse_by_name()
        from distributary.repair.resync_bronze import rebuild

        if self.config.tables.keys_of(route):
            if self._log() is not None:
                return super().resync(route)
            raise BadInput(
                detail=f"{route} has keys: its table is not made anew from bronze, but from a log (tables.log), which "
                f"it does not have. Give it another name (tables.routes.{route}.name) and a pipeline of its own that "
                "reads the source from its beginning"
            )
        rebuilt = rebuild(self.config, route)
        lines = [f"{rebuilt.table}: {rebuilt.rows:,} rows from bronze, {rebuilt.quarantined:,} kept aside"]
        if rebuilt.returned:
            lines.append(f"{rebuilt.returned:,} rows came out of the quarantine")
        if rebuilt.newly_bad:
            bad = f"{rebuilt.newly_bad:,} rows that were in the table do not decode any more"
            lines.append(f"{bad}: they are kept aside, see status")
        return Rebuilt(asdict(rebuilt), tuple(lines))


class Wide(Messages):
    """Layout `wide`."""

    def refresh_views(self) -> Sequence[View]:
        from distributary.running.stream import session_of
        from distributary.running.wide_views import refresh
        from distributary.state.ledger import Ledger
        from distributary.tables.store import Store

        config = self.config
        ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
        return refresh(session_of(config), config, ledger, anew=True)
