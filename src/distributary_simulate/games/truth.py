"""What was really produced, counted by the producer, so that a check need not trust the pipeline."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, cast

from distributary_simulate.games.records import REASONS, Fault, Record
from distributary_simulate.whole import write_whole


@dataclass
class Truth:
    """rows: game -> version -> good rows, which must all arrive in the game's table (id mismatches are good rows).
    faults: fault -> game -> records.
    """

    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    faults: dict[Fault, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        truth = cls()
        for record in records:
            truth.add(record)
        return truth

    def add(self, record: Record) -> None:
        if record.fault is not None:
            self._add_fault(record.fault, record.game, 1)
        if record.fault is None or record.fault == "id_mismatch":
            self.add_rows(record.game, record.version, 1)

    def add_rows(self, game: str, version: int, rows: int) -> None:
        versions = self.rows.setdefault(game, {})
        versions[version] = versions.get(version, 0) + rows

    def _add_fault(self, fault: Fault, game: str, records: int) -> None:
        games = self.faults.setdefault(fault, {})
        games[game] = games.get(game, 0) + records

    def merge(self, other: Truth) -> None:
        """Add the counts of `other` to this one."""
        for game, versions in other.rows.items():
            for version, rows in versions.items():
                self.add_rows(game, version, rows)
        for fault, games in other.faults.items():
            for game, records in games.items():
                self._add_fault(fault, game, records)

    # -- what a check asks -----------------------------------------------------------------------------------

    def rows_of(self, game: str) -> int:
        return sum(self.rows.get(game, {}).values())

    @property
    def rows_total(self) -> int:
        return sum(map(self.rows_of, self.rows))

    def fault_total(self, fault: Fault) -> int:
        return sum(self.faults.get(fault, {}).values())

    @property
    def tombstones(self) -> int:
        return self.fault_total("tombstones")

    @property
    def quarantined(self) -> int:
        """Records that must be in the quarantine: every fault that has a reason."""
        return sum(map(self.fault_total, REASONS))

    @property
    def records_total(self) -> int:
        """Everything that was sent: good rows, quarantined rows and tombstones."""
        return self.rows_total + self.quarantined + self.tombstones

    # -- as a file -------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Keys in order, so that equal truths are equal texts; totals are there to be read, not read back."""
        rows = {g: {str(v): n for v, n in sorted(by.items())} for g, by in sorted(self.rows.items())}
        faults = {fault: dict(sorted(games.items())) for fault, games in sorted(self.faults.items())}
        totals = {"rows": self.rows_total, "quarantined": self.quarantined, "tombstones": self.tombstones}
        return json.dumps({"rows": rows, "faults": faults, "totals": totals}, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        content: Mapping[str, dict[str, dict[str, int]]] = json.loads(text)
        truth = cls()
        for game, versions in content["rows"].items():
            for version, rows in versions.items():
                truth.add_rows(game, int(version), rows)
        for fault, games in content["faults"].items():
            for game, records in games.items():
                truth._add_fault(cast(Fault, fault), game, records)
        return truth

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Raises FileNotFoundError when nothing was produced yet."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def save(self, path: str | Path) -> None:
        """Replace the file in one step: a reader at any moment, and a kill at any moment, find a whole file."""
        write_whole(Path(path), self.to_json())

    def merge_into(self, path: str | Path) -> None:
        """Add these counts to the file. Several producers may do so at once, also in several processes."""
        with _locked(Path(path)):
            total = type(self).load(path) if Path(path).exists() else type(self)()
            total.merge(self)
            total.save(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock beside the file: the file itself is replaced, so a lock on it would not hold the next writer back.
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
