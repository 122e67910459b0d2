"""The same pipeline in every layout and shape: how each is run, and where its rows, ledgers and quarantines are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from distributary import hops
from distributary.batch import BatchReport
from distributary.bronze.ingest import STREAM as BRONZE
from distributary.config import Pipeline
from distributary.names import table_name
from distributary.replay import ReplayReport
from distributary.replays import replay
from distributary.shares import Division
from distributary.simulate.games.records import Record
from distributary.simulate.games.stream import Games
from distributary.simulate.games.truth import Truth
from distributary.state.ledger import Entry, Ledger
from distributary.state.shares import claim, parts
from distributary.tables.store import Store
from distributary.tables.wide import KEY
from tests.scenarios import Scenario

WAIT_SEC = 180.0


@dataclass(frozen=True)
class Shape:
    """`keys`: of the pipeline file. `clusters`: so many shares of the routes read bronze."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    clusters: int = 0


FANOUT = Shape("fanout", {"layout": "fanout"})
TWO_HOP = Shape("two_hop, one stream", {"layout": "two_hop"})
SHARES = Shape("two_hop, a share per cluster", {"layout": "two_hop"}, clusters=2)
PER_ROUTE = Shape("two_hop, a query per route", {"layout": "two_hop", "hop": {"shape": "per_route", "look_every": 0.2}})
WIDE = Shape("wide", {"layout": "wide"})
SHAPES = (FANOUT, TWO_HOP, SHARES, PER_ROUTE, WIDE)


class Laid(Scenario):
    """A Scenario in one of the shapes."""

    def __init__(self, root: Path, shape: Shape, **keys: Any) -> None:
        self.shape = shape
        super().__init__(root, **shape.keys, **keys)

    # -- records -------------------------------------------------------------------------------------------

    def send_mixed(
        self, games: Games, versions: Mapping[int, Sequence[str]], *more: bytes | None, start: int = 0
    ) -> None:
        """Records of several versions, one after the other in turn, and `more`, in one commit."""
        found: list[list[Record]] = []
        for version, names in versions.items():
            for registered in games.register(version, names).values():
                self.versions[registered.schema.id] = version
            found.append(list(games.records(version, names, start=start)))
        records = [r for turn in zip(*found, strict=False) for r in turn]
        records += [r for one in found for r in one[min(map(len, found)) :]]
        self.truth.merge(Truth.of(records))
        self.send(*(r.value for r in records), *more)

    # -- runs ----------------------------------------------------------------------------------------------

    def streams(self) -> list[tuple[Pipeline, tuple[int, ...]]]:
        """What runs, each in a process of its own: the pipeline or a share of it, and its hops."""
        if not self.shape.clusters:
            return [(self.config, hops.BOTH)]
        division = Division.even(self.shape.clusters)
        generation = claim(self.config, division, Store())
        return [(self.config, (1,)), *((self.config.for_share(s), (2,)) for s in division.shares(generation))]

    def run(self) -> Any:
        """Take what is there, to the end."""
        return [hops.run(part, hops=of, once=True, progress=self._took) for part, of in self.streams()][-1]

    @contextmanager
    def going(self) -> Iterator[Going]:
        """All of it runs on until the block ends."""
        going = Going(self)
        try:
            yield going
        finally:
            going.stop()

    def _took(self, report: BatchReport) -> None:
        if report.stream != BRONZE:
            self.batches.append(report)

    def replay(self, route: str | None = None, reasons: object = None) -> ReplayReport:
        return replay(self.config, route)

    # -- what came out -------------------------------------------------------------------------------------

    def rows(self, name: str) -> list[dict[str, Any]]:
        if self.config.layout != "wide" or name == self.config.wide.name:
            return super().rows(name)
        key = table_name(name)
        rows = [row for row in super().rows(self.config.wide.name) if row[KEY] == key]
        return [{**(row[key] or {}), "_origin": row["_origin"]} for row in rows]

    def rows_of(self, route: str, entry: Entry) -> int:
        if self.config.layout == "wide":
            return len(self.rows(route))
        return super().rows_of(route, entry)

    def quarantined(self, *states: str) -> list[dict[str, Any]]:
        wanted = states or ("open", "claimed")
        found = []
        for part in parts(self.config, Store()):
            path = Path(part.state_root) / "quarantine"
            if (path / "_delta_log").exists():
                found += [r for r in DeltaTable(path).to_pyarrow_table().to_pylist() if r["state"] in wanted]
        return sorted(found, key=lambda r: (r["partition"], r["offset"]))

    def entries(self) -> list[Entry]:
        books = (Ledger(part.state_root, part.pipeline, Store()) for part in parts(self.config, Store()))
        return sorted((e for book in books for e in book.entries()), key=lambda e: e.finished_at)


class Going:
    """The threads of a pipeline that goes on, each as a process would run it."""

    def __init__(self, laid: Laid) -> None:
        self._laid = laid
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []
        self._runs: list[Any] = []
        self._threads = [threading.Thread(target=self._go, args=one) for one in laid.streams()]
        for thread in self._threads:
            thread.start()

    def _go(self, part: Pipeline, of: tuple[int, ...]) -> None:
        try:
            if 1 not in of:
                # As on a cluster that comes up before hop 1 has made bronze: here it simply waits.
                self._wait(lambda: Path(self._laid.config.bronze_path, "_delta_log").exists())
            hops.run(part, hops=of, progress=self._took, handle=self._runs.append)
        except BaseException as e:
            self._errors.append(e)
        with self._changed:
            self._changed.notify_all()

    def _took(self, report: BatchReport) -> None:
        with self._changed:
            self._laid._took(report)
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SEC
        with self._changed:
            while not (self._errors or condition()) and time.monotonic() < end:
                self._changed.wait(0.1)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until it holds; asked again after each batch and ten times a second. Raises what a run raised."""
        self._wait(condition)
        self._raise()
        assert condition(), f"{what}: not after {WAIT_SEC} s; batches: {self._laid.batches}"

    def wait_sent(self) -> None:
        """Wait until all records that were sent are in the tables or kept aside."""
        sent = len(self._laid.sent)
        self.wait(lambda: sum(b.rows_in + b.tombstones for b in self._laid.batches) >= sent, f"{sent} rows")

    def stop(self) -> None:
        for run in self._runs:
            run.stop()
        for thread in self._threads:
            thread.join(WAIT_SEC)
            assert not thread.is_alive()
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
