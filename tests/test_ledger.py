"""The ledger on its own: one commit per batch, counts that only add up, a compaction that loses none."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.state import ledger as module
from distributary.state.ledger import (
    LONGEST_REST_SEC,
    Entry,
    Ledger,
    add,
    is_batch,
    quarantine_files,
    read_entries,
    replay_stream,
    rests_until,
    totals,
)
from distributary.tables import checkpoints
from distributary.tables.datafile import DataFile
from distributary.tables.snapshot import Snapshot
from distributary.tables.store import Store


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return reopened(tmp_path)


def reopened(folder: Path) -> Ledger:
    """As another process finds it."""
    return Ledger(str(folder), "games", Store())


def batch_of(stream: str, batch: int, *routes: str, rows: int = 10, bad: int = 1) -> list[Entry]:
    entries = [
        Entry(
            stream, batch, route, table=f"/lake/{route}", state="written", rows_in=rows, rows_written=rows - bad,
            rows_quarantined=bad, schema_ids={7: rows - bad}, reasons={"CORRUPT_PAYLOAD": bad} if bad else {},
            decoders={7: "ptars"}, newest=1_000_000 + batch, created=batch == 0,
        )
        for route in routes
    ]  # fmt: skip
    return [*entries, Entry(stream, batch, None, tombstones=1)]


def test_entries_come_back_as_they_were_recorded(tmp_path: Path, ledger: Ledger) -> None:
    entries = batch_of("s", 0, "a", "é b")
    ledger.record("s", 0, entries, {"quarantine": [], "note": "é"})
    found = reopened(tmp_path)
    assert [replace(e, finished_at=0, details=None) for e in found.entries()] == entries
    assert all(e.finished_at > 0 for e in found.entries())
    assert found.details("s", 0) == {"quarantine": [], "note": "é"}
    assert found.details("s", 1) == {}


def test_a_ledger_that_does_not_exist_yet_is_empty(ledger: Ledger) -> None:
    assert ledger.entries() == []
    assert not ledger.is_finished("s", 0)
    assert ledger.details("s", 0) == {}


def test_a_batch_is_recorded_once(tmp_path: Path, ledger: Ledger) -> None:
    for decided in (ledger, reopened(tmp_path)):
        decided.record("s", 0, batch_of("s", 0, "a"), {})
    assert len(reopened(tmp_path).entries()) == 2


def test_a_finished_batch_is_known_in_the_next_process(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record("s", 0, batch_of("s", 0, "a"), {})
    ledger.record("s", 1, batch_of("s", 1, "a"), {})
    found = reopened(tmp_path)
    assert [found.is_finished("s", b) for b in (0, 1, 2)] == [True, True, False]
    assert not found.is_finished("other stream", 0)


def test_the_newest_entry_of_a_route_is_its_state(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record("s", 0, batch_of("s", 0, "a"), {})
    parked = Entry("s", 1, "a", state="parked", error="in the way", failures=2, retry_at=99)
    ledger.record("s", 1, [parked, Entry("s", 1, None)], {})
    for found in (ledger, reopened(tmp_path)):
        newest = found.newest["a"]
        assert (newest.state, newest.failures, newest.retry_at, newest.error) == ("parked", 2, 99, "in the way")


def test_totals_add_up_and_a_replay_moves_rows_over(ledger: Ledger) -> None:
    ledger.record("s", 0, batch_of("s", 0, "a", "b"), {})
    ledger.record("s", 1, batch_of("s", 1, "a"), {})
    moved = Entry(
        replay_stream(1), 1, "a", state="written", rows_written=1, rows_quarantined=-1, schema_ids={7: 1},
        reasons={"CORRUPT_PAYLOAD": -1},
    )  # fmt: skip
    ledger.record(replay_stream(1), 1, [moved, Entry(replay_stream(1), 1, None)], {})
    found = totals(ledger.entries())
    assert (found["a"].rows_in, found["a"].rows_written, found["a"].rows_quarantined) == (20, 19, 1)
    assert (found["a"].schema_ids, found["a"].reasons) == ({7: 19}, {"CORRUPT_PAYLOAD": 1})
    assert (found["a"].created, found["a"].table, found["a"].newest) == (True, "/lake/a", 1_000_001)
    assert (found["b"].rows_in, found["b"].batches) == (10, 1)
    assert found[None].tombstones == 2


def test_adding_keeps_the_newer_state() -> None:
    old, new = batch_of("s", 0, "a")[0], replace(batch_of("s", 1, "a")[0], state="parked", error="why")
    both = add(old, new)
    assert (both.state, both.error, both.batch, both.batches) == ("parked", "why", 1, 2)
    assert add(None, new) == new


def test_a_replay_of_batch_9_does_not_finish_batch_9(ledger: Ledger) -> None:
    ledger.record(replay_stream(9), 9, [Entry(replay_stream(9), 9, None)], {})
    assert not ledger.is_finished("s", 0)
    assert not is_batch(replay_stream(9))


def test_a_loss_at_the_source_is_kept_as_a_note(tmp_path: Path, ledger: Ledger) -> None:
    """Case S6."""
    ledger.note_loss(["topic t partition 0: offsets 3 to 7 are gone"])
    ledger.note_loss(["topic t was deleted"])
    notes = [e for e in reopened(tmp_path).entries() if e.state == "loss"]
    assert [e.error for e in notes] == ["topic t partition 0: offsets 3 to 7 are gone", "topic t was deleted"]
    assert not any(is_batch(e.stream) for e in notes)


def test_compaction_adds_up_old_batches_and_loses_no_count(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UPKEEP_BATCHES", 5)
    monkeypatch.setattr(module, "KEPT_ROWS", 3)
    for batch in range(12):
        ledger.record("s", batch, batch_of("s", batch, "a", "b"), {"number": batch})
    found = reopened(tmp_path)
    assert len(found.entries()) < 36
    for route in ("a", "b"):
        whole = totals(found.entries())[route]
        assert (whole.rows_in, whole.rows_quarantined, whole.batches, whole.schema_ids) == (120, 12, 12, {7: 108})
    assert totals(found.entries())[None].tombstones == 12
    assert found.is_finished("s", 11)
    assert found.details("s", 11) == {"number": 11}


def test_a_ledger_of_many_routes_is_not_folded_with_every_batch(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS", 0)
    folded: list[int] = []
    compact = ledger.compact

    def counted() -> None:
        folded.append(1)
        compact()

    monkeypatch.setattr(ledger, "compact", counted)
    routes = [f"route {number}" for number in range(10)]
    for batch in range(8):
        ledger.record("s", batch, batch_of("s", batch, *routes), {})
    assert 1 <= len(folded) <= 4
    assert {totals(reopened(tmp_path).entries())[route].batches for route in routes} == {8}


def test_compaction_keeps_the_batch_marks(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the batch after it could be recorded twice."""
    monkeypatch.setattr(module, "KEPT_ROWS", 0)
    for batch in range(3):
        ledger.record("s", batch, batch_of("s", batch, "a"), {})
    ledger.compact()
    reopened(tmp_path).record("s", 2, batch_of("s", 2, "a"), {})
    assert totals(reopened(tmp_path).entries())["a"].rows_in == 30


