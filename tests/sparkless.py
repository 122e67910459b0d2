"""Pipelines of change files without Spark, so that hundreds of them fit into a test: everything is the product's own
(lister, file ledger, planning of a batch, tasks, decision, quarantine, merges between batches), but the tasks run here,
one after the other, and the stream is a loop over the file ledger.

What only Spark may write (columns that get wider, tables too large for a task) is out of reach here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from distributary.engine.batch import BatchReport
from distributary.engine.changes.file_intake import FileIntake
from distributary.engine.changes.micro_batch import Changes
from distributary.engine.changes.writer import ChangeWriter
from distributary.running.report import RunReport
from distributary.state.ledger import Ledger
from distributary.state.provenance import Provenance
from distributary.tables.store import Store
from tests.shop import Shop

STREAM = "00000000-0000-0000-0000-000000000000"
_Test = TypeVar("_Test", bound=Callable[..., None])


def on_spark(test: _Test) -> _Test:
    """Of a file whose other tests are about rules for which it does not matter who runs the tasks."""
    return cast(_Test, pytest.mark.spark(pytest.mark.usefixtures("spark")(test)))


_NUMBERS = pa.schema([("id", pa.int64())])

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Here:
    """Stands for the session: runs what Spark would run in its tasks, and pickles what they say as Spark would."""

    def __init__(self, cores: int = 2) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=cores)

    def range(self, start: int, end: int, step: int, tasks: int) -> _Job:
        return _Job(list(range(start, end, step)))


class _Job:
    def __init__(self, numbers: list[int], function: Task | None = None) -> None:
        self._numbers = numbers
        self._function = function

    def mapInArrow(self, function: Task, schema: str) -> _Job:
        return _Job(self._numbers, function)

    def toArrow(self) -> pa.Table:
        assert self._function is not None
        said: list[pa.RecordBatch] = []
        for number in self._numbers:
            said += self._function(iter([pa.RecordBatch.from_pydict({"id": [number]}, schema=_NUMBERS)]))
        return pa.Table.from_batches(said)


class Sparkless(Shop):
    """A pipeline as `Shop` has it. Each `run` is a new process: nothing is remembered but what lies in the folder."""

    def run(self) -> RunReport:
        """All files that are there, batch after batch; an error ends it where it is, as the end of a process would."""
        store = Store.of(self.config.tables)
        ledger = Ledger(self.config.state_root, self.config.pipeline, store)
        changes = Changes(Here(), self.config, store)  # type: ignore[arg-type]
        provenance = Provenance(self.config, ledger)
        changes.will_write = provenance.check
        writer = ChangeWriter(self.config, changes, ledger)
        intake = FileIntake(self.config, changes, ledger, threading.Lock())
        provenance.begun = intake.files.newest_file_batch
        intake.begin(True, lambda _: None)
        try:
            reports = list(self._batches(ledger, writer, intake))
        finally:
            intake.end()
        intake.merges.run(None, anyway=True)
        return self._sum(reports, ledger)

    def replay(self) -> None:
        store = Store.of(self.config.tables)
        ledger = Ledger(self.config.state_root, self.config.pipeline, store)
        FileIntake(self.config, Changes(Here(), self.config, store), ledger, threading.Lock()).run()  # type: ignore[arg-type]
        self.run()

    def _batches(self, ledger: Ledger, writer: ChangeWriter, intake: FileIntake) -> Iterator[BatchReport]:
        # Spark may give the last batch again, whether it was finished or not.
        begin = max(0, ledger.finished.get(STREAM, 0))
        # What is there now: what a batch gives to the stream once more is the next run's.
        for batch in range(begin, intake.files.newest_file_batch + 1):
            report = writer.take(_FileBatch(intake.files.uri, batch), STREAM, batch)  # type: ignore[arg-type]
            if not report.already:
                self.batches.append(report)
                writer.retry(intake, report.recovered)
                intake.between_batches()
                yield report

    def _sum(self, reports: list[BatchReport], ledger: Ledger) -> RunReport:
        counts = ("rows_in", "rows_written", "rows_quarantined", "tombstones")
        parked = tuple(sorted(e.route for e in ledger.newest.values() if e.state == "parked" and e.route))
        sums = {name: sum(getattr(report, name) for report in reports) for name in counts}
        return RunReport(self.config.pipeline, len(reports), parked=parked, **sums)

    def merged(self, name: str) -> pa.Table:
        return DeltaTable(str(self.root / "lake" / name)).to_pyarrow_table()


class _FileBatch:
    """The rows that a batch of the stream has: one file batch of the file ledger."""

    def __init__(self, uri: str, number: int) -> None:
        self._uri = uri
        self._number = number

    def toArrow(self) -> pa.Table:
        found: Any = DeltaTable(self._uri).to_pyarrow_dataset()
        return found.to_table(filter=pc.field("parcel") == self._number)
