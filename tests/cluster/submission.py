"""`spark-submit` by the very words of docs/cluster.md, with what this place needs besides, and the driver it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyspark

from distributary.spark.java import find_java
from distributary.spark.session import PACKAGES
from tests.cluster.cases import Case
from tests.processes import QUICK
from tests.services import hadoop

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cluster.md"
SPARK_HOME = Path(str(pyspark.__path__[0]))
JOB = "job.py"
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def recipe(heading: str) -> list[str]:
    """What the command below this heading hands to `spark-submit`."""
    page = PAGE.read_text()
    settings = next(block for block in _BLOCK.findall(page) if "DISTRIBUTARY=(" in block)
    section = page.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    command = next(block for block in _BLOCK.findall(section) if "spark-submit " in block)
    script = f"spark-submit() {{ printf '%s\\0' \"$@\"; }}\n{settings}\n{command}"
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def adapted(words: Sequence[str], case: Case, options: Mapping[str, str], conf: Mapping[str, str]) -> list[str]:
    """A recipe's words for this place: of an option or setting that is given twice, Spark takes the last.

    Its program's arguments stay, unless the case has a program of its own.
    """
    store = {key: value for key, value in hadoop.s3a(case.store).items() if key != "spark.jars"}
    everywhere = {
        "--packages": ",".join(PACKAGES),
        "--jars": hadoop.s3a(case.store)["spark.jars"],  # in place of hadoop-aws with its SDK of 686 MB
    }
    settings = {
        **store,
        "spark.speculation": "true",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK,
        **conf,
    }
    job = words.index(JOB)
    ours = [part for pair in {**everywhere, **options}.items() for part in pair]
    ours += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    return [*words[:job], *ours, JOB, *(case.arguments() or words[job + 1 :])]


class Driver:
    """`spark-submit` that is the driver itself, in the folder that has the pipeline's file."""

    def __init__(self, words: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._log = log
        whole = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(find_java(os.environ)),
            **(environ or {}),
        }
        with log.open("wb") as out:
            command = [str(SPARK_HOME / "bin" / "spark-submit"), *words]
            self._process = subprocess.Popen(command, cwd=folder, env=whole, stdout=out, stderr=subprocess.STDOUT)

    def exit_code(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        if self._process.poll() is None:
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
            self._process.kill()
            self._process.wait(30)
