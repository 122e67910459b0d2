"""Messages with keys through whole batches: the driver's part, crashes between its steps, the quarantine and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from distributary.engine import appending, packing
from distributary.engine import batch as batch_of
from distributary.engine.changes import deliver, merging
from distributary.engine.committed import committed
from distributary.engine.decisions import Decision
from distributary.engine.messages import chunks
from distributary.sources.bronze_rows import bronze_schema
from distributary.state.journal import Journal
from distributary.state.ledger import Ledger, totals
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from tests.scenarios import dying
from tests.sparkless_messages import Players

TEXTS = {
    1: 'syntax = "proto3"; message player { string id = 1; int32 level = 2; }',
    2: 'syntax = "proto3"; message player { string id = 1; int64 level = 2; string clan = 3; }',
}
KEYED: dict[str, Any] = {"source": {"key": "id"}}


def held(players: Players) -> dict[str, int | None]:
    """Key -> level; None for a row that is gone."""
    rows = DeltaTable(players.table).to_pyarrow_table().to_pylist()
    found = {row["id"]: None if row["_deleted"] else row["level"] for row in rows}
    assert len(found) == len(rows)
    return found


def kept(players: Players) -> list[tuple[str, int]]:
    """(reason, offset) of the quarantine's open rows."""
    path = Path(players.config.state_folder.quarantine)
    rows = DeltaTable(path).to_pyarrow_table().to_pylist() if path.exists() else []
    return sorted((row["reason"], row["offset"]) for row in rows if row["state"] != "replayed")


def books(players: Players) -> Any:
    config = players.config
    return totals(Ledger(config.state_root, config.pipeline, Store()).entries())[players.topic]


def test_batches_update_delete_and_bring_back_rows(lake: Path) -> None:
    players = Players(lake, TEXTS, **KEYED)
    one = players.record
    writer = players.writer()
    players.take(0, [one("x", level=1), one("y", level=2), one("x", level=3)], writer)
    report = players.take(1, [one("y", None), one("z", 2, level=2**40, clan="red"), one("nobody", None)], writer)
    assert (report.rows_in, report.rows_written, report.tombstones) == (3, 3, 0)
    assert held(players) == {"x": 3, "y": None, "z": 2**40, "nobody": None}
    players.take(2, [one("y", level=9)], writer)
    assert held(players)["y"] == 9
    said = books(players)
    assert (said.rows_in, said.rows_written, said.upserts, said.deletes) == (7, 7, 5, 1)


def test_a_message_that_comes_out_of_the_quarantine_does_not_win_over_a_newer_one(lake: Path) -> None:
    players = Players(lake, TEXTS, **KEYED)
    one = players.record
    players.take(
        0, [one("x", schema_id=99, level=5), one("y", schema_id=99, level=6), one("x", level=7), one("y", None)]
    )
    players.take(1, [one("z", schema_id=99, level=8)])
    assert held(players) == {"x": 7, "y": None}
    assert kept(players) == [("UNKNOWN_SCHEMA_ID", 0), ("UNKNOWN_SCHEMA_ID", 1), ("UNKNOWN_SCHEMA_ID", 4)]
    (lake / "player.proto").write_text(TEXTS[1])
    players.config.registry.texts[99] = str(lake / "player.proto")  # type: ignore[union-attr]
    assert players.replay().rows == {"players": 3}
    assert held(players) == {"x": 7, "y": None, "z": 8}
    assert kept(players) == []
    said = books(players)
    assert (said.rows_in, said.rows_written, said.rows_quarantined, said.stale) == (5, 5, 0, 2)


