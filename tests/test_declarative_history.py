"""Rows per dataset, from the histories of Delta tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.declarative.row_counts import Written, version_of, written_since
from distributary.errors.border import TableFault
from distributary.tables.store import Store


def log(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def write(table: Path, rows: int) -> None:
    """A commit as Spark writes it: the number of rows is among the operation's metrics, as text."""
    write_deltalake(table, pa.table({"x": list(range(rows))}), mode="append")
    file = log(table, DeltaTable(table).version())
    file.write_text(file.read_text().replace('"operationMetrics":{', f'"operationMetrics":{{"numOutputRows":"{rows}",'))


def test_rows_of_the_commits_after_a_version_are_added_up(tmp_path: Path) -> None:
    table = tmp_path / "table"
    uri = str(table)
    assert version_of(uri, Store()) == -1
    assert written_since(uri, -1, Store()) == Written(0, -1)
    for rows in (3, 4, 5):
        write(table, rows)
    assert version_of(uri, Store()) == 2
    assert written_since(uri, -1, Store()) == Written(12, 2)
    assert written_since(uri, 0, Store()) == Written(9, 2)
    assert written_since(uri, 2, Store()) == Written(0, 2)


def test_a_commit_without_rows_is_a_commit(tmp_path: Path) -> None:
    write(tmp_path, 3)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    assert written_since(str(tmp_path), 0, Store()) == Written(0, 1)


def test_a_table_whose_text_has_a_collation_is_an_error_that_can_be_told(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"x": ["a"]}))
    file = log(tmp_path, 0)
    text = file.read_text()
    assert '\\"type\\":\\"string\\"' in text
    file.write_text(text.replace('\\"type\\":\\"string\\"', '\\"type\\":\\"string collate UTF8_BINARY\\"'))
    assert version_of(str(tmp_path), Store()) == -1
    with pytest.raises(TableFault):
        written_since(str(tmp_path), -1, Store())
