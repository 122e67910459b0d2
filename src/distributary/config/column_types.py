"""Types of columns as `payload.columns` writes them: `bigint`, `decimal(10,2)`, `array<map<string,double>>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from distributary.config.base import fault

__all__ = ["SCALARS", "ColumnType", "check_columns", "conflict", "read_type"]

SCALARS: Final = ("bigint", "double", "boolean", "string", "date", "timestamp", "timestamp_ntz", "binary", "json")
ColumnType = tuple[str, ...] | tuple[str, "ColumnType"] | tuple[str, int, int]
"""`("bigint",)`, `("array", items)`, `("map", values)`, `("decimal", precision, scale)`."""
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_INSIDE: Final = re.compile(r"(?:(array)<|(map)<string,)(.+)>")
_DEEPEST: Final = 19
_WORDS: Final = {"long": "bigint", "float64": "double", "text": "string", "bool": "boolean", "int": "bigint"}


def read_type(text: str, depth: int = 0) -> ColumnType:
    """The type that a text names. Raises ValueError, in words: it names none."""
    text = "".join(text.split()).lower()
    if text in SCALARS:
        return (text,)
    if (match := _DECIMAL.fullmatch(text)) and 0 < (precision := int(match[1])) <= 38 and int(match[2]) <= precision:
        return "decimal", precision, int(match[2])
    if (inside := _INSIDE.fullmatch(text)) and depth < _DEEPEST:
        return inside[1] or inside[2], read_type(inside[3], depth + 1)
    hint = f"; write {_WORDS[text]}" if text in _WORDS else ""
    allowed = f"{', '.join(SCALARS)}, decimal(p,s), array<type>, map<string,type>"
    raise ValueError(f"there is no type {text!r}{hint}. Allowed: {allowed}")


def check_columns(columns: Mapping[str, str]) -> None:
    """Of a model's key `columns`: path -> type. Raises the fault of the first that names no type, or no column."""
    for path, kind in columns.items():
        try:
            read_type(kind)
        except ValueError as e:
            raise fault(f"columns.{path}", str(e)) from e
    if (wrong := conflict(columns)) is not None:
        detail = "allowed: names with dots between them, of which none is an object and a value at once"
        raise fault(f"columns.{wrong}", detail)


def conflict(columns: Mapping[str, str]) -> str | None:
    """A path that is an object for another one (`meta` beside `meta.at`), or no path; None where there is none."""
    for path in columns:
        steps = path.split(".")
        if not all(steps):
            return path
        if any(".".join(steps[:count]) in columns for count in range(1, len(steps))):
            return path
    return None
