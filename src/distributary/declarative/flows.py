"""The checkpoints of a pipeline's flows: where they are, how far each has read, and whether each fits its table.

    <storage>/_checkpoints/<catalog>/<database>/<table>/<flow>/<n>      n: one more with each full refresh

A table without its checkpoint would be written twice; a checkpoint without its table goes on in the middle and says
nothing, so that the table has new rows only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow.fs as pafs

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets, flow_checkpoints, storage
from distributary.errors import StoreUnreadable
from distributary.state.checkpoint import last_begun, last_committed, read_offsets
from distributary.tables.files import delete_entry, names_in
from distributary.tables.outage import own_fault
from distributary.tables.store import Store, filesystem, join
from distributary.tables.table import Table


@dataclass(frozen=True)
class Place:
    """How far a flow has read a Delta table: all commits before `version`; `inside`: and a part of that one.

    `first`: a part of all that was there at `version` when the stream began, and nothing else. `begun`: of commits from
    this one on, nothing has been read by a batch that is under way, or was interrupted.
    """

    version: int
    inside: bool = False
    first: bool = False
    begun: int = 0

    @property
    def certain(self) -> int:
        """All commits before this one are read."""
        return 0 if self.first else self.version

    @property
    def possible(self) -> int:
        """Of commits from this one on, nothing is read."""
        return max(self.begun, self.version + 1 if self.inside else self.certain)


@dataclass(frozen=True)
class Flows:
    """The flows of one pipeline. All methods raise OSError where the storage cannot be read.

    `sink`: the one flow into all silver tables, where there is such a one.
    """

    datasets: Datasets
    storage: str
    store: Store
    sink: str | None = None
    hidden: bool = False
    """Are the checkpoints the platform's, which shows them to nobody?"""

    @classmethod
    def of(cls, config: Pipeline, store: Store) -> Flows:
        section = config.declarative
        sink = section.silver_flow if config.is_declarative and section.silver_as == "sink" else None
        return cls(Datasets.of(config), storage(config), store, sink, hidden=config.tables.managed)

    def forget(self, sink: str) -> None:
        """Let a flow into a sink begin anew."""
        if sink in names_in(join(self.storage, "_checkpoints"), self.store):
            delete_entry(join(self.storage, "_checkpoints"), sink, self.store)

    def checkpoint(self, name: str) -> str | None:
        """The checkpoint that the flow into table `name` follows now; None for a flow that has never run."""
        if self.sink is not None and name != self.datasets.bronze:
            folder = join(self.storage, "_checkpoints", self.sink, self.sink)
        else:
            folder = join(flow_checkpoints(self.storage, self.datasets, name), name)
        infos = filesystem(folder, self.store).get_file_info(pafs.FileSelector("", allow_not_found=True))
        numbers = [int(f.base_name) for f in infos if f.base_name.isdecimal()]
        return join(folder, str(max(numbers))) if numbers else None

    def place(self, name: str) -> Place | None:
        """How far the flow into `name` has read; None where it does not read a Delta table, or nobody can see it."""
        if self.hidden:
            return None
        checkpoint = self.checkpoint(name)
        batch = None if checkpoint is None else last_committed(checkpoint, self.store)
        if checkpoint is None:
            return Place(0)
        begun = 0
        if self.sink is not None and name != self.datasets.bronze:
            # Table by table: an interrupted batch is in some of them.
            newest = self._at(checkpoint, last_begun(checkpoint, self.store))
            begun = 0 if newest is None else newest.possible
        committed = Place(0) if batch is None else self._at(checkpoint, batch)
        return None if committed is None else replace(committed, begun=begun)

    def _at(self, checkpoint: str, batch: int) -> Place | None:
        """The place at the end of a batch."""
        offsets = read_offsets(checkpoint, self.store, batch) if batch >= 0 else None
        offset = (offsets or [{}])[0]
        if "reservoirVersion" not in offset:
            return None
        # An index of -1 (-100 in the older form) stands before the version's first file.
        inside = int(offset.get("index", -1)) >= 0
        return Place(int(offset["reservoirVersion"]), inside, bool(offset.get("isStartingVersion")))

    def has_read(self, name: str) -> bool:
        """Has the flow into `name` finished a batch?"""
        checkpoint = self.checkpoint(name)
        return checkpoint is not None and last_committed(checkpoint, self.store) is not None

    def torn(self, names: Iterable[str]) -> list[str]:
        """Those whose table and checkpoint do not go together: one of them is there without the other.

        Of a table that cannot be read nobody can say so. Raises StoreUnreadable where that is bronze, or all of them.
        """
        torn_names = []
        for name in names:
            uri = self.datasets.uri(name)
            try:
                table = Table(uri, self.store).open()
                # Spark makes a table before its flow begins: an empty one goes with any checkpoint.
                filled = table is not None and bool(table.addresses())
                if (table is None and self.has_read(name)) or (filled and self.checkpoint(name) is None):
                    torn_names.append(name)
            except BaseException as e:
                why = own_fault(e, uri, StoreUnreadable)
                if name == self.datasets.bronze:
                    raise StoreUnreadable(path=uri, detail=why) from e
        return torn_names
