"""clean: all that a pipeline made goes, and never a neighbour's (case: a clean-up that deletes everything it sees)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary import clean as module
from distributary.clean import CleanPlan, apply, clean
from distributary.errors import AlreadyRunning, StoreUnreadable
from distributary.state.ledger import Entry
from distributary.state.lock import only_run
from distributary.tables.append import Mark, Owner
from tests.lake import Lake


@pytest.fixture
def made(lake: Path) -> Lake:
    made = Lake(lake)
    made.commit_offsets(0, {})
    made.batch(0, {"ann_game": {1: 3}, "bob_game": {1: 3}}, bad={None: 1})
    return made


def removed(plan: CleanPlan) -> list[str]:
    return [t.path for t in plan.remove]


def kept(plan: CleanPlan) -> dict[str, str]:
    return {k.path: k.reason for k in plan.kept}


def everything(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*")}


# -- ours --------------------------------------------------------------------------------------------------


def test_all_that_a_pipeline_made_goes_and_the_root_stays(made: Lake, lake: Path) -> None:
    plan = clean(made.config)
    assert removed(plan) == [made.table("ann_game"), made.table("bob_game"), made.config.state_root]
    assert plan.kept == () and plan.catalog == ()
    assert apply(plan).remove == plan.remove
    assert lake.is_dir() and everything(lake) == set()


def test_a_plan_touches_nothing(made: Lake, lake: Path) -> None:
    before = everything(lake)
    clean(made.config)
    assert everything(lake) == before


def test_a_pipeline_that_never_ran_has_nothing_to_remove(lake: Path) -> None:
    plan = clean(Lake(lake).config)
    assert plan.remove == () and apply(plan).remove == ()
    assert everything(lake) == set()


def test_a_clean_pipeline_starts_from_nothing(made: Lake, lake: Path) -> None:
    apply(clean(made.config))
    again = Lake(lake)
    again.batch(0, {"ann_game": {1: 2}})
    assert DeltaTable(again.table("ann_game")).to_pyarrow_table().num_rows == 2


def test_tables_of_a_first_batch_that_died_go_too(lake: Path) -> None:
    made = Lake(lake)
    made.begin()
    made.batch(0, {"ann_game": {1: 3}}, finished=False)
    assert removed(clean(made.config)) == [made.table("ann_game"), made.config.state_root]


def test_a_table_whose_creation_the_ledger_missed_goes_by_its_own_marks(made: Lake) -> None:
    made.batch(1, {"cid_game": {1: 3}}, finished=False)
    # The batch is replayed, and finds the table there: created is false.
    entry = Entry(made.stream, 1, "cid_game", table=made.table("cid_game"), rows_in=3, rows_written=3)
    made.ledger.record(made.stream, 1, [entry, Entry(made.stream, 1, None)], {})
    assert made.table("cid_game") in removed(clean(made.config))


def test_names_in_a_catalog_are_listed_with_their_location(lake: Path) -> None:
    made = Lake(lake, tables={"database": "main.games"})
    made.batch(0, {"ann_game": {1: 3}})
    (entry,) = clean(made.config).catalog
    assert (entry.name, entry.path) == ("`main`.`games`.`ann_game`", made.table("ann_game"))


def test_the_json_is_plain_and_holds_no_config(made: Lake) -> None:
    said = json.loads(json.dumps(clean(made.config).to_json()))
    assert said.keys() == {"pipeline", "remove", "kept", "catalog"}
    assert [t["kind"] for t in said["remove"]] == ["table", "table", "state"]


# -- a neighbour's -----------------------------------------------------------------------------------------


def test_a_neighbour_on_the_same_root_keeps_everything(made: Lake, lake: Path) -> None:
    other = Lake(lake, "others", tables={"name": "other_{route}"})
    other.commit_offsets(0, {})
    other.batch(0, {"ann_game": {1: 5}})
    before = everything(lake)
    done = apply(clean(made.config))
    assert "other_ann_game" in kept(done)[str(lake)]
    rest = everything(lake)
    assert rest == {p for p in before if p.startswith(("other_", "_distributary/others"))} | {"_distributary"}
    assert removed(clean(other.config)) == [other.table("ann_game"), other.config.state_root]


def test_a_table_that_was_there_before_stays(lake: Path) -> None:
    made = Lake(lake)
    write_deltalake(made.table("ann_game"), pa.table({"user": ["theirs"]}))
    made.batch(0, {"ann_game": {1: 3}})
    plan = clean(made.config)
    assert removed(plan) == [made.config.state_root]
    assert "was not made by distributary" in kept(plan)[made.table("ann_game")]


def test_a_table_of_another_owner_stays_though_the_ledger_names_it(made: Lake) -> None:
    shutil.rmtree(made.table("ann_game"))
    write_deltalake(
        made.table("ann_game"), pa.table({"x": [1]}), description=Owner("others", "ann_game").text(), mode="overwrite"
    )
    plan = clean(made.config)
    assert kept(plan)[made.table("ann_game")] == "it belongs to pipeline others, route 'ann_game'"


def test_a_table_with_batches_of_an_unknown_stream_stays(made: Lake) -> None:
    """Another pipeline of the same name, with its own state, writes to it."""
    made.append("ann_game", made.rows(0, {1: 2}), Mark("somebody-elses-stream", 0))
    plan = clean(made.config)
    assert "somebody-elses-stream" in kept(plan)[made.table("ann_game")]
    assert made.table("bob_game") in removed(plan)


def test_a_table_that_nobody_proves_to_be_ours_stays(made: Lake, lake: Path) -> None:
    path = lake / "cid_game"
    write_deltalake(path, pa.table({"x": [1]}), description=Owner("games", "cid_game").text())
    assert "the ledger does not say" in kept(clean(made.config))[str(path)]


def test_a_table_that_changes_hands_between_plan_and_apply_stays(made: Lake) -> None:
    plan = clean(made.config)
    shutil.rmtree(made.table("ann_game"))
    write_deltalake(made.table("ann_game"), pa.table({"x": [1]}))
    done = apply(plan)
    assert made.table("ann_game") not in removed(done) and made.table("ann_game") in kept(done)
    assert DeltaTable(made.table("ann_game")).version() == 0


def test_a_table_with_something_else_inside_stays(made: Lake) -> None:
    write_deltalake(f"{made.table('ann_game')}/inner", pa.table({"x": [1]}))
    assert "something else lies in it: inner/_delta_log" in kept(clean(made.config))[made.table("ann_game")]


def test_a_symbolic_link_stays(made: Lake, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(made.table("ann_game"), elsewhere)
    Path(made.table("ann_game")).symlink_to(elsewhere)
    done = apply(clean(made.config))
    assert kept(done)[made.table("ann_game")] == "it is a symbolic link"
    assert DeltaTable(str(elsewhere)).version() == 0


def test_a_state_that_belongs_to_another_pipeline_keeps_everything(made: Lake) -> None:
    thief = Lake(Path(made.config.tables.root), "thief", state=made.config.state_root)
    plan = clean(thief.config)
    assert plan.remove == ()
    assert kept(plan) == {made.config.state_root: "its ledger belongs to pipeline games"}


def test_from_a_state_of_its_own_place_only_known_names_go(lake: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = Lake(lake, state=str(state))
    made.commit_offsets(0, {})
    made.batch(0, {"ann_game": {1: 3}}, bad={None: 1})
    (state / "letters").mkdir()
    (state / "letters" / "love.txt").write_text("dear")
    done = apply(clean(made.config))
    assert kept(done)[str(state)] == "it also holds letters"
    assert everything(state) == {"letters", "letters/love.txt"}


def test_a_folder_that_only_looks_like_a_state_stays(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "plans").mkdir(parents=True)
    made = Lake(lake, state=str(tmp_path / "home"))
    plan = clean(made.config)
    assert plan.remove == () and "no ledger" in kept(plan)[str(tmp_path / "home")]
    assert everything(tmp_path / "home") == {"plans"}


def test_a_checkpoint_of_its_own_place_goes_only_if_it_is_ours(lake: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    made = Lake(lake, checkpoint=str(checkpoint))
    made.commit_offsets(0, {})
    made.batch(0, {"ann_game": {1: 3}})
    (checkpoint / "mine.txt").write_text("x")
    assert removed(clean(made.config)) == [made.table("ann_game"), str(checkpoint), made.config.state_root]
    (checkpoint / "metadata").write_text('{"id": "another"}')
    plan = clean(made.config)
    assert "stream another" in kept(plan)[str(checkpoint)] and str(checkpoint) not in removed(plan)
    (checkpoint / "metadata").write_text(json.dumps({"id": made.stream}))
    apply(clean(made.config))
    assert everything(checkpoint) == {"mine.txt"}


# -- when not, and half-way --------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["run", "replay"])
def test_a_running_pipeline_is_refused(made: Lake, lock: str) -> None:
    plan = clean(made.config)
    with only_run(made.config.state_root, "games", lock):
        with pytest.raises(AlreadyRunning):
            clean(made.config)
        with pytest.raises(AlreadyRunning):
            apply(plan)
    assert Path(made.table("ann_game")).is_dir()


def test_a_ledger_that_cannot_be_read_is_an_error_and_nothing_goes(made: Lake) -> None:
    for file in (Path(made.config.state_root) / "ledger" / "_delta_log").iterdir():
        file.write_text("{")
    with pytest.raises(StoreUnreadable):
        clean(made.config)


class _Death(BaseException):
    pass


@pytest.mark.parametrize("step", range(30))
def test_a_clean_up_that_dies_anywhere_can_be_repeated(made: Lake, lake: Path, step: int, monkeypatch: Any) -> None:
    """It dies at its n-th removal of a file, wherever that is; the next one removes the rest."""
    Path(lake / "mine").mkdir()
    left = step
    real = module._Cleaner._delete

    def dying(self: Any, folder: str, name: str) -> None:
        nonlocal left
        entry = Path(folder) / name
        for file in sorted(p for p in entry.rglob("*") if p.is_file()):
            if left == 0:
                raise _Death
            left -= 1
            file.unlink()
        real(self, folder, name)

    monkeypatch.setattr(module._Cleaner, "_delete", dying)
    try:
        apply(clean(made.config))
    except _Death:
        monkeypatch.setattr(module._Cleaner, "_delete", real)
        apply(clean(made.config))
    assert everything(lake) == {"mine"}


def test_in_an_object_store_a_folder_goes_without_those_that_begin_alike(
    made: Lake, lake: Path, monkeypatch: Any
) -> None:
    """Not the ones whose names begin alike. The same calls as for s3, on a local folder."""
    made.batch(1, {"ann_game_2": {1: 3}})
    cleaner = module._Cleaner(made.config)
    monkeypatch.setattr(module, "local_path", lambda uri: None)
    monkeypatch.setattr("distributary.tables.files.local_path", lambda uri: None)
    cleaner._delete(str(lake), "ann_game")
    assert not [p for p in Path(made.table("ann_game")).rglob("*") if p.is_file()]
    assert DeltaTable(made.table("ann_game_2")).to_pyarrow_table().num_rows == 3
    file = next(Path(made.table("bob_game")).glob("*.parquet"))
    cleaner._delete(made.table("bob_game"), file.name)
    assert not file.exists() and DeltaTable(made.table("bob_game")).version() == 0
