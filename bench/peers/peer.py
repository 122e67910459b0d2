"""What a peer is to the trial: how it is had, the process that it is, and where its rows are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers.lakes import Lake

ROOT = Path(__file__).resolve().parent.parent.parent


class Missing(Exception):
    """A peer that cannot be had here: why."""


@dataclass(frozen=True)
class Job:
    """A peer's work. `tolerant`: with what its users set so that a bad record does not stop it."""

    folder: Path
    brokers: str
    topic: str
    kinds: tuple[str, ...]
    tolerant: bool = False

    @property
    def lake(self) -> Path:
        return self.folder / "lake"


class Peer(ABC):
    """`settings`: what it was given that is not its default. `tolerance`: what `Job.tolerant` sets; empty = nothing."""

    name: str
    title: str
    writes: str
    settings: str
    tolerance = ""

    def install(self) -> dict[str, str]:
        """Package -> version. Raises Missing."""
        return {}

    def prepare(self, job: Job) -> None:
        """Before the first start: a folder; files, topics of its own."""
        job.folder.mkdir(parents=True)

    @abstractmethod
    def command(self, job: Job) -> list[str]: ...

    def environ(self, job: Job) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def lake(self, job: Job) -> Lake: ...

    def working(self, job: Job) -> bool:
        """Whether it says of itself that it works; asked only while its process lives."""
        return True

    def kept_bad(self, job: Job) -> str:
        """Where a record is that could not be read; empty = nowhere that we know of."""
        return ""


class Running:
    """A peer's process and all that it starts."""

    def __init__(self, peer: Peer, job: Job) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **peer.environ(job)}
        self.log = job.folder / f"{peer.name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                peer.command(job),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=job.folder,
                env=environ,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process and all below it: Spark's Python workers are in a group of their own."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """An orderly end; after 20 s by force."""
        if self.alive:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        self.kill()

    def last_words(self) -> str:
        """The line of the log that says most of why it ended."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "xception" in line or "Error" in line]
        return (telling or lines or [""])[-1][:200]

    def _signal(self, how: signal.Signals) -> None:
        try:
            tree = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            tree = []
        if self.alive:
            self._process.send_signal(how)
        for process in tree:
            try:
                process.send_signal(how)
            except psutil.NoSuchProcess:
                continue


def python(module: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]
