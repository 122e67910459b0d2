"""Where the bytes of chunks lie between the two jobs of a batch.

In general they are in Spark's own rows: any cluster moves those. Where all tasks share one machine (a local master)
nothing needs to be moved: the tasks that cut write files, the tasks that deliver map them, and Spark's rows say only
where. That takes four copies of a batch's bytes out of the JVM (`make bench ONLY=pipeline_vs_limit`).
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

ALIGNMENT = 64
"""Arrow's own for buffers: what is mapped is used as it lies."""


def new_spool(parent: str | None) -> str:
    """A folder for one batch's chunks, below `parent` or the system's folder of temporary files."""
    return tempfile.mkdtemp(prefix="distributary-chunks-", dir=parent)


def drop_spool(folder: str) -> None:
    """Remove a folder that `new_spool` made; maps of its files stay good."""
    shutil.rmtree(folder, ignore_errors=True)


def write_spool(folder: str, bodies: Sequence[pa.Buffer]) -> tuple[str, list[int]]:
    """Write `bodies` into one new file: (path, where each begins). Raises OSError.

    The name is new each time: an attempt at a task never meets what an earlier one left.
    """
    path = Path(folder) / uuid.uuid4().hex
    begins: list[int] = []
    with path.open("wb") as file:
        for body in bodies:
            begins.append(file.tell())
            file.write(body)
            file.write(bytes(-len(body) % ALIGNMENT))
    return str(path), begins


class SpoolReader:
    """Reads bodies back, without copying them. Raises FileNotFoundError for a file that is gone."""

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}

    def read(self, path: str, begin: int, size: int) -> pa.Buffer:
        if path not in self._files:
            with pa.memory_map(path) as file:
                self._files[path] = file.read_buffer()
        return self._files[path].slice(begin, size)
