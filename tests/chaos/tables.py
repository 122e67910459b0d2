"""Tables as delta-rs reads them, row by row, against the truth. No part of the product is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.chaos.messages import Truth


def read(folder: Path) -> list[dict[str, Any]]:
    """All rows; none where there is no table."""
    if not (folder / "_delta_log").is_dir():
        return []
    return list(DeltaTable(str(folder)).to_pyarrow_table().to_pylist())


def differences(truth: Truth, rows_of: Callable[[str], list[dict[str, Any]]], quarantined: Iterable[Any]) -> list[str]:
    """What is wrong, in words; nothing where all is right."""
    wrong = []
    for game, expected in truth.rows.items():
        columns = truth.columns(game)
        found = [plain(row, columns) for row in rows_of(game)]
        wanted = [plain({name: row.get(name) for name in columns}, columns) for row in expected]
        wrong += compared(game, Counter(wanted), Counter(found))
    aside = len(list(quarantined))
    if aside != truth.bad:
        wrong.append(f"{truth.bad} bad records were sent, {aside} are in the quarantine")
    return wrong


def compared(what: str, wanted: Counter[str], found: Counter[str]) -> list[str]:
    """Rows that are missing, and rows that are too many."""
    missing, more = wanted - found, found - wanted
    texts = []
    if missing:
        texts.append(f"{what}: {missing.total()} rows are missing or wrong, such as {next(iter(missing))}")
    if more:
        texts.append(f"{what}: {more.total()} rows are too many or wrong, such as {next(iter(more))}")
    return texts


def plain(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    """A row as text, with these columns: a column that the table lacks is another text than a null."""
    return repr(sorted((name, _value(name, row[name]) if name in row else "no such column") for name in columns))


def _value(name: str, value: Any) -> Any:
    return sorted(value) if name == "counts" and value is not None else value
