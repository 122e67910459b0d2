"""Where the bytes of chunks lie between the two jobs of a batch.

In general they are in Spark's own rows: any cluster moves those. Where all tasks share one machine (a local master)
nothing needs to be moved: the tasks that cut write files, the tasks that deliver map them, and Spark's rows say only
where. That takes four copies of a batch's bytes out of the JVM (`make bench ONLY=pipeline_vs_limit`).
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from distributary.errors import StoreDown
from distributary.errors.border import in_words
from distributary.scratch import Scratch

ALIGNMENT = 64
"""Arrow's own for buffers: what is mapped is used as it lies."""
KEPT_BYTES = 512 * 2**20
"""Bytes of files that are kept from batch to batch."""
_CHUNKS = ".chunks"
_SPARE = "spare"


class Spool:
    """A stream's folder, below `parent` or the system's folder of temporary files; it goes with this object.

    The next batch writes over the files of the one before. Their pages are in memory, and to find new ones for every
    batch costs as much again as to write them, and several times as much on a virtual machine that gives unused memory
    back to its host (measured: 0.1 to 0.5 s of CPU time for 217 MB; `make bench ONLY=pipeline_vs_limit`).
    """

    def __init__(self, parent: str | None) -> None:
        self._parent = parent
        self._scratch = Scratch("chunks", parent)

    @property
    def folder(self) -> Path:
        return self._scratch.folder

    def open(self) -> str:
        """A folder for one batch's chunks; `close_spool` takes it. Raises StoreDown."""
        with spooled(str(self.folder)):
            if not self.folder.is_dir():  # somebody has tidied up; a stream runs for months
                if self._parent is not None:
                    Path(self._parent).mkdir(parents=True, exist_ok=True)
                self._scratch = Scratch("chunks", self._parent)
            (self.folder / _SPARE).mkdir(exist_ok=True)
            return tempfile.mkdtemp(dir=self.folder)


def close_spool(folder: str, *, reuse: bool) -> None:
    """Remove a folder that `Spool.open` made; maps of its files stay good.

    `reuse`: nobody writes or needs these chunks any more, so the next batch may write over the files.
    """
    spare = Path(folder).parent / _SPARE
    if reuse and spare.is_dir():
        spare_bytes = sum(file.stat().st_size for file in spare.iterdir())
        for file in Path(folder).glob(f"*{_CHUNKS}"):
            spare_bytes += file.stat().st_size
            if spare_bytes <= KEPT_BYTES:
                file.rename(spare / file.name)
    shutil.rmtree(folder, ignore_errors=True)


def write_spool(folder: str, bodies: Sequence[pa.Buffer]) -> tuple[str, list[int]]:
    """Write `bodies` into one file of a batch's folder: (path, where each begins). Raises StoreDown.

    The name is new each time: an attempt at a task never meets what an earlier one left.
    """
    path = Path(folder) / f"{uuid.uuid4().hex}{_CHUNKS}"
    begins: list[int] = []
    with spooled(folder), path.open("r+b" if _took_spare(path) else "wb") as file:
        for body in bodies:
            begins.append(file.tell())
            file.write(body)
            file.write(bytes(-len(body) % ALIGNMENT))
    return str(path), begins


@contextmanager
def spooled(folder: str) -> Iterator[None]:
    """What is wrong with the spool within: the disk of temporary files, no table's and no store's. Raises StoreDown."""
    try:
        yield
    except OSError as e:
        detail = f"{in_words(e)}; chunks of a batch lie there (spark.local.dir, else TMPDIR)"
        raise StoreDown(path=folder, detail=detail) from e


def _took_spare(path: Path) -> bool:
    """Is there a file of an earlier batch at `path` now? It is longer than what is written into it, or shorter."""
    for spare in (path.parent.parent / _SPARE).glob("*"):
        try:
            spare.rename(path)
        except FileNotFoundError:
            continue  # another task was faster
        return True
    return False


class SpoolReader:
    """Reads bodies back, without copying them. Raises FileNotFoundError for a file that is gone."""

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}

    def read(self, path: str, begin: int, size: int) -> pa.Buffer:
        if path not in self._files:
            with pa.memory_map(path) as file:
                self._files[path] = file.read_buffer()
        return self._files[path].slice(begin, size)
