"""What is wrong with the tables and the quarantine, as DuckDB reads them, against what the broker acknowledged.

No part of the product is asked, neither for the tables' rows nor for what they should be.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta

from tests.soak.records import Column, Sent, Truth, columns


@dataclass
class Verdict:
    """`wrong`: in words; nothing where all is right. `rows`: that were found in tables."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    quarantined: int = 0
    wrong: list[str] = field(default_factory=list)


def judged(lake: Path, quarantine: Path, truth: Truth, scratch: Path) -> Verdict:
    """Every table of `lake`, and the rows of the quarantine that no replay has taken."""
    verdict = Verdict()
    with _reader(scratch) as reader:
        for route, sent in truth.routes.items():
            if sent.rows:
                _judge_table(reader, lake / route, route, sent, verdict)
        _judge_quarantine(reader, quarantine, truth.bad, verdict)
    if truth.failed:
        verdict.wrong.append(f"of {truth.failed} records the sender does not know what became of them")
    others = {folder.name for folder in lake.iterdir() if (folder / "_delta_log").is_dir()} - truth.routes.keys()
    if others:
        verdict.wrong.append(f"tables of routes that nobody sent: {sorted(others)[:5]}")
    return verdict


def _reader(scratch: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with its Delta extension, which lies in a package: nothing is fetched."""
    (package,) = duckdb_extension_delta.__path__
    (file,) = Path(package).rglob("delta.duckdb_extension")
    platform = duckdb.execute("PRAGMA platform").fetchall()[0][0]
    folder = scratch / "extensions" / f"v{duckdb.__version__}" / platform
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / file.name).exists():
        # Written over while a process has it loaded, it would end that process.
        shutil.copy(file, folder)
    reader = duckdb.connect(
        config={"extension_directory": str(scratch / "extensions"), "threads": "2", "memory_limit": "2GB"}
    )
    reader.execute(f"SET temp_directory = '{scratch}'")
    reader.execute("LOAD delta")
    return reader


def _judge_table(reader: duckdb.DuckDBPyConnection, folder: Path, route: str, sent: Sent, verdict: Verdict) -> None:
    if not (folder / "_delta_log").is_dir():
        verdict.lost += sent.rows
        verdict.wrong.append(f"{route}: no table, {sent.rows} rows are missing")
        return
    table = f"delta_scan('{folder}')"
    newest = max(sent.versions)
    there = {row[0] for row in reader.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()}
    missing = [column.name for column in columns(newest) if column.name not in there]
    if missing:
        verdict.wrong.append(f"{route}: no columns {missing}")
        return
    checks = [_wrong_values(column) for column in columns(newest)[2:]]
    basics = "count(*), count(DISTINCT number), sum(number), bit_xor(number)"
    row = reader.execute(f"SELECT {', '.join([basics, *checks])} FROM {table}").fetchall()[0]
    versions = dict(reader.execute(f"SELECT version, count(*) FROM {table} GROUP BY version").fetchall())
    verdict.rows += row[0]
    lost, doubled = max(0, sent.rows - row[1]), row[0] - row[1]
    verdict.lost += lost
    verdict.doubled += doubled
    verdict.wrong += [f"{route}: {text}" for text in _texts(row, sent, versions, newest, lost, doubled)]


def _wrong_values(column: Column) -> str:
    """How many rows do not have in it what they must: null where their version is older than it."""
    wanted = f"CASE WHEN version >= {column.since} THEN {column.sql} END"
    return f'count(*) FILTER (WHERE "{column.name}" IS DISTINCT FROM ({wanted}))'


def _texts(row: Any, sent: Sent, versions: Mapping[int, int], newest: int, lost: int, doubled: int) -> Iterator[str]:
    if lost or doubled or row[0] != sent.rows:
        yield f"{row[0]} rows, {row[1]} of them different, where {sent.rows} were acknowledged"
    elif (row[2], row[3]) != (sent.total, sent.mixed):
        yield "as many rows as were acknowledged, and others"
    if versions != sent.versions:
        yield f"rows by version {versions}, not {sent.versions}"
    for column, count in zip(columns(newest)[2:], row[4:], strict=True):
        if count:
            yield f"{count} wrong values in {column.name}"


def _judge_quarantine(
    reader: duckdb.DuckDBPyConnection, folder: Path, bad: Mapping[tuple[int, int], str], verdict: Verdict
) -> None:
    rows: list[Any] = []
    if (folder / "_delta_log").is_dir():
        rows = reader.execute(
            f"SELECT \"partition\", \"offset\", reason FROM delta_scan('{folder}') WHERE state <> 'replayed'"
        ).fetchall()
    found = {(partition, offset): reason for partition, offset, reason in rows}
    verdict.quarantined = len(rows)
    verdict.doubled += len(rows) - len(found)
    verdict.lost += len(bad.keys() - found.keys())
    if len(rows) != len(found):
        verdict.wrong.append(f"{len(rows) - len(found)} records are in the quarantine twice")
    if missing := bad.keys() - found.keys():
        verdict.wrong.append(f"{len(missing)} damaged records are not in the quarantine, such as {min(missing)}")
    if more := found.keys() - bad.keys():
        reasons = sorted({found[place] for place in more})
        verdict.wrong.append(f"{len(more)} good records are in the quarantine: {reasons}")
    for place in sorted(bad.keys() & found.keys()):
        if bad[place] != found[place]:
            verdict.wrong.append(f"{place} is {found[place]} in the quarantine, not {bad[place]}")
            break
