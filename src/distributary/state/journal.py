"""What decides a batch, written down before the batch writes anything, per stream.

A replay must come to the same decision for every row, else a row that was set aside in the first attempt could be
called good in the second, by a table that has taken the batch already: lost. What can change between two attempts:

- which schema ids the registry could give;
- what ends its reader;
- of change files, which tables they are taken to hold. That decides under which transaction an event is appended: with
  its table's own task, or as a stray in the second pass. A process learns what files hold as it goes, so one that takes
  a batch again after another's end would decide otherwise, and find no transaction on events that are there: doubled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from distributary.config import StateFolder
from distributary.errors import Reason
from distributary.tables.store import Store, join

KEPT = 100
"""Plans kept behind the newest one, as many as Spark keeps of its own offset log."""

ROUTES = "routes.json"

Refusals = Mapping[int, tuple[Reason, str]]

Routes = Mapping[str, tuple[str, ...]]
"""File -> routes that it is likely to hold."""


@dataclass(frozen=True)
class Journal:
    """Folder `plans` below the pipeline's state."""

    root: str
    store: Store

    def _folder(self, stream: str) -> str:
        return join(StateFolder(self.root).plans, stream)

    def refused(self, stream: str, batch: int) -> Refusals | None:
        """The schema ids refused in an earlier attempt at this batch; None when there was none."""
        body = self.store.get(self._folder(stream), f"{batch}.json")
        if body is None:
            return None
        return {int(k): (Reason(v[0]), str(v[1])) for k, v in json.loads(body)["refused"].items()}

    def write_refused(self, stream: str, batch: int, refused: Refusals) -> None:
        """Raises OSError when the state folder cannot be written."""
        plan = {"refused": {str(k): [reason.value, detail] for k, (reason, detail) in sorted(refused.items())}}
        folder = self._folder(stream)
        self.store.put_whole(folder, f"{batch}.json", json.dumps(plan).encode())
        self.store.delete(folder, f"{batch - KEPT}.json")
        self.store.delete(folder, f"{batch - KEPT}.killed.json")

    def killed(self, stream: str, batch: int) -> dict[str, str]:
        """What an attempt at this batch has found to end its reader: what, and by which signal. Raises OSError."""
        body = self.store.get(self._folder(stream), f"{batch}.killed.json")
        return {} if body is None else dict(json.loads(body))

    def write_killed(self, stream: str, batch: int, killed: Mapping[str, str]) -> None:
        """Raises OSError when the state folder cannot be written."""
        self.store.put_whole(self._folder(stream), f"{batch}.killed.json", json.dumps(dict(killed)).encode())

    def routes(self, stream: str, batch: int) -> dict[str, tuple[str, ...]] | None:
        """What the files of this batch were taken to hold in an earlier attempt; None where there was none. Only the
        last batch's is kept. Raises OSError."""
        body = self.store.get(self._folder(stream), ROUTES)
        content = None if body is None else json.loads(body)
        if content is None or content["batch"] != batch:
            return None
        return {path: tuple(routes) for path, routes in content["routes"].items()}

    def write_routes(self, stream: str, batch: int, routes: Routes) -> None:
        """Raises OSError when the state folder cannot be written."""
        body = json.dumps({"batch": batch, "routes": routes}, ensure_ascii=False)
        self.store.put_whole(self._folder(stream), ROUTES, body.encode())
