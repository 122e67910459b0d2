"""Spark standalone with workers that see neither the driver's folders nor each other's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from distributary.spark.java import find_java
from tests.cluster.cases import Case
from tests.cluster.submission import SPARK_HOME, Driver, adapted, recipe
from tests.processes import QUICK, SERIAL
from tests.services.standalone import Standalone


class ApartStandalone(Standalone):
    """Workers that see neither `hidden`, nor each other's folders. They end with their name space.

    The driver runs where `spark-submit` was called: standalone has no other deploy mode for Python.
    """

    def __init__(self, folder: Path, hidden: Sequence[Path]) -> None:
        super().__init__(folder)
        self._hidden = hidden

    def submit(self, case: Case, log: Path) -> Driver:
        """The workers get the package by `--py-files`, and the jars, from the driver."""
        conf = {
            "spark.pyspark.python": sys.executable,
            "spark.cores.max": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(case.driver / "local"),
        }
        words = adapted(recipe("Spark standalone"), case, {"--master": self.url}, conf)
        return Driver(words, case.driver, log)

    def kill_part(self, what: str) -> None:
        """The `executor` of one worker, or the other whole `worker`."""
        number = {"executor": 0, "worker": 1}[what]
        worker = psutil.Process(self.worker_pids[number])
        family = worker.children(recursive=True)
        doomed = [worker, *family] if what == "worker" else [one for one in family if _is_executor(one)]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                print(f"killed {what}: {process.pid}", flush=True)

    def _start(self, name: str, main: str, *arguments: str) -> None:
        if name == "master":
            super()._start(name, main, *arguments)
            return
        local = self._folder / f"{name}-local"
        local.mkdir()
        environ = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {SERIAL} -Djava.io.tmpdir={local}",
        }
        mounts = " && ".join(f"mount -t tmpfs none {path}" for path in self._hidden)
        run = " ".join([str(SPARK_HOME / "bin" / "spark-class"), main, *arguments])
        with (self._folder / f"{name}.log").open("wb") as log:
            command = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {run}"]
            self._started.append(
                subprocess.Popen(command, env=environ, cwd=local, stdout=log, stderr=subprocess.STDOUT)
            )


def _is_executor(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("CoarseGrainedExecutor" in part for part in process.cmdline())
    return False
