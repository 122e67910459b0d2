"""What a pipeline of change files says and keeps, at one moment: its ledger, its files, its quarantine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from distributary.audit.judge.debezium_lines import debezium_events
from distributary.audit.judge.dms_rows import dms_events
from distributary.audit.judge.raw_files import RawEvent, raw_events
from distributary.audit.judge.source_files import KnownFile, SourceFiles
from distributary.config import Pipeline
from distributary.engine.changes.backlog import last_file_batch
from distributary.errors import Reason
from distributary.sources.bodies import source_options
from distributary.state.ledger import Entry, Ledger, quarantine_files, read_entries
from distributary.tables.files import TableFiles, read_file
from distributary.tables.quarantine import quarantine_uri
from distributary.tables.store import Store
from distributary.tables.table import Table

_TRIES = 5
_TAKEN = ["path", "size", "etag", "mtime_ms", "attempt", "parcel"]
_KEPT = ["route", "reason", "level", "state", "file", "row", "stream", "batch"]


def _reader(config: Pipeline) -> Callable[[pa.Buffer, str, list[str]], Iterator[RawEvent]]:
    """What reads the pipeline's files."""
    source = config.change_files
    match source.written_by:
        case "debezium":
            return lambda body, _, faults: debezium_events(body, faults)
        case "dms":
            return partial(dms_events, null=source.csv[0], delimiter=source.csv[1])
    return lambda body, _, faults: raw_events(body, faults)


@dataclass
class ChangeBooks:
    """`newest`: the newest finished batch of `stream`. `aside`: numbers of the events in the quarantine, by file;
    `kept`: how many rows of it are of a route; `whole`: files of which nothing could be read; `late`: events that are
    in a log only; `decided`: the newest batch by the transactions of ledger and quarantine, which no entry may be
    behind."""

    config: Pipeline
    store: Store
    entries: Sequence[Entry]
    stream: str | None
    newest: int
    sources: SourceFiles
    aside: dict[str, set[int]] = field(default_factory=dict)
    kept: Counter[str | None] = field(default_factory=Counter)
    whole: set[str] = field(default_factory=set)
    late: set[tuple[str, int]] = field(default_factory=set)
    decided: int = -1
    states: Counter[str] = field(default_factory=Counter)

    def skips(self, path: str) -> bool:
        return path in self.whole or path not in self.sources.known_files

    def gone(self) -> set[str]:
        """Files of which events were read that cannot be read any more."""
        return {path for path in self.sources.gone if path in self.sources.known_files} - self.whole

    def is_partly_gone(self) -> bool:
        """May events have been read that no file holds any more?"""
        return bool(self.gone()) or any(file.again for file in self.sources.known_files.values())


def read_books(config: Pipeline, store: Store) -> ChangeBooks:
    """Read again where a batch has finished meanwhile. Raises TableFault, OSError."""
    for _ in range(_TRIES):
        books = _read_once(config, store)
        newest = Ledger(config.state_root, config.pipeline, store).finished.get(books.stream or "", -1)
        if newest == books.newest:
            break
    return books


def _read_once(config: Pipeline, store: Store) -> ChangeBooks:
    # The transactions first: the entries of a batch that is decided meanwhile are then there.
    roots = (config.state_folder.ledger, quarantine_uri(config.state_root))
    marked = [table for table in (Table(root, store).open() for root in roots) if table is not None]
    entries = read_entries(config.state_root, store)
    ledger = Ledger(config.state_root, config.pipeline, store, entries)
    newest = ledger.finished.get(ledger.stream or "", -1)
    files: dict[str, KnownFile] = {}
    table = Table(config.state_folder.files, store).open()
    if table is not None:
        rows = table.dataset().to_table(columns=_TAKEN).sort_by("attempt").to_pylist()
        last_taken, states = last_file_batch(ledger), dict[str, set[tuple[int, Any]]]()
        for row in rows:
            states.setdefault(row["path"], set()).add((row["size"], row["etag"] or row["mtime_ms"]))
        files = {r["path"]: KnownFile(r["size"], len(states[r["path"]]) > 1) for r in rows if r["parcel"] <= last_taken}
    sources = SourceFiles(files, source_options(config), _reader(config))
    books = ChangeBooks(config, store, entries, ledger.stream, newest, sources)
    if ledger.stream is not None:
        books.decided = max((table.newest(ledger.stream) for table in marked), default=-1)
    for piece in _quarantined(books):
        for row in piece.to_pylist():
            _note_quarantined(books, row)
    return books


def _quarantined(books: ChangeBooks) -> Iterator[pa.Table]:
    uri = quarantine_uri(books.config.state_root)
    table = Table(uri, books.store).open()
    if table is not None:
        yield from TableFiles(table).read_all(_KEPT)
    # A batch is decided by the ledger; its rows are committed to the quarantine after that.
    newest_entries = {e.stream: e for e in books.entries if e.route is None and e.details and e.stream == books.stream}
    for entry in newest_entries.values():
        if table is None or table.newest(entry.stream) < entry.batch:
            for file in quarantine_files(json.loads(entry.details or "{}")):
                yield from read_file(uri, file.path, _KEPT, books.store)


def _note_quarantined(books: ChangeBooks, row: Mapping[str, Any]) -> None:
    if row["stream"] == books.stream and row["batch"] > books.newest:
        return
    if row["level"] != "merge":
        books.states[row["state"]] += 1
    if row["state"] == "replayed":
        return
    if row["level"] == "merge":
        books.late.add((row["file"], row["row"]))
        return
    books.kept[row["route"]] += 1
    if row["level"] == "file":
        books.whole.add(row["file"])
    else:
        books.aside.setdefault(row["file"], set()).add(row["row"])
        text = ".json" in str(row["file"]) and row["reason"] != Reason.FILE_BROKEN
        if row["reason"] in (Reason.FILE_BROKEN, Reason.CORRUPT_EVENT) and not text:
            books.sources.gone[row["file"]] = "it is damaged, or made to stop its reader"
