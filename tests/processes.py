"""Processes that tests start: the command line, and settings of JVMs, which live short and share few cores here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# The optimising compiler and the parallel collector only cost time then.
QUICK = "-XX:TieredStopAtLevel=1"
SERIAL = "-XX:+UseSerialGC"
QUIET_ARCHIVE = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Says nothing where a class archive does not fit."""
SERVICE_JAVA = ("-Xmx384m", SERIAL, QUICK)
SPARK_JAVA = f"{QUICK} -XX:ReservedCodeCacheSize=240m"
"""One compiler alone has 48 MB for its code: too little for Spark, it would stop."""
SMALL_SPARK: dict[str, Any] = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": SPARK_JAVA,
    },
}
"""`spark:` of a pipeline file."""


def command(*arguments: str | Path) -> list[str]:
    """`distributary` with these arguments, as a process."""
    return [sys.executable, "-c", "from distributary.cli import main; main()", *map(str, arguments)]
