"""What columns are called, which one is a field's, how its second columns, for other types, are named; their number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa

_WORDS: tuple[tuple[str, pa.DataType], ...] = (
    ("tinyint", pa.int8()),
    ("smallint", pa.int16()),
    ("int", pa.int32()),
    ("bigint", pa.int64()),
    ("float", pa.float32()),
    ("double", pa.float64()),
    ("boolean", pa.bool_()),
    ("string", pa.string()),
    ("binary", pa.binary()),
    ("date", pa.date32()),
    ("timestamp_ntz", pa.timestamp("us")),
)


def type_word(kind: pa.DataType) -> str:
    """What the name of a second column says of its type."""
    for word, worded in _WORDS:
        if kind == worded:
            return word
    if pa.types.is_list(kind):
        return f"list_{type_word(kind.value_type)}"
    for word, test in (
        ("decimal", pa.types.is_decimal),
        ("timestamp", pa.types.is_timestamp),
        ("struct", pa.types.is_struct),
        ("map", pa.types.is_map),
    ):
        if test(kind):
            return word
    return "".join(c if c.isalnum() else "_" for c in str(kind))


_SECOND = re.compile(
    rf"__(list_)*({'|'.join(word for word, _ in _WORDS)}|decimal|timestamp|struct|map)(_\d+)?", re.ASCII
)
"""How the name of a second column goes on behind that of the column or field whose values it takes."""


def second_columns(names: Sequence[str], name: str) -> list[str]:
    """The second columns of the column `name`, of those with these `names`: what it cannot hold is in one of them."""
    return [candidate for candidate in names if candidate.startswith(name) and _SECOND.fullmatch(candidate, len(name))]


def home(names: Sequence[str], name: str) -> str | None:
    """The column, of those with these `names`, that is the field's; None for a new field.

    The one that is spelled so; else the second column that is spelled so, which the field got where another one, that
    differs in case only, had the first; else the one that differs in case only.
    """
    if name in names:
        return name
    alike = next((candidate for candidate in names if folded(candidate) == folded(name)), None)
    return alike and next(iter(second_columns(names, name)), alike)


def folded(name: str) -> str:
    """As Delta compares names."""
    return name.lower()


def type_text(kind: pa.DataType) -> str:
    """A leaf's type as SQL spells it."""
    return f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else type_word(kind)


def leaves(fields: Iterable[pa.Field]) -> int:
    """Columns that a Parquet file has for these fields: those that hold values, at any depth."""
    return sum(_leaves(field.type) for field in fields)


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return leaves(kind)
    if pa.types.is_list(kind):
        return _leaves(kind.value_type)
    return 1 + _leaves(kind.item_type) if pa.types.is_map(kind) else 1
