"""Names say what they hold (docs/glossary.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src"
# Each says that something was done, or that there is something, and not what: `found` is a row, an offset, a match?
# `known_ids` and `rows_kept` say it.
WORDLESS = {
    "asked", "done", "found", "given", "gone", "held", "here", "kept", "known", "made", "one", "part", "said", "taken",
    "there", "told", "wanted", "whole",
}  # fmt: skip


def bound(tree: ast.Module) -> Iterator[str]:
    """The names that functions and comprehensions bind, once each per function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            yield from names | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}


def test_no_variable_says_only_that_something_was_found() -> None:
    places = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path in sorted(SOURCES.rglob("*.py"))
        for name in bound(ast.parse(path.read_text()))
        if name in WORDLESS
    ]
    assert not places, "name them for what they hold"
