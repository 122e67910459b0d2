"""The board of a pipeline: its streams' records and requests, in its state folder."""

from __future__ import annotations

from collections.abc import Sequence

from distributary.state.streams import StreamRecord, take_requests, write_streams
from distributary.tables.store import Store

REQUEST_TICKS = 5


class StateBoard:
    """Requests are looked for at every fifth call: a second on local files, and no flood on an object store."""

    def __init__(self, state_root: str, store: Store) -> None:
        self._root = state_root
        self._store = store
        self._calls = 0

    def show(self, records: Sequence[StreamRecord]) -> None:
        write_streams(self._root, records, self._store)

    def requests(self) -> set[str]:
        self._calls += 1
        return take_requests(self._root, self._store) if self._calls % REQUEST_TICKS == 1 else set()
