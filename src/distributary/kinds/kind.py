"""The verbs that a kind of pipeline has, and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distributary.errors import BadInput, Reason

if TYPE_CHECKING:
    import pyarrow as pa

    from distributary.audit.plan import PlanReport
    from distributary.audit.status import Status
    from distributary.audit.verify import Verification
    from distributary.config import Pipeline
    from distributary.engine.changes.ledger_fields import MergeBacklog
    from distributary.engine.replay import ReplayReport
    from distributary.running.wide_views import View


@dataclass(frozen=True)
class HandedToStream:
    """Rows of the quarantine that the run which goes on takes by itself now."""

    rows: int


@dataclass(frozen=True)
class Rebuilt:
    """A table that was made anew: its counts by name, and the same in words."""

    counts: Mapping[str, Any]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class PipelineKind(ABC):
    """What the verbs are for one pipeline. `file`: its file, for words and for what lies beside it."""

    config: Pipeline
    file: Path
    one_stream: ClassVar[str | None] = None
    """Why its routes cannot be shared out, and what to do instead; None where they can."""
    reads_foreign_files: ClassVar[bool] = True
    """Does it read files that others have written, in types that Delta does not have, as times of nanoseconds?"""

    def check(self) -> None:
        """Check what the pipeline file names and the configuration cannot see. Raises BadInput."""
        if self.config.source.needs_library:
            from distributary.sources.registered import origin_of

            origin_of(self.config).check_here()

    @abstractmethod
    def check_runs_here(self) -> None:
        """Raises BadInput where no stream of ours runs the pipeline."""

    @abstractmethod
    def plan(self) -> PlanReport:
        """What a run would do now. Raises what a run would raise before its first batch."""

    @abstractmethod
    def status(self) -> Status:
        """What the books say of each table, and how far behind the source it is."""

    @abstractmethod
    def verify(self, *, deep: bool) -> Verification:
        """What the tables hold, compared with what the books say and with the source. `deep`: every row of messages,
        not a sample. Raises StoreUnreadable."""

    @abstractmethod
    def replay(self, route: str | None, reasons: Collection[Reason] | None) -> ReplayReport | HandedToStream:
        """Bring rows back out of the quarantine. Raises AlreadyRunning, CleanUnfinished, StoreDown, RegistryDown."""

    @abstractmethod
    def resync(self, route: str) -> Rebuilt:
        """Make the route's table anew from rows that are kept."""

    @abstractmethod
    def known(self, route: str) -> MergeBacklog:
        """Source table and keys of a route of change events."""

    def quarantined_rows(self) -> Iterator[pa.Table]:
        """The rows that are in the quarantine and not replayed, piece by piece. Raises StoreUnreadable."""
        from distributary.audit.quarantined import quarantined_rows

        return quarantined_rows(self.config)

    def refresh_views(self) -> Sequence[View]:
        """Make the views of the routes anew."""
        raise BadInput(detail=f"layout {self.config.layout} has no views over a wide table; only wide has")
