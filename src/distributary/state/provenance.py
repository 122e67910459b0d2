"""Whose rows are in a table, and does this state know of them? Asked before a run writes to it for the first time.

A state folder that was lost, emptied or moved (`state:`) leaves tables behind. A stream that begins over them reads its
source from the beginning, and would write every row again. Their commits say which stream made them (`snapshot.Txn`);
a stream of which no ledger of the pipeline knows is one whose state is missing. And a batch of our own stream that the
checkpoint has never begun is one of a newer state, of which this one is an old copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from distributary.config import Pipeline
from distributary.errors import StateLost, StateOld
from distributary.state.checkpoint import readable_stream_id
from distributary.state.divisions import parts
from distributary.state.ledger import Ledger
from distributary.tables.commits import batch_at_tip
from distributary.tables.outage import own_fault
from distributary.tables.snapshot import Owner, Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table

AT_A_TIME = 16
NEWEST_COMMITS = 20
"""Commits in which a stream's transaction is looked for first; upkeep has none. All of the log is read where there is
none."""

_STREAM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Provenance:
    """Asks once for each route in the life of a run."""

    def __init__(self, config: Pipeline, ledger: Ledger) -> None:
        self.config = config
        self.ledger = ledger
        self.begun: int | None = None
        """The newest batch that had been planned when the run began, so that an attempt at it may have written already;
        None where that is not known."""
        self._asked: set[str] = set()
        self._known: set[str] | None = None

    def check(self, tables: Mapping[str, Sequence[str]], stream: str, batch: int) -> None:
        """`tables`: route ("" for a table of all routes) -> addresses of its tables. `stream`: the one that is to write
        `batch` to them.

        Raises StateLost where a table is this pipeline's own, but no stream that is known has written it; StateOld
        where it has batches that this state has not begun; StoreDown, TableFault, OSError.
        """
        new = [route for route in tables if route not in self._asked]
        places = [(route, uri) for route in new for uri in tables[route]]
        attempted = batch if self.begun is None or batch <= self.begun else batch - 1
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            looks = pool.map(lambda place: self._look(stream, *place), places)
            for (_, uri), (newest, writers) in zip(places, looks, strict=True):
                if newest > attempted:
                    about = {"pipeline": self.config.pipeline, "stream": stream, "begun": attempted}
                    raise StateOld(**about, table=uri, found=newest, state=self.config.whole_state)
                if writers and stream not in writers and not writers & self._streams_known():
                    about = {
                        "pipeline": self.config.pipeline,
                        "found": f"table {uri} has rows",
                        "stream": sorted(writers)[0],
                    }
                    raise StateLost(**about, state=self.config.whole_state)
        self._asked.update(new)

    def _has_written(self, route: str) -> bool:
        """By the ledger. A table that is parked may never have been opened."""
        newest = self.ledger.newest.get(route)
        return newest is not None and newest.state != "parked"

    def _look(self, stream: str, route: str, uri: str) -> tuple[int, set[str]]:
        """The newest batch of `stream` in a table (-1: none), and, where the ledger has never written it, the streams
        whose transactions its newest commits have. Nothing of a table that is not there, or another's, or that cannot
        be read: its own task finds that too, and parks it. Raises what is the store's fault."""
        plain = self.config.new_state == "continue" or self._has_written(route)
        try:
            # Most often the newest commit is the stream's own: to read it costs a tenth of opening the table.
            if plain and (own_batch := batch_at_tip(uri, stream, self.ledger.store)) is not None:
                return own_batch, set()
            table = Table(uri, self.ledger.store).open()
            if table is None or table.owner != Owner(self.config.pipeline, route):
                return -1, set()
            newest = table.newest(stream)
            if plain:
                return newest, set()
            return newest, _marked(table, NEWEST_COMMITS) or _marked(table, None)
        except BaseException as e:
            own_fault(e, uri)
            return -1, set()

    def _streams_known(self) -> set[str]:
        if self._known is None:
            self._known = _streams_of(self.config.all_shares, self.ledger.store)
        return self._known


def refuse_newer(config: Pipeline, tables: Iterable[str], stream: str, begun: int, store: Store) -> None:
    """Raises StateOld where one of `tables` (addresses) has a batch of `stream` after `begun`, the newest that this
    state knows of: rows that wait in an old copy of a quarantine may be in their tables already. StoreDown."""

    def newest(uri: str) -> int:
        try:
            table = Table(uri, store).open()
            return -1 if table is None else table.newest(stream)
        except BaseException as e:
            own_fault(e, uri)  # what is wrong with one table, its own replay says
            return -1

    places = list(tables)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for uri, newest_batch in zip(places, pool.map(newest, places), strict=True):
            if newest_batch > begun:
                about = {"pipeline": config.pipeline, "stream": stream, "begun": begun, "state": config.whole_state}
                raise StateOld(**about, table=uri, found=newest_batch)


def _marked(table: Snapshot, limit: int | None) -> set[str]:
    apps = {app for app, _ in table.txns(limit=limit)}
    return {match[0] for app in apps if (match := _STREAM.match(app))}


def _streams_of(config: Pipeline, store: Store) -> set[str]:
    """The streams of all parts of a pipeline, also of one that has not finished a batch."""
    streams: set[str] = set()
    for stream in parts(config, store):
        streams |= set(Ledger(stream.state_root, stream.pipeline, store).finished)
        streams |= {readable_stream_id(stream.checkpoint_path, store) or ""}
    return streams
