"""How old are the events that no batch has taken yet?

A folder's minute is the time at the source (Datastream, "Cloud Storage destination"). So the names of the folders of
the files that wait say how far back their events may go, without reading one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from distributary.config import Pipeline
from distributary.sources.discovery import waiting_files
from distributary.sources.file_ledger import after_file_batch, read_version
from distributary.sources.listing import place
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.ledger import Ledger
from distributary.tables.store import Store
from distributary.tables.table import Table

MARGIN_MS = 3_600_000
"""A change can carry an earlier time than its folder: that of its statement's start."""
_FORMS = ("%Y/%m/%d/%H/%M", "%Y/%m/%d/%H", "%Y/%m/%d")


def oldest_waiting_ms(config: Pipeline, store: Store) -> int | None:
    """The source time (ms) before which no event is that waits in a file; 0 where a folder does not say; None where no
    file waits. Lists the whole source.

    Raises SourceDown, SourceMissing, TableFault, OSError.
    """
    folders = {ref.folder for ref in waiting_files(config, store)}
    table = Table(config.state_folder.files, store).open()
    if table is not None:
        unread = after_file_batch(table, last_file_batch(Ledger(config.state_root, config.pipeline, store)), ["folder"])
        folders.update(unread.column("folder").to_pylist())
    return oldest_ms(folders)


def oldest_ms(folders: Iterable[str]) -> int | None:
    """The earliest time that events in these folders may carry, ms; 0 for a folder without a time; None for none."""
    return min((_time_ms(folder) for folder in folders), default=None)


def _time_ms(folder: str) -> int:
    text = place(folder)[1]
    for form in _FORMS:
        try:
            return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() * 1000) - MARGIN_MS
        except ValueError:
            continue
    return 0


def last_file_batch(ledger: Ledger) -> int:
    """The last file batch of the file ledger that a finished batch has taken; -1 for none.

    A batch has one file batch, or, seldom, none: then its number runs ahead.
    """
    if ledger.stream is None:
        return -1
    batch = ledger.finished[ledger.stream]
    return int(ledger.details(ledger.stream, batch).get("parcel", batch))


def version_read(config: Pipeline, store: Store) -> int:
    """The version of the file ledger up to which the stream has finished batches; -1 where there is none."""
    batch = last_committed(config.checkpoint_path, store)
    offsets = None if batch is None else read_offsets(config.checkpoint_path, store, batch)
    return read_version(offsets[0]) if offsets else -1