def test_two_processes_can_write_side_by_side(tmp_path: Path) -> None:
    """A run and a replay: also when the ledger does not exist yet."""
    ledgers = [reopened(tmp_path) for _ in range(3)]
    failed: list[BaseException] = []

    def work(number: int, own: Ledger) -> None:
        try:
            for batch in range(4):
                own.record(f"s{number}", batch, batch_of(f"s{number}", batch, "a"), {})
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert totals(reopened(tmp_path).entries())["a"].rows_in == 120


def test_a_state_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    ledger = reopened(tmp_path)
    (tmp_path / "ledger").write_text("in the way")
    with pytest.raises(OSError):
        ledger.record("s", 0, batch_of("s", 0, "a"), {})


def test_the_decision_names_the_files_of_the_quarantine() -> None:
    file = DataFile("part-1.parquet", 10, 2, "{}", 5)
    assert quarantine_files({"quarantine": [file.to_json()]}) == [file]
    assert quarantine_files({}) == []


def test_the_ledger_is_a_plain_delta_table(ledger: Ledger) -> None:
    ledger.record("s", 0, batch_of("s", 0, "a"), {})
    assert DeltaTable(ledger.uri).to_pyarrow_table(columns=["route", "rows_in"]).num_rows == 2


def test_however_many_batches_there_were_a_reader_replays_few_commits(tmp_path: Path, ledger: Ledger) -> None:
    for batch in range(45):
        ledger.record("s", batch, batch_of("s", batch, "a"), {})
    checkpoints = list(Path(ledger.uri, "_delta_log").glob("*.checkpoint.parquet"))
    assert len(checkpoints) in (2, 3)  # whose turn it is depends on the folder's name
    assert len(reopened(tmp_path).entries()) == 90


def test_a_table_that_an_earlier_version_wrote_as_a_relative_folder_is_known_from_its_root(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake)
    ledger = Ledger(str(lake), "games", Store())
    ledger.record("s", 0, [Entry("s", 0, "a", table="lake/a", merged="lake/b"), Entry("s", 0, None)], {})
    (entry,) = (e for e in read_entries(str(lake), Store()) if e.route == "a")
    assert (entry.table, entry.merged) == (str(lake / "lake/a"), str(lake / "lake/b"))


def test_commits_that_the_ledger_no_longer_needs_go_after_an_hour(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One a batch would be hundreds of thousands in the 30 days that Delta keeps them by default."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_COMMITS", 4)
    # Only those made anew drop commits; which of ten that is hangs on the folder's name.
    monkeypatch.setattr(checkpoints, "WHOLE", 1)
    folder = tmp_path / "ledger"
    for batch in range(24):
        ledger.record("s", batch, [Entry("s", batch, None, rows_in=1)], {})
        for file in (folder / "_delta_log").iterdir():
            old = file.stat().st_mtime - 3601
            os.utime(file, (old, old))
    # All since the checkpoint before the last: that one is the newest of more than an hour.
    assert len(list(folder.glob("_delta_log/*.json"))) <= 2 * 4
    assert totals(reopened(tmp_path).entries())[None].rows_in == 24


