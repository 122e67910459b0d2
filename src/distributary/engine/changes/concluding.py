"""What the driver does once tasks have done their part of routes of change events, whatever the events came from.

parts of a route agree? -> one commit for the files of a shared log -> merges out of files, by tasks or by Spark
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from distributary.engine.appending import commit_files, replayed
from distributary.engine.attempts import Again, RouteFault, end_attempt
from distributary.engine.changes.by_spark import BySpark
from distributary.engine.changes.joining import agrees, columns_of_all
from distributary.engine.changes.key_columns import key_types
from distributary.engine.changes.merging import MergeWork
from distributary.engine.changes.task_spec import ChangeSpec
from distributary.engine.changes.tasks import run_merges
from distributary.engine.outcomes import Append, Fault, Merge, Outcome, join_into
from distributary.errors.border import contained
from distributary.tables.evolve import evolve
from distributary.tables.snapshot import columns_of
from distributary.tables.table import Table
from distributary.tables.widening import said_of


def conclude(outcomes_of: Mapping[str, Sequence[Outcome]], by_spark: BySpark, spec: ChangeSpec) -> dict[str, Outcome]:
    """What became of each route. `outcomes_of`: what each of its tasks did.

    Raises Again, where parts do not agree or a table cannot be written by the driver; StoreDown.
    """
    return _Conclusion(by_spark, spec).of(outcomes_of)


class _Conclusion:
    def __init__(self, by_spark: BySpark, spec: ChangeSpec) -> None:
        self.by_spark = by_spark
        self.spec = spec
        self.outcomes: dict[str, Outcome] = {}

    def of(self, outcomes_of: Mapping[str, Sequence[Outcome]]) -> dict[str, Outcome]:
        self._settle(outcomes_of)
        for outcomes in outcomes_of.values():
            for part_outcome in outcomes:
                join_into(self.outcomes, part_outcome)
        self._commit_files()
        self._merge()
        self._refuse_parked()
        for outcome in self.outcomes.values():
            self.by_spark.drop(outcome, self.spec)
        return self.outcomes

    # -- routes whose commit is the driver's ---------------------------------------------------------------

    def _settle(self, outcomes_of: Mapping[str, Sequence[Outcome]]) -> None:
        """Raises Again where one part of a shared route failed, or gave a column another type than another part."""
        faults: dict[str, str] = {}
        settled: dict[str, pa.Schema] = {}
        for route, outcomes in outcomes_of.items():
            if len(outcomes) < 2 or self.spec.decision(route).append == "parked":
                continue
            fault = next((o.fault for o in outcomes if o.fault is not None), None)
            if fault is not None:
                faults[route] = fault.own(outcomes[0].table)
                continue
            # A task of whose rows none could be read has nothing to say.
            appends = [o.append for o in outcomes if o.append.schema is not None]
            try:
                columns = columns_of_all(appends, self.spec.named.policy(route))
            except BaseException as e:
                faults[route] = contained(e)
                continue
            if not all(agrees(columns, append.columns()) for append in appends):
                settled[route] = columns
        if faults or settled:
            raise Again(faults, settled)

    def _commit_files(self) -> None:
        for route, outcome in self.outcomes.items():
            if outcome.state != "files" or (outcome.events is not None and not outcome.events.has_log):
                continue
            try:
                self.outcomes[route] = replace(outcome, append=self._commit(outcome))
            except BaseException as e:
                end_attempt(e, route, outcome.table)

    def _commit(self, outcome: Outcome) -> Append:
        """One commit for the files of many tasks, or of a table that only Spark may write."""
        files, spec = outcome.append, self.spec
        target = spec.target(outcome.table, outcome.route)
        if files.folder == outcome.table:
            append = commit_files(target, files.files, files.rows, files.columns(), spec.txn, spec.replay)
        else:
            append = self._commit_by_spark(target, outcome)
        return replace(append, why_spark=files.why_spark, files=files.files, folder=files.folder, schema=files.schema)

    def _commit_by_spark(self, target: Table, outcome: Outcome) -> Append:
        spec, table, rows = self.spec, target.open(), outcome.rows_written
        if table is not None and table.has(spec.txn):
            return replayed(table, spec.txn, spec.replay, rows)
        if not outcome.append.files:
            return Append()
        evolution = evolve(columns_of(table), [outcome.append.columns()], spec.named.policy(outcome.route))
        self.by_spark.append(outcome, evolution, spec)
        widened = said_of(table, evolution)
        return Append("written", rows, table is None, evolution.changed, widened, by_spark=True)

    # -- merges --------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        """Merge the routes whose events lie in files."""
        work = []
        by_spark = []
        for route, outcome in self.outcomes.items():
            merge = outcome.merge or Merge()
            if merge.why_spark:
                by_spark.append(route)
            elif merge.state == "rows" and outcome.append.other:
                self.outcomes[route] = replace(outcome, merge=replace(merge, state="waiting"))
            elif merge.state == "rows":
                work.append(_merge_work(outcome, self.spec))
        merged = {o.route: o.merge for o in run_merges(self.by_spark.spark, work, self.spec)}
        for route in (*by_spark, *merged):
            self.outcomes[route] = self._merged(self.outcomes[route], merged.get(route))

    def _refuse_parked(self) -> None:
        """Messages do not wait in a log for their merge: the quarantine has them until the table works, and a replay
        knows what the log has."""
        for route, outcome in self.outcomes.items():
            merge = outcome.merge
            if merge is not None and merge.state == "parked" and not self.spec.named.of_files:
                raise RouteFault(route, (merge.fault or Fault("")).own(str(merge.table)))

    def _merged(self, outcome: Outcome, merge: Merge | None) -> Outcome:
        """With what a task has merged (None: none has), and what it left to Spark."""
        if merge is not None and outcome.merge is not None:
            outcome = replace(outcome, merge=outcome.merge.joined(merge))
        if outcome.merge is not None and outcome.merge.why_spark:
            outcome = self.by_spark.merge(outcome, self.spec)
        if outcome.events is None or outcome.events.has_log:
            return outcome
        if outcome.merge is not None and outcome.merge.state == "parked":
            fault = outcome.merge.fault or Fault("")
            raise RouteFault(outcome.route, fault.own(outcome.table))
        created = outcome.merge is not None and outcome.merge.created
        return replace(outcome, append=replace(outcome.append, state="written", created=created))


def _merge_work(outcome: Outcome, spec: ChangeSpec) -> MergeWork:
    """The files of a route that the driver has merged."""
    files, about = outcome.append, outcome.events
    assert about is not None
    return MergeWork(
        about.source,
        about.keys,
        files.folder,
        tuple(f.path for f in files.files),
        spec.batch,
        brought=tuple(about.brought.items()),
        key_types=key_types(files.columns(), about.keys),
    )
