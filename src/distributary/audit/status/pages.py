"""A Status on a terminal: all of it, or as much as a screen holds. The page for a browser: `audit.page`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from distributary.audit.status.facts import QUARANTINED, Status, TableStatus
from distributary.names import counted, printable, shown
from distributary.state.streams import StreamRecord
from distributary.supervisor.stream_table import streams_table, worst_streams

_COLUMNS = (
    "route",
    "state",
    "rows",
    "last batch",
    "last write",
    "age",
    "event lag",
    "waiting",
    "quarantined",
    "engine",
)
_FEW = ("route", "state", "rows", "age", "waiting", "quarantined")
"""What fits into 80 columns."""
WIDE = 120
_COMMAND = re.compile(r"(distributary \w+) FILE\b")
MOST_LINES = 4
"""Of a screen, for what needs attention and for notes."""
_NUMBERS = frozenset({"rows", "last batch", "age", "event lag", "waiting", "quarantined"})


def render(status: Status, file: str = "FILE") -> RenderableType:
    """The status for a terminal, the worst tables first. Routes and errors are shown as they are, never as markup.
    `file`: the pipeline file, for commands that are named."""
    return _Whole(naming(status, file))


def watched(status: Status, file: str = "FILE") -> RenderableType:
    """The status for a screen: never longer nor wider than that, the worst tables first, the others as a number."""
    return _Screen(naming(status, file), file)


def naming(status: Status, file: str) -> Status:
    """With the pipeline file in the commands that it tells to type, in place of FILE."""
    lines = (_COMMAND.sub(lambda command: f"{command[1]} {shown(file)}", line) for line in status.attention)
    return replace(status, attention=tuple(lines))


def _remarks(status: Status) -> list[Text]:
    """What needs attention, red where the pipeline is not well, and notes."""
    red = "red" if status.unwell else "yellow"
    lines = [(f"! {printable(line)}", red) for line in status.attention]
    lines += [(f"note: {printable(line)}", "dim") for line in status.notes]
    return [Text(line, style) for line, style in lines]


def worst_first(tables: Iterable[TableStatus]) -> list[TableStatus]:
    """Parked, then refused, then by bad rows of the last batch, then by rows that wait; else by name."""
    return sorted(tables, key=lambda t: (t.state != "parked", t.is_well, -t.refused, -t.lag_rows, t.route))


class _Whole:
    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._status
        yield Text(headline(status), style=_headline_style(status))
        yield _table(worst_first(status.tables), options.max_width)
        if status.streams:
            yield from (Text(""), streams_table(status.streams, time.time()), Text(""))
        yield from _remarks(status)


class _Screen:
    def __init__(self, status: Status, file: str) -> None:
        self._status = status
        self._file = file

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, height = self._status, options.height or console.size.height
        head: list[RenderableType] = [Text(headline(status), style=_headline_style(status))]
        head += _few_streams(status.streams, options.max_width, max(1, height // 4))
        remarks = _remarks(status)
        foot = [_one_line(remark.plain, str(remark.style)) for remark in remarks[:MOST_LINES]]
        if len(remarks) > MOST_LINES:
            words = f"and {len(remarks) - MOST_LINES:,} more lines: distributary status {shown(self._file)}"
            foot.append(_one_line(words, "dim"))
        tables = worst_first(status.tables)

        def lines(parts: list[RenderableType]) -> int:
            return len(console.render_lines(Group(*parts), options.update(height=None)))

        # The table's own header, and the line that counts the others.
        room = max(1, height - lines(head) - len(foot) - 2)
        if len(tables) + 1 + lines([*head, *remarks]) <= height:
            foot = remarks
        yield from head
        yield _table(tables[:room], options.max_width)
        if len(tables) > room:
            others = tables[room:]
            bad = sum(not table.is_well for table in others)
            words = f"{bad:,} of them not well" if bad else "all of them well"
            yield _one_line(f"and {len(others):,} more, {words}", "dim")
        yield from foot


def _few_streams(records: Sequence[StreamRecord], width: int, most: int) -> list[RenderableType]:
    """A line for each of the worst streams, and the others as a number."""
    if not records:
        return []
    ordered = worst_streams(records)
    shown_streams: list[RenderableType] = [streams_table(ordered[:most], time.time(), width=width)]
    if len(ordered) > most:
        shown_streams.append(_one_line(f"and {len(ordered) - most:,} more streams", "dim"))
    return shown_streams


def _one_line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _table(tables: Sequence[TableStatus], width: int) -> Table:
    """All columns where there is room for them, else those that say most."""
    columns = _COLUMNS if width >= WIDE else _FEW
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        number = name in _NUMBERS
        fixed = columns is _FEW
        table.add_column(
            name, justify="right" if number else "left", no_wrap=fixed, overflow="ellipsis" if fixed else "fold"
        )
    for status in tables:
        style = "" if status.is_well and not status.refused else "yellow" if status.is_well else "red"
        cells = dict(zip(_COLUMNS, _cells(status), strict=True))
        table.add_row(*(Text(cells[name]) for name in columns), style=style)
    return table


def _headline_style(status: Status) -> str:
    return "bold red" if status.unwell else "bold"


def headline(status: Status) -> str:
    """The pipeline in one line, which begins with whether it is well."""
    well = f"NOT WELL ({', '.join(status.unwell)})" if status.unwell else "well"
    state = {True: "running", False: "not running", None: "no lock to tell whether it runs"}[status.running]
    batch = "no batch yet" if status.last_batch is None else f"batch {status.last_batch} at {status.finished_at}"
    waiting = "unknown" if status.lag_rows is None else f"{status.lag_rows:,}"
    if status.files_waiting is not None:
        waiting = counted(status.files_waiting, "file")
    return (
        f"{shown(status.pipeline)}: {well}, {state}, {batch}; {counted(len(status.tables), 'table')}, "
        f"{counted(status.rows, 'row')}, {status.quarantined:,} quarantined, waiting at the source: {waiting}"
    )


def _cells(table: TableStatus) -> list[str]:
    return [
        shown(table.route),
        state_of(table),
        f"{table.rows:,}",
        "-" if table.last_batch is None else str(table.last_batch),
        table.last_write or "-",
        "-" if table.age_sec is None else _age(table.age_sec),
        "-" if table.lag_sec is None else _age(table.lag_sec),
        f"{table.lag_rows:,}",
        f"{table.quarantined:,}",
        table.engine,
    ]


def state_of(table: TableStatus) -> str:
    """A table's state in a word or two."""
    if table.state == QUARANTINED:
        return "refused"
    if table.failures:
        return f"{table.state} ({table.failures} failed)"
    if table.merge_state in ("waiting", "append_only"):
        return f"{table.state}, {table.merge_state.replace('_', ' ')}"
    return table.state


def _age(sec: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if sec >= 2 * size:
            return f"{sec / size:.0f} {unit}"
    return f"{sec:.0f} s"
