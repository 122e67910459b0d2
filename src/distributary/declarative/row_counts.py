"""Rows per dataset, from the history of its Delta table: Spark's pipeline events have no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributary.errors.border import contained
from distributary.tables.snapshot import ROWS_KEY
from distributary.tables.store import Store
from distributary.tables.table import Table


@dataclass(frozen=True)
class Written:
    """What came into a table since a version: `rows` of its commits, and the version that it has now (-1: none)."""

    rows: int
    version: int


def version_of(uri: str, store: Store) -> int:
    """The table's version; -1 where there is none, or it cannot be read."""
    try:
        table = Table(uri, store).open()
    except BaseException as e:
        contained(e)
        return -1
    return -1 if table is None else table.version


def written_since(uri: str, before: int, store: Store) -> Written:
    """Rows that commits after version `before` have written. Raises TableFault, OSError."""
    table = Table(uri, store).open()
    if table is None:
        return Written(0, -1)
    version = table.version
    commits = table.history(limit=version - before) if version > before else []
    return Written(sum(_rows(commit) for commit in commits), version)


def _rows(commit: Mapping[str, Any]) -> int:
    metrics = commit.get("operationMetrics") or {}
    return int(metrics.get("numOutputRows") or commit.get(ROWS_KEY) or 0)
