"""From the source into the file ledger: rounds of a lister, at a call or from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from distributary.config import Pipeline
from distributary.config.quantities import moment
from distributary.errors import Outage
from distributary.names import shown
from distributary.sources.bodies import Options, source_options
from distributary.sources.file_ledger import FileLedger
from distributary.sources.known_files import FileRef
from distributary.sources.listing import FolderTree, Lister, Round
from distributary.sources.listing_local import LocalTree
from distributary.sources.listing_objects import ObjectTree
from distributary.tables.store import Store, local_path


def open_tree(path: str, options: Options) -> FolderTree:
    """The folders below a source's path, with or without a slash at its end. Raises ConfigError."""
    local = local_path(path)
    return ObjectTree(path, options) if local is None else LocalTree(local)


STRAYS_NAMED = 5


class FileDiscovery:
    """Looks for new files and enters them into the ledger. `look` from one thread at a time.

    A stream that is slower than the files come would fall back for good if each look made a small batch. So once the
    stream says where it is (`reached`), files that do not fill a file batch wait until it has begun the last one there
    is. `outage`: the last round failed, and how; for `status`. A round that fails is made good by the next one.
    """

    def __init__(
        self,
        tree: FolderTree,
        ledger: FileLedger,
        max_files: int,
        max_bytes: int,
        start: datetime | None = None,
        report: Callable[[Round], None] = lambda _: None,
        strays: bool = False,
    ) -> None:
        """`max_files`, `max_bytes`: of a file batch. `start`: the earliest folder time. `report` hears of every round.
        `strays`: as `Lister` has it."""
        self.ledger = ledger
        self.lister = Lister(tree, ledger.known_files, start=start, strays=strays)
        self.lister.seed(ledger.folders)
        self.outage: Outage | None = None
        self._limits = max_files, max_bytes
        self._reached: int | None = None
        self._report = report
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, full: bool = False) -> Round:
        """One round, its files entered; `full`: of everything. Raises SourceDown, SourceMissing, StoreDown."""
        result = self.lister.new_files(full)
        rest = full or self._reached is None or self._reached >= self.ledger.newest_file_batch
        self.ledger.add(result.files, *self._limits, rest)
        self._report(result)
        return result

    def reached(self, file_batch: int) -> None:
        """The stream has begun a batch with this file batch. From any thread."""
        self._reached = file_batch

    def start(self, every_sec: float, failed: Callable[[BaseException], None]) -> None:
        """Look every `every_sec` seconds until `stop`. `failed` hears of an error that is no outage, which ends it."""
        self._thread = threading.Thread(target=self._go, args=(every_sec, failed), name="file discovery", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the round that goes on has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _go(self, every_sec: float, failed: Callable[[BaseException], None]) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                self.outage = None
            except Outage as e:
                self.outage = e
            except BaseException as e:
                failed(e)
                return
            self._stop.wait(every_sec)


def waiting_files(config: Pipeline, store: Store) -> list[FileRef]:
    """Files below the source's path that no run has taken.

    Raises SourceDown, SourceMissing, TableFault, OSError.
    """
    return look(config, FileLedger(config.state_root, config.pipeline, store)).files


def look(config: Pipeline, ledger: FileLedger, full: bool = True) -> Round:
    """The files that no run has taken: all of them, or those that a run would find first; and what else such a round
    finds. Raises as `waiting_files`."""
    source = config.change_files
    start = None if source.start_date is None else moment(source.start_date)
    tree = open_tree(source.path, source_options(config))
    lister = Lister(tree, ledger.known_files, start=start, strays=source.stray_files == "read")
    lister.seed(ledger.folders)
    return lister.new_files(full)


def strays_left(strays: Sequence[str], root: str) -> str:
    """In words: files that are none of Datastream's by their place."""
    names = [shown(path.removeprefix(root.rstrip("/")).lstrip("/"), 200) for path in strays[:STRAYS_NAMED]]
    others = f" and {len(strays) - len(names):,} more" if len(strays) > len(names) else ""
    return (
        f"{len(strays):,} file{'' if len(strays) == 1 else 's'} at the source left alone, which by place or ending "
        f"Datastream did not write: {', '.join(names)}{others} (source.stray_files: read takes them too)"
    )
