"""One run of a pipeline at a time on this machine's files, also after a kill: the kernel gives the lock back."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from distributary.errors import AlreadyRunning
from distributary.tables.faults import writing
from distributary.tables.store import local_path

# `status` looks at a lock by taking it for a moment: that must not turn a run away.
_TRIES = 5
_PAUSE_SEC = 0.03


def _make_private(folder: Path) -> None:
    """Make a state folder that only its owner may enter: raw payloads are in it. One that is there keeps its mode, so
    `chmod` shares it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _opened(folder: Path, name: str) -> TextIO:
    with writing(str(folder)):
        _make_private(folder)
        return open(folder / f"{name}.lock", "a+", encoding="utf-8")


@contextmanager
def only_run(state_root: str, pipeline: str, name: str = "run") -> Iterator[None]:
    """Hold the pipeline's lock `name`. Raises AlreadyRunning when another process holds it, StoreDown when the state
    folder cannot be written.

    State in an object store has no such lock: there, Spark's checkpoint refuses the second query at its first commit,
    and the batch's transactions keep the tables right.
    """
    folder = local_path(state_root)
    if folder is None:
        yield
        return
    with _opened(folder, name) as file:
        for attempt in range(_TRIES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if attempt == _TRIES - 1:
                    file.seek(0)
                    raise AlreadyRunning(pipeline=pipeline, owner=file.read().strip() or "unknown process") from e
                time.sleep(_PAUSE_SEC)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
