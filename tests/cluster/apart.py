"""Workers of Spark standalone that see neither the driver's folders nor each other's."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark

from distributary.spark.java import find_java
from tests.processes import QUICK, SERIAL
from tests.services.standalone import Standalone


class ApartStandalone(Standalone):
    """Workers that see neither `hidden`, nor each other's folders. They end with their name space."""

    hidden: tuple[Path, ...] = ()

    def _start(self, name: str, main: str, *arguments: str) -> None:
        if name == "master":
            super()._start(name, main, *arguments)
            return
        local = self._folder / f"{name}-local"
        local.mkdir()
        home = Path(str(pyspark.__path__[0]))
        environ = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(local),
            "TMPDIR": str(local),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {SERIAL} -Djava.io.tmpdir={local}",
        }
        mounts = " && ".join(f"mount -t tmpfs none {path}" for path in self.hidden)
        run = " ".join([str(home / "bin" / "spark-class"), main, *arguments])
        with (self._folder / f"{name}.log").open("wb") as log:
            command = ["unshare", "-m", "sh", "-c", f"{mounts} && exec {run}"]
            self._started.append(
                subprocess.Popen(command, env=environ, cwd=local, stdout=log, stderr=subprocess.STDOUT)
            )

    def kill_executors(self, number: int) -> None:
        """Those of one worker."""
        family = psutil.Process(self._started[1 + number].pid).children(recursive=True)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                if any("CoarseGrainedExecutor" in part for part in process.cmdline()):
                    process.kill()
                    print(f"killed executor {process.pid}", flush=True)

    def kill_worker(self, number: int) -> None:
        worker = psutil.Process(self._started[1 + number].pid)
        for process in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        print(f"killed worker {worker.pid}", flush=True)
