"""What a run looks like to a person: a line per batch, or a live table on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from distributary.engine.batch import BatchReport
from distributary.engine.messages.task_spec import ORIGIN
from distributary.names import counted, shown
from distributary.running.bronze.ingest import STREAM as BRONZE
from distributary.running.hops import TwoHop
from distributary.running.report import PipelinePlan, RunReport
from distributary.running.stream import Run
from distributary.state.ledger import Entry, Ledger, totals
from distributary.state.refused import refused_routes
from distributary.tables.snapshot import Snapshot, columns_of
from distributary.tables.wide import seen_by

SHOWN_NAMES = 3
"""Names that a line spells out; of the others it gives the number."""
SHOWN_BATCHES = 12


# -- lines -------------------------------------------------------------------------------------------------


def header(plan: PipelinePlan, once: bool, *, is_first: bool = False) -> str:
    """What a run is about to do, before Spark is there. `is_first`: there is no state yet, which somebody who has only
    changed `tables.root` should see."""
    trigger = "once (what is there, then end)" if once else plan.trigger
    state = f"{plan.state} (new: this run reads the source from its start)" if is_first else plan.state
    rows = [("source", plan.source), ("tables", plan.tables), ("state", state), ("trigger", trigger)]
    return "\n".join([f"pipeline {plan.pipeline}", *(f"  {name:<8} {value}" for name, value in rows)])


def batch_line(report: BatchReport) -> str:
    """One finished batch on one line."""
    if report.stream == BRONZE:
        return f"bronze batch {report.batch}: {report.rows_in:,} rows in {report.seconds.get('total', 0):.1f} s"
    took = "which an earlier run finished" if report.already else f"in {report.seconds.get('total', 0):.1f} s"
    phrases = [
        f"batch {report.batch}: {report.rows_in:,} rows {took}, "
        f"{report.rows_written:,} written to {counted(report.tables, 'table')}"
    ]
    notes: tuple[tuple[str, Collection[str]], ...] = (
        ("new tables", report.created),
        ("new columns in", [route for route in report.evolved if route not in report.widened]),
        ("wider columns in", report.widened),
        ("PARKED", report.parked),
        ("works again", report.recovered),
    )
    phrases += [f"{label}: {names(noted)}" for label, noted in notes if noted]
    if report.rows_quarantined:
        phrases.append(f"quarantined: {report.rows_quarantined:,}{_reasons(report.reasons)}")
    if report.tombstones:
        phrases.append(f"tombstones: {report.tombstones:,}")
    if report.excluded:
        phrases.append(f"excluded: {report.excluded:,}")
    return "; ".join(phrases)


def _reasons(counts: Mapping[str, int]) -> str:
    """` (BAD_MAGIC 3, NO_ROUTE 1)`, the most first; nothing where none is known."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = len(ordered) - SHOWN_NAMES
    text = ", ".join(f"{name} {rows:,}" for name, rows in ordered[:SHOWN_NAMES])
    return f" ({text}{f' and {rest} more' if rest > 0 else ''})" if text else ""


def summary(report: RunReport, file: str) -> str:
    """The sum of a run, and what to do about what it left."""
    lines = [
        f"{counted(report.batches, 'batch', 'batches')}: {report.rows_in:,} rows in, {report.rows_written:,} written, "
        f"{report.rows_quarantined:,} quarantined{_reasons(report.reasons)}, "
        f"{counted(report.tombstones, 'tombstone')}{f', {report.excluded:,} excluded' if report.excluded else ''}"
        if report.batches
        else "nothing new in the source"
    ]
    if report.already:
        batches = counted(report.already, "batch", "batches")
        lines.append(f"not in these sums: {batches} that an earlier run had finished")
    if report.waiting:
        rows = sum(report.waiting.values())
        lines.append(
            f"in the quarantine: {counted(rows, 'row')}{_reasons(report.waiting)}. What to do: distributary quarantine "
            f"{file}; once the cause is fixed: distributary replay {file}"
        )
    if report.parked:
        lines.append(
            f"parked: {names(report.parked, at_most=10)}. Their rows are kept; the next runs try again by themselves. "
            f"Why: distributary status {file}"
        )
    return "\n".join(lines)


def names(values: Iterable[str], at_most: int = SHOWN_NAMES) -> str:
    """`a, b, c and 9 more`."""
    every = sorted(values)
    rest = len(every) - at_most
    return ", ".join(map(shown, every[:at_most])) + (f" and {rest} more" if rest > 0 else "")


