"""The demo `cdc`: change files of three databases to log and merged tables, on this machine, with no server.

An invented history of six tables (MySQL, PostgreSQL, Oracle) is written as Datastream files while the pipeline runs in
the same process: with schema changes, key updates and swaps, files that come late or twice, and damaged copies. At the
end each merged table is compared with the source's own table, value by value, which the pipeline never sees.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from distributary.audit.judge.changes import verify_changes
from distributary.audit.verify import Verification
from distributary.changes.model import Kind
from distributary.config import Pipeline
from distributary.running.hops import TwoHop
from distributary.running.progress import Display, RunTotals
from distributary.running.report import RunReport
from distributary.running.stream import Run
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.merge_rows import DELETED
from distributary.tables.store import Store
from distributary_simulate.change_files.faults import Faults
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from distributary_simulate.changes.model import Change
from distributary_simulate.changes.truth import TableTruth, save_truth
from distributary_simulate.demo.games import Feeder, Folder, Handle, run_fed

PIPELINE: Final = "shop"
PLAN: Final = HistoryPlan(tables=tables_of((Kind.MYSQL, Kind.POSTGRESQL, Kind.ORACLE), 2), seed=7, schema_changes=80)
FAULTS: Final = Faults(duplicates=0.3, late=0.2, cut=0.1, garbage=0.05, truncated=0.05, shuffled=True)
EVENTS: Final = 6_000
ROUNDS: Final = 6

_FILE = """\
# Written by `distributary demo cdc`. All paths are absolute, so it works from any folder.
pipeline: {pipeline}
source:   {{type: datastream, path: {source}}}
tables:   {{root: {lake}, evolution: overwrite}}
trigger:  {{every: 1 second}}
"""


class ChangesFolder(Folder):
    """The demo's folder; `source` has the change files."""

    def write_pipeline(self) -> Pipeline:
        return self._write(_FILE, pipeline=PIPELINE)

    @contextmanager
    def taken(self) -> Iterator[None]:
        with super().taken():
            # What an interrupted demo was writing lies beside the source.
            shutil.rmtree(self.root / f".{self.source.name}.writing", ignore_errors=True)
            yield


