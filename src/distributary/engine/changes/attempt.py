"""One attempt at a batch of change files: who reads what, the deliver job, shared logs, merges, a pass for strays.

Everything here is idempotent under the batch's transactions. What turns out only when several tasks have done their
part (a shared table that cannot be written, parts that disagree on a column) ends the attempt (`engine.attempts`): the
next one knows, and finds what this one wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.concluding import conclude
from distributary.engine.changes.deliver import Work
from distributary.engine.changes.routing import groups
from distributary.engine.changes.task_spec import STRAY, ChangeSpec, FileReport, WorkFile
from distributary.engine.changes.tasks import run_deliver
from distributary.engine.decisions import too_many
from distributary.engine.outcomes import Outcome, join_into, raise_store_faults
from distributary.engine.packing import ChunkRef, Packing, pack
from distributary.tables.datafile import DataFile

GZIP_GROWTH = 8
"""About how many bytes of events a compressed byte stands for."""
ROW_BYTES = 150
"""About what an event takes in an uncompressed file."""


@dataclass
class AttemptResult:
    """What became of each route and file, and the quarantine's data files."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    quarantine: list[DataFile] = field(default_factory=list)
    seen: dict[str, FileReport] = field(default_factory=dict)


class Attempt:
    """One attempt at one batch."""

    def __init__(self, by_spark: BySpark, spec: ChangeSpec, slots: int) -> None:
        self.by_spark = by_spark
        self.spec = spec
        self.slots = slots

    def run(self, files: Sequence[WorkFile], routes: Mapping[str, tuple[str, ...]]) -> AttemptResult:
        """Write the batch's files. `routes`: file -> what it is likely to hold.

        Raises Again, SourceDown, StoreDown.
        """
        together = groups(routes)
        self.spec = _bounded(self.spec, together)
        of_file = [min(together[routes[f.path][0]]) if routes[f.path] else None for f in files]
        result = self._pass(files, of_file, together, self.spec, "")
        foreign = {f.path: tuple(sorted(_foreign(result, f.path))) for f in files if _foreign(result, f.path)}
        if foreign:
            strays = [replace(f, routes=frozenset(foreign[f.path])) for f in files if f.path in foreign]
            # A file is read once more, however many tables it holds.
            alike = groups(foreign)
            owners = [min(alike[foreign[f.path][0]]) for f in strays]
            spec = replace(_bounded(self.spec, alike, together), part=STRAY)
            second = self._pass(strays, owners, alike, spec, "stray")
            for outcome in second.outcomes.values():
                join_into(result.outcomes, outcome)
            result.quarantine += second.quarantine
        self._check(result)
        return result

    def _pass(
        self,
        files: Sequence[WorkFile],
        of_file: Sequence[str | None],
        together: Mapping[str, frozenset[str]],
        spec: ChangeSpec,
        name: str,
    ) -> AttemptResult:
        packing = _packed(files, of_file, self.slots)
        shared = {route for group in packing.shared for route in together[group]}
        spec = spec.deciding({route: spec.decision(route).shared() for route in shared})
        result, outcomes_of = AttemptResult(), dict[str, list[Outcome]]()
        for answer in run_deliver(self.by_spark.spark, _buckets(files, of_file, together, packing), spec, name):
            if isinstance(answer, DataFile):
                result.quarantine.append(answer)
            elif isinstance(answer, FileReport):
                result.seen.setdefault(answer.path, answer)
            else:
                outcomes_of.setdefault(answer.route, []).append(answer)
        result.outcomes = conclude(outcomes_of, self.by_spark, spec)
        return result

    def _check(self, result: AttemptResult) -> None:
        """Raises StoreDown when the store, not a table, is at fault."""
        raise_store_faults({r: o for r, o in result.outcomes.items() if not self.spec.decision(r).is_closed})


def _bounded(spec: ChangeSpec, routes: Collection[str], before: Collection[str] = ()) -> ChangeSpec:
    """Orders that make no table of the new routes that are too many for one batch; a task sees whether one has a table
    already. `before`: routes that the batch has taken up already."""
    most = spec.named.tables.max_new_tables
    routes_with_table = {*spec.tips, *spec.merge_tips}
    new, already_new = sorted({*routes} - routes_with_table), len({*before} - routes_with_table)
    refused = too_many(new, most, "tables that may be new", already_new)
    return spec.deciding({route: replace(spec.decision(route), no_table=why) for route, why in refused.items()})


def _foreign(result: AttemptResult, path: str) -> Mapping[str, int]:
    return result.seen[path].foreign if path in result.seen else {}


def _packed(files: Sequence[WorkFile], of_file: Sequence[str | None], slots: int) -> Packing:
    chunks = []
    for number, (file, group) in enumerate(zip(files, of_file, strict=True)):
        size = file.size * (GZIP_GROWTH if file.path.endswith(".gz") else 1)
        chunks.append(ChunkRef(number, 0, group, max(1, size // ROW_BYTES), size))
    return pack(chunks, slots)


def _buckets(
    files: Sequence[WorkFile],
    of_file: Sequence[str | None],
    together: Mapping[str, frozenset[str]],
    packing: Packing,
) -> list[list[Work]]:
    """Each task's work, one group of routes after the other."""
    buckets: list[dict[str | None, list[WorkFile]]] = [{} for _ in range(packing.buckets)]
    for number, (file, group) in enumerate(zip(files, of_file, strict=True)):
        buckets[packing.bucket_of[number, 0]].setdefault(group, []).append(file)
    return [
        [
            Work(together[group] if group is not None else frozenset(), tuple(files_of_task))
            for group, files_of_task in sorted(bucket.items(), key=lambda item: item[0] or "")
        ]
        for bucket in buckets
    ]
