"""What a runner tells, as lines for people. Nothing here prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def line(report: Mapping[str, Any]) -> str | None:
    """The line for one thing that a runner tells; None for what is of no interest to a reader."""
    kind = report.get("kind")
    if kind == "update":
        return _update(report)
    if kind == "replay":
        rows = sum(report["rows"].values())
        return f"{rows:,} rows whose schema was not known come back: {', '.join(sorted(report['rows']))}"
    if kind == "error":
        return f"error: {report['text']}"
    if kind == "stopped":
        return str(report["text"])
    return _run(report) if kind == "run" else None


def _run(report: Mapping[str, Any]) -> str:
    rows: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    for name, count in report["rows"].items():
        if count:
            rows[report["kinds"][name]] += count
            tables[report["kinds"][name]] += 1
    phrases = [f"{rows['bronze']:,} records into bronze" if rows["bronze"] else "no new records"]
    for kind in ("silver", "own"):
        if rows[kind]:
            phrases.append(f"{rows[kind]:,} rows into {_count(tables[kind], f'{kind} table')}")
    if report["set_aside"] > 0:
        phrases.append(f"{report['set_aside']:,} set aside")
    ending = "" if report["ok"] else f"; not well: {', '.join(report['failed']) or report['error']}"
    return f"{_count(report['updates'], 'update')}: {', '.join(phrases)}{ending}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _update(report: Mapping[str, Any]) -> str:
    filled = {name: d["rows"] for name, d in report["datasets"].items() if d["rows"]}
    rows = ", ".join(f"{name} {count:,}" for name, count in filled.items()) or "no new rows"
    aside = f"; {report['set_aside']:,} set aside" if report["set_aside"] > 0 else ""
    lines = [f"update {report['update']}: {report['seconds']:.1f} s; {rows}{aside}"]
    lines += [f"  failed: {name}: {_cause(str(why))}" for name, why in report["failed"].items()]
    if report["error"] and not report["failed"]:
        lines.append(f"  failed: {report['error'].splitlines()[0][:300]}")
    lines += [f"  note: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def demo_lines(
    columns: Sequence[str], gold: Sequence[Sequence[Any]], sent: int, rows_in_silver: int, differences: Sequence[str]
) -> str:
    """Unified gold as a table, and whether the tables hold what was sent."""
    rows = [list(columns), *([_cell(value) for value in row] for row in gold)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(columns))]
    lines = ["", "unified gold:"]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [
        "",
        f"as the producer sent it: {rows_in_silver:,} of {sent:,} good rows in the silver tables",
        *differences,
    ]
    return "\n".join(lines)


_TELLING = re.compile(r"\[[A-Z][A-Z0-9_.]+\] |[\w.]*(?:Error|Exception|Broken): ")


def _cause(why: str) -> str:
    """The line that says why: of what Spark says of a flow, the last one that names a condition or an exception."""
    lines = why.splitlines()
    return next((candidate for candidate in reversed(lines) if _TELLING.match(candidate)), lines[0] if lines else "")[
        :300
    ]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