class Writer(Feeder):
    """Writes the history, a part at a time."""

    def __init__(self, folder: Folder, display: Display, history: History, events: int) -> None:
        super().__init__("writer")
        self.display = display
        self.history = history
        self.events = events
        self.files = ChangeFiles(FilesPlan(folder.source, seed=PLAN.seed, rotate_ms=20_000, faults=FAULTS))

    def feed(self, going: Run | TwoHop) -> bool:
        changes = self._changes()
        for number in range(ROUNDS):
            sent = sum(1 for _ in self._some(changes, self.events // ROUNDS))
            if self._cancelled:
                return False
            if number == 0:
                self.display.say(
                    f"six tables of three databases begin to change, while they are backfilled ({sent:,} events)"
                )
            time.sleep(0.5)
        for change in changes:
            self.files.add(change)
        self.files.close()
        self.display.say("the last files are written, late ones too")
        assert isinstance(going, Run) and going.intake is not None
        while going.query is None and not self._cancelled:
            time.sleep(0.05)
        going.intake.take_all()
        return self.all_taken(going)

    def _changes(self) -> Iterator[Change]:
        yield from self.history.changes(self.events)
        yield from self.history.finish()

    def _some(self, changes: Iterator[Change], count: int) -> Iterator[None]:
        for change in islice(changes, count):
            self.files.add(change)
            yield


# -- the demo ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableProof:
    """One table: rows and columns at the source and in the merged table. `differences`: in words."""

    route: str
    kind: str
    events: int
    rows: int
    found: int
    columns: int
    values: int
    deletes: int
    stale: int
    differences: tuple[str, ...] = ()


@dataclass
class ProvenTables:
    """A run over changes, and how its merged tables stand beside the source's. `seconds`: of the whole demo."""

    folder: Folder
    report: RunReport
    tally: RunTotals
    proofs: tuple[TableProof, ...]
    verification: Verification
    seconds: float = field(default=0.0, kw_only=True)

    @property
    def sent(self) -> str:
        """What came, in words."""
        raise NotImplementedError

    @property
    def ok(self) -> bool:
        return self.verification.ok and not any(p.differences for p in self.proofs)


@dataclass
class ChangesResult(ProvenTables):
    files: int
    doubled: int
    damaged: int
    verified_by: str = "read all files again, recount the logs, fold them again"

    @property
    def sent(self) -> str:
        faults = f"{self.doubled} repeat others, {self.damaged} are damaged copies"
        return f"{self.report.rows_in:,} events in {self.files} files ({faults})"

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "files": self.files, "tables": [asdict(p) for p in self.proofs]}


def play_changes(
    folder: ChangesFolder, display: Display, handle: Handle = lambda _: None, events: int = EVENTS
) -> ChangesResult:
    """The whole demo in `folder`. `handle` gets the Run, to stop it from a signal handler.

    Raises DemoFolderTaken, JavaMissing, SparkNotStarted, and KeyboardInterrupt when the run was stopped before its end.
    """
    began = time.monotonic()
    with folder.taken():
        config = folder.write_pipeline()
        history = History(PLAN)
        writer = Writer(folder, display, history, events)
        tally = RunTotals()
        report = run_fed(config, writer, tally, display, handle)
        truth = history.truth()
        save_truth(truth, folder.truth)
        kinds = [file.extra for file in writer.files.written]
        return ChangesResult(
            folder,
            report,
            tally,
            tuple(prove(config, route, table) for route, table in sorted(truth.items())),
            verify_changes(config),
            len(kinds),
            doubled=sum(kind == "duplicate" for kind in kinds),
            damaged=sum(kind in ("garbage", "truncated", "empty") for kind in kinds),
            seconds=time.monotonic() - began,
        )


# -- the proof ---------------------------------------------------------------------------------------------


def prove(config: Pipeline, route: str, truth: TableTruth) -> TableProof:
    """Hold the living rows of a merged table against the source's rows, every value of every column."""
    entry = totals(Ledger(config.state_root, config.pipeline, Store()).entries()).get(route, Entry("", 0, route))
    source_rows = truth.arrow()
    if entry.merged is None:
        return TableProof(
            route, truth.table.kind, 0, source_rows.num_rows, 0, 0, 0, 0, 0, ("there is no merged table",)
        )
    table_rows = DeltaTable(entry.merged).to_pyarrow_table()
    table_rows = table_rows.filter(pc.invert(table_rows.column(DELETED)))
    order = [(key, "ascending") for key in truth.table.keys]
    table_rows, source_rows = table_rows.sort_by(order), source_rows.sort_by(order)
    differences = [*_differences(table_rows, source_rows)]
    return TableProof(
        route,
        truth.table.kind,
        entry.rows_written,
        source_rows.num_rows,
        table_rows.num_rows,
        source_rows.num_columns,
        source_rows.num_rows * source_rows.num_columns,
        entry.deletes,
        entry.stale,
        tuple(differences),
    )


def _differences(table_rows: pa.Table, source_rows: pa.Table) -> Iterator[str]:
    if table_rows.num_rows != source_rows.num_rows:
        yield f"{source_rows.num_rows} rows at the source, {table_rows.num_rows} in the merged table"
        return
    for name in source_rows.column_names:
        if name not in table_rows.column_names:
            yield f"column {name} is missing"
        elif wrong := _unequal(
            _values(table_rows, name), _as_ours(source_rows.column(name), table_rows.schema.field(name).type)
        ):
            yield f"column {name}: {wrong} values are not the source's"


def _values(table_rows: pa.Table, name: str) -> list[Any]:
    """The values of a column; those of a type that it could not take are in a second one (`name__type`)."""
    columns = [n for n in table_rows.column_names if n == name or n.startswith(f"{name}__")]
    rows = zip(*(table_rows.column(n).to_pylist() for n in columns), strict=True)
    return [next((value for value in row if value is not None), None) for row in rows]


def _as_ours(column: pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """The source's values as the merged table has them."""
    if pa.types.is_struct(column.type):
        column = pc.struct_field(column.combine_chunks(), "timestamp")
    if pa.types.is_string(kind) and pa.types.is_time(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_string(kind) and pa.types.is_int64(column.type):
        return [None if micros is None else _time(micros) for micros in column.to_pylist()]
    return list(column.to_pylist())


def _time(micros: int) -> str:
    """A time of day or an interval as hours:minutes:seconds, with as many digits as it takes."""
    sign, rest = ("-" if micros < 0 else ""), abs(micros)
    seconds, fraction = divmod(rest, 1_000_000)
    text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + f".{fraction:06d}".rstrip("0") if fraction else text


def _unequal(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    return sum(a != b and not (a != a and b != b) for a, b in zip(ours, theirs, strict=True))
