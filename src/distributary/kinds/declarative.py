"""Layout `declarative`: the pipeline as a Spark Declarative Pipeline, which Spark runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NoReturn

from distributary.errors import BadInput, Reason
from distributary.kinds.kind import PipelineKind

if TYPE_CHECKING:
    import pyarrow as pa

    from distributary.audit.status import Status
    from distributary.audit.verify import Verification
    from distributary.engine.replay import ReplayReport


class Declarative(PipelineKind):
    one_stream = (
        "a declarative pipeline is one graph of datasets: it is not shared out. Give it more machines "
        "(databricks.workers) in place of more clusters"
    )

    def check(self) -> None:
        super().check()
        from distributary.declarative.lint import own_files

        own_files(self.config, self.file.resolve().parent)

    def check_runs_here(self) -> NoReturn:
        run = f"distributary pipeline run {self.file} (--dry-run only checks it)"
        raise BadInput(detail=f"{self.file}: layout is declarative: {run}")

    def plan(self) -> NoReturn:
        self.check_runs_here()

    def status(self) -> Status:
        from distributary.declarative.status import status

        return status(self.config)

    def verify(self, *, deep: bool) -> Verification:
        from distributary.declarative.silver_values import judge_silver
        from distributary.declarative.verify import verify

        return judge_silver(self.config, verify(self.config), deep=deep)

    def replay(self, route: str | None, reasons: Collection[Reason] | None) -> ReplayReport:
        from distributary.declarative.replay import replay
        from distributary.engine.schemas import registry_of
        from distributary.state.cleaning import at_work
        from distributary.tables.store import Store

        with at_work(self.config, Store.of(self.config.tables), "replay"):
            return replay(self.config, registry_of(self.config), route, reasons)

    def quarantined_rows(self) -> Iterator[pa.Table]:
        from distributary.declarative.status import quarantined_rows

        return iter([quarantined_rows(self.config)])

    def resync(self, route: str) -> NoReturn:
        self.known(route)

    def known(self, route: str) -> NoReturn:
        raise BadInput(
            detail=f"layout declarative: distributary pipeline run {self.file} --full-refresh <silver table>"
        )
