"""Which tables a batch's files were taken to hold, written down before the batch writes anything.

That decides under which mark an event is appended: with its table's own task, or as a stray in the second pass. A
process learns what files hold as it goes, so one that takes a batch again after another's end would decide otherwise,
and find no mark on events that are there: doubled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from distributary.config import StateFolder
from distributary.tables.store import Store, join

NAME = "routes.json"

Routes = Mapping[str, tuple[str, ...]]
"""File -> routes that it is likely to hold."""


@dataclass(frozen=True)
class Settled:
    """Of the last batch of each stream, in the folder `plans` below the pipeline's state."""

    root: str
    store: Store

    def _folder(self, stream: str) -> str:
        return join(StateFolder(self.root).plans, stream)

    def read(self, stream: str, batch: int) -> dict[str, tuple[str, ...]] | None:
        """What an earlier attempt at this batch has settled; None where there was none. Raises OSError."""
        body = self.store.get(self._folder(stream), NAME)
        content = None if body is None else json.loads(body)
        if content is None or content["batch"] != batch:
            return None
        return {path: tuple(routes) for path, routes in content["routes"].items()}

    def write(self, stream: str, batch: int, routes: Routes) -> None:
        """Raises OSError when the state folder cannot be written."""
        body = json.dumps({"batch": batch, "routes": routes}, ensure_ascii=False)
        self.store.put_whole(self._folder(stream), NAME, body.encode())
