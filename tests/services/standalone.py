"""A real Spark standalone cluster on loopback: a master and workers from pyspark's own distribution."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from distributary.spark.java import find_java
from tests.processes import QUICK, SERIAL

START_SEC = 60.0


class Standalone:
    """`url` is its master. Every process is ended with it; an application's executors end with their worker."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self._folder = folder
        self._workers = workers
        self._size = ["--cores", str(cores), "--memory", memory]
        self._started: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            self._start("master", "org.apache.spark.deploy.master.Master", *ports)
            self.url = self._wait("master", r"Starting Spark master at (spark://\S+)")
            for number in range(self._workers):
                name = f"worker-{number}"
                work = ["--work-dir", str(self._folder / name), *self._size]
                self._start(name, "org.apache.spark.deploy.worker.Worker", *ports, *work, self.url)
            for number in range(self._workers):
                self._wait(f"worker-{number}", r"Successfully registered with master (\S+)")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in self._started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)

    @property
    def pids(self) -> list[int]:
        """The master, then the workers."""
        return [process.pid for process in self._started]

    @property
    def worker_pids(self) -> list[int]:
        return self.pids[1:]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = Path(str(pyspark.__path__[0]))
        environ = {
            **os.environ,
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} {SERIAL}",
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(home / "bin" / "spark-class"), main, *arguments]
            self._started.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))

    def _wait(self, name: str, pattern: str) -> str:
        end = time.monotonic() + START_SEC
        while time.monotonic() < end:
            if match := re.search(pattern, self.log(name)):
                return match[1]
            time.sleep(0.1)
        raise TimeoutError(f"{name} did not start:\n{self.log(name)[-2000:]}")
