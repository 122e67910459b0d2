"""What a power cut may not take: files on local disks, in the order in which they rely on each other.

A write is in the machine's memory first, and the disk gets it in any order: without this, the stream's offsets could
survive a power cut that the rows before them did not. A file at a time would cost a disk's turn for each (`fsync`); so
it is done once for all that a batch wrote (`syncfs`; `make bench ONLY=books`). Object stores answer when an object is
safe.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

from distributary.tables.store import local_path


def bring_to_disk(uris: Iterable[str]) -> None:
    """All that was written so far on the local disks of these folders is on them when this returns. Raises OSError."""
    folders = {_existing(folder) for folder in map(local_path, uris) if folder is not None}
    by_disk = {folder.stat().st_dev: folder for folder in folders}
    for folder in by_disk.values():
        _sync(folder)


def _existing(folder: Path) -> Path:
    return next(ancestor for ancestor in (folder.absolute(), *folder.absolute().parents) if ancestor.exists())


def _sync(folder: Path) -> None:
    sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if sync is None:  # not Linux
        os.sync()
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        if sync(opened):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
    finally:
        os.close(opened)
