"""The table of docs/versions.md, made of what `make matrix` found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "versions.md"
RESULTS = ROOT / "bench" / "results" / "versions.json"
BEGIN, END = "<!-- Made by `make matrix`. -->", "<!-- end -->"


def page(text: str, cases: Sequence[Mapping[str, Any]], whats: Mapping[str, str]) -> str:
    """The page, with the part between its marks made anew. `whats`: what each part tries."""
    table = "\n".join(_lines(cases, whats))
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)


def _lines(cases: Sequence[Mapping[str, Any]], whats: Mapping[str, str]) -> list[str]:
    heads = [f"Spark {case['spark']}, Delta {case['delta']}, Python {case['python']}" for case in cases]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(cases)}"]
    for part, what in whats.items():
        lines.append(f"| {what} | {' | '.join(_cell(case, part) for case in cases)} |")
    packages = ("the lowest of each" if case["lowest"] else "the pinned ones" for case in cases)
    lines.append(f"| other packages | {' | '.join(packages)} |")
    lines.append(f"| tried | {' | '.join(case['date'] for case in cases)} |")
    return lines


def _cell(case: Mapping[str, Any], part: str) -> str:
    for outcome in case["parts"]:
        if outcome["part"] == part:
            detail = f": {outcome['detail']}" if outcome["detail"] else ""
            return f"{outcome['state']}{detail}".replace("|", "\\|")
    return "not tried"
