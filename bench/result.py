"""Results: what a benchmark found, the file that keeps it, and the tables of docs/benchmarks.md made from that file."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
LATEST = HERE / "results" / "latest.json"
PAGE = HERE.parent / "docs" / "benchmarks.md"

PACKAGES = ("distributary", "pyspark", "delta-spark", "deltalake", "pyarrow", "ptars", "protobuf", "confluent-kafka")


@dataclass(frozen=True)
class Case:
    """One figure of ours, with the other side's figure from the same run where there is one.

    `ratio`: how many times better ours is (for `less` is better: other / ours, else ours / other), unless given.
    `goal`: what `of` must reach (`ours` must stay under it, where less is better; `ratio` must reach it).
    """

    label: str
    unit: str
    ours: float
    other: float | None = None
    less_is_better: bool = True
    goal: float | None = None
    goal_of: str = "ratio"
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if self.other is None:
            return None
        return self.other / self.ours if self.less_is_better else self.ours / self.other

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        if self.goal_of == "ratio":
            return self.ratio is not None and self.ratio >= self.goal
        return self.ours <= self.goal if self.less_is_better else self.ours >= self.goal

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "ours": _rounded(self.ours),
            "other": _rounded(self.other),
            "ratio": _rounded(self.ratio),
            "unit": self.unit,
            "goal": None if self.goal is None else {"of": self.goal_of, "value": self.goal, "met": self.met},
            "details": {k: _rounded(v) for k, v in self.details.items()},
        }


@dataclass(frozen=True)
class Result:
    """A benchmark's cases; the first one is the one it is known for. `note`: what the figures are, in a sentence."""

    name: str
    note: str
    cases: tuple[Case, ...]

    def as_json(self) -> dict[str, Any]:
        first = self.cases[0].as_json()
        head = {k: first[k] for k in ("ours", "other", "ratio", "unit")}
        return {**head, "note": self.note, "cases": [case.as_json() for case in self.cases]}


def keep(result: Result, path: Path, yardstick_sec: Sequence[float] = ()) -> None:
    """Put the result into the file, beside those of other benchmarks on the same machine; another machine's go.

    `yardstick_sec`: what bench.yardstick said before and after it.
    """
    found = json.loads(path.read_text()) if path.exists() else {}
    about = {"machine": machine(), "versions": versions()}
    others = found["results"] if found.get("machine") == about["machine"] else {}
    measured: dict[str, Any] = {"measured_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}
    if yardstick_sec:
        measured["yardstick_sec"] = _rounded(yardstick_sec)
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {**others, result.name: {**result.as_json(), **measured}}
    path.write_text(json.dumps({**about, "results": results}, indent=2) + "\n")


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value


# -- the page ----------------------------------------------------------------------------------------------


def page(text: str, latest: Mapping[str, Any]) -> str:
    """The page with the tables between its markers made anew from the results."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        body = _about(latest) if name == "machine" else _table(latest.get("results", {}).get(name))
        return f"<!-- results: {name} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- results: (?P<name>\w+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def _about(latest: Mapping[str, Any]) -> str:
    if "machine" not in latest:
        return "Nothing has been measured yet."
    found = latest["machine"]
    what = ", ".join(f"{name} {number}" for name, number in latest["versions"].items())
    return (
        f"{found['processor']}, {found['cores']} cores, {found['memory_gib']} GiB of memory, {found['system']}; "
        f"Python {found['python']}, {what}."
    )


def _table(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "Not measured yet."
    lines = [result["note"], "", "| case | ours | other | ratio | goal | more |", "|---|---:|---:|---:|---|---|"]
    for case in result["cases"]:
        ours, other = (_with_unit(case[k], case["unit"]) for k in ("ours", "other"))
        ratio = "" if case["ratio"] is None else _number(case["ratio"])
        more = "; ".join(f"{k} {_text(v)}" for k, v in case["details"].items())
        lines.append(f"| {case['label']} | {ours} | {other} | {ratio} | {_goal(case)} | {more} |")
    lines += ["", _when(result)]
    return "\n".join(lines)


def _when(result: Mapping[str, Any]) -> str:
    found = [f"{sec:.2f} s" for sec in result.get("yardstick_sec", ())]
    return f"Measured {result['measured_at']}; yardstick {' and '.join(found) or 'not taken'}."


def _goal(case: Mapping[str, Any]) -> str:
    goal = case["goal"]
    if goal is None:
        return ""
    return f"{goal['of']} {_number(goal['value'])}: {'met' if goal['met'] else '**missed**'}"


def _with_unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {_text(v)}" for k, v in value.items()) + ")"
    if isinstance(value, list):
        return " ".join(_text(v) for v in value)
    return _number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---|' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
