"""Which table a file is likely to hold, before it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from distributary.changes.model import Kind, Reading, SourceTable, known_one
from distributary.engine.changes.routing import HEAD_BYTES, FileRoutes
from distributary.engine.changes.task_spec import WorkFile
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.unified import INTEGER, STRING
from tests.shop import change, mysql_table

WIDE = mysql_table(columns={"id": INTEGER, "status": STRING})


def file_of(tmp_path: Path, format: Any, rows: int = 3, text: str = "new") -> WorkFile:
    files = ChangeFiles(FilesPlan(tmp_path, format=format))
    for n in range(rows):
        files.add(change(WIDE, "INSERT", {"id": n, "status": text}, 100 * n))
    files.close()
    [written] = files.written
    path = tmp_path / written.path
    return WorkFile(str(path), path.stat().st_size, 0, "shop_orders/2026/01/01/00/00")


@pytest.mark.parametrize("format", ["avro", "jsonl", "jsonl.gz"])
def test_only_the_head_of_a_large_file_is_fetched(tmp_path: Path, format: str) -> None:
    file = file_of(tmp_path, format)
    size = 1 << 42  # more than any machine can hold
    os.truncate(file.path, size)
    large = WorkFile(file.path, size, 0, file.folder)
    assert FileRoutes(Reading(), {}).routes([large]) == {file.path: ("shop.orders",)}


@pytest.mark.parametrize("format", ["avro", "jsonl", "jsonl.gz", "parquet"])
def test_a_file_whose_first_event_is_longer_than_the_head_is_read_whole(tmp_path: Path, format: str) -> None:
    noise = os.urandom(HEAD_BYTES).hex()
    file = file_of(tmp_path, format, rows=1, text=noise)
    assert file.size > HEAD_BYTES
    assert FileRoutes(Reading(), {}).routes([file]) == {file.path: ("shop.orders",)}


def test_a_file_that_nobody_can_read_has_no_route(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    path.write_bytes(b"Obj\x01" + os.urandom(2 * HEAD_BYTES))
    gone = WorkFile(str(tmp_path / "gone.avro"), 1 << 30, 0)
    files = [WorkFile(str(path), path.stat().st_size, 0), gone]
    assert FileRoutes(Reading(), {}).routes(files) == {str(path): (), gone.path: ()}


def test_a_known_database_wins_over_one_that_events_do_not_tell() -> None:
    told, untold = SourceTable(Kind.MYSQL, "shop", "", "orders"), SourceTable(Kind.GENERIC, "shop", "", "orders")
    assert known_one(untold, told) == known_one(told, untold) == told
