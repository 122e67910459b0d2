"""A real database's own answer to `SELECT *`, held against a merged table, value by value.

What a driver gives for a column and what the pipeline has made of it are brought together here by the documented
mapping of types (docs/datastream-types.md), and by nothing that the simulator or the reader know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

Row = Mapping[str, Any]


def differences(source: Sequence[Row], merged: Sequence[Row], key: str = "id") -> list[str]:
    """What is not the same, in words. `merged`: the living rows, which may have more columns."""
    ours = {row[key]: row for row in merged}
    theirs = {row[key]: row for row in source}
    found = [f"{key} {k} is there twice" for k in ours if sum(row[key] == k for row in merged) > 1]
    found += [f"{key} {k} is missing" for k in theirs.keys() - ours.keys()]
    found += [f"{key} {k} should be gone" for k in ours.keys() - theirs.keys()]
    for k in theirs.keys() & ours.keys():
        for name, value in theirs[k].items():
            ours_is = held(ours[k], name)
            if not same(value, ours_is):
                found.append(f"{key} {k}, {name}: {value!r} at the source, {ours_is!r} in the table")
    return found


def held(row: Row, name: str) -> Any:
    """A column's value; that of another type than the column is in a second one (`name__type`)."""
    names = [n for n in row if n == name or n.startswith(f"{name}__")]
    return next((row[n] for n in names if row[n] is not None), None)


def same(source: Any, ours: Any) -> bool:
    """One value, as the driver gives it and as a merged table has it."""
    if source is None or ours is None:
        return source is None and ours is None
    for kind, is_same in _SAME.items():
        if isinstance(source, kind):
            return is_same(source, ours)
    return bool(source == ours)


def _same_float(source: float, ours: Any) -> bool:
    # A driver may show a FLOAT by its shortest text: 1.2.
    return bool(source == ours or np.float32(source) == np.float32(ours))


def _same_bytes(source: bytes, ours: Any) -> bool:
    """MySQL's binary types are hex, its BIT a number."""
    return ours in (source, source.hex(), int.from_bytes(source))


def _same_time(source: datetime, ours: datetime) -> bool:
    return _in_utc(source) == _in_utc(ours)


def _in_utc(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _same_day(source: date, ours: Any) -> bool:
    """MySQL's dates come as midnights."""
    return ours in (source, datetime(source.year, source.month, source.day, tzinfo=UTC))


def _same_span(source: timedelta, ours: str | int) -> bool:
    """As text; Parquet has no type for it, so that its files give microseconds."""
    micros = source // timedelta(microseconds=1)
    seconds, rest = divmod(abs(micros), 1_000_000)
    text = f"{'-' if micros < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return ours in (text + (f".{rest:06d}".rstrip("0") if rest else ""), str(micros), micros)


_SAME: dict[type, Callable[[Any, Any], bool]] = {
    bool: lambda source, ours: bool(source) == bool(ours),
    int: lambda source, ours: source == (Decimal(ours) if isinstance(ours, str) else ours),
    float: _same_float,
    Decimal: lambda source, ours: source == Decimal(ours),
    bytes: _same_bytes,
    datetime: _same_time,
    date: _same_day,
    timedelta: _same_span,
    UUID: lambda source, ours: str(source) == ours,
    dict: lambda source, ours: source == json.loads(ours),
    list: lambda source, ours: source == ours,
    str: lambda source, ours: source in (ours, ours.decode() if isinstance(ours, bytes) else None),
}


def interval(text: str) -> tuple[int, Decimal]:
    """Months and seconds of an interval in ISO 8601; days have 24 hours."""
    date_part, _, time_part = text.removeprefix("P").partition("T")
    months = sum(int(n) * {"Y": 12, "M": 1}[unit] for n, unit in re.findall(r"(-?\d+)([YM])", date_part))
    days = sum(int(n) for n in re.findall(r"(-?\d+)D", date_part))
    parts = re.findall(r"(-?[\d.]+)([HMS])", time_part)
    return months, days * 86_400 + sum((Decimal(n) * {"H": 3600, "M": 60, "S": 1}[u] for n, u in parts), Decimal(0))
