"""Two ways to show a Status: on a terminal (rich), and as one HTML page without any other file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from distributary.audit.status.facts import QUARANTINED, Status, TableStatus
from distributary.names import counted, printable, shown
from distributary.supervisor.stream_table import streams_table

ERROR_CHARS = 1000
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
MOST_LINES = 4
"""Of a screen, for what needs attention and for notes."""
_NUMBERS = frozenset({"rows", "last batch", "age", "event lag", "waiting", "quarantined"})


def render(status: Status) -> RenderableType:
    """The status for a terminal, the worst tables first. Routes and errors are shown as they are, never as markup."""
    return _Whole(status)


def watched(status: Status) -> RenderableType:
    """The status for a screen: never longer nor wider than that, the worst tables first, the others as a number."""
    return _Screen(status)


def worst_first(tables: Iterable[TableStatus]) -> list[TableStatus]:
    """Parked, then refused, then by bad rows of the last batch, then by rows that wait; else by name."""
    return sorted(tables, key=lambda t: (t.state != "parked", t.is_well, -t.refused, -t.lag_rows, t.route))


class _Whole:
    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status = self._status
        yield Text(_headline(status), style=_headline_style(status))
        yield _table(worst_first(status.tables), options.max_width)
        if status.streams:
            yield from (Text(""), streams_table(status.streams, time.time()), Text(""))
        yield from (Text(f"! {printable(line)}", style="red") for line in status.attention)
        yield from (Text(f"note: {printable(line)}", style="dim") for line in status.notes)


class _Screen:
    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, height = self._status, options.height or console.size.height
        head: list[RenderableType] = [Text(_headline(status), style=_headline_style(status))]
        if status.streams:
            head += [streams_table(status.streams, time.time())]
        lines = [(f"! {printable(line)}", "red") for line in status.attention]
        lines += [(f"note: {printable(line)}", "dim") for line in status.notes]
        foot = [_one_line(text, style) for text, style in lines[:MOST_LINES]]
        if len(lines) > MOST_LINES:
            foot.append(_one_line(f"and {len(lines) - MOST_LINES:,} more lines: distributary status FILE", "dim"))
        used = len(console.render_lines(Group(*head), options.update(height=None))) + len(foot)
        # The table's own header, and the line that counts the others.
        room = max(1, height - used - 2)
        tables = worst_first(status.tables)
        yield from head
        yield _table(tables[:room], options.max_width)
        if len(tables) > room:
            others = tables[room:]
            bad = sum(not one.is_well for one in others)
            said = f"{bad:,} of them not well" if bad else "all of them well"
            yield _one_line(f"and {len(others):,} more, {said}", "dim")
        yield from foot


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
    for one in tables:
        style = "" if one.is_well and not one.refused else "yellow" if one.is_well else "red"
        cells = dict(zip(_COLUMNS, _cells(one), strict=True))
        table.add_row(*(Text(cells[name]) for name in columns), style=style)
    return table


def html(status: Status) -> str:
    """The status as one page: no script, no other file, every text escaped."""
    head = "".join(f'<th class="{_align(name)}">{escape(name)}</th>' for name in _COLUMNS)
    rows = "".join(_html_row(one) for one in worst_first(status.tables))
    return _PAGE.format(
        title=escape(f"{shown(status.pipeline)} - distributary"),
        headline=escape(_headline(status)),
        at=escape(status.at),
        attention=_html_list("attention", status.attention),
        notes=_html_list("notes", status.notes),
        head=head,
        rows=rows,
    )


def _headline_style(status: Status) -> str:
    return "bold red" if status.unwell else "bold"


def _headline(status: Status) -> str:
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


def _cells(one: TableStatus) -> list[str]:
    return [
        shown(one.route),
        _state(one),
        f"{one.rows:,}",
        "-" if one.last_batch is None else str(one.last_batch),
        one.last_write or "-",
        "-" if one.age_sec is None else _age(one.age_sec),
        "-" if one.lag_sec is None else _age(one.lag_sec),
        f"{one.lag_rows:,}",
        f"{one.quarantined:,}",
        one.engine,
    ]


def _state(one: TableStatus) -> str:
    if one.state == QUARANTINED:
        return "refused"
    if one.failures:
        return f"{one.state} ({one.failures} failed)"
    if one.merge_state in ("waiting", "append_only"):
        return f"{one.state}, {one.merge_state.replace('_', ' ')}"
    return one.state


def _age(sec: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if sec >= 2 * size:
            return f"{sec / size:.0f} {unit}"
    return f"{sec:.0f} s"


def _html_row(one: TableStatus) -> str:
    kind = "parked" if not one.is_well else "bad" if one.refused else "fine"
    hint = escape(shown(one.error or one.table or "", ERROR_CHARS))
    cells = zip(_COLUMNS, _cells(one), strict=True)
    inner = "".join(f'<td class="{_align(name)}">{escape(cell)}</td>' for name, cell in cells)
    return f'<tr class="{kind}" title="{hint}">{inner}</tr>\n'


def _html_list(kind: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(printable(line))}</li>" for line in lines) + "</ul>\n"


def _align(name: str) -> str:
    return "n" if name in _NUMBERS else "t"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }}
h1 {{ font-size: 1.1rem; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #8884; text-align: left; }}
th.n, td.n {{ text-align: right; }}
tr.parked td, ul.attention {{ color: #c22; }}
tr.bad td {{ color: #a60; }}
ul.notes, footer {{ opacity: .7; }}
</style>
</head>
<body>
<h1>{headline}</h1>
{attention}{notes}<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody>
</table>
<footer>as of {at}</footer>
</body>
</html>
"""