def test_a_ledger_of_an_earlier_version_is_given_the_shorter_time_too(tmp_path: Path, ledger: Ledger) -> None:
    ledger.record("s", 0, [Entry("s", 0, None)], {})
    DeltaTable(tmp_path / "ledger").alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    ledger.compact()
    found = DeltaTable(tmp_path / "ledger").metadata().configuration
    assert found["delta.logRetentionDuration"] == "interval 1 hour"


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The wall clock says `seconds` from now on."""
    monkeypatch.setattr("time.time", lambda: seconds)


def test_a_clock_that_is_set_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest batch is found with its details, from which a crash is completed, and each route's state is its last
    one, across a replay too."""
    ledger = reopened(tmp_path)
    at(monkeypatch, 10_000)
    ledger.record("s", 7, batch_of("s", 7, "a", "b"), {"quarantine": ["old"]})
    parked = Entry(replay_stream(1), 1, "b", state="parked")
    ledger.record(replay_stream(1), 1, [parked, Entry(replay_stream(1), 1, None)], {})
    at(monkeypatch, 10_000 - 3_600)
    reopened(tmp_path).record("s", 8, batch_of("s", 8, "b"), {"quarantine": ["new"]})
    found = reopened(tmp_path)
    assert found.details("s", 8) == {"quarantine": ["new"]}
    assert (found.newest["b"].state, found.newest["b"].batch) == ("written", 8)
    assert totals(found.entries())["b"].state == "written"
    assert [e.batch for e in found.entries() if e.stream == "s" and e.route is None] == [7, 8]


def test_entries_of_an_earlier_version_come_before_those_with_a_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = module.LEDGER_SCHEMA
    at(monkeypatch, 10_000)
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "LEDGER_SCHEMA", before.remove(before.get_field_index("sequence")))
        for batch in (0, 1):
            reopened(tmp_path).record("s", batch, batch_of("s", batch, "a"), {"number": batch})
    reopened(tmp_path).compact()
    at(monkeypatch, 5_000)
    reopened(tmp_path).record("s", 2, batch_of("s", 2, "a"), {"number": 2})
    found = reopened(tmp_path)
    assert [e.batch for e in found.entries() if e.route is None] == [0, 1, 2]
    assert (found.details("s", 2), found.newest["a"].batch) == ({"number": 2}, 2)


@pytest.mark.parametrize("other", ["replay", "fold"])
def test_a_fold_loses_and_doubles_nothing_that_is_committed_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS", 3)
    ledger = reopened(tmp_path)
    for batch in range(6):
        ledger.record("s", batch, batch_of("s", batch, "a"), {"number": batch})
    read = module._entries
    came: list[str] = []

    def meanwhile(table: Snapshot) -> list[Entry]:
        if not came:
            came.append(other)
            second = reopened(tmp_path)
            if other == "fold":
                second.compact()
            name = replay_stream(1)
            second.record(name, 1, [Entry(name, 1, "a", rows_written=1, rows_quarantined=-1), Entry(name, 1, None)], {})
        return read(table)

    with monkeypatch.context() as racing:
        racing.setattr(module, "_entries", meanwhile)
        ledger.compact()
    assert came == [other]
    found = reopened(tmp_path)
    whole = totals(found.entries())["a"]
    assert (whole.rows_in, whole.rows_written, whole.rows_quarantined) == (60, 55, 5)
    assert found.is_finished(replay_stream(1), 1)
    assert found.details("s", 5) == {"number": 5}


def test_a_rest_that_ends_further_away_than_any_rest_is_over(ledger: Ledger) -> None:
    """It was written by a clock that ran ahead."""
    rests = {"soon": 1_000 + 60, "over": 1_000 - 1, "far": 1_000 + 86_400}
    entries = [Entry("s", 0, r, state="parked", error="why", retry_at=int(t * 1e6)) for r, t in rests.items()]
    ledger.record("s", 0, [*entries, Entry("s", 0, None)], {})
    assert ledger.resting(1_000) == {"soon": "why"}


def test_a_table_rests_twice_as_long_after_each_failure_and_never_longer_than_an_hour() -> None:
    rests = [rests_until(failures, 60.0, 1000.0) / 1e6 - 1000.0 for failures in (1, 2, 3, 7, 100, 5000)]
    assert rests == [60, 120, 240, LONGEST_REST_SEC, LONGEST_REST_SEC, LONGEST_REST_SEC]


def test_whoever_watches_the_ledger_cannot_fail_a_batch(
    tmp_path: Path, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("no such label")

    ledger.watcher = fails
    ledger.record("s", 0, batch_of("s", 0, "a"), {})
    assert ledger.is_finished("s", 0) and reopened(tmp_path).is_finished("s", 0)
    assert "no such label" in caplog.text
