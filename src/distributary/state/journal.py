"""What shapes a batch, written down before the batch writes anything.

A replay must come to the same decision for every row, else a row that was set aside in the first attempt could be
called good in the second, by a table that has taken the batch already: lost. The one thing that can change between two
attempts is which schema ids the registry could give, so this is what is kept, per stream and batch.
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

Refusals = Mapping[int, tuple[Reason, str]]


@dataclass(frozen=True)
class Journal:
    """Folder `plans` below the pipeline's state."""

    root: str
    store: Store

    def _folder(self, stream: str) -> str:
        return join(StateFolder(self.root).plans, stream)

    def read(self, stream: str, batch: int) -> Refusals | None:
        """The schema ids refused in an earlier attempt at this batch; None when there was none."""
        body = self.store.get(self._folder(stream), f"{batch}.json")
        if body is None:
            return None
        return {int(k): (Reason(v[0]), str(v[1])) for k, v in json.loads(body)["refused"].items()}

    def write(self, stream: str, batch: int, refused: Refusals) -> None:
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
