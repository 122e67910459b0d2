"""Chunks whose bytes lie in files beside Spark's rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.engine.messages import spool as spool_module
from distributary.engine.messages.chunks import CHUNK_SCHEMA, Cut, read_records, read_rejected
from distributary.engine.messages.spool import ALIGNMENT, Spool, SpoolReader, close_spool, write_spool
from distributary.engine.messages.tasks import chunk_rows
from distributary.tables.quarantine import ORIGIN_FIELDS, REJECTED_SCHEMA


def test_what_is_written_is_read_back_each_body_where_it_begins(tmp_path: Path) -> None:
    bodies = [b"one", b"", b"x" * 1000, b"last"]
    path, begins = write_spool(str(tmp_path), [pa.py_buffer(body) for body in bodies])
    reader = SpoolReader()
    assert [reader.read(path, at, len(body)).to_pybytes() for at, body in zip(begins, bodies, strict=True)] == bodies
    assert all(at % ALIGNMENT == 0 for at in begins)


def test_two_attempts_at_a_task_write_two_files(tmp_path: Path) -> None:
    first, _ = write_spool(str(tmp_path), [pa.py_buffer(b"a")])
    second, _ = write_spool(str(tmp_path), [pa.py_buffer(b"b")])
    assert first != second


def read(path: str, size: int) -> bytes:
    return bytes(SpoolReader().read(path, 0, size))


def test_a_batch_that_was_given_up_leaves_nothing_and_what_was_mapped_stays_good(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    path, _ = write_spool(folder := spool.open(), [pa.py_buffer(b"kept")])
    body = SpoolReader().read(path, 0, 4)
    close_spool(folder, reuse=False)
    write_spool(spool.open(), [pa.py_buffer(b"next")])
    assert body.to_pybytes() == b"kept"
    assert not Path(folder).exists()


def test_the_next_batch_writes_over_the_files_of_the_one_before(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    folder = spool.open()
    before = [write_spool(folder, [pa.py_buffer(body)])[0] for body in (b"a long one", b"another")]
    files = {Path(path).stat().st_ino for path in before}
    close_spool(folder, reuse=True)
    folder = spool.open()
    now = [write_spool(folder, [pa.py_buffer(body)])[0] for body in (b"new", b"a new one that is longer", b"third")]
    assert {Path(path).stat().st_ino for path in now} > files
    assert [read(path, 3) for path in now] == [b"new", b"a n", b"thi"]
    assert not set(before) & set(now)


def test_spare_files_grow_no_more_in_number_than_a_batch_has(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    for _ in range(5):
        folder = spool.open()
        for _ in range(3):
            write_spool(folder, [pa.py_buffer(b"x")])
        (Path(folder) / "lists-of-a-job").write_bytes(b"which task has which chunks")
        close_spool(folder, reuse=True)
    assert len([path for path in spool.folder.rglob("*") if path.is_file()]) == 3


def test_no_more_is_kept_than_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "KEPT_BYTES", 2 * ALIGNMENT)
    spool = Spool(str(tmp_path))
    for _ in range(2):
        folder = spool.open()
        for _ in range(3):
            write_spool(folder, [pa.py_buffer(b"x" * ALIGNMENT)])
        close_spool(folder, reuse=True)
        assert len([path for path in spool.folder.rglob("*") if path.is_file()]) == 2


def test_a_spool_goes_with_its_stream(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    write_spool(spool.open(), [pa.py_buffer(b"a")])
    del spool
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("gone", ["its folder", "all temporary files"])
def test_a_spool_that_was_tidied_away_under_a_running_stream_is_made_anew(tmp_path: Path, gone: str) -> None:
    parent = tmp_path / "temporary"
    parent.mkdir()
    spool = Spool(str(parent))
    folder = spool.open()
    shutil.rmtree(spool.folder if gone == "its folder" else parent)
    close_spool(folder, reuse=True)
    folder = spool.open()
    path, (begin,) = write_spool(folder, [pa.py_buffer(b"abc")])
    assert SpoolReader().read(path, begin, 3).to_pybytes() == b"abc"
    close_spool(folder, reuse=True)


def test_a_file_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such"):
        SpoolReader().read(str(tmp_path / "no-such"), 0, 1)


def some_chunks() -> Cut:
    cut = Cut(task=2, seq=5)
    rows = 3
    origin = pa.table(
        {"envelope_schema_id": pa.array([7] * rows, pa.int32())}
        | {f.name: pa.nulls(rows, f.type) for f in ORIGIN_FIELDS}
    )
    cut.rows(
        pa.array(["b", "a", "b"]), pa.array([1, 1, 2], pa.int32()), pa.array(["0"] * rows),
        pa.array([b"b1", b"a1", b"b2"]), origin,
    )  # fmt: skip
    cut.bad(pa.table([pa.nulls(1, f.type) for f in REJECTED_SCHEMA], schema=REJECTED_SCHEMA))
    cut.tombstones("a", 1)
    return cut


def test_the_same_chunks_are_read_from_rows_and_from_a_spool(tmp_path: Path) -> None:
    cut = some_chunks()
    inline, spooled = list(cut.batches()), list(cut.batches(str(tmp_path)))
    assert all(batch.schema == CHUNK_SCHEMA for batch in (*inline, *spooled))
    assert all(b.column("blob").null_count == b.num_rows for b in spooled)

    def content(batches: list[pa.RecordBatch]) -> list[object]:
        reads = {"rows": read_records, "bad": read_rejected}
        return [
            (c["kind"], c["route"], c["groups"], c["kind"] in reads and reads[c["kind"]](c["blob"]).to_pylist())
            for c in chunk_rows(iter(batches))
        ]

    assert content(inline) == content(spooled)
    assert len(content(inline)) == 4
