"""Reading a batch's data files in a task, against the whole table."""

from __future__ import annotations

import datetime
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.sources.data_files import BatchFiles, Piece, SourceColumn, SourceFile, spread
from distributary.tables.store import Store

VALUE = SourceColumn("value", "value", pa.binary())


def written(folder: Path, name: str, table: pa.Table, group_rows: int = 1_000) -> SourceFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group_rows)
    return SourceFile(name, path.stat().st_size, {})


def rows_of(files: BatchFiles) -> pa.Table:
    return pa.Table.from_batches([b for task in range(len(files.tasks)) for b in files.read(task)])


def test_every_row_of_every_file_is_read_once_however_the_files_are_cut(tmp_path: Path) -> None:
    values = [b"%08d" % n for n in range(20_000)]
    half = len(values) // 2
    files = [
        written(tmp_path, "a.parquet", pa.table({"value": pa.array(values[:half]), "other": [1] * half}), 700),
        written(tmp_path, "b.parquet", pa.table({"value": pa.array(values[half:])}), 50_000),
    ]
    for cuts in (1, 2, 7, 1_000):
        pieces = [
            Piece(f, f.size * n // cuts, f.size * (n + 1) // cuts if n + 1 < cuts else f.size)
            for f in files
            for n in range(cuts)
        ]
        read = BatchFiles(str(tmp_path), (VALUE,), tuple((p,) for p in pieces), Store())
        assert Counter(rows_of(read).column("value").to_pylist()) == Counter(values)


@given(st.lists(st.integers(0, 400 * 2**20), min_size=1, max_size=60), st.integers(1, 9))
def test_pieces_cover_every_byte_once_and_tasks_are_about_even(sizes: list[int], slots: int) -> None:
    files = [SourceFile(str(n), size, {}) for n, size in enumerate(sizes)]
    tasks = spread(files, slots)
    found: dict[str, list[tuple[int, int]]] = {}
    for piece in (p for task in tasks for p in task):
        found.setdefault(piece.file.name, []).append((piece.begin, piece.end))
    for file in files:
        txns = sorted(found[file.name])
        assert txns[0][0] == 0 and txns[-1][1] == max(1, file.size)
        assert all(a[1] == b[0] for a, b in pairwise(txns))
    weights = [sum(p.end - p.begin for p in task) for task in tasks]
    largest = max(p.end - p.begin for task in tasks for p in task)
    assert max(weights) - min(weights) <= largest
    assert len(tasks) >= min(slots, len(files))


def test_a_column_that_an_older_file_lacks_is_null_and_a_partition_value_comes_from_the_commit(tmp_path: Path) -> None:
    old = written(tmp_path, "game=a/old.parquet", pa.table({"value": [b"1", b"2"]}))
    new = written(tmp_path, "game=a/new.parquet", pa.table({"value": [b"3"], "offset": pa.array([7], pa.int32())}))
    files = [SourceFile(old.name, old.size, {"game": "a"}), SourceFile(new.name, new.size, {"game": ""})]
    columns = (
        VALUE,
        SourceColumn("offset", "offset", pa.int64()),
        SourceColumn("game", "route", pa.string(), partition=True),
    )
    rows = rows_of(BatchFiles(str(tmp_path), columns, spread(files, 1), Store())).sort_by("value")
    assert rows.to_pydict() == {"value": [b"1", b"2", b"3"], "offset": [None, None, 7], "route": ["a", "a", None]}


def test_a_file_without_any_of_the_columns_still_has_its_rows(tmp_path: Path) -> None:
    files = [written(tmp_path, "a.parquet", pa.table({"other": [1, 2, 3]}))]
    assert rows_of(BatchFiles(str(tmp_path), (VALUE,), spread(files, 2), Store())).to_pydict() == {"value": [None] * 3}


def test_times_as_spark_wrote_them_for_years_are_read_as_the_same_instants(tmp_path: Path) -> None:
    when = datetime.datetime(2026, 1, 31, 12, 0, 0, 123456)
    table = pa.table({"timestamp": pa.array([when], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    file = SourceFile("a.parquet", (tmp_path / "a.parquet").stat().st_size, {})
    column = SourceColumn("timestamp", "timestamp", pa.timestamp("us", tz="UTC"))
    rows = rows_of(BatchFiles(str(tmp_path), (column,), spread([file], 1), Store()))
    assert rows.column("timestamp").to_pylist() == [when.replace(tzinfo=datetime.UTC)]


def test_a_file_that_is_gone_is_an_oserror(tmp_path: Path) -> None:
    files = BatchFiles(str(tmp_path), (VALUE,), spread([SourceFile("gone.parquet", 10, {})], 1), Store())
    with pytest.raises(OSError, match=r"gone\.parquet"):
        list(files.read(0))
