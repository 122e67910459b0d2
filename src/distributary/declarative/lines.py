"""What a runner tells, as lines for people. Nothing here prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def line(said: Mapping[str, Any]) -> str | None:
    """The line for one thing that a runner tells; None for what is of no interest to a reader."""
    kind = said.get("kind")
    if kind == "update":
        return _update(said)
    if kind == "replay":
        rows = sum(said["rows"].values())
        return f"{rows:,} rows whose schema was not known come back: {', '.join(sorted(said['rows']))}"
    if kind == "error":
        return f"error: {said['text']}"
    if kind == "stopped":
        return str(said["text"])
    return _run(said) if kind == "run" else None


def _run(said: Mapping[str, Any]) -> str:
    rows: Counter[str] = Counter()
    tables: Counter[str] = Counter()
    for name, count in said["rows"].items():
        if count:
            rows[said["kinds"][name]] += count
            tables[said["kinds"][name]] += 1
    found = [f"{rows['bronze']:,} records into bronze" if rows["bronze"] else "no new records"]
    for kind in ("silver", "own"):
        if rows[kind]:
            found.append(f"{rows[kind]:,} rows into {_count(tables[kind], f'{kind} table')}")
    if said["set_aside"] > 0:
        found.append(f"{said['set_aside']:,} set aside")
    ending = "" if said["ok"] else f"; not well: {', '.join(said['failed']) or said['error']}"
    return f"{_count(said['updates'], 'update')}: {', '.join(found)}{ending}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _update(said: Mapping[str, Any]) -> str:
    filled = {name: d["rows"] for name, d in said["datasets"].items() if d["rows"]}
    rows = ", ".join(f"{name} {count:,}" for name, count in filled.items()) or "no new rows"
    aside = f"; {said['set_aside']:,} set aside" if said["set_aside"] > 0 else ""
    lines = [f"update {said['update']}: {said['seconds']:.1f} s; {rows}{aside}"]
    lines += [f"  failed: {name}: {_cause(str(why))}" for name, why in said["failed"].items()]
    if said["error"] and not said["failed"]:
        lines.append(f"  failed: {said['error'].splitlines()[0][:300]}")
    lines += [f"  note: {problem}" for problem in said["problems"]]
    return "\n".join(lines)


def demo_lines(
    columns: Sequence[str], gold: Sequence[Sequence[Any]], sent: int, found: int, differences: Sequence[str]
) -> str:
    """Unified gold as a table, and whether the tables hold what was sent."""
    rows = [list(columns), *([_cell(value) for value in row] for row in gold)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(columns))]
    lines = ["", "unified gold:"]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", f"as the producer sent it: {found:,} of {sent:,} good rows in the silver tables", *differences]
    return "\n".join(lines)


_TELLING = re.compile(r"\[[A-Z][A-Z0-9_.]+\] |[\w.]*(?:Error|Exception|Broken): ")


def _cause(why: str) -> str:
    """The line that says why: of what Spark says of a flow, the last one that names a condition or an exception."""
    lines = why.splitlines()
    return next((one for one in reversed(lines) if _TELLING.match(one)), lines[0] if lines else "")[:300]


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
