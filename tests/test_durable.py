"""What a power cut may leave: files come onto the disk in the order in which they rely on each other."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.engine import batch as batch_module
from distributary.engine.batch import BatchWriter
from distributary.engine.outcomes import Delivered
from distributary.state.ledger import Ledger
from distributary.tables.durable import bring_to_disk
from distributary.tables.store import Store
from tests.scenarios import Scenario

ROWS = pa.table({"n": [1, 2]})


class Tables:
    """Stands for what delivers a batch; writes down when it did."""

    def __init__(self, steps: list[str], root: Path) -> None:
        self.store, self.quarantine, self.steps = Store(), str(root / "quarantine"), steps
        self.on_spark: set[str] = set()

    def write(self, *_: object) -> Delivered:
        self.steps.append("tables")
        return Delivered()


def test_rows_are_on_the_disk_before_the_decision_and_that_before_the_offsets(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    config = Scenario(lake).config
    ledger = Ledger(config.state_root, config.pipeline, Store())
    record = ledger.record

    def recorded(*args: object) -> None:
        steps.append("ledger")
        record(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger, "record", recorded)
    monkeypatch.setattr(batch_module, "commit_quarantine", lambda *_: steps.append("quarantine"))
    monkeypatch.setattr(batch_module, "quarantine_files", lambda _: ["one"])
    monkeypatch.setattr(batch_module, "bring_to_disk", lambda uris: steps.append(f"disk {len(set(uris))}"))
    writer = BatchWriter(config, Tables(steps, lake), ledger)
    writer.take(None, "s", 0)  # type: ignore[arg-type]
    assert steps == ["tables", "disk 3", "ledger", "quarantine", "disk 3"]
    steps.clear()
    writer.take(None, "s", 0)  # type: ignore[arg-type]
    assert steps == ["quarantine", "disk 3"]


def test_each_disk_is_asked_once_and_folders_need_not_be_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opening(path: Path, *_: object) -> int:
        opened.append(str(path))
        return os.dup(1)

    monkeypatch.setattr(os, "open", opening)
    bring_to_disk([str(tmp_path / "not" / "there"), f"file://{tmp_path}", "s3://bucket/lake"])
    assert len(opened) == 1
    bring_to_disk(["s3://bucket/lake"])
    assert len(opened) == 1