# -- running totals ----------------------------------------------------------------------------------------


@dataclass
class RunTotals:
    """Totals by route, from the ledger: what was there before the run, and each batch since.

    `columns`: of each table, without `_origin`. `seconds`: of each batch of this run. `refused`: routes of which more
    than half of the last rows were quarantined, as `status` says it.
    """

    total: dict[str | None, Entry] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    rows_seen: int = 0
    refused: set[str] = field(default_factory=set)

    def start(self, run: Run | TwoHop) -> None:
        self._read(run)
        for route, entry in self.total.items():
            self._look(run, route, entry)

    def add(self, run: Run | TwoHop, report: BatchReport) -> None:
        self._read(run)
        self.seconds.append(report.seconds.get("total", 0.0))
        self.rows_seen += report.rows_in + report.tombstones
        for route in {*report.created, *report.evolved}:
            self._look(run, route, self.total.get(route))

    def _read(self, run: Run | TwoHop) -> None:
        entries = run.ledger.entries()
        self.total = totals(entries)
        self.refused = refused_routes(entries)

    def _look(self, run: Run | TwoHop, route: str | None, entry: Entry | None) -> None:
        if route is not None and entry is not None and entry.table is not None:
            columns = count_columns(run.ledger, entry.table, route if run.config.shared_table is not None else None)
            if columns is not None:
                self.columns[route] = columns

    def routes(self) -> list[tuple[str, Entry]]:
        return sorted((r, e) for r, e in self.total.items() if r is not None)


def count_columns(ledger: Ledger, uri: str, wide_route: str | None = None) -> int | None:
    """Columns of a table without `_origin`; None when there is none yet, or it cannot be opened now. `wide_route`: as
    this route sees the table of all routes."""
    try:
        table = Snapshot.open(uri, ledger.store)
    except OSError:
        return None
    schema = columns_of(table)
    if wide_route is not None:
        schema = seen_by(wide_route, schema, ORIGIN)
    return None if schema is None else sum(f.name != ORIGIN for f in schema)


# -- displays ----------------------------------------------------------------------------------------------


class Display(Protocol):
    """Where a demo shows what happens. Called from several threads."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """One event in words."""

    def batch(self, report: BatchReport, totals: RunTotals) -> None:
        """A batch was finished."""


class LineDisplay:
    """A line per event, for logs and pipes."""

    def __init__(self, write: Callable[[str], None], batch: Callable[[BatchReport], None] | None = None) -> None:
        self._write = write
        self._batch = batch or (lambda report: write(batch_line(report)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._write(text)

    def batch(self, report: BatchReport, totals: RunTotals) -> None:
        self._batch(report)


class LiveDisplay:
    """A table of all routes that is redrawn in place; events scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Spinner("dots", "no batch yet"), console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(Text(text))

    def batch(self, report: BatchReport, totals: RunTotals) -> None:
        self._live.update(live_view(report, totals), refresh=True)


def live_view(report: BatchReport, totals: RunTotals) -> RenderableType:
    """The state after a batch: a table of routes, and how long the last batches took."""
    table = routes_table(
        totals.routes(), totals.columns, fresh={*report.created, *report.evolved}, refused=totals.refused
    )
    last = " ".join(f"{s:.1f}" for s in totals.seconds[-SHOWN_BATCHES:])
    rows = sum(e.rows_in for e in totals.total.values())
    return Group(table, Text(f"batch {report.batch}   {rows:,} rows so far   seconds per batch: {last}", style="dim"))


def routes_table(
    routes: Iterable[tuple[str, Entry]],
    columns: Mapping[str, int],
    fresh: Collection[str] = (),
    title: str | None = None,
    refused: Collection[str] = (),
) -> Table:
    """Route, rows, columns, versions, quarantined, state. `fresh`: routes whose columns are new; `refused`: most of
    whose last rows were quarantined."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("game")
    for name in ("rows", "columns", "versions", "quarantined"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for route, entry in routes:
        count = Text(str(columns.get(route, "")), style="green" if route in fresh else "")
        bad = Text(f"{entry.rows_quarantined:,}", style="yellow" if entry.rows_quarantined else "dim")
        word = "parked" if entry.state == "parked" else "refused" if route in refused else "ok"
        state = Text(word, style="" if word == "ok" else "bold red")
        table.add_row(shown(route), f"{entry.rows_written:,}", count, str(len(entry.schema_ids)), bad, state)
    return table
