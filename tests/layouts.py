"""The same pipeline in every layout: how each is run, and where its rows, ledgers and quarantines are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport
from distributary.engine.replay import ReplayReport
from distributary.names import table_name
from distributary.repair.replays import replay
from distributary.running import hops
from distributary.running.bronze.ingest import STREAM as BRONZE
from distributary.shares import Division
from distributary.state.divisions import claim
from distributary.state.ledger import Entry
from distributary.tables.store import Store
from distributary.tables.wide import KEY
from distributary_simulate.games.records import Record
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth
from tests.scenarios import Running, Scenario

WAIT_SEC = 480.0


@dataclass(frozen=True)
class LayoutCase:
    """`keys`: of the pipeline file. `clusters`: so many shares of the routes read bronze."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    clusters: int = 0


FANOUT = LayoutCase("fanout", {"layout": "fanout"})
TWO_HOP = LayoutCase("two_hop, one stream", {"layout": "two_hop"})
SHARES = LayoutCase("two_hop, a share per cluster", {"layout": "two_hop"}, clusters=2)
WIDE = LayoutCase("wide", {"layout": "wide"})
LAYOUTS = (FANOUT, TWO_HOP, SHARES, WIDE)


class Laid(Scenario):
    """A Scenario in one of the layouts."""

    def __init__(self, root: Path, layout: LayoutCase, **keys: Any) -> None:
        self.layout = layout
        super().__init__(root, **layout.keys, **keys)

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
        if not self.layout.clusters:
            return super().streams()
        division = Division.even(self.layout.clusters)
        generation = claim(self.config, division, Store())
        return [(self.config, (1,)), *((self.config.for_share(s), (2,)) for s in division.shares(generation))]

    def run(self) -> Any:
        """Take what is there, to the end."""
        return [hops.run(part, hops=of, once=True, progress=self.took) for part, of in self.streams()][-1]

    def going(self) -> Going:
        """All of it runs on until the block ends."""
        return Going(self)

    def took(self, report: BatchReport) -> None:
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


class Going(Running):
    """As on several clusters. These may come up before hop 1 has made bronze: here they simply wait."""

    wait_sec = WAIT_SEC
    stop_sec = WAIT_SEC

    def _run(self, part: Pipeline, of: tuple[int, ...]) -> None:
        if 1 not in of:
            self._wait(lambda: Path(part.bronze_path, "_delta_log").exists())
        super()._run(part, of)

    def wait_sent(self) -> None:
        """Wait until all records that were sent are in the tables or kept aside."""
        sent = len(self._scenario.sent)
        self.wait(lambda: sum(b.rows_in + b.tombstones for b in self._scenario.batches) >= sent, f"{sent} rows")
