"""The peers' tables seen from outside, by none of the peers' own code: how many rows are visible now, and which."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable


class Lake(Protocol):
    def rows(self) -> dict[str, int]:
        """Table -> rows that are committed now. Asked several times a second, so it reads only what is new."""
        ...

    def read(self, table: str) -> pa.Table:
        """All rows; no columns where there is no such table."""
        ...


class DeltaLake:
    """Delta tables that are only appended to, each a folder below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._next: dict[str, int] = defaultdict(int)
        self._rows: dict[str, int] = defaultdict(int)

    def rows(self) -> dict[str, int]:
        for log in self._root.glob("*/_delta_log"):
            name = log.parent.name
            while (commit := log / f"{self._next[name]:020}.json").is_file():
                self._rows[name] += rows_added(commit.read_text(), log.parent)
                self._next[name] += 1
        return dict(self._rows)

    def read(self, table: str) -> pa.Table:
        place = self._root / table
        return DeltaTable(str(place)).to_pyarrow_table() if (place / "_delta_log").is_dir() else pa.table({})


def rows_added(commit: str, table: Path) -> int:
    """Rows that a Delta commit adds; files that were only joined add none."""
    added = 0
    for line in commit.splitlines():
        file = json.loads(line).get("add")
        if file is None or not file["dataChange"]:
            continue
        counted = json.loads(file.get("stats") or "{}").get("numRecords")
        added += pq.read_metadata(table / file["path"]).num_rows if counted is None else counted
    return added


class IcebergLake:
    """Iceberg tables of a Hadoop catalog that are only appended to: `<root>/<table>/metadata`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[Path, tuple[str, int]] = {}

    def rows(self) -> dict[str, int]:
        for hint in self._root.glob("*/metadata/version-hint.text"):
            version = hint.read_text().strip()
            if version and self._known.get(hint, ("", 0))[0] != version:
                self._known[hint] = version, self._total(hint, version)
        return {hint.parent.parent.name: total for hint, (_, total) in self._known.items()}

    def read(self, table: str) -> pa.Table:
        hint = self._root / table / "metadata" / "version-hint.text"
        if not hint.is_file():
            return pa.table({})
        snapshot = _snapshot(_metadata(hint, hint.read_text().strip()))
        parts = [pq.ParquetFile(file).read() for file in _files(snapshot)] if snapshot else []
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})

    def _total(self, hint: Path, version: str) -> int:
        snapshot = _snapshot(_metadata(hint, version))
        return int(snapshot["summary"]["total-records"]) if snapshot else 0


def _metadata(hint: Path, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((hint.parent / f"v{version}.metadata.json").read_text())
    return found


def _snapshot(metadata: dict[str, Any]) -> dict[str, Any] | None:
    current = metadata.get("current-snapshot-id")
    return next((one for one in metadata.get("snapshots", []) if one["snapshot-id"] == current), None)


def _files(snapshot: dict[str, Any]) -> list[Path]:
    """Data files of a snapshot. Raises ValueError where it has files of deletes."""
    found = []
    for manifest in _avro(snapshot["manifest-list"]):
        if manifest.get("content"):
            raise ValueError("deletes in a table that is only appended to")
        entries = _avro(manifest["manifest_path"])
        found += [_path(one["data_file"]["file_path"]) for one in entries if one["status"] != 2]
    return found


def _avro(address: str) -> list[dict[str, Any]]:
    with _path(address).open("rb") as file:
        return [record for record in fastavro.reader(file) if isinstance(record, dict)]


def _path(address: str) -> Path:
    return Path("/" + address.removeprefix("file:").lstrip("/"))
