"""The history of a route, and what a new schema would change, as text for people. Nothing here prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.cli.render import ERROR_CHARS, MAX_TABLES, grid_of, number_of
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.audit.foresight import Foresight, TableChange
    from distributary.audit.history import HistoryStep, RouteHistory, SchemaSeen

SHOWN_COLUMNS = 8
SHOWN_PARTITIONS = 3


def history_text(history: RouteHistory, batches: int) -> RenderableType:
    head = f"route {shown(history.route)}: {history.rows:,} rows, {number_of(len(history.columns), 'column')}"
    blocks: list[RenderableType] = [
        Text(head, style="bold"),
        Text(f"table {shown(history.table or 'none', ERROR_CHARS)}"),
    ]
    if history.schemas:
        grid = grid_of("schema id", "rows", "first batch", "at", "first offsets", right=("schema id", "rows"))
        for schema in history.schemas:
            grid.add_row(
                str(schema.id),
                f"{schema.rows:,}",
                "-" if schema.first_batch is None else str(schema.first_batch),
                schema.first_at or "-",
                _offsets(schema),
            )
        blocks += [Text(""), grid]
    events = [step for step in history.steps if step.is_event]
    if events:
        blocks += [Text(""), Text("what changed", style="bold"), _events(events)]
    if batches and history.steps:
        grid = grid_of("batch", "at", "rows", "quarantined", "state", "version", right=("rows", "quarantined"))
        for step in history.steps[-batches:]:
            grid.add_row(
                _which(step), step.at or "-", f"{step.rows:,}", f"{step.quarantined:,}", step.state,
                "-" if step.version is None else str(step.version),
            )  # fmt: skip
        blocks += [Text(""), grid]
    return Group(*blocks, *(Text(f"note: {shown(note, ERROR_CHARS)}", style="dim") for note in history.notes))


def _offsets(schema: SchemaSeen) -> str:
    some = [f"{shown(number)}: {offset:,}" for number, offset in sorted(schema.first_offset.items())]
    hidden = f" and {len(some) - SHOWN_PARTITIONS} more" if len(some) > SHOWN_PARTITIONS else ""
    return ", ".join(some[:SHOWN_PARTITIONS]) + hidden or "-"


def _which(step: HistoryStep) -> str:
    if step.summed > 1:
        return f"{step.summed:,} batches up to {step.batch}"
    return str(step.batch) if step.kind == "batch" else shown(step.kind) if step.kind != "merge" else "merge"


def _events(steps: Sequence[HistoryStep]) -> RenderableType:
    """A step a line, and what goes on in the next line stands below what it says."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for step in steps:
        grid.add_row(*map(Text, _event(step)))
    return grid


def _event(step: HistoryStep) -> tuple[str, str]:
    """When, and what."""
    words = []
    if step.created:
        words.append(f"new table: {_columns(step.new_columns)}" if step.new_columns else "new table")
    if step.new_schemas:
        words.append(f"schema id {', '.join(map(str, step.new_schemas))} came")
    if step.new_columns and not step.created:
        words.append(f"new columns: {_columns(step.new_columns)}")
    words += [f"{shown(path)}: {shown(' becomes '.join(kinds))}" for path, kinds in step.type_changes.items()]
    if step.state in ("parked", "failed"):
        words.append(f"PARKED: {shown(step.error or '', ERROR_CHARS)}")
    elif step.error:
        words.append(shown(step.error, ERROR_CHARS))
    head = f"{'batch ' if step.kind == 'batch' and step.summed == 1 else ''}{_which(step)}"
    return f"  {head}, {step.at or '-'}:", "; ".join(words)


def _columns(columns: Mapping[str, str]) -> str:
    some = [f"{shown(path)} {shown(kind)}" for path, kind in list(columns.items())[:SHOWN_COLUMNS]]
    hidden = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return ", ".join(some) + hidden


# -- plan --schema -----------------------------------------------------------------------------------------


def foresight_text(foresight: Foresight) -> RenderableType:
    """A line for each table, and what a new route's table would be."""
    touched = [t for t in foresight.tables if t.new_columns or t.type_changes or t.refused or t.risky]
    refused = sum(bool(t.refused or t.risky) for t in foresight.tables)
    head = (
        f"{shown(foresight.schema, ERROR_CHARS)}, message {shown(foresight.message)}: "
        f"{number_of(len(foresight.tables), 'table has', 'tables have')} rows of it, {len(touched):,} would change; "
        + (f"values would be quarantined in {refused:,} of them" if refused else "every value would find a column")
    )
    blocks: list[RenderableType] = [Text(head, style="bold red" if refused else "bold")]
    if foresight.tables:
        grid = grid_of("route", "change")
        worst = sorted(foresight.tables, key=lambda t: (not (t.refused or t.risky), t not in touched, t.route))
        for table in worst[:MAX_TABLES]:
            grid.add_row(shown(table.route), Text(_table_change(table), style="red" if table.refused else ""))
        if len(worst) > MAX_TABLES:
            grid.add_row(f"and {len(worst) - MAX_TABLES} more (all of them: --json)", "")
        blocks += [Text(""), grid]
    blocks += [Text(""), Text(f"a new route would get a table of: {_columns(foresight.new_table)}")]
    return Group(*blocks, *(Text(f"note: {shown(note, ERROR_CHARS)}", style="dim") for note in foresight.notes))


def _table_change(table: TableChange) -> str:
    lines = [f"REFUSED {shown(path)}: {reason}" for path, reason in table.refused.items()]
    lines += [f"only values that fit: {shown(path)}" for path in table.risky]
    lines += [f"new column {shown(path)} {shown(kind)}" for path, kind in table.new_columns.items()]
    lines += [f"{shown(path)}: {shown(' becomes '.join(kinds))}" for path, kinds in table.type_changes.items()]
    if table.unfilled:
        lines.append(f"no longer filled: {', '.join(map(shown, table.unfilled))}")
    if table.why_spark:
        lines.append(f"engine spark: {shown(table.why_spark)}")
    return "\n".join(lines) or "none"
