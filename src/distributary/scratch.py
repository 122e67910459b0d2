"""Folders for temporary files that do not outlive their process, however it ends.

A kill leaves a folder behind, and nobody to remove it. So each is locked while its process lives, the kernel gives the
lock back, and whoever makes the next one first removes those that are not locked.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

PREFIX = "distributary-scratch-"


class Scratch:
    """A folder that only this user may open, below `parent` or the system's folder of temporary files.

    Use as a context manager; else it goes with this object, and at the latest with the process. `lock`: a process that
    inherits this file descriptor keeps the folder too. Raises OSError where none can be made.
    """

    def __init__(self, kind: str, parent: str | Path | None = None) -> None:
        parent_folder = str(parent or tempfile.gettempdir())
        sweep(parent_folder)
        self.folder, self.lock = _claimed(parent_folder, f"{PREFIX}{kind}-")
        self.close = weakref.finalize(self, _remove, self.folder, self.lock, os.getpid())

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.close()


def _claimed(parent: str, prefix: str) -> tuple[Path, int]:
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks: nobody sweeps there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(folder):
                return Path(folder), lock
            os.close(lock)  # somebody swept before it was locked


def _remove(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a fork has inherited this object
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def sweep(parent: str | Path) -> None:
    """Remove what killed processes of this user have left in `parent`; a link is nobody's folder."""
    for leftover in Path(parent).glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(lock)
