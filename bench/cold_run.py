"""A run from nothing to its end, as a scheduler starts it: JVM, Spark, one batch that makes its tables."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from bench.measure import MIB, Meter, Usage
from bench.result import Case, Result
from bench.workload import CORES, Place, Workload, WrongRows, check_games

NOTE = (
    "`distributary run FILE --once` of 10,000 rows into 20 tables that are not there yet: seconds until its end, and "
    "CPU seconds of all its processes. Other: with the JVM's second compiler, which such a run leaves out by itself "
    "(`-XX:TieredStopAtLevel=4` among `spark.driver.extraJavaOptions` brings it back). Archive: with a class archive "
    "too, which an earlier run has made. A run before all has read the files of Java and Python into memory."
)
BOTH_COMPILERS = "-XX:TieredStopAtLevel=4"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
ARCHIVE_SEC = 120.0


def run(place: Place) -> Result:
    games = place.size(20, 2)
    load = Workload(place.root, games)
    load.feed_delta(500)
    archive = place.root / "spark-classes.jsa"
    _once(load, place, "makes", f"{QUIET} -XX:ArchiveClassesAtExit={archive}")
    _wait_for(archive)
    other = _once(load, place, "other", BOTH_COMPILERS)
    plain = _once(load, place, "plain", "")
    with_archive = _once(load, place, "archive", f"{QUIET} -XX:SharedArchiveFile={archive}")
    label = f"{games * 500:,} rows into {games} new tables"
    return Result(
        "cold_run",
        NOTE,
        (
            Case(label, "s", plain.wall_sec, other.wall_sec, goal=8, goal_of="ours"),
            _cpu(label, plain, other),
            Case(f"{label}, archive", "s", with_archive.wall_sec, other.wall_sec, goal=8, goal_of="ours"),
            _cpu(f"{label}, archive", with_archive, other),
            Case("the archive", "MiB", archive.stat().st_size / MIB),
        ),
    )


def _cpu(label: str, usage: Usage, other: Usage) -> Case:
    details: dict[str, Any] = {"by process": usage.cpu_by_kind, "of other": other.cpu_by_kind}
    return Case(f"{label}, CPU", "s of CPU", usage.cpu_sec, other.cpu_sec, details=details)


def _wait_for(archive: Path) -> None:
    """The JVM writes it after the run's own end. Raises WrongRows when it does not."""
    end, size = time.monotonic() + ARCHIVE_SEC, -1
    while size <= 0 or size != archive.stat().st_size:
        if time.monotonic() > end:
            raise WrongRows(f"the JVM wrote no class archive within {ARCHIVE_SEC:g} s")
        size = archive.stat().st_size if archive.exists() else -1
        time.sleep(2)


def _once(load: Workload, place: Place, name: str, options: str) -> Usage:
    tables = {"root": str(place.root / name)}
    spark = {"master": f"local[{CORES}]", "conf": {"spark.driver.extraJavaOptions": options}}
    config = load.config(name, load.delta_source(), tables=tables, spark=spark)
    file = place.root / f"{name}.yaml"
    written = {"pipeline": name, "source": load.delta_source(), "registry": {"path": str(place.root / "registry")}}
    file.write_text(yaml.safe_dump({**written, "tables": tables, "spark": spark}))
    with Meter() as meter:
        done = subprocess.run(
            [sys.executable, "-m", "distributary", "run", str(file), "--once"], capture_output=True, text=True
        )
    if done.returncode:
        raise WrongRows(done.stderr)
    check_games(config, 500, load.names)
    return meter.usage
