"""Streams for a terminal: a table of all of them, and a line for each change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from distributary.names import shown
from distributary.state.streams import StreamRecord, StreamState

_COLUMNS = ("stream", "state", "for", "pid", "restarts", "batch", "rows in", "rows/s", "quarantined", "what is wrong")
_FEW = ("stream", "state", "batch", "rows in", "what is wrong")
"""What fits into 80 columns."""
LONGEST_CELL = 20
"""Characters of a cell that a narrow table keeps; of the last one, what there is room for."""
_GAP = 2
"""Characters between two columns."""
_NUMBERS = frozenset({"for", "pid", "restarts", "batch", "rows in", "rows/s", "quarantined"})
_STYLES = {StreamState.PARKED: "red", StreamState.RESTING: "yellow", StreamState.STOPPED: "dim"}


def streams_table(records: Sequence[StreamRecord], now: float, *, width: int | None = None) -> Table:
    """`now`: seconds since 1970. `width`: a line for each that is not wider, with the columns that say most."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = _COLUMNS if width is None else _FEW
    rows = [dict(zip(_COLUMNS, _cells(record, now), strict=True)) for record in records]
    for name in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
    if width is not None:
        widest = {name: max(len(name), *(len(cells[name]) for cells in rows)) for name in columns}
        limits = {name: min(LONGEST_CELL, widest[name]) for name in columns[:-1]}
        limits[columns[-1]] = max(0, width - sum(limits.values()) - _GAP * len(limits))
        rows = [{name: _cut(cells[name], most) for name, most in limits.items()} for cells in rows]
    for record, cells in zip(records, rows, strict=True):
        style = _STYLES.get(record.state, "yellow" if record.parked_tables else "")
        table.add_row(*(Text(cells[name]) for name in columns), style=style)
    return table


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(0, most - 1)]}…"


def worst_streams(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    """Those that have fallen first, then those with parked tables; else as they come."""
    fallen = (StreamState.PARKED, StreamState.RESTING)
    return sorted(records, key=lambda record: (record.state not in fallen, not record.parked_tables))


def change_line(before: StreamRecord, after: StreamRecord) -> str:
    """What happened to a stream, on one line."""
    line = f"{shown(after.name)}: {before.state} -> {after.state}"
    if after.state == StreamState.RUNNING:
        return f"{line} (process {after.pid}{f', restart {after.restarts}' if after.restarts else ''})"
    if after.state == StreamState.RESTING and after.next_try is not None:
        rest = f", starts again in {after.next_try - after.since:.0f} s (failure {after.failures})"
        return f"{line}{rest}: {_why(after)}"
    return f"{line}: {_why(after)}" if after.error else line


def ending_text(records: Sequence[StreamRecord], file: str) -> str:
    """What became of all streams, at the end: a line, and one for each that somebody should look at."""
    counts = Counter(record.state.value for record in records)
    rows = sum(record.rows_in for record in records)
    lines = [f"{', '.join(f'{n} {state}' for state, n in counts.items())}; {rows:,} rows in"]
    lines += [line for record in records if (line := attention_line(record)) is not None]
    lines += [f"stream {shown(r.name)}: parked tables: {_tables(r.parked_tables)}" for r in records if r.parked_tables]
    if len(lines) > 1:
        lines.append(f"more of it: distributary status {file}; where to look: {', '.join(_logs(records))}")
    return "\n".join(lines)


def _logs(records: Sequence[StreamRecord]) -> list[str]:
    return [r.log for r in records if r.log and (r.error or r.parked_tables)]


def attention_line(record: StreamRecord) -> str | None:
    """Why somebody should look at a stream; None where nobody need."""
    if record.state == StreamState.PARKED:
        return f"stream {shown(record.name)} is parked after {record.failures} failures in a row: {_why(record)}"
    if record.state == StreamState.RESTING:
        return f"stream {shown(record.name)} failed {record.failures} times in a row and rests: {_why(record)}"
    if record.state == StreamState.STOPPED and record.error:
        return f"stream {shown(record.name)} is stopped: {_why(record)}"
    return None


def _why(record: StreamRecord) -> str:
    return shown(record.error, 1000)


def _tables(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names))


def _cells(record: StreamRecord, now: float) -> list[str]:
    rate = record.rows_in and record.batch_at is not None and record.batch_sec
    parked = f"parked tables: {_tables(record.parked_tables[:3])}" if record.parked_tables else ""
    return [
        shown(record.name),
        record.state.value if not record.failures else f"{record.state.value} ({record.failures} failed)",
        f"{max(0.0, now - record.since):.0f} s" if record.since else "-",
        str(record.pid or "-"),
        str(record.restarts),
        "-" if record.batch is None else str(record.batch),
        f"{record.rows_in:,}",
        f"{record.last_rows / record.batch_sec:,.0f}" if rate else "-",
        f"{record.quarantined:,}",
        shown((record.error or parked).splitlines()[0], 120) if record.error or parked else "",
    ]
