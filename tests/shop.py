"""Pipelines of change files in a folder: events by hand or by an invented history, runs, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from deltalake import DeltaTable

from distributary.audit.judge.changes import verify_changes
from distributary.changes.model import Kind
from distributary.config import Pipeline, load
from distributary.engine.batch import BatchReport
from distributary.running.report import RunReport
from distributary.running.stream import Run, run, session_of
from distributary.state.ledger import Entry, Ledger, totals
from distributary.tables.store import Store, engine_uri
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History
from distributary_simulate.changes.model import CDC_METHOD, Change, Column, Position, Row, Table, backfill_change
from distributary_simulate.changes.truth import TableTruth
from distributary_simulate.changes.unified import INTEGER, STRING, Unified
from tests.scenarios import merged as merged_keys
from tests.source_rows import held

START_MS = 1_767_225_600_000
"""2026-01-01 00:00:00 UTC."""
SIMPLE = ("INTEGER", "LONG", "STRING", "DOUBLE", "NUMBER")
"""Types whose values are the same in a database and in Python."""


def mysql_table(
    name: str = "orders", columns: Mapping[str, Unified] | None = None, keys: str = "id", database: str = "shop"
) -> Table:
    found = columns or {"id": INTEGER, "status": STRING}
    return Table(Kind.MYSQL, database, "", name, tuple(Column(n, t) for n, t in found.items()), tuple(keys.split()))


def order(id: int, status: str | None) -> dict[str, object]:
    """A row of `mysql_table()`."""
    return {"id": id, "status": status}


def change(table: Table, kind: str, row: Row, position: int, *, sec: int = 0, file: str = "bin.000001") -> Change:
    """A MySQL event at a place in the binlog, `sec` seconds after the start."""
    source_ms = START_MS + sec * 1000
    at = Position({"log_file": file, "log_position": position}, (source_ms, file, position), source_ms)
    return Change(table, kind, kind in ("DELETE", "UPDATE-DELETE"), row, at, CDC_METHOD[table.kind], source_ms + 2000)


def backfilled(table: Table, row: Row, *, sec: int = 0) -> Change:
    source_ms = START_MS + sec * 1000
    return backfill_change(table, row, Position({}, (source_ms, "", 0), source_ms), source_ms + 1000)


def compare_living(uri: str, store: Store, truth: TableTruth) -> None:
    """The living rows of a merged table are the source's, with the values of all columns of `SIMPLE` types."""
    rows = DeltaTable(engine_uri(uri), storage_options=dict(store.options)).to_pyarrow_table()
    rows = rows.filter(pc.invert(rows.column("_deleted")))
    names = [column.name for column in truth.table.columns if column.type.name in SIMPLE]
    found = {truth.table.key_of(row): {name: held(row, name) for name in names} for row in rows.to_pylist()}
    assert found == {key: {name: row[name] for name in names} for key, row in truth.by_key().items()}
    assert rows.num_rows == len(truth.rows)


class Shop:
    """A pipeline over files below `root`. `keys` go into the pipeline file, over the defaults here."""

    def __init__(self, root: Path, **keys: Any) -> None:
        self.root = root
        self.files = root / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.file = root / "shop.yaml"
        self.config = self.configure(**keys)
        self.batches: list[BatchReport] = []

    def configure(self, **keys: Any) -> Pipeline:
        defaults = {
            "pipeline": "shop",
            "source": {"type": "datastream", "path": str(self.files)},
            "tables": {"root": str(self.root / "lake"), "retry_after": "1 second"},
            "quarantine": {"max_ratio": 1.0},
            "trigger": "once",
        }
        self.file.write_text(yaml.safe_dump(merged_keys(defaults, keys), allow_unicode=True), encoding="utf-8")
        self.config = load(self.file)
        return self.config

    # -- files -----------------------------------------------------------------------------------------------

    def send(self, *changes: Change, format: Any = "avro", **plan: Any) -> list[Path]:
        """Write the changes as files: one per table, schema, minute and read method."""
        files = ChangeFiles(FilesPlan(self.files, format=format, **plan))
        for one in changes:
            files.add(one)
        files.close()
        return [self.files / written.path for written in files.written]

    def garbage(self, name: str = "shop_orders/2026/01/01/00/00/broken.avro", body: bytes = b"Obj\x01garbage") -> Path:
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    # -- runs ------------------------------------------------------------------------------------------------

    def run(self) -> RunReport:
        return run(self.config, once=True, progress=self.batches.append)

    def replay(self) -> None:
        """What `distributary replay` does, and the run that brings the events in."""
        Run(self.config, session_of(self.config), lambda _: None).replay.run()
        self.run()

    # -- what came of it -------------------------------------------------------------------------------------

    def entry(self, route: str) -> Entry:
        return totals(Ledger(self.config.state_root, "shop", Store()).entries())[route]

    def log(self, name: str) -> list[dict[str, Any]]:
        """The rows of a log table, in the order of their events."""
        rows = DeltaTable(str(self.root / "lake" / name)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda r: r["datastream_metadata"]["change_sequence_number"])

    def merged(self, name: str) -> pa.Table:
        """By Spark, which reads tables of every engine."""
        return session_of(self.config).read.format("delta").load(str(self.root / "lake" / name)).toArrow()

    def living(self, name: str, columns: Sequence[str] | None = None) -> list[tuple[Any, ...]]:
        rows = self.merged(name)
        rows = rows.filter(pc.invert(rows.column("_deleted")))
        plain = columns or [
            n for n in rows.column_names if not n.startswith("_") and not n.startswith("datastream_metadata")
        ]
        return sorted(tuple(row.values()) for row in rows.select(list(plain)).to_pylist())

    def quarantined(self, state: str = "open") -> list[dict[str, Any]]:
        uri = f"{self.config.state_root}/quarantine"
        if not DeltaTable.is_deltatable(uri):
            return []
        rows = DeltaTable(uri).to_pyarrow_table().to_pylist()
        return [row for row in rows if row["state"] == state]

    def reasons(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.quarantined():
            found[row["reason"]] = found.get(row["reason"], 0) + 1
        return found

    def check(self) -> None:
        """Nothing is lost or doubled, and each merged table is what its log folds to."""
        found = verify_changes(self.config)
        assert found.ok, found.problems

    def compare(self, history: History, routes: Sequence[str] | None = None) -> None:
        """Each merged table is what the source's table is."""
        for route, truth in history.truth().items():
            if truth.table.keys and (routes is None or route in routes):
                self.compare_table(route, truth)

    def compare_table(self, route: str, truth: TableTruth) -> None:
        entry = self.entry(route)
        assert entry.merged is not None, route
        rows = DeltaTable(entry.merged).to_pyarrow_table()
        rows = rows.filter(pc.invert(rows.column("_deleted")))
        keys = list(truth.table.keys)
        found = sorted(map(str, zip(*(rows.column(k).to_pylist() for k in keys), strict=True)))
        wanted = sorted(map(str, zip(*(truth.arrow().column(k).to_pylist() for k in keys), strict=True)))
        assert found == wanted, route
