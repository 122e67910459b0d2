"""Turns a source into files for a while: an invented history, or a real database's log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from distributary.changes.model import Kind
from distributary_simulate.change_files.writer import ChangeFiles
from distributary_simulate.changes.history import History
from distributary_simulate.changes.model import Change, Table
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.databases.servers import Server
from distributary_simulate.whole import write_whole

if TYPE_CHECKING:
    from distributary_simulate.databases.binlog import Binlog
    from distributary_simulate.databases.wal import Wal

ROUND_SEC = 1.0
CHUNKS_PER_ROUND = 20


@dataclass(frozen=True)
class Pace:
    """How long to go on. seconds: None with `once`: until the source has nothing more. is_stopped: asked each round."""

    seconds: float | None = None
    is_stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def rounds(self) -> Iterator[None]:
        """Round after round, `ROUND_SEC` apart."""
        began = self.clock()
        number = 0
        while not self.is_stopped():
            if self.seconds is not None and self.clock() - began >= self.seconds:
                return
            yield
            number += 1
            if (early := began + number * ROUND_SEC - self.clock()) > 0 and self.seconds is not None:
                self.sleep(early)


def write_history(history: History, files: ChangeFiles, events: int) -> int:
    """Write at least `events` changes and all that backfills still owe, then close `files`. Events written."""
    written = 0
    for changes in (history.changes(events), history.finish()):
        for change in changes:
            files.add(change)
            written += 1
    files.close()
    return written


def write_history_live(history: History, files: ChangeFiles, pace: Pace, now_ms: Callable[[], int]) -> int:
    """Like `write_history`, but at the plan's rate, with source times of now, until the pace ends."""
    written = 0
    for _ in pace.rounds():
        history.now_ms = max(history.now_ms, now_ms())
        for change in history.changes(max(1, round(history.plan.changes_per_sec * ROUND_SEC))):
            files.add(change)
            written += 1
        files.tick(now_ms())
    return written + write_history(history, files, 0)


def with_stale_schemas(changes: Iterable[Change], events: int) -> Iterator[Change]:
    """As a stream that re-reads schemas only now and then: after a table changed, its next `events` events are still
    written with the columns of before. What only the new columns hold is lost to those events."""
    stale_tables: dict[str, Table] = {}
    events_left: dict[str, int] = {}
    for change in changes:
        route, table = change.table.route, change.table
        old = stale_tables.setdefault(route, table)
        if table is not old:
            events_left.setdefault(route, events)
            if events_left[route] > 0:
                events_left[route] -= 1
                row = {column.name: change.row.get(column.name) for column in old.columns}
                yield replace(change, table=old, row=row)
                continue
            stale_tables[route] = table
            del events_left[route]
        yield change


class Source(Protocol):
    """A real database as a stream sees it."""

    def read(self) -> Iterator[Change]:
        """Changes of whole transactions that were not read yet."""

    def done(self) -> None:
        """All that was read is in files: never read it again, also after a crash."""

    def keyed_tables(self) -> list[Table]: ...

    def backfill(self, route: str, started_ms: int) -> Iterator[list[Change]]: ...

    def truth(self) -> dict[str, TableTruth]: ...


def open_source(server: Server, state: Path) -> Source:
    """state: a file that outlives the stream; where it does not exist, the stream begins at the log's end.

    Raises SourceDown, SimulationInvalid; ImportError where the drivers are not installed.
    """
    if server.kind is Kind.MYSQL:
        from distributary_simulate.databases.binlog import Binlog

        binlog = Binlog(server)
        binlog.check()
        return _MySqlSource(binlog, state)
    from distributary_simulate.databases.wal import Wal

    wal = Wal(server)
    wal.open()
    return _PostgreSqlSource(wal)


def read_truth(server: Server) -> dict[str, TableTruth]:
    """What a database's tables hold now. Raises SourceDown."""
    if server.kind is Kind.MYSQL:
        from distributary_simulate.databases.binlog import Binlog

        return Binlog(server).truth()
    from distributary_simulate.databases.wal import Wal

    return Wal(server).truth()


def write_server(source: Source, files: ChangeFiles, state: Path, pace: Pace, now_ms: Callable[[], int]) -> int:
    """Backfill tables with a key, once, while following the log; then close `files`. Events written.

    Files are whole and in place before a position is kept, so a crash repeats events and loses none; only files that
    faults hold back are lost with the process.
    """
    stream_state = _State(state)
    chunks = _chunks(source, now_ms()) if not stream_state.get("backfilled") else iter(())
    written = 0
    for _ in pace.rounds():
        fresh = 0
        for _, changes in zip(range(CHUNKS_PER_ROUND), chunks, strict=False):
            for change in changes:
                files.add(change)
                fresh += 1
        chunks_left = fresh > 0
        for change in source.read():
            files.add(change)
            fresh += 1
        files.flush()
        source.done()
        written += fresh
        if not chunks_left:
            stream_state.set("backfilled", True)
        if not fresh and pace.seconds is None:
            break
    files.close()
    return written


def _chunks(source: Source, started_ms: int) -> Iterator[list[Change]]:
    for table in source.keyed_tables():
        yield from source.backfill(table.route, started_ms)


class _State:
    """A small JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Any:
        return json.loads(self._path.read_text()).get(key) if self._path.exists() else None

    def set(self, key: str, value: Any) -> None:
        content = json.loads(self._path.read_text()) if self._path.exists() else {}
        if content.get(key) != value:
            write_whole(self._path, json.dumps({**content, key: value}))


class _MySqlSource:
    """The file keeps the position."""

    def __init__(self, binlog: Binlog, state: Path) -> None:
        from distributary_simulate.databases.binlog import BinlogPosition

        self._binlog = binlog
        self._state = _State(state)
        position = self._state.get("binlog")
        self._position = BinlogPosition.parse(position) if position else binlog.end()
        self.done()

    def read(self) -> Iterator[Change]:
        for changes, end in self._binlog.transactions(self._position):
            yield from changes
            self._position = end

    def done(self) -> None:
        self._state.set("binlog", str(self._position))

    def keyed_tables(self) -> list[Table]:
        return [table for table in self._binlog.tables() if table.keys]

    def backfill(self, route: str, started_ms: int) -> Iterator[list[Change]]:
        return self._binlog.backfill(route, started_ms)

    def truth(self) -> dict[str, TableTruth]:
        return self._binlog.truth()


class _PostgreSqlSource:
    """The server keeps the position."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._read = ""

    def read(self) -> Iterator[Change]:
        for changes, lsn in self._wal.transactions():
            yield from changes
            self._read = lsn

    def done(self) -> None:
        if self._read:
            self._wal.confirm(self._read)
            self._read = ""

    def keyed_tables(self) -> list[Table]:
        return [table for table in self._wal.tables() if table.keys]

    def backfill(self, route: str, started_ms: int) -> Iterator[list[Change]]:
        return self._wal.backfill(route, started_ms)

    def truth(self) -> dict[str, TableTruth]:
        return self._wal.truth()
