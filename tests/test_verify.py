"""verify: every planted fault is found, with its table and its number; nothing else is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.audit import recount
from distributary.audit.verify import TableCheck, Verification, verify
from distributary.cli.render import verification_text
from distributary.engine.messages.task_spec import ORIGIN
from distributary.errors import Exit, Reason, StoreUnreadable
from distributary.state.ledger import Entry, replay_stream
from distributary.tables.quarantine import commit_quarantine
from distributary.tables.snapshot import Txn
from tests.lake import Lake, rejected


@pytest.fixture
def made(lake: Path) -> Lake:
    """Two tables and two batches: ann 30 + 20 rows of two schemas, bob 10; bad rows of ann and without a route."""
    made = Lake(lake)
    made.begin()
    made.batch(0, {"ann_game": {1: 30}, "bob_game": {1: 10}}, tombstones=2)
    made.batch(1, {"ann_game": {1: 5, 2: 15}}, bad={"ann_game": 4, None: 3})
    return made


def found(verification: Verification, route: str) -> TableCheck:
    return next(t for t in verification.tables if t.route == route)


def test_a_sound_pipeline_is_ok_and_adds_up(made: Lake) -> None:
    said = verify(made.config)
    assert said.ok and said.exit_code == Exit.OK and said.problems == ()
    assert (said.rows_in, said.rows_written, said.rows_quarantined) == (67, 60, 7)
    assert (said.rows_lost, said.rows_duplicated, said.tombstones) == (0, 0, 2)
    assert found(said, "ann_game").schema_ids == {1: 35, 2: 15}
    assert said.quarantine == {"open": 7}


def test_the_json_has_the_promised_keys(made: Lake) -> None:
    said = json.loads(json.dumps(verify(made.config).to_json()))
    promised = {"pipeline", "ok", "rows_in", "rows_written", "rows_quarantined", "rows_lost", "rows_duplicated"}
    assert promised | {"tables", "tombstones"} <= said.keys()
    table = {"route", "table", "engine", "rows_in", "rows_written", "rows_quarantined", "schema_ids"}
    assert all(table | {"rows_lost", "rows_duplicated"} <= t.keys() for t in said["tables"])
    assert said["tables"][0]["schema_ids"] == {"1": 35, "2": 15}


def test_a_pipeline_that_never_ran_has_nothing_to_lose(lake: Path) -> None:
    said = verify(Lake(lake).config)
    assert said.ok and (said.rows_in, said.tables) == (0, ())


def test_a_lost_ledger_beside_a_checkpoint_is_a_problem(made: Lake) -> None:
    shutil.rmtree(Path(made.config.state_root) / "ledger")
    assert not verify(made.config).ok


def test_a_ledger_that_cannot_be_read_is_an_error_of_the_environment(made: Lake) -> None:
    for file in (Path(made.config.state_root) / "ledger" / "_delta_log").iterdir():
        file.write_text("{")
    with pytest.raises(StoreUnreadable):
        verify(made.config)


# -- lost --------------------------------------------------------------------------------------------------


def test_deleted_rows_are_lost_with_table_and_number(made: Lake) -> None:
    DeltaTable(made.table("ann_game")).delete("`_origin`['offset'] >= 42")
    said = verify(made.config)
    assert not said.ok and said.exit_code == Exit.ATTENTION
    assert (said.rows_lost, found(said, "ann_game").rows_lost, found(said, "bob_game").rows_lost) == (18, 18, 0)
    assert said.problems == (f"{made.table('ann_game')}: 18 rows are missing from the table",)


def test_a_dropped_table_has_lost_all_its_rows(made: Lake) -> None:
    shutil.rmtree(made.table("bob_game"))
    said = verify(made.config)
    assert (said.rows_lost, found(said, "bob_game").rows_lost) == (10, 10)
    assert "the table is not there" in said.problems[0]


def test_a_data_file_that_is_gone_from_the_store_is_lost(made: Lake) -> None:
    name = next(Path(made.table("bob_game")).glob("*.parquet"))
    name.unlink()
    said = verify(made.config)
    assert found(said, "bob_game").rows_lost == 10
    assert name.name in said.problems[0]


def test_a_data_file_that_is_cut_short_is_lost(made: Lake) -> None:
    name = next(Path(made.table("bob_game")).glob("*.parquet"))
    name.write_bytes(name.read_bytes()[:-20])
    assert found(verify(made.config), "bob_game").rows_lost == 10


def test_a_table_that_was_overwritten_has_lost_its_rows(made: Lake) -> None:
    write_deltalake(made.table("bob_game"), pa.table({"x": [1] * 10}), mode="overwrite", schema_mode="overwrite")
    made.batch(2, {"bob_game": {1: 1}})
    said = found(verify(made.config), "bob_game")
    assert said.rows_lost == 0 and said.rows_written == 11  # a file of ours cannot be told from a plain one
    write_deltalake(made.table("bob_game"), pa.table({"x": [1]}), mode="overwrite", schema_mode="overwrite")
    assert found(verify(made.config), "bob_game").rows_lost == 10


def test_a_swapped_schema_id_shows_though_the_number_of_rows_is_right(made: Lake) -> None:
    table = DeltaTable(made.table("ann_game"))
    table.delete("`_origin`['schema_id'] = 2")
    made.append("ann_game", made.rows(1, {1: 15}), Txn("other", 0))
    said = found(verify(made.config), "ann_game")
    assert (said.rows_written, said.rows_lost, said.rows_duplicated) == (50, 15, 15)


def test_a_route_whose_rows_are_all_set_aside_is_no_table() -> None:
    held = TableCheck("go", "lake/go", "task", rows_in=3, rows_written=2, rows_quarantined=1)
    tables = (held, TableCheck("chess", None, "task", rows_in=2, rows_quarantined=2))
    said = Verification("games", True, 5, 2, 3, 0, 0, 0, tables, {}, (), ())
    assert str(verification_text(said)).startswith("verified: 5 rows in = 2 in 1 table + 3 in the quarantine;")


def test_a_missing_quarantine_row_is_lost(made: Lake) -> None:
    DeltaTable(made.quarantine).delete("route = 'ann_game'")
    said = verify(made.config)
    assert (said.rows_lost, found(said, "ann_game").rows_lost) == (4, 4)
    DeltaTable(made.quarantine).delete("route is null")
    said = verify(made.config)
    assert said.rows_lost == 7 and said.rows_quarantined == 0


def test_a_quarantine_that_is_gone_is_lost(made: Lake) -> None:
    shutil.rmtree(made.quarantine)
    assert verify(made.config).rows_lost == 7


# -- duplicated --------------------------------------------------------------------------------------------


def _append_again(uri: str, rows: int) -> None:
    table = DeltaTable(uri)
    file = next(p for p in Path(uri).glob("*.parquet") if pq.read_metadata(p).num_rows == rows)
    write_deltalake(table, pq.read_table(file), mode="append")


def test_a_file_that_was_appended_twice_is_duplicated(made: Lake) -> None:
    _append_again(made.table("bob_game"), 10)
    said = verify(made.config)
    assert (said.rows_duplicated, found(said, "bob_game").rows_duplicated, said.rows_lost) == (10, 10, 0)
    assert said.problems == (f"{made.table('bob_game')}: 10 rows are in the table more often than they came in",)


def test_rows_lost_and_rows_doubled_do_not_cancel_out(made: Lake) -> None:
    uri = made.table("ann_game")
    _append_again(uri, 20)
    DeltaTable(uri).delete("`_origin`['offset'] < 20")
    said = found(verify(made.config), "ann_game")
    assert said.rows_written == 50
    assert (said.rows_lost, said.rows_duplicated) == (20, 20)


@pytest.mark.parametrize("pass_rows", [1, 7, 1000])
def test_offsets_are_compared_in_passes_of_bounded_size(
    made: Lake, monkeypatch: pytest.MonkeyPatch, pass_rows: int
) -> None:
    monkeypatch.setattr(recount, "PASS_ROWS", pass_rows)
    monkeypatch.setattr(recount, "_OFFSET_BLOCK", 4)
    assert verify(made.config).ok
    _append_again(made.table("ann_game"), 30)
    assert found(verify(made.config), "ann_game").rows_duplicated == 30


def test_offsets_of_a_topic_that_was_made_anew_are_not_duplicates(made: Lake) -> None:
    rows = made.rows(2, {1: 10})
    first = DeltaTable(made.table("bob_game")).to_pyarrow_table().column(ORIGIN).to_pylist()
    origins = [{**o, "offset": old["offset"]} for o, old in zip(rows.column(ORIGIN).to_pylist(), first, strict=True)]
    moved = [{**o, "timestamp": 5_000_000} for o in origins]
    column = pa.chunked_array([pa.array(moved, rows.schema.field(ORIGIN).type)])
    made.append("bob_game", rows.set_column(1, ORIGIN, column), Txn(made.stream, 2))
    uri = made.table("bob_game")
    entry = Entry(made.stream, 2, "bob_game", table=uri, rows_in=10, rows_written=10, schema_ids={1: 10})
    made.ledger.record(made.stream, 2, [entry, Entry(made.stream, 2, None)], {})
    assert verify(made.config).ok


def test_a_delta_source_may_hold_a_record_twice(lake: Path) -> None:
    made = Lake(lake, source={"type": "delta", "path": str(lake / "source")})
    made.batch(0, {"ann_game": {1: 10}})
    made.offset = 0
    made.batch(1, {"ann_game": {1: 10}})
    assert verify(made.config).ok


# -- neither: rows of others, of unfinished batches, replays ----------------------------------------------------


def test_a_batch_that_is_written_but_not_finished_is_pending(made: Lake) -> None:
    made.batch(2, {"bob_game": {1: 7}, "new_game": {1: 5}}, bad={"bob_game": 2}, finished=False)
    said = verify(made.config)
    assert said.ok and said.rows_in == 67
    assert (found(said, "bob_game").rows_written, found(said, "bob_game").rows_pending) == (10, 7)


def test_quarantine_files_of_a_finished_batch_count_before_their_commit(made: Lake) -> None:
    made.batch(2, {}, bad={None: 9}, quarantined=False)
    said = verify(made.config)
    assert said.ok and said.rows_quarantined == 16
    files = sorted(Path(made.quarantine).glob("*.parquet"), key=lambda p: p.stat().st_mtime)
    files[-1].unlink()
    assert verify(made.config).rows_lost == 9


def test_rows_of_others_do_not_count(lake: Path) -> None:
    made = Lake(lake)
    write_deltalake(made.table("ann_game"), pa.table({"user": ["theirs"] * 8}))
    made.batch(0, {"ann_game": {1: 10}})
    write_deltalake(made.table("ann_game"), pa.table({"user": ["theirs"] * 3}), mode="append", schema_mode="merge")
    said = verify(made.config)
    assert said.ok
    assert (found(said, "ann_game").rows_written, found(said, "ann_game").rows_foreign) == (10, 11)


def test_a_table_of_another_pipeline_is_named_with_its_owner_and_its_rows_are_nobody_s_surplus(made: Lake) -> None:
    other = Lake(Path(made.config.tables.root), "poker")
    other.begin()
    other.batch(0, {}, parked={"ann_game": 5})
    said = verify(other.config)
    assert (said.rows_in, said.rows_quarantined, said.rows_lost, said.rows_duplicated) == (5, 5, 0, 0)
    (problem,) = said.problems
    assert "belongs to pipeline games, route 'ann_game'" in problem and not said.ok


def test_without_origin_rows_are_counted_by_number(lake: Path) -> None:
    made = Lake(lake, tables={"origin": False})
    made.batch(0, {"ann_game": {1: 10}})
    assert verify(made.config).ok
    _append_again(made.table("ann_game"), 10)
    assert verify(made.config).rows_duplicated == 10


def test_files_from_before_the_origin_column_are_ours_in_a_table_of_ours(lake: Path) -> None:
    Lake(lake, tables={"origin": False}).batch(0, {"ann_game": {1: 10}})
    made = Lake(lake)
    made.batch(1, {"ann_game": {1: 6}})
    said = verify(made.config)
    assert said.ok and said.rows_written == 16


def _replay(made: Lake, *, ledger: bool, let_go: bool) -> None:
    """Replay 1 of the 4 bad rows of ann_game."""
    table = DeltaTable(made.quarantine)
    table.update({"state": "'claimed'", "replay": "1"}, predicate="route = 'ann_game'")
    made.append("ann_game", made.rows(1, {1: 4}), Txn(f"replay-{table.metadata().id}", 1))
    if ledger:
        stream, uri = replay_stream(1), made.table("ann_game")
        entry = Entry(
            stream, 1, "ann_game", table=uri, rows_written=4, rows_quarantined=-4, schema_ids={1: 4},
            reasons={Reason.CORRUPT_PAYLOAD: -4},
        )  # fmt: skip
        made.ledger.record(stream, 1, [entry, Entry(stream, 1, None)], {})
    if let_go:
        DeltaTable(made.quarantine).update({"state": "'replayed'"}, predicate="state = 'claimed'")


@pytest.mark.parametrize(
    ("steps", "written", "quarantined"),
    [
        ({"ledger": False, "let_go": False}, 60, 7),
        ({"ledger": True, "let_go": False}, 64, 3),
        ({"ledger": True, "let_go": True}, 64, 3),
    ],
    ids=["died before the ledger", "died before the rows were let go", "done"],
)
def test_a_replay_is_sound_at_every_step(made: Lake, steps: dict[str, Any], written: int, quarantined: int) -> None:
    _replay(made, **steps)
    said = verify(made.config)
    assert said.problems == ()
    assert (said.rows_in, said.rows_written, said.rows_quarantined) == (67, written, quarantined)


def test_replayed_envelopes_move_from_no_route_to_their_route(made: Lake) -> None:
    DeltaTable(made.quarantine).update({"state": "'replayed'", "replay": "1"}, predicate="route is null")
    made.append("bob_game", made.rows(1, {1: 3}), Txn(f"replay-{DeltaTable(made.quarantine).metadata().id}", 1))
    stream, uri = replay_stream(1), made.table("bob_game")
    entry = Entry(stream, 1, "bob_game", table=uri, rows_in=3, rows_written=3, schema_ids={1: 3})
    made.ledger.record(stream, 1, [entry, Entry(stream, 1, None, rows_in=-3, rows_quarantined=-3)], {})
    said = verify(made.config)
    assert said.problems == () and (said.rows_in, said.rows_written, said.rows_quarantined) == (67, 63, 4)


def test_bad_rows_that_the_ledger_has_under_no_route_are_counted_at_their_route(made: Lake) -> None:
    kept = [rejected("ann_game", Reason.BAD_MAGIC, 2), rejected("only_bad_game", Reason.BAD_MAGIC, 3)]
    files = made.write_quarantine(2, kept)
    own = Entry(made.stream, 2, None, rows_in=5, rows_quarantined=5)
    made.ledger.record(made.stream, 2, [own], {"quarantine": [f.to_json() for f in files]})
    commit_quarantine(made.quarantine, "games", files, made.stream, 2, made.store)
    said = verify(made.config)
    assert said.ok and (said.rows_in, said.rows_quarantined) == (72, 12)
    assert found(said, "ann_game").rows_quarantined == 6
    assert (found(said, "only_bad_game").table, found(said, "only_bad_game").rows_in) == (None, 3)
    DeltaTable(made.quarantine).delete("reason = 'BAD_MAGIC' and route = 'only_bad_game'")
    assert verify(made.config).rows_lost == 3


def test_rows_kept_aside_though_their_commit_came_through_are_counted_once(made: Lake) -> None:
    made.append("bob_game", made.rows(2, {1: 6}), Txn(made.stream, 2))
    made.batch(2, {}, parked={"bob_game": 6})
    said = verify(made.config)
    assert said.ok and (said.rows_in, said.rows_written + said.rows_quarantined) == (73, 73)


def test_old_ledger_entries_that_were_added_up_still_verify(made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    _replay(made, ledger=True, let_go=True)
    monkeypatch.setattr("distributary.state.ledger.KEPT_ROWS", 0)
    made.ledger.compact()
    assert len(made.ledger.entries()) < 6
    said = verify(made.config)
    assert said.problems == () and said.rows_written == 64


def test_losses_at_the_source_that_the_user_accepted_are_named(made: Lake) -> None:
    made.ledger.note_loss(["topic events partition 0: offsets 5 to 9 are gone"])
    said = verify(made.config)
    assert said.ok and said.source_losses == ("topic events partition 0: offsets 5 to 9 are gone",)
