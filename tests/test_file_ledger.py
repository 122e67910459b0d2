"""The file ledger holds every file once, in file batches, whatever dies in between."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import StoreDown
from distributary.sources import file_ledger
from distributary.sources.file_ledger import (
    FILES_SCHEMA,
    FileLedger,
    Waiting,
    file_batches,
    read_version,
    tidy,
    waiting,
)
from distributary.sources.known_files import FileRef
from distributary.tables.checkpoints import CHECKPOINT_COMMITS, checkpoint_due
from distributary.tables.faults import CommitConflict
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.services.stores import S3

STORE = Store()
MAX_FILES, MAX_BYTES = 3, 1000


def refs(*numbers: int, size: int = 10, mtime_ms: int = 5) -> list[FileRef]:
    return [
        FileRef(f"/shop/orders/2026/01/01/00/{n:02d}/f", size, mtime_ms, f"orders/2026/01/01/00/{n:02d}")
        for n in numbers
    ]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def opened(state: str, store: Store = STORE) -> FileLedger:
    return FileLedger(state, "shop", store)


def add(ledger: FileLedger, files: list[FileRef]) -> int:
    return ledger.add(files, MAX_FILES, MAX_BYTES)


def rows(state: str, store: Store = STORE) -> list[dict[str, Any]]:
    table = Table(f"{state}/files", store).open()
    assert table is not None
    return list(table.delta.to_pyarrow_table().sort_by([("parcel", "ascending"), ("path", "ascending")]).to_pylist())


def by_file_batch(state: str) -> list[list[str]]:
    found: dict[int, list[str]] = {}
    for row in rows(state):
        found.setdefault(row["parcel"], []).append(row["path"])
    return list(found.values())


# -- file batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([], []),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([600, 400, 1], [[600, 400], [1]]),
        ([600, 401], [[600], [401]]),
        ([1, 5000, 1], [[1], [5000], [1]]),
        ([5000], [[5000]]),
    ],
)
def test_a_file_batch_is_bounded_by_files_and_bytes_and_a_larger_file_is_one_alone(
    sizes: list[int], cut: list[list[int]]
) -> None:
    files = [FileRef(str(n), size, 0) for n, size in enumerate(sizes)]
    assert [[ref.size for ref in file_batch] for file_batch in file_batches(files, 3, 1000)] == cut


@given(st.lists(st.integers(0, 2000)), st.integers(1, 5), st.integers(1, 3000))
def test_file_batches_keep_all_files_in_order(sizes: list[int], max_files: int, max_bytes: int) -> None:
    files = [FileRef(str(n), size, 0) for n, size in enumerate(sizes)]
    cut = list(file_batches(files, max_files, max_bytes))
    assert [ref for file_batch in cut for ref in file_batch] == files
    for file_batch in cut:
        assert 1 <= len(file_batch) <= max_files
        assert len(file_batch) == 1 or sum(ref.size for ref in file_batch) <= max_bytes


def test_a_file_batch_is_one_commit_with_one_data_file(state: str) -> None:
    ledger = opened(state)
    ledger.create()
    assert add(ledger, refs(*range(7))) == 3
    table = DeltaTable(f"{state}/files")
    assert table.version() == 3
    assert len(table.file_uris()) == 3
    assert by_file_batch(state) == [[ref.path for ref in refs(*numbers)] for numbers in ((0, 1, 2), (3, 4, 5), (6,))]
    assert table.to_pyarrow_table().schema.equals(FILES_SCHEMA)


def test_a_row_tells_of_its_file(state: str) -> None:
    before = int(time.time() * 1000)
    ref = FileRef("gs://b/shop/orders/2026/01/01/00/00/é.avro", 12, 34, "orders/2026/01/01/00/00", '"tag"')
    add(opened(state), [ref])
    (row,) = rows(state)
    assert before <= row.pop("found_ms") <= int(time.time() * 1000)
    assert row == {
        "path": ref.path, "size": 12, "mtime_ms": 34, "etag": '"tag"', "folder": ref.folder, "attempt": 1, "parcel": 0,
    }  # fmt: skip


# -- known files -------------------------------------------------------------------------------------------


def test_a_file_is_entered_once(state: str) -> None:
    ledger = opened(state)
    assert add(ledger, refs(0, 1)) == 1
    assert add(ledger, refs(0, 1)) == 0
    assert add(ledger, refs(1, 2)) == 1
    assert by_file_batch(state) == [[r.path for r in refs(0, 1)], [r.path for r in refs(2)]]


def test_a_ledger_that_is_opened_again_knows_its_files(state: str) -> None:
    add(opened(state), refs(0, 1, 2, 3))
    again = opened(state)
    assert again.known_files.unseen(refs(0, 1, 2, 3, 4)) == refs(4)
    assert again.folders == ["orders/2026/01/01/00/03"]
    assert add(again, refs(3, 4)) == 1
    assert rows(state)[-1]["parcel"] == 2


def test_a_changed_file_is_the_next_attempt_also_after_a_restart(state: str) -> None:
    ledger = opened(state)
    add(ledger, refs(0))
    add(ledger, refs(0, size=11))
    again = opened(state)
    assert again.known_files.unseen(refs(0, size=11)) == []
    add(again, refs(0, size=11, mtime_ms=6))
    assert [(row["attempt"], row["size"], row["mtime_ms"]) for row in rows(state)] == [
        (1, 10, 5),
        (2, 11, 5),
        (3, 11, 6),
    ]
    assert opened(state).known_files.unseen(refs(0, size=11, mtime_ms=6)) == []


def test_broken_files_are_given_to_the_stream_once_more(state: str) -> None:
    ledger = opened(state)
    add(ledger, refs(0, 1, 2, 3))
    broken = [ref.path for ref in refs(1, 3)]
    assert ledger.requeue([*broken, "/shop/unknown"], MAX_FILES, MAX_BYTES) == 1
    assert opened(state).requeue(broken[:1], MAX_FILES, MAX_BYTES) == 1
    attempts = Counter({row["path"]: row["attempt"] for row in rows(state)})
    assert attempts == {ref.path: n for ref, n in zip(refs(0, 1, 2, 3), (1, 3, 1, 2), strict=True)}
    assert opened(state).known_files.unseen(refs(0, 1, 2, 3)) == []


def test_files_with_long_names_are_found_again(state: str) -> None:
    """Their bounds are not in the table's log, which must not mean that they are not there."""
    ledger = opened(state)
    [ref] = refs(1)
    long = replace(ref, path=f"gs://a-bucket-with-a-long-name/{'folder/' * 20}file.avro")
    add(ledger, [long])
    assert ledger.requeue([long.path], MAX_FILES, MAX_BYTES) == 1
    assert [row["attempt"] for row in rows(state)] == [1, 2]


