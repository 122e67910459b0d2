"""The history of a route, and what a new schema would change, as text for people. Nothing here prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from distributary.cli.render import ERROR_CHARS, MAX_TABLES, grid_of, number_of
from distributary.names import shown

if TYPE_CHECKING:
    from distributary.audit.foresight import Foresight, TableChange
    from distributary.audit.history import History, SchemaSeen, Step

SHOWN_COLUMNS = 8
SHOWN_PARTITIONS = 3


def history_text(found: History, batches: int) -> RenderableType:
    head = f"route {shown(found.route)}: {found.rows:,} rows, {number_of(len(found.columns), 'column')}"
    parts: list[RenderableType] = [Text(head, style="bold"), Text(f"table {shown(found.table or 'none', ERROR_CHARS)}")]
    if found.schemas:
        grid = grid_of("schema id", "rows", "first batch", "at", "first offsets", right=("schema id", "rows"))
        for one in found.schemas:
            grid.add_row(
                str(one.id),
                f"{one.rows:,}",
                "-" if one.first_batch is None else str(one.first_batch),
                one.first_at or "-",
                _offsets(one),
            )
        parts += [Text(""), grid]
    events = [step for step in found.steps if step.is_event]
    if events:
        parts += [Text(""), Text("what changed", style="bold"), *(Text(_event(step)) for step in events)]
    if batches and found.steps:
        grid = grid_of("batch", "at", "rows", "quarantined", "state", "version", right=("rows", "quarantined"))
        for step in found.steps[-batches:]:
            grid.add_row(
                _which(step), step.at or "-", f"{step.rows:,}", f"{step.quarantined:,}", step.state,
                "-" if step.version is None else str(step.version),
            )  # fmt: skip
        parts += [Text(""), grid]
    return Group(*parts, *(Text(f"note: {shown(note, ERROR_CHARS)}", style="dim") for note in found.notes))


def _offsets(one: SchemaSeen) -> str:
    some = [f"{shown(number)}: {offset:,}" for number, offset in sorted(one.first_offset.items())]
    more = f" and {len(some) - SHOWN_PARTITIONS} more" if len(some) > SHOWN_PARTITIONS else ""
    return ", ".join(some[:SHOWN_PARTITIONS]) + more or "-"


def _which(step: Step) -> str:
    if step.summed > 1:
        return f"{step.summed:,} batches up to {step.batch}"
    return str(step.batch) if step.kind == "batch" else shown(step.kind) if step.kind != "merge" else "merge"


def _event(step: Step) -> str:
    said = []
    if step.created:
        said.append(f"new table: {_columns(step.new_columns)}" if step.new_columns else "new table")
    if step.new_schemas:
        said.append(f"schema id {', '.join(map(str, step.new_schemas))} came")
    if step.new_columns and not step.created:
        said.append(f"new columns: {_columns(step.new_columns)}")
    said += [f"{shown(path)}: {shown(' becomes '.join(kinds))}" for path, kinds in step.type_changes.items()]
    if step.state in ("parked", "failed"):
        said.append(f"PARKED: {shown(step.error or '', ERROR_CHARS)}")
    elif step.error:
        said.append(shown(step.error, ERROR_CHARS))
    which = _which(step)
    return (
        f"  {'batch ' if step.kind == 'batch' and step.summed == 1 else ''}{which}, {step.at or '-'}: {'; '.join(said)}"
    )


def _columns(columns: Mapping[str, str]) -> str:
    some = [f"{shown(path)} {shown(kind)}" for path, kind in list(columns.items())[:SHOWN_COLUMNS]]
    more = f" and {len(columns) - SHOWN_COLUMNS} more" if len(columns) > SHOWN_COLUMNS else ""
    return ", ".join(some) + more


# -- plan --schema -----------------------------------------------------------------------------------------


def foresight_text(found: Foresight) -> RenderableType:
    """A line for each table, and what a new route's table would be."""
    touched = [t for t in found.tables if t.new_columns or t.type_changes or t.refused or t.risky]
    refused = sum(bool(t.refused or t.risky) for t in found.tables)
    head = (
        f"{shown(found.schema, ERROR_CHARS)}, message {shown(found.message)}: "
        f"{number_of(len(found.tables), 'table has', 'tables have')} rows of it, {len(touched):,} would change, "
        f"{refused:,} would not take all values"
    )
    parts: list[RenderableType] = [Text(head, style="bold red" if refused else "bold")]
    if found.tables:
        grid = grid_of("route", "change")
        worst = sorted(found.tables, key=lambda t: (not (t.refused or t.risky), t not in touched, t.route))
        for table in worst[:MAX_TABLES]:
            grid.add_row(shown(table.route), Text(_table_change(table), style="red" if table.refused else ""))
        if len(worst) > MAX_TABLES:
            grid.add_row(f"and {len(worst) - MAX_TABLES} more (all of them: --json)", "")
        parts += [Text(""), grid]
    parts += [Text(""), Text(f"a new route would get a table of: {_columns(found.new_table)}")]
    return Group(*parts, *(Text(f"note: {shown(note, ERROR_CHARS)}", style="dim") for note in found.notes))


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
