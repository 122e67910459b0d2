"""A run from nothing to its end, as a scheduler starts it: JVM, Spark, one batch that makes its tables."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import yaml

from bench.measure import Meter, Usage
from bench.result import Case, Result
from bench.workload import CORES, Place, Workload, WrongRows, check_games

NOTE = (
    "`distributary run FILE --once` of 10,000 rows into 20 tables that are not there yet: CPU seconds of all its "
    "processes, and seconds until its end. Other: the same with `-XX:TieredStopAtLevel=1` among "
    "`spark.driver.extraJavaOptions`, which leaves the JVM's second compiler out."
)
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}


def run(place: Place) -> Result:
    games = place.size(20, 2)
    load = Workload(place.root, games)
    load.feed_delta(500)
    ours = _once(load, place, "ours", {})
    other = _once(load, place, "other", QUICK)
    kinds: dict[str, Any] = {"ours": ours.cpu_by_kind, "other": other.cpu_by_kind}
    label = f"{games * 500:,} rows into {games} new tables"
    return Result(
        "cold_run",
        NOTE,
        (
            Case(label, "s", ours.wall_sec, other.wall_sec, goal=8, goal_of="ours"),
            Case(f"{label}, CPU", "s of CPU", ours.cpu_sec, other.cpu_sec, details=kinds),
        ),
    )


def _once(load: Workload, place: Place, name: str, conf: dict[str, str]) -> Usage:
    tables = {"root": str(place.root / name)}
    spark = {"master": f"local[{CORES}]", "conf": conf}
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