def test_files_that_do_not_fill_a_file_batch_can_be_left_for_the_next_time(state: str) -> None:
    ledger = opened(state)
    assert ledger.add(refs(0, 1, 2, 3), MAX_FILES, MAX_BYTES, rest=False) == 1
    assert ledger.newest_file_batch == 0
    assert ledger.known_files.unseen(refs(2, 3)) == refs(3)


def test_a_requeue_that_is_disturbed_gives_no_file_twice(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(state)
    add(ledger, refs(*range(6)))
    real, calls = ledger._commit, 0

    def disturbed(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CommitConflict("another was first")
        real(*args)

    monkeypatch.setattr(ledger, "_commit", disturbed)
    assert ledger.requeue([ref.path for ref in refs(*range(6))], MAX_FILES, MAX_BYTES) == 2
    assert Counter(row["attempt"] for row in rows(state)) == {1: 6, 2: 6}


def test_nothing_to_requeue_is_no_file_batch(state: str) -> None:
    assert opened(state).requeue(["/x"], MAX_FILES, MAX_BYTES) == 0
    ledger = opened(state)
    add(ledger, refs(0))
    assert ledger.requeue([], MAX_FILES, MAX_BYTES) == 0


# -- what can go wrong -------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a kill: nothing of ours may catch it."""


STEPS = [
    (Table, "write"),
    (file_ledger, "append_on_tip"),
    (Snapshot, "open"),
    (Table, "commit"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(("module", "step"), STEPS, ids=[step for _, step in STEPS])
def test_a_death_at_any_step_loses_no_file_and_doubles_none(
    state: str, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, nth: int, when: str
) -> None:
    ledger = opened(state)
    real: Callable[..., Any] = getattr(module, step)
    calls = 0

    def dying(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            raise Killed
        result = real(*args)
        if calls == nth:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, step, dying)
        try:
            for n in range(0, 6, 2):
                add(ledger, refs(n, n + 1))
        except Killed:
            pass
        else:
            # Only the first file batch needs the log; the others come on its tip.
            assert (step, nth) in {("open", 2), ("commit", 2)}
    again = opened(state)
    add(again, refs(*range(8)))
    assert Counter(row["path"] for row in rows(state)) == Counter(ref.path for ref in refs(*range(8)))
    numbers = sorted({row["parcel"] for row in rows(state)})
    assert numbers == list(range(len(numbers)))


CHILD = """
import sys
from distributary.sources.file_ledger import FileLedger
from distributary.sources.known_files import FileRef
from distributary.tables.store import Store
ledger = FileLedger(sys.argv[1], "shop", Store())
print("ready", flush=True)
for n in range(int(sys.argv[2])):
    ledger.add([FileRef(f"/shop/{m}", 1, 1) for m in range(n * 2, n * 2 + 2)], 2, 100)
"""


@pytest.mark.crash
def test_a_ledger_whose_writer_is_killed_holds_every_file_once(state: str) -> None:
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", CHILD, state, "400"], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(random.uniform(0.1, 0.4))
            child.kill()
    add(opened(state), [FileRef(f"/shop/{n}", 1, 1) for n in range(800)])
    assert Counter(row["path"] for row in rows(state)) == Counter(f"/shop/{n}" for n in range(800))


def test_of_two_processes_that_add_the_same_files_one_enters_them(state: str) -> None:
    one, other = opened(state), opened(state)
    add(one, refs(0, 1))
    add(other, refs(0, 1, 2))
    add(one, refs(2, 3))
    add(other, refs(3, 4))
    assert Counter(row["path"] for row in rows(state)) == Counter(ref.path for ref in refs(0, 1, 2, 3, 4))


def test_a_commit_that_was_made_although_it_failed_is_taken_in(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(state)
    real = Table.commit

    def torn(*args: Any) -> None:
        real(*args)
        raise OSError("connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", torn)
        with pytest.raises(StoreDown):
            add(ledger, refs(0, 1))
    assert ledger.known_files.unseen(refs(0)) == refs(0)
    add(ledger, refs(0, 1, 2))
    assert Counter(row["path"] for row in rows(state)) == Counter(ref.path for ref in refs(0, 1, 2))


def test_endless_conflicts_are_an_outage(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise CommitConflict("another was first")

    monkeypatch.setattr(Table, "commit", lost)
    with pytest.raises(StoreDown):
        add(opened(state), refs(0))


def test_a_ledger_that_is_there_is_not_made_again(state: str) -> None:
    one, other = opened(state), opened(state)
    one.create()
    other.create()
    add(one, refs(0))
    other.create()
    add(other, refs(0, 1))
    assert by_file_batch(state) == [[refs(0)[0].path], [refs(1)[0].path]]


# -- how far the stream is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "version"),
    [(None, -1), ({"reservoirVersion": 5, "index": -1}, 4), ({"reservoirVersion": 5, "index": 0}, 5)],
)
def test_an_offset_says_which_version_was_read(offset: dict[str, Any] | None, version: int) -> None:
    assert read_version(offset) == version


def test_what_waits_is_what_came_after_the_version_that_was_read(state: str) -> None:
    assert waiting(state, STORE, -1) == Waiting(0, 0)
    ledger = opened(state)
    ledger.create()
    add(ledger, refs(*range(7)))
    found = [waiting(state, STORE, version) for version in range(-1, 5)]
    assert found == [Waiting(n, n * 10) for n in (7, 7, 4, 1, 0, 0)]


# -- upkeep ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [0, 7, CHECKPOINT_COMMITS - 1])
def test_the_log_is_checkpointed_so_that_opening_does_not_read_all_of_it(tmp_path: Path, turn: int) -> None:
    """Whichever turn the ledger's address gives it among the tables."""
    names = (str(tmp_path / f"state-{n}") for n in itertools.count())
    state = next(name for name in names if checkpoint_due(f"{name}/files", turn))
    ledger = opened(state)
    for n in range(2 * CHECKPOINT_COMMITS):
        add(ledger, refs(n))
    made = sorted(int(p.name[:20]) for p in Path(state, "files/_delta_log").glob("*.checkpoint.parquet"))
    newest = DeltaTable(f"{state}/files").version()
    assert made == [v for v in range(1, newest + 1) if (v - turn) % CHECKPOINT_COMMITS == 0]
    assert len(rows(state)) == 2 * CHECKPOINT_COMMITS


def test_upkeep_leaves_the_same_rows_in_fewer_files(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "MANY_FILES", 10)
    monkeypatch.setattr(file_ledger, "KEPT_HOURS", 0)
    monkeypatch.setattr(file_ledger, "KEPT_VERSIONS", 4)
    ledger = opened(state)
    for n in range(50):
        add(ledger, refs(n))
    before = rows(state)
    tidy(state, STORE, 45)
    assert rows(state) == before
    assert len(DeltaTable(f"{state}/files").file_uris()) == 1
    # File batches 46 to 49 are unread: their data files and their entries in the log must stay.
    assert len(list(Path(state, "files").glob("*.parquet"))) == 51
    entries = sorted(int(p.name[:20]) for p in Path(state, "files/_delta_log").glob("*.json"))
    assert 0 < entries[0] <= 41 and entries == list(range(entries[0], 51))
    assert waiting(state, STORE, 45).files == 4
    add(ledger, refs(50))
    assert waiting(state, STORE, 50).files == 1
    tidy(state, STORE, 51)
    assert len(list(Path(state, "files").glob("*.parquet"))) == 2
    assert opened(state).known_files.unseen(refs(*range(52))) == refs(51)


def test_upkeep_of_a_ledger_that_is_not_there_does_nothing(state: str) -> None:
    tidy(state, STORE, -1)
    assert not Path(state).exists()


@pytest.mark.services
def test_a_ledger_in_an_object_store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "MANY_FILES", 3)
    bucket = s3.bucket()
    state, store = f"s3a://{bucket.name}/state", Store(bucket.options)
    ledger = opened(state, store)
    ledger.create()
    add(ledger, refs(*range(12)))
    again = opened(state, store)
    tidy(state, store, 2)
    assert add(again, refs(*range(13))) == 1
    assert Counter(row["path"] for row in rows(state, store)) == Counter(ref.path for ref in refs(*range(13)))
    assert waiting(state, store, 2) == Waiting(7, 70)
