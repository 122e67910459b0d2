"""The model of docs/scale.md: constants from measurements, the runs that it is held against, and what large loads take.

`python -m bench.scale` takes the constants from bench/results/latest.json (`tables_scale`, `pipeline_vs_limit`,
`scale_parts`), keeps them in bench/results/scale.json and writes the tables of docs/scale.md.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.result import LATEST, markdown_table

RESULTS = LATEST.parent / "scale.json"
PAGE = LATEST.parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- Made by `python -m bench.scale`: {}. -->", "<!-- end -->"
MEASURED_CORES = 2
DAY_SEC = 86_400
FILE_BYTES = 128 * 2**20
"""Of a data file that upkeep has joined."""
CHECKPOINT_COMMITS = 20
BUSY = 0.7
"""How much of an interval a batch may take, so that a stream catches up after a stop."""
ALONE = 0.5
"""How much of that one core may be busy alone: the rest is for what the cores do together."""


@dataclass(frozen=True)
class Run:
    """A measured warm batch."""

    tables: int
    rows: int
    cpu_sec: float
    wall_sec: float

    @property
    def alone_sec(self) -> float:
        """Seconds in which only one core was busy, if in all others all were (Amdahl)."""
        return max(0.0, (MEASURED_CORES * self.wall_sec - self.cpu_sec) / (MEASURED_CORES - 1))


@dataclass(frozen=True)
class Constants:
    """CPU seconds of a batch: `batch` + `table` for each that gets rows + `row` for each row. Of them one after the
    other, however many cores there are: `alone_batch` + `alone_table`. Bytes: `ledger_bytes` of a row of the ledger,
    `commit_bytes` of a commit, `row_bytes` of a row in Parquet; `driver_bytes`, `worker_bytes`: memory for a table."""

    batch: float
    table: float
    row: float
    alone_batch: float
    alone_table: float
    row_bytes: float
    ledger_bytes: float
    commit_bytes: float
    driver_bytes: float
    worker_bytes: float

    def cpu(self, tables: float, rows: float) -> float:
        """CPU seconds of a batch."""
        return self.batch + self.table * tables + self.row * rows

    def alone(self, tables: float) -> float:
        """Seconds of it that more cores do not shorten."""
        return self.alone_batch + self.alone_table * tables

    def wall(self, tables: float, rows: float, cores: int) -> float:
        """Seconds of a batch on so many cores."""
        alone = self.alone(tables)
        return alone + max(0.0, self.cpu(tables, rows) - alone) / cores


def fitted(few: Run, many: Run, wide: Run, **sizes: float) -> Constants:
    """Constants that meet three runs: two of as many rows in few and many tables, one of many rows. Raises ValueError
    where the runs cannot be told apart."""
    if few.rows != many.rows or few.tables == many.tables or wide.rows == few.rows:
        raise ValueError("two runs of as many rows over other tables are needed, and one of other rows")
    table = (many.cpu_sec - few.cpu_sec) / (many.tables - few.tables)
    row = (wide.cpu_sec - few.cpu_sec - table * (wide.tables - few.tables)) / (wide.rows - few.rows)
    alone = (many.alone_sec - few.alone_sec) / (many.tables - few.tables)
    batch = few.cpu_sec - table * few.tables - row * few.rows
    return Constants(batch, table, row, few.alone_sec - alone * few.tables, alone, **sizes)


@dataclass(frozen=True)
class Load:
    """`tables` get `rows_per_sec` rows together, and a batch begins every `every_sec` seconds."""

    name: str
    tables: int
    rows_per_sec: float
    every_sec: float


@dataclass(frozen=True)
class Needs:
    """What a load takes. `applications`: so many that none of them does more alone than its interval allows."""

    cpu_per_batch_sec: float
    alone_sec: float
    applications: int
    cores: int
    commits_per_sec: float
    files_per_day: float
    ledger_bytes_per_day: float
    log_bytes_per_day: float
    data_bytes_per_day: float
    driver_bytes: float


def needs(load: Load, known: Constants) -> Needs:
    """Applications share the tables, and each has a driver of its own. Raises ValueError where a batch takes longer
    than its interval whatever is in it."""
    rows, room = load.rows_per_sec * load.every_sec, BUSY * load.every_sec
    if known.alone_batch >= ALONE * room:
        raise ValueError(f"one core is busy {known.alone_batch:.2f} s in any batch: begin one less often")
    applications = max(1, math.ceil(known.alone_table * load.tables / (ALONE * room - known.alone_batch)))
    share = load.tables / applications
    cpu, alone = known.cpu(share, rows / applications), known.alone(share)
    batches = DAY_SEC / load.every_sec
    return Needs(
        cpu_per_batch_sec=cpu * applications,
        alone_sec=alone,
        applications=applications,
        cores=applications * max(1, math.ceil((cpu - alone) / (room - alone))),
        commits_per_sec=load.tables / load.every_sec,
        files_per_day=load.tables * batches,
        ledger_bytes_per_day=(load.tables + applications) * batches * known.ledger_bytes,
        log_bytes_per_day=load.tables * batches * known.commit_bytes,
        data_bytes_per_day=load.rows_per_sec * DAY_SEC * known.row_bytes,
        driver_bytes=share * known.driver_bytes,
    )


PETABYTE = 1e15


@dataclass(frozen=True)
class Stored:
    """So many bytes of rows, joined into files of `FILE_BYTES`, spread evenly over some tables."""

    rows: float
    files_per_table: float
    checkpoint_sec: float
    checkpoint_bytes: float


def stored(size: float, tables: int, known: Constants, few: Checkpoint, many: Checkpoint) -> Stored:
    """What a checkpoint costs, by a line through two measured ones."""
    files = size / FILE_BYTES / tables
    step = (files - few.files) / (many.files - few.files)
    return Stored(
        rows=size / known.row_bytes,
        files_per_table=files,
        checkpoint_sec=max(0.0, few.cpu_sec + step * (many.cpu_sec - few.cpu_sec)),
        checkpoint_bytes=max(0.0, few.size + step * (many.size - few.size)),
    )


@dataclass(frozen=True)
class Checkpoint:
    """A measured one, of a table of `files`."""

    files: int
    cpu_sec: float
    size: float


LOADS = (
    Load("1,000 routes, 100,000 rows/s", 1_000, 1e5, 10),
    Load("10,000 routes, 1 M rows/s", 10_000, 1e6, 30),
    Load("100,000 routes, 1 M rows/s", 100_000, 1e6, 60),
    Load("100,000 routes, 1 M rows/s", 100_000, 1e6, 300),
    Load("1,000 routes, 10 M rows/s", 1_000, 1e7, 10),
    Load("10,000 routes, 10 M rows/s", 10_000, 1e7, 60),
)


# -- from the measurements -----------------------------------------------------------------------------------


def taken(latest: Mapping[str, Any]) -> dict[str, Any]:
    """What scale.json keeps. Raises KeyError where a benchmark is missing."""
    results = latest["results"]
    scale = {case["label"]: case for case in results["tables_scale"]["cases"]}
    parts = {case["label"]: case for case in results["scale_parts"]["cases"]}
    limit = {case["label"]: case for case in results["pipeline_vs_limit"]["cases"]}
    runs = {label: _of_tables(case) for label, case in scale.items()}
    narrow = _of_pipeline(limit["10 games x 100,000 rows of 5 columns"])
    wide = _of_pipeline(limit["10 games x 100,000 rows of 16 columns"])
    first, last = scale["100 tables"]["details"], scale["3000 tables"]["details"]
    known = fitted(
        runs["100 tables"],
        runs["1000 tables"],
        narrow,
        row_bytes=ROW_BYTES,
        ledger_bytes=parts["ledger, 10,000 routes, entered"]["details"]["bytes a route"],
        commit_bytes=parts["what is known of a table of 16 columns"]["details"]["bytes of a commit"],
        driver_bytes=_grown(first, last, "driver"),
        worker_bytes=_grown(first, last, "workers"),
    )
    runs |= {"10 tables, 5 columns, a stream": narrow, "10 tables, 16 columns, a stream": wide}
    return {
        "machine": latest["machine"],
        "measured_at": {
            name: results[name]["measured_at"] for name in ("tables_scale", "pipeline_vs_limit", "scale_parts")
        },
        "constants": asdict(known),
        "row_of_16_columns": (wide.cpu_sec - known.batch - known.table * wide.tables) / wide.rows,
        "runs": {label: asdict(run) for label, run in runs.items()},
        "parts": {label: case["ours"] for label, case in parts.items()},
        "checkpoints": [asdict(_checkpoint(parts[f"checkpoint, {files:,} files"], files)) for files in (1_000, 10_000)],
    }


ROW_BYTES = 75.3
"""Of a row of 16 columns, Snappy (docs/benchmarks.md, merged_row_bytes)."""
FITTED = ("100 tables", "1000 tables", "10 tables, 5 columns, a stream")
ROWS_OF_TABLES_SCALE = 100_000


def _of_tables(case: Mapping[str, Any]) -> Run:
    return Run(int(case["label"].split()[0]), ROWS_OF_TABLES_SCALE, case["details"]["cpu s"], case["ours"])


def _of_pipeline(case: Mapping[str, Any]) -> Run:
    rows = 1_000_000
    return Run(10, rows, sum(case["details"]["CPU seconds of ours"].values()), rows / case["ours"])


def _checkpoint(case: Mapping[str, Any], files: int) -> Checkpoint:
    return Checkpoint(files, case["ours"] / 1000, case["details"]["bytes"])


def _grown(first: Mapping[str, Any], last: Mapping[str, Any], whose: str) -> float:
    """Bytes of memory for a table, from 100 tables to 3,000."""
    return float((last["memory at end"][whose] - first["memory at end"][whose]) * 2**20 / 2_900)


# -- the page ------------------------------------------------------------------------------------------------


def page(text: str, kept: Mapping[str, Any]) -> str:
    """The page, with the parts between its marks made anew."""
    known = Constants(**kept["constants"])
    wide = replace(known, row=kept["row_of_16_columns"])
    runs = {label: Run(**run) for label, run in kept["runs"].items()}
    parts = {
        "constants": _constants(known, kept),
        "checks": _checks(runs, known, wide),
        "loads": _loads(LOADS, wide),
        "petabyte": _petabyte(known, *(Checkpoint(**one) for one in kept["checkpoints"])),
    }
    for name, lines in parts.items():
        text = _filled(text, BEGIN.format(name), lines)
    return text


def _filled(text: str, begin: str, lines: Iterator[str]) -> str:
    made = "\n".join([begin, *lines, END])
    return re.sub(f"{re.escape(begin)}.*?{END}", lambda _: made, text, flags=re.DOTALL)


def _constants(known: Constants, kept: Mapping[str, Any]) -> Iterator[str]:
    parts = kept["parts"]
    rows = (
        ("a batch, whatever is in it", f"{1000 * known.batch:,.0f} ms of CPU"),
        ("a table that gets rows", f"{1000 * known.table:.2f} ms of CPU"),
        ("a row of 5 columns, of 16", f"{1e6 * known.row:.2f}, {1e6 * kept['row_of_16_columns']:.2f} µs of CPU"),
        ("one core alone: a batch, a table", f"{1000 * known.alone_batch:,.0f} ms, {1000 * known.alone_table:.2f} ms"),
        ("a row of 16 columns in Parquet", f"{known.row_bytes:.0f} bytes"),
        ("a table's commit in its log", f"{known.commit_bytes:,.0f} bytes"),
        ("a route of a batch in the ledger", f"{known.ledger_bytes:.0f} bytes"),
        (
            "a table in the driver's memory, in the workers'",
            f"{known.driver_bytes / 1024:.0f}, {known.worker_bytes / 1024:.0f} KiB",
        ),
        *((label, f"{value:,.0f} {'bytes' if 'known' in label else 'ms of CPU'}") for label, value in parts.items()),
    )
    return markdown_table(["constant", "measured"], iter(rows))


def _checks(runs: Mapping[str, Run], known: Constants, wide: Constants) -> Iterator[str]:
    def row(label: str, run: Run) -> Sequence[str]:
        by = wide if "16 columns" in label else known
        cpu, wall = by.cpu(run.tables, run.rows), by.wall(run.tables, run.rows, MEASURED_CORES)
        return (
            label,
            f"{cpu:.2f} s, {run.cpu_sec:.2f} s",
            f"{wall:.2f} s, {run.wall_sec:.2f} s",
            "taken from it"
            if label in FITTED or "16 columns" in label
            else f"{100 * (wall / run.wall_sec - 1):+.0f} %",
        )

    ordered = sorted(runs.items(), key=lambda item: (item[1].rows, item[1].tables))
    return markdown_table(
        ["batch", "CPU: model, measured", "time: model, measured", "the model is off by"],
        (row(*item) for item in ordered),
    )


def _loads(loads: Sequence[Load], known: Constants) -> Iterator[str]:
    def row(load: Load) -> Sequence[str]:
        found = needs(load, known)
        return (
            f"{load.name}, every {load.every_sec:.0f} s",
            f"{found.applications:,}",
            f"{found.cores:,}",
            f"{found.alone_sec:.1f} s",
            f"{found.commits_per_sec:,.0f}",
            f"{found.files_per_day / 1e6:,.1f} M",
            f"{found.ledger_bytes_per_day / 1e9:,.1f} GB",
            f"{found.data_bytes_per_day / 1e12:,.1f} TB",
            f"{found.driver_bytes / 2**20:,.0f} MiB",
        )

    heads = ["load", "applications", "cores", "one core alone, a batch", "commits/s", "files a day, before upkeep"]
    heads += ["rows of the ledger a day, before it is folded", "data a day", "driver's memory for tables"]
    return markdown_table(heads, map(row, loads))


def _petabyte(known: Constants, few: Checkpoint, many: Checkpoint) -> Iterator[str]:
    def row(tables: int) -> Sequence[str]:
        found = stored(PETABYTE, tables, known, few, many)
        return (
            f"{tables:,}",
            f"{found.files_per_table:,.0f}",
            f"{found.checkpoint_sec:,.2f} s of CPU, {found.checkpoint_bytes / 1e6:,.1f} MB",
        )

    heads = ["tables", "files of 128 MiB in each", "a checkpoint of each, every 20 commits"]
    return markdown_table(heads, map(row, (1, 1_000, 10_000, 100_000)))


def main() -> int:
    kept = taken(json.loads(LATEST.read_text()))
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")
    PAGE.write_text(page(PAGE.read_text(), kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