@pytest.mark.parametrize("log", [None, "{route}_log"])
def test_a_run_that_dies_between_the_log_and_the_merge_is_finished_by_the_next(
    lake: Path, log: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Players(lake, TEXTS, tables={} if log is None else {"log": log}, **KEYED)
    one = players.record
    players.take(0, [one("x", level=1)])
    batch = [one("x", level=2), one("y", level=3), one("x", None)]

    class Killed(KeyboardInterrupt):
        pass

    def die(*_: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(deliver, "merge_now", die)
        with pytest.raises(Killed):
            players.take(1, batch)
    assert held(players) == {"x": 1}
    players.take(1, batch)
    players.take(1, batch)
    assert held(players) == {"x": None, "y": 3}
    if log is not None:
        assert DeltaTable(f"{players.table}_log").to_pyarrow_table().num_rows == 4
    assert (books(players).rows_in, books(players).rows_written) == (4, 4)


@pytest.mark.parametrize("log", [None, "{route}_log"])
def test_a_route_that_several_tasks_write_is_one_merge(
    lake: Path, log: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 4)
    monkeypatch.setattr(packing, "SHARE_ROWS", 4)
    monkeypatch.setattr(packing, "TABLE_WEIGHT", 0)
    shared: list[Decision] = []
    whole = Decision.shared

    def noted(decision: Decision) -> Decision:
        shared.append(decision)
        return whole(decision)

    monkeypatch.setattr(Decision, "shared", noted)
    players = Players(lake, TEXTS, tables={} if log is None else {"log": log}, **KEYED)
    records = [players.record(f"k{n % 5}", level=n) for n in range(40)] + [players.record("k1", None)]
    players.take(0, records)
    assert shared
    assert held(players) == {"k0": 35, "k1": None, "k2": 37, "k3": 38, "k4": 39}
    if log is not None:
        assert DeltaTable(f"{players.table}_log").to_pyarrow_table().num_rows == 41
    assert (books(players).rows_in, books(players).rows_written) == (41, 41)


@pytest.mark.parametrize("log", [None, "{route}_log"])
def test_a_table_that_cannot_be_written_parks_its_route_and_takes_its_records_back(lake: Path, log: str | None) -> None:
    players = Players(lake, TEXTS, tables={} if log is None else {"log": log}, **KEYED)
    one = players.record
    Path(players.table).parent.mkdir()
    Path(players.table).write_text("no folder")
    report = players.take(0, [one("x", level=1), one("y", level=2), one("x", None)])
    assert (report.parked, report.rows_quarantined) == (("players",), 3)
    bad = players.take(1, [one("z", schema_id=99, level=9)])
    assert bad.rows_quarantined == 1
    Path(players.table).unlink()
    (lake / "player.proto").write_text(TEXTS[1])
    players.config.registry.texts[99] = str(lake / "player.proto")  # type: ignore[union-attr]
    assert players.replay().rows == {"players": 4}
    assert held(players) == {"x": None, "y": 2, "z": 9}
    assert (books(players).rows_in, books(players).rows_written, books(players).rows_quarantined) == (4, 4, 0)
    if log is not None:
        rows = DeltaTable(f"{players.table}_log").to_pyarrow_table().column("_origin").to_pylist()
        assert sorted(row["row"] for row in rows) == [0, 1, 2, 3]


def expire_commits(table: str) -> None:
    """As the log's cleaning does after 30 days: what its commits left is in a checkpoint."""
    DeltaTable(table).create_checkpoint()
    for commit in Path(table, "_delta_log").glob("*.json"):
        commit.unlink()


@pytest.mark.parametrize("log", [None, "{route}_log"])
def test_rows_whose_commit_in_the_log_has_expired_are_not_logged_twice(lake: Path, log: str | None) -> None:
    players = Players(lake, TEXTS, tables={} if log is None else {"log": log}, **KEYED)
    one = players.record
    Path(players.table).parent.mkdir()
    Path(players.table).write_text("no folder")
    assert players.take(0, [one("x", level=1), one("y", level=2)]).parked == ("players",)
    Path(players.table).unlink()
    if log is None:
        assert players.replay().rows == {"players": 2}
        return
    expire_commits(f"{players.table}_log")
    replayed = players.replay()
    assert (replayed.rows, replayed.unsure, replayed.failed) == ({}, {"players": 2}, {})
    assert DeltaTable(f"{players.table}_log").to_pyarrow_table().num_rows == 2
    assert kept(players) == [("TABLE_PARKED", 0), ("TABLE_PARKED", 1)]


def test_rows_of_a_table_that_every_row_goes_to_wait_where_nobody_can_say_if_it_has_them(lake: Path) -> None:
    players = Players(lake, TEXTS, tables={"keys": []}, **KEYED)
    one = players.record
    for batch in range(2):
        players.take(batch, [one(f"k{batch}", level=batch)])
    with dying(Ledger, "record"):
        players.take(2, records := [one("x", level=7)])
    table = Path(players.table)
    table.rename(table.with_name("aside"))
    table.write_text("no folder")
    players.take(2, records)
    table.unlink()
    table.with_name("aside").rename(table)
    newest = table / "_delta_log" / f"{2:020}.json"
    commit = newest.read_bytes()
    expire_commits(players.table)
    replayed = players.replay()
    assert (replayed.rows, replayed.unsure) == ({}, {"players": 1})
    newest.write_bytes(commit)
    assert players.replay().rows == {"players": 1}
    assert DeltaTable(players.table).to_pyarrow_table().num_rows == 3


def test_an_older_batch_in_the_log_proves_that_a_later_one_is_not_there(lake: Path) -> None:
    def rows(*batches: int) -> pa.Table:
        count = len(batches)
        columns = {"reason": ["TABLE_PARKED"] * count, "stream": ["s"] * count, "batch": list(batches)}
        return pa.table(columns)

    uri = str(lake / "t")
    table = Table(uri, Store())
    for batch in (1, 3, 5):
        file = write_data_file(uri, pa.table({"n": [batch]}), Store())
        table.append(pa.schema([("n", pa.int64())]), [file], Txn("s", batch), Policy())
    whole = committed(rows(0, 1, 2, 5, 6), "a", table.open())
    DeltaTable(uri).create_checkpoint()
    Path(uri, "_delta_log", f"{0:020}.json").unlink()
    cut = committed(rows(0, 1, 2, 3, 4, 5, 6), "a", table.open())
    assert whole.to_pylist() == [False, True, False, True, False]
    assert cut.to_pylist() == [None, None, None, True, False, True, False]


def test_routes_without_keys_keep_every_message_beside_those_with(lake: Path) -> None:
    players = Players(lake, TEXTS, tables={"keys": [], "routes": {"other": {"keys": ["id"]}}})
    one = players.record
    report = players.take(0, [one("x", level=1), one("x", level=2), one("x", None)])
    table = DeltaTable(players.table).to_pyarrow_table()
    assert table.column("level").to_pylist() == [1, 2]
    assert "_deleted" not in table.column_names
    assert (report.rows_in, report.tombstones) == (2, 1)


def test_a_table_keeps_the_keys_that_it_was_begun_with(lake: Path) -> None:
    players = Players(lake, TEXTS)
    writer = players.writer()
    report = players.take(0, [players.record("x", level=1)], writer)
    assert report.created == ("players",)
    players.take(1, [players.record("x", level=2)], writer)

    def why(batch: int, keys: list[str]) -> str:
        other = Players(lake, TEXTS, tables={"keys": keys, "retry_after": 0.001})
        other.offset = 10 * batch
        assert other.take(batch, [other.record("y", level=3)]).parked == ("players",)
        return str(books(other).error)

    assert "KeysSwitched" in why(2, []) and "holds the newest message" in why(3, [])
    assert "tells its rows apart by id" in why(4, ["level"])
    assert held(players) == {"x": 2}
    plain = Players(lake / "plain", TEXTS, tables={"keys": []})
    plain.take(0, [plain.record("x", level=1)])
    keyed = Players(lake / "plain", TEXTS)
    keyed.offset = 10
    assert keyed.take(1, [keyed.record("x", level=2)]).parked == ("players",)
    assert "it holds every message" in str(books(keyed).error)


class Ended(KeyboardInterrupt):
    """The end of the process."""


BORDERS: tuple[tuple[Any, str], ...] = (
    (Journal, "write_refused"),
    (deliver, "append_events"),
    (deliver, "merge_now"),
    (merging, "merge_rows"),
    (merging, "merge_on_tip"),
    (Table, "commit"),
    (appending, "append_on_tip"),
    (Ledger, "record"),
    (batch_of, "commit_quarantine"),
)
"""Steps that leave something behind."""


@contextmanager
def ending_at(number: int) -> Iterator[list[int]]:
    """The process ends at the border of this number, counted before and after each step; gives what is left of it."""
    left = [number]

    def passed() -> None:
        left[0] -= 1
        if left[0] == -1:
            raise Ended

    def bordered(whole: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            passed()
            result = whole(*args, **kwargs)
            passed()
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for target, name in BORDERS:
            patch.setattr(target, name, bordered(getattr(target, name)))
        yield left


@pytest.mark.parametrize("log", [None, "{route}_log"])
def test_wherever_the_process_ends_each_message_is_counted_once_and_the_newest_is_there(
    lake: Path, log: str | None
) -> None:
    """A batch is ended at each of its borders in turn, then done again by a new process."""
    borders = 0
    ended = True
    while ended:
        players = Players(lake / str(borders), TEXTS, tables={} if log is None else {"log": log}, **KEYED)
        one = players.record
        players.take(0, [one("x", level=1), one("y", level=2)])
        batch = [one("x", level=3), one("x", schema_id=99, level=4), one("y", None), one("z", 2, level=5, clan="red")]
        with ending_at(borders) as left, suppress(Ended):
            players.take(1, batch)
        ended = left[0] < 0
        players.take(1, batch)
        players.take(2, [one("z", level=6)])
        assert held(players) == {"x": 3, "y": None, "z": 6}
        assert kept(players) == [("UNKNOWN_SCHEMA_ID", 3)]
        said = books(players)
        assert (said.rows_in, said.rows_written, said.rows_quarantined) == (7, 6, 1)
        if log is not None:
            assert DeltaTable(f"{players.table}_log").to_pyarrow_table().num_rows == 6
        borders += 1
    assert borders > 8


def test_messages_of_a_source_without_offsets_go_by_their_column(lake: Path) -> None:
    players = Players(lake, TEXTS, tables={"newest_by": "level"})
    records = [players.record("x", level=level) for level in (2, 3, 1)] + [players.record("y", level=1)]
    for record in records:
        record |= {"offset": None, "partition": None}
    players.take(0, records[:2])
    players.take(1, [*records[2:], dict(records[0])])
    assert held(players) == {"x": 3, "y": 1}
    by_offset = Players(lake / "other", TEXTS)
    record = by_offset.record("x", level=1) | {"offset": None}
    assert by_offset.take(0, [record]).reasons == {"BAD_POSITION": 1}


def test_of_two_messages_without_offsets_whose_column_ties_no_order_of_arrival_decides(lake: Path) -> None:
    found = []
    for number, order in enumerate(((1, 2, 3), (3, 2, 1), (2, 1, 3))):
        players = Players(lake / str(number), TEXTS, tables={"newest_by": "level"})
        nowhere = {"offset": None, "partition": None, "timestamp": None}
        records = {n: players.record("x", 2, level=7, clan=str(n)) | nowhere for n in (1, 2, 3)}
        players.take(0, [records[n] for n in order[:2]])
        players.take(1, [records[order[2]]])
        found.append(DeltaTable(players.table).to_pyarrow_table().column("clan").to_pylist())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("ours", ["_change", "_origin", "_Change"])
def test_a_field_that_is_called_as_a_column_of_ours_keeps_its_values_beside_one_called_as_it_would_be(
    lake: Path, ours: str
) -> None:
    for number, (one, two) in enumerate(((ours, f"{ours}__field"), (f"{ours}__field", ours))):
        text = f'syntax = "proto3"; message player {{ string id = 1; int32 {one} = 2; int32 {two} = 3; }}'
        players = Players(lake / str(number), {1: text}, tables={"log": "{route}_log"})
        players.take(0, [players.record("x", 1, **{f"{ours}__field": 1, ours: 2})])
        for table in (players.table, f"{players.table}_log"):
            [row] = DeltaTable(table).to_pyarrow_table().to_pylist()
            assert (row[f"{ours}__field"], row[f"{ours}__field__field"]) == (1, 2)


def test_a_time_of_a_record_that_no_reader_can_hold_is_null_in_tables_quarantine_and_ledger(lake: Path) -> None:
    players = Players(lake, TEXTS, tables={"keys": []})
    far = [-(2**63), -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1]
    records = [players.record(str(n), level=n) | {"timestamp": time} for n, time in enumerate(far)]
    records += [players.record("y0", 1), players.record("bad", 1) | {"timestamp": far[-1], "value": b""}]
    players.take(0, records)
    rows = DeltaTable(players.table).to_pyarrow_table().to_pylist()
    known = records[4]["timestamp"]
    assert [row["_origin"]["timestamp"] for row in rows] == [None] * 4 + [known]
    aside = DeltaTable(players.config.state_folder.quarantine).to_pyarrow_table().to_pylist()
    assert [row["timestamp"] for row in aside] == [None]
    assert books(players).newest == known.timestamp() * 1e6


def test_messages_that_come_by_way_of_bronze_go_by_their_offsets_too(lake: Path) -> None:
    players = Players(lake, TEXTS, layout="two_hop")
    sent = [players.record("x", level=1), players.record("y", level=2), players.record("x", level=3)]
    columns = players.config.envelope.columns
    rows = [
        {columns[0]: players.topic, columns[2]: one["value"], **{n: one[n] for n in ("topic", "partition", "offset")}}
        for one in sent
    ]
    schema = bronze_schema(columns, headers=False)
    players.take(0, [rows[2], rows[1]], schema=schema)
    players.take(1, [rows[0]], schema=schema)
    assert held(players) == {"x": 3, "y": 2}
