"""Results as text for people: plan, verification, replay, cleaning. Nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distributary.errors import Reason
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.audit.inspection import Inspected, InspectedMessage, Inspection
    from distributary.audit.plan import PlanReport, TablePlan
    from distributary.audit.quarantined import Group as Rejected
    from distributary.audit.quarantined import QuarantinedRow, Rejections
    from distributary.audit.verify import Verification
    from distributary.engine.replay import ReplayReport
    from distributary.repair.clean import CleanPlan

ERROR_CHARS = 1000
"""Of an error's text in a listing."""
MAX_TABLES = 50
"""Tables that a listing spells out; of the others it gives the number."""


def number_of(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def grid_of(*headers: str, right: Iterable[str] = ()) -> Table:
    """An empty table without lines; `right`: the headers of the columns that stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return table


def _counts(title: str, counts: Mapping[str, int]) -> RenderableType:
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column()
    grid.add_column(justify="right")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        grid.add_row(shown(name), f"{count:,}")
    return Group(Text(title), Padding(grid, (0, 0, 0, 2), expand=False))


# -- plan --------------------------------------------------------------------------------------------------


def plan_text(plan: PlanReport) -> RenderableType:
    begin = "the beginning of the source" if plan.after_batch is None else f"after batch {plan.after_batch}"
    head = f"pipeline {shown(plan.pipeline)}: {shown(plan.source, ERROR_CHARS)}, {begin}"
    if not plan.batches:
        notes = "".join(f"\nnote: {note}" for note in plan.notes)
        return Text(f"{head}\nnothing is waiting: a run would write nothing{notes}", no_wrap=False)
    written = [t for t in plan.tables if t.rows_written]
    waiting = f"{number_of(plan.rows_in, 'row')} and {number_of(plan.tombstones, 'tombstone')}"
    if plan.excluded:
        waiting += f" (and {number_of(plan.excluded, 'row')} of excluded routes)"
    if plan.files is not None:
        waiting = f"{number_of(plan.files, 'file')} with {number_of(plan.rows_in, 'event')}"
    intro = (
        f"{head}\n{waiting} are waiting. A run would take {number_of(plan.batches, 'batch', 'batches')}, write "
        f"{number_of(plan.rows_written, 'row')} to {number_of(len(written), 'table')} "
        f"({sum(t.new for t in written)} new) and quarantine {plan.rows_quarantined:,}."
    )
    if plan.files_again:
        intro += f"\n{number_of(plan.files_again, 'file')} of them come again, for events that are in the quarantine."
    blocks: list[RenderableType] = [Text(intro)]
    if plan.stops is not None:
        stops = f"It would stop then, at quarantine.{plan.stops}; what waits behind these batches is not planned."
        blocks.append(Text(stops, style="bold red"))
    if plan.tables:
        blocks += [Text(""), _plan_tables(plan.tables)]
    if plan.reasons:
        blocks += [Text(""), _counts("would be quarantined, by reason", plan.reasons)]
    if plan.unknown_schema_ids:
        ids = {f"schema id {schema_id}": rows for schema_id, rows in plan.unknown_schema_ids.items()}
        blocks += [Text(""), _counts("not in the registry (rows)", ids)]
    blocks += [Text(f"note: {note}") for note in plan.notes]
    return Group(*blocks)


def _plan_tables(tables: list[TablePlan]) -> Table:
    grid = grid_of("route", "rows", "quarantined", "engine", "change", right=("rows", "quarantined"))
    for table in tables[:MAX_TABLES]:
        grid.add_row(
            shown(table.route), f"{table.rows_written:,}", f"{table.rows_quarantined:,}", table.engine, _change(table)
        )
    if len(tables) > MAX_TABLES:
        grid.add_row(f"and {len(tables) - MAX_TABLES} more (all of them: --json)", "", "", "", "")
    return grid


def _change(table: TablePlan) -> Text:
    lines = []
    if table.parked:
        lines.append(f"PARKED: {shown(table.parked, ERROR_CHARS)}")
    if table.new:
        lines.append(f"new table, {number_of(len(table.new_columns), 'column')}")
    else:
        lines += [f"new column {shown(name)} {shown(kind)}" for name, kind in table.new_columns.items()]
    lines += [f"{shown(name)}: {shown(old)} becomes {shown(new)}" for name, (old, new) in table.type_changes.items()]
    if table.why_spark:
        lines.append(f"engine spark: {shown(table.why_spark)}")
    return Text("\n".join(lines) or "none", style="bold red" if table.parked else "")


# -- verify ------------------------------------------------------------------------------------------------


def verification_text(result: Verification) -> RenderableType:
    """One line when all is well; else a line for each problem."""
    # A route of which every row is in the quarantine has no table.
    tables = sum(not 0 < t.rows_in == t.rows_quarantined for t in result.tables)
    counted = (
        f"{result.rows_in:,} rows in = {result.rows_written:,} in {number_of(tables, 'table')} "
        f"+ {result.rows_quarantined:,} in the quarantine"
    )
    if result.tombstones:
        counted += f" (and {number_of(result.tombstones, 'tombstone')})"
    if result.excluded:
        counted += f" (and {number_of(result.excluded, 'row')} of excluded routes)"
    if result.ok:
        lines = [f"verified: {counted}; nothing is lost, nothing is doubled"]
    else:
        lines = [f"NOT verified: {result.rows_lost:,} rows lost, {result.rows_duplicated:,} rows doubled; {counted}"]
        lines += [f"  {shown(problem, ERROR_CHARS)}" for problem in result.problems]
    if compared := sum(t.rows_compared for t in result.tables):
        in_tables = sum(t.rows_written if t.rows_living is None else t.rows_living for t in result.tables)
        lines.append(f"values compared: {compared:,} of {in_tables:,} rows")
    lines += [f"lost at the source, with your consent: {shown(loss, ERROR_CHARS)}" for loss in result.source_losses]
    lines += [f"not judged: {shown(note, ERROR_CHARS)}" for note in result.notes]
    return Text("\n".join(lines), style="" if result.ok else "red")


# -- replay ------------------------------------------------------------------------------------------------


def replay_text(report: ReplayReport) -> RenderableType:
    if not (report.rows or report.left or report.failed or report.unsure):
        return Text("nothing is in the quarantine that could be replayed")
    lines = [f"{shown(route)}: {number_of(rows, 'row')} replayed" for route, rows in sorted(report.rows.items())]
    lines += [
        f"{shown(route or 'without a route')}: {number_of(rows, 'row')} in the quarantine, still not readable"
        for route, rows in sorted(report.left.items())
    ]
    lines += [
        f"{shown(route or 'without a route')}: {number_of(rows, 'row')} of these "
        "ended the process that read them, tried apart: they stay as they are"
        for route, rows in sorted(report.killed.items())
    ]
    lines += [
        f"{shown(route)}: {number_of(rows, 'row')} stay in the quarantine: their table failed, and its log does not go "
        "back to that time any more, so nobody can say if it has them (docs/quarantine.md)"
        for route, rows in sorted(report.unsure.items())
    ]
    lines += [f"{shown(route)}: not written: {shown(why, ERROR_CHARS)}" for route, why in sorted(report.failed.items())]
    return Text("\n".join(lines))


# -- inspect -----------------------------------------------------------------------------------------------

VALUE_CHARS = 60
"""Of a field's value."""


def inspection_text(inspection: Inspection) -> RenderableType:
    """A paragraph for each record, then the lines that would fit."""
    if not inspection.records:
        return Text(f"pipeline {shown(inspection.pipeline)}: the source holds no record")
    blocks: list[RenderableType] = [
        Text(f"pipeline {shown(inspection.pipeline)}: the newest records, the last one last")
    ]
    for record in inspection.records:
        blocks += [Text(""), _inspected(record)]
    if inspection.proposal:
        blocks += [Text(""), Text("none of them fits the pipeline file; one of these lines might:", style="bold")]
        blocks += [Text(f"  {shown(line, ERROR_CHARS)}") for line in inspection.proposal]
    return Group(*blocks)


def _inspected(record: Inspected) -> RenderableType:
    origin = ", ".join(f"{name} {shown(_plain(value), VALUE_CHARS)}" for name, value in record.origin.items())
    lines = _message_lines("record", record.record)
    if record.payload is not None:
        lines += _message_lines("payload", record.payload)
    if record.reason is None and record.route is not None:
        lines.append(f"route: {shown(record.route)}")
    else:
        lines.append(f"no row: {record.reason or ''} {shown(record.detail or '', ERROR_CHARS)}".rstrip())
    return Group(
        Text(origin or "a row", style="bold"), *(Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)
    )


def _message_lines(level: str, message: InspectedMessage) -> list[str]:
    lines = [f"{level}: {shown(message.looks, ERROR_CHARS)}"]
    if message.schema_id is not None and message.kind is not None:
        name = f", message {shown(message.message)}" if message.message else ""
        lines.append(f"  schema id {message.schema_id}: {message.kind}{name}")
    if message.problem is not None:
        lines.append(f"  {shown(message.problem, ERROR_CHARS)}")
    lines += [f"    {shown(n)} ({shown(kind)}) = {_plain(value)}" for n, (kind, value) in message.fields.items()]
    return lines


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return number_of(len(value), "byte")
    return shown(repr(value) if isinstance(value, str) else value, VALUE_CHARS)


# -- quarantine --------------------------------------------------------------------------------------------

SAMPLE_CHARS = 120
"""Of a sample's value."""
DETAILS = 3
"""Details that are spelled out for a route and reason."""


def quarantine_text(rejections: Rejections, file: str) -> RenderableType:
    """A paragraph for each route and reason, the largest first."""
    if not rejections.rows:
        return Text(f"pipeline {shown(rejections.pipeline)}: nothing is in the quarantine that matches")
    head = f"pipeline {shown(rejections.pipeline)}: {number_of(rejections.rows, 'row')} in the quarantine"
    blocks: list[RenderableType] = [Text(head)]
    for group in rejections.groups[:MAX_TABLES]:
        blocks += [Text(""), _rejected(group)]
    if len(rejections.groups) > MAX_TABLES:
        hidden = number_of(len(rejections.groups) - MAX_TABLES, "more route and reason", "more routes and reasons")
        blocks += [Text(""), Text(f"and {hidden} (all of them: --json)")]
    blocks += [Text(""), Text(f"once the cause is fixed: distributary replay {file}")]
    return Group(*blocks)


def _rejected(group: Rejected) -> RenderableType:
    route = shown(group.route) if group.route is not None else "without a route"
    title = Text.assemble((f"{route}: {group.reason}", "bold"), f", {number_of(group.rows, 'row')}, ")
    when = [time.isoformat(" ", "seconds") for time in (group.first, group.last) if time is not None]
    title.append(" to ".join(dict.fromkeys(when)))
    lines: list[Text] = []
    if (about := Reason.known(group.reason)) is not None:
        lines += [Text(about.cause), Text(f"What to do: {about.remedy}")]
    for detail, rows in group.details.most_common(DETAILS):
        lines.append(Text(f"{rows:,} x {shown(detail, ERROR_CHARS) or '(no detail)'}"))
    if len(group.details) > DETAILS:
        lines.append(Text(f"and {number_of(len(group.details) - DETAILS, 'more detail')} (all of them: --json)"))
    lines += [Text(_sample_text(sample)) for sample in group.samples]
    return Group(title, *(Padding(line, (0, 0, 0, 2), expand=False) for line in lines))


def _sample_text(sample: QuarantinedRow) -> str:
    origin = ", ".join(f"{name} {shown(value, ERROR_CHARS)}" for name, value in sample.origin.items())
    if sample.schema_id is not None:
        origin += f"{', ' if origin else ''}schema id {sample.schema_id}"
    value = b"" if sample.value is None else sample.value
    try:
        text = shown(value[:SAMPLE_CHARS].decode(), SAMPLE_CHARS)
    except UnicodeDecodeError:
        text = value[: SAMPLE_CHARS // 2].hex(" ")
    return f"sample: {origin or 'of unknown origin'}; {sample.level}, {number_of(sample.size, 'byte')}: {text}"


# -- clean -------------------------------------------------------------------------------------------------


def clean_text(plan: CleanPlan, *, is_removed: bool) -> RenderableType:
    word = "removed" if is_removed else "would remove"
    lines = [
        f"{word} {t.kind} {shown(t.path, ERROR_CHARS)}"
        + (f": {shown(', '.join(t.entries), ERROR_CHARS)}" if t.entries else "")
        for t in plan.remove
    ] or [f"nothing of pipeline {shown(plan.pipeline)} is there"]
    lines += [f"{'dropped' if is_removed else 'would drop'} the name {shown(entry.name)}" for entry in plan.catalog]
    lines += [f"stays: {shown(stay.path, ERROR_CHARS)}: {shown(stay.reason, ERROR_CHARS)}" for stay in plan.kept]
    if plan.remove and not is_removed:
        lines.append("nothing was removed yet; to remove it for good: the same command with --yes")
    return Text("\n".join(lines))
