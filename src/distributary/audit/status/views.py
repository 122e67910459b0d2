"""Two ways to show a Status: on a terminal (rich), and as one HTML page without any other file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from distributary.audit.status.facts import QUARANTINED, Status, TableStatus
from distributary.names import printable, shown
from distributary.supervisor.views import streams_table

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
_NUMBERS = frozenset({"rows", "last batch", "age", "event lag", "waiting", "quarantined"})


def render(status: Status) -> RenderableType:
    """The status for a terminal. Routes and errors are shown as they are, never read as markup."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    for one in status.tables:
        style = "red" if one.state in ("parked", QUARANTINED) else "yellow" if one.quarantined else ""
        table.add_row(*(Text(cell) for cell in _cells(one)), style=style)
    parts: list[RenderableType] = [Text(_headline(status), style="bold"), table]
    if status.streams:
        parts += [Text(""), streams_table(status.streams, time.time()), Text("")]
    parts += [Text(f"! {printable(line)}", style="red") for line in status.attention]
    parts += [Text(f"note: {printable(line)}", style="dim") for line in status.notes]
    return Group(*parts)


def html(status: Status) -> str:
    """The status as one page: no script, no other file, every text escaped."""
    head = "".join(f'<th class="{_align(name)}">{escape(name)}</th>' for name in _COLUMNS)
    rows = "".join(_html_row(one) for one in status.tables)
    return _PAGE.format(
        title=escape(f"{shown(status.pipeline)} - distributary"),
        headline=escape(_headline(status)),
        at=escape(status.at),
        attention=_html_list("attention", status.attention),
        notes=_html_list("notes", status.notes),
        head=head,
        rows=rows,
    )


def _headline(status: Status) -> str:
    state = {True: "running", False: "not running", None: "no lock to tell whether it runs"}[status.running]
    batch = "no batch yet" if status.last_batch is None else f"batch {status.last_batch} at {status.finished_at}"
    waiting = "unknown" if status.lag_rows is None else f"{status.lag_rows:,}"
    if status.files_waiting is not None:
        waiting = f"{status.files_waiting:,} file{'' if status.files_waiting == 1 else 's'}"
    return (
        f"{shown(status.pipeline)}: {state}, {batch}; {len(status.tables):,} tables, {status.rows:,} rows, "
        f"{status.quarantined:,} quarantined, waiting at the source: {waiting}"
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
    kind = "parked" if one.state in ("parked", QUARANTINED) else "bad" if one.quarantined else "fine"
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
