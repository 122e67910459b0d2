"""One stream's process: started in a session of its own, heard line by line, ended with a grace.

Its standard output is JSON, a line per batch (`run --json`); both outputs go to its log file too.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from distributary.supervisor.policy import Ending

_TAIL_BYTES = 4096


@dataclass(frozen=True)
class SupervisedStream:
    """What is supervised: a name, the command to run, where its output goes."""

    name: str
    command: tuple[str, ...]
    log: Path


class Child(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int: ...

    def said(self) -> list[dict[str, Any]]:
        """The JSON lines since the last call."""
        ...

    def ending(self) -> Ending | None:
        """How it ended; None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to end once its batch is done."""
        ...

    def kill(self) -> None:
        """End it and all that it started, at once."""
        ...


def supervised_command(arguments: Sequence[str], grace_sec: float) -> tuple[str, ...]:
    """The command that runs `distributary ARGUMENTS` as a child that never outlives its parent."""
    return (sys.executable, "-m", "distributary.cli.supervised", f"{grace_sec:g}", *arguments)


class Process:
    """A Child as a process of this machine."""

    def __init__(self, stream: SupervisedStream) -> None:
        """Raises OSError when the command cannot be run or the log cannot be written."""
        stream.log.parent.mkdir(parents=True, exist_ok=True)
        self._log = stream.log
        self._error: Mapping[str, Any] = {}
        self._reported = False
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with stream.log.open("ab") as log:
            self._begin = log.tell()
            # In a session of its own: Ctrl-C on the terminal is for the supervisor, which asks each child to stop.
            self._process = subprocess.Popen(
                stream.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, name=f"output of {stream.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self) -> list[dict[str, Any]]:
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return lines

    def ending(self) -> Ending | None:
        code = self._process.poll()
        if code is None:
            return None
        self._reader.join(timeout=5)
        self._close()
        report = self._error
        error = report.get("text") or (None if code == 0 or self._reported else self._last_words())
        return Ending(code, error, report.get("condition"), bool(report.get("lasting")), self._reported)

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("ab") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                with contextlib.suppress(ValueError):
                    self._hear(json.loads(line))

    def _hear(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        if value.get("kind") == "error":
            self._error = value
        self._reported |= value.get("kind") == "run"
        self._lines.put(value)

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _last_words(self) -> str | None:
        """The last line of this run in its log."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(self._begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            return lines[-1][:500] if lines else None
        return None
