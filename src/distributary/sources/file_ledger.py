"""The file ledger: every file that the stream was given, a Delta table at `<state>/files`.

A row per file and attempt. Each commit is one **file batch**: the files of one batch, in one data file, so that Spark's
Delta source with one file per trigger makes the same batches again after a crash. A file is taken from the moment its
file batch is committed; before that it is found again. So there is nothing between the two to lose or to do twice.

File batches are numbered, and a commit carries its number as its transaction: of two processes that add file batch 7,
one is refused.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from distributary.config import StateFolder
from distributary.errors import StoreDown
from distributary.sources.known_files import FileRef, KnownFiles
from distributary.sources.listing import place
from distributary.tables.datafile import DataFile
from distributary.tables.evolve import Policy
from distributary.tables.faults import CommitConflict, writing
from distributary.tables.snapshot import Owner, Snapshot, Txn
from distributary.tables.store import Store, filesystem
from distributary.tables.table import COMMIT_ATTEMPTS, Table
from distributary.tables.tip import Tip, append_on_tip

FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ms", pa.int64()),
        ("etag", pa.string()),
        ("folder", pa.string()),
        ("found_ms", pa.int64()),
        ("attempt", pa.int32()),
        ("parcel", pa.int64()),
    ]
)
_REF = ["path", "size", "mtime_ms", "folder", "etag"]

MANY_FILES = 100
"""Data files at which `tidy` rewrites them."""
KEPT_HOURS = 24
"""What `tidy` replaces stays so long, for readers that are at it."""
KEPT_VERSIONS = 100
"""Versions before the one that was read whose log entries stay. Spark begins a restart with the start of its last
batch, which can lie some commits of upkeep before its end."""

_LOG_ENTRY = re.compile(r"(\d{20})\.(json|checkpoint)")

APP = "distributary.files"
"""File batches are the batches of this stream, in the words of the Delta protocol."""

# Spark's stream reads the log commit by commit: none may expire before it has (`tidy` removes those that it has read).
PROPERTIES = {"delta.logRetentionDuration": "interval 3650 days"}


@dataclass(frozen=True)
class Waiting:
    """What is in the ledger and was not read yet."""

    files: int
    bytes: int


def file_batches(refs: Iterable[FileRef], max_files: int, max_bytes: int) -> Iterator[list[FileRef]]:
    """Cut files into file batches, in their order. A file larger than `max_bytes` is a file batch of its own."""
    file_batch: list[FileRef] = []
    size = 0
    for ref in refs:
        if file_batch and (len(file_batch) == max_files or size + ref.size > max_bytes):
            yield file_batch
            file_batch, size = [], 0
        file_batch.append(ref)
        size += ref.size
    if file_batch:
        yield file_batch


def read_version(offset: Mapping[str, Any] | None) -> int:
    """The newest version of the ledger that a checkpoint's offset (`state.checkpoint.read_offsets`) has read whole.

    Delta's source counts a version's files from 0; a negative index is the beginning. A file batch is one file.
    """
    if offset is None:
        return -1
    version = int(offset["reservoirVersion"])
    return version - 1 if int(offset["index"]) < 0 else version


class FileLedger:
    """The ledger of one pipeline, from any thread. A second process that adds files is noticed, and heard."""

    def __init__(self, state_root: str, pipeline: str, store: Store) -> None:
        """Raises TableFault, OSError when the ledger cannot be read."""
        self.uri = StateFolder(state_root).files
        self.table = Table(self.uri, store, Owner(pipeline, ""), PROPERTIES)
        self.pipeline = pipeline
        self.store = store
        self.known_files = KnownFiles()
        self._newest: dict[str, str] = {}
        self._file_batch = -1
        self._tip: Tip | None = None
        self._lock = threading.Lock()
        self._restore()

    def _restore(self) -> None:
        self._tip = None
        table = Snapshot.open(self.uri, self.store)
        if table is None:
            return
        self._file_batch = table.newest(APP)
        self.known_files.load(self._entries(table))

    def _entries(self, table: Snapshot) -> Iterator[tuple[FileRef, int]]:
        for rows in table.dataset().to_batches(columns=[*_REF, "attempt"]):
            self._remember(pc.unique(rows["folder"]).to_pylist())
            yield from zip(_refs(rows), rows["attempt"].to_pylist(), strict=True)

    def _remember(self, folders: Iterable[str]) -> None:
        for folder in folders:
            table, when = place(folder)
            name = table if when else folder.split("/", 1)[0]
            self._newest[name] = max(folder, self._newest.get(name, ""))

    @property
    def folders(self) -> list[str]:
        """The newest folder of each object that files were taken from, for `Lister.seed`."""
        return list(self._newest.values())

    def create(self) -> None:
        """Make the ledger where there is none, so that a stream over it can start before there is a file.

        Raises StoreDown.
        """
        with self._lock, writing(self.uri):
            try:
                if Snapshot.open(self.uri, self.store) is None:
                    self._append([], Txn(APP, -1))
            except CommitConflict:
                self._restore()

    @property
    def newest_file_batch(self) -> int:
        """The number of the last file batch; -1 while there is none."""
        return self._file_batch

    def add(self, refs: Sequence[FileRef], max_files: int, max_bytes: int, rest: bool = True) -> int:
        """Enter the files that are not known, in their order; the number of file batches that they make.

        `rest`: also those that do not fill a file batch. Raises StoreDown when the ledger cannot be written; the file
        batches before stay, the other files are still unknown.
        """
        return self._write(lambda: self.known_files.unseen(refs), max_files, max_bytes, rest)

    def requeue(self, paths: Collection[str], max_files: int, max_bytes: int) -> int:
        """Give files of the ledger to the stream once more, each as its next attempt; the number of file batches.

        Raises StoreDown.
        """
        return self._write(lambda: self._entered(paths), max_files, max_bytes, rest=True)

    def _write(self, waiting_refs: Callable[[], Sequence[FileRef]], max_files: int, max_bytes: int, rest: bool) -> int:
        written: list[list[FileRef]] = []
        with self._lock, writing(self.uri):
            for attempt in range(COMMIT_ATTEMPTS):
                try:
                    before = {ref.path for file_batch in written for ref in file_batch}
                    cut = list(file_batches((r for r in waiting_refs() if r.path not in before), max_files, max_bytes))
                    for file_batch in cut if rest else cut[:-1]:
                        self._enter(file_batch)
                        written.append(file_batch)
                    break
                except CommitConflict as e:
                    if attempt == COMMIT_ATTEMPTS - 1:
                        raise StoreDown(path=self.uri, detail=f"other writers were first each time: {e}") from e
                    self._restore()
        return len(written)

    def _enter(self, refs: Sequence[FileRef]) -> None:
        """One file batch, one commit."""
        number = self._file_batch + 1
        attempts = [self.known_files.attempts(ref) + 1 for ref in refs]
        file = self.table.write(_table(refs, attempts, number))
        self._commit(file, Txn(APP, number))
        self._file_batch = number
        self.known_files.add(refs, attempts)
        self._remember({ref.folder for ref in refs})

    def _commit(self, file: DataFile, txn: Txn) -> None:
        if self._tip is not None and append_on_tip(self.uri, self._tip, [file], txn, self.store):
            self._tip = self._tip.after(txn)
        else:
            self._append([file], txn)

    def _append(self, files: Sequence[DataFile], txn: Txn) -> None:
        appended = self.table.try_append(FILES_SCHEMA, files, txn, Policy())
        if appended is None:
            raise CommitConflict(f"file batch {txn.version} is in the ledger already")
        self._tip = None if appended.version is None else Tip.of(appended.version, FILES_SCHEMA, txn)

    def _entered(self, paths: Collection[str]) -> list[FileRef]:
        """The newest entry of each path that the ledger has."""
        table = Snapshot.open(self.uri, self.store)
        if table is None or not paths:
            return []
        rows = of_paths(table, paths, [*_REF, "attempt"]).sort_by("attempt")
        return list({ref.path: ref for ref in _refs(rows)}.values())


def of_paths(table: Snapshot, paths: Collection[str], columns: Sequence[str]) -> pa.Table:
    """The entries of these files: `columns` of `FILES_SCHEMA`, `path` among them. Raises TableFault, OSError.

    Not by a filter of the dataset: delta-rs has it skip files without bounds for a column, and long texts have none.
    """
    path_array = pa.array(sorted(set(paths)), pa.string())
    batches = [
        rows.filter(pc.is_in(rows["path"].cast(pa.string()), value_set=path_array))
        for rows in table.dataset().to_batches(columns=list(columns))
    ]
    return pa.Table.from_batches(batches, pa.schema([FILES_SCHEMA.field(name) for name in columns]))


def waiting(state_root: str, store: Store, after_version: int, finished: int = -1) -> Waiting:
    """What the stream has not read when it has read the ledger up to `after_version` (`read_version`; -1: nothing), and
    has finished the file batch `finished`: each file once, however often it was given.

    Raises TableFault, OSError.
    """
    table = Table(StateFolder(state_root).files, store).open()
    if table is None:
        return Waiting(0, 0)
    last_taken = finished
    if after_version >= 0:
        last_taken = max(last_taken, table.at(min(after_version, table.version)).newest(APP))
    unread = after_file_batch(table, last_taken, ["path", "size", "parcel"]).sort_by("parcel")
    sizes = dict(zip(unread["path"].to_pylist(), unread["size"].to_pylist(), strict=True))
    return Waiting(len(sizes), sum(sizes.values()))


def file_batches_after(state_root: str, store: Store, file_batch: int) -> list[list[tuple[FileRef, int]]]:
    """The files of the file batches after `file_batch`, and which attempt at each it is: by file batch, in their order.

    Raises TableFault, OSError.
    """
    table = Table(StateFolder(state_root).files, store).open()
    if table is None:
        return []
    rows = after_file_batch(table, file_batch, [*_REF, "attempt", "parcel"]).sort_by("parcel")
    by_number: dict[int, list[tuple[FileRef, int]]] = {}
    for number, attempt, ref in zip(rows["parcel"].to_pylist(), rows["attempt"].to_pylist(), _refs(rows), strict=True):
        by_number.setdefault(number, []).append((ref, attempt))
    return list(by_number.values())


def after_file_batch(table: Snapshot, file_batch: int, columns: Sequence[str]) -> pa.Table:
    """The entries of later file batches: `columns` of `FILES_SCHEMA`. Raises TableFault, OSError."""
    return table.dataset().to_table(columns=list(columns), filter=pc.field("parcel") > file_batch)


def tidy(state_root: str, store: Store, version_read: int) -> None:
    """Make the ledger quicker to open: small files into large ones, log entries that a checkpoint holds removed.

    `version_read`: what the stream has read for certain, by `read_version` of its last finished batch; the stream needs
    the log from there on, and steps over the rewrite, which is no change of data. It may run beside the stream; another
    writer's commit wins. Raises TableFault, OSError.
    """
    uri = StateFolder(state_root).files
    table = Table(uri, store).open()
    if table is None:
        return
    if len(table.addresses()) > MANY_FILES:
        with contextlib.suppress(CommitConflict):
            table.compact(hooks=False)
        table.checkpoint()
    unread = waiting(state_root, store, version_read).files
    # Each vacuum is two commits, also one that finds nothing.
    if not unread and table.vacuum(KEPT_HOURS, dry_run=True):
        table.vacuum(KEPT_HOURS)
    _drop_log(filesystem(uri, store), version_read)


def _drop_log(system: pafs.FileSystem, version_read: int) -> None:
    """Remove the log's entries before the last checkpoint that is well before `version_read`."""
    infos = system.get_file_info(pafs.FileSelector("_delta_log"))
    versions = {info: int(match[1]) for info in infos if (match := _LOG_ENTRY.match(info.base_name))}
    checkpoints = [
        v for info, v in versions.items() if v <= version_read - KEPT_VERSIONS and ".checkpoint" in info.base_name
    ]
    oldest = time.time() - KEPT_HOURS * 3600
    for info, version in versions.items():
        if version < max(checkpoints, default=0) and info.mtime_ns < oldest * 1e9:
            system.delete_file(info.path)


def _refs(rows: pa.RecordBatch | pa.Table) -> list[FileRef]:
    return [FileRef(*values) for values in zip(*(rows[name].to_pylist() for name in _REF), strict=True)]


def _table(refs: Sequence[FileRef], attempts: Sequence[int], file_batch: int) -> pa.Table:
    columns: dict[str, Any] = {name: [getattr(ref, name) for ref in refs] for name in _REF}
    columns |= {
        "found_ms": [int(time.time() * 1000)] * len(refs),
        "attempt": attempts,
        "parcel": [file_batch] * len(refs),
    }
    return pa.Table.from_pydict(columns, schema=FILES_SCHEMA)
