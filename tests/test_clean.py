"""clean: all that a pipeline made goes, and never a neighbour's (case: a clean-up that deletes everything it sees)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from distributary.config import Pipeline
from distributary.declarative.runner import Options, Runner
from distributary.errors import AlreadyRunning, BadInput, CleanUnfinished, StoreUnreadable
from distributary.fleet.workflow.handover import hand_over
from distributary.fleet.workflow.local import LocalRun, supervise
from distributary.repair.clean import CleanPlan, apply, clean, removal
from distributary.repair.replays import replay
from distributary.running import hops
from distributary.running.bronze.bronze_table import hop_1_checkpoint, make_bronze, schema_of
from distributary.running.maintain import maintain
from distributary.shares import Division
from distributary.state.cleaning import begin
from distributary.state.divisions import claim
from distributary.state.layout_claim import claim_layout
from distributary.state.ledger import Entry
from distributary.state.lock import only_run
from distributary.state.streams import StreamRecord, write_streams
from distributary.tables.datafile import write_data_file
from distributary.tables.evolve import Policy, evolve
from distributary.tables.files import delete_entry
from distributary.tables.snapshot import Owner, Txn
from distributary.tables.table import Table
from distributary.tables.wide import KEY, ROUTE
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
    made.append("ann_game", made.rows(0, {1: 2}), Txn("somebody-elses-stream", 0))
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


def test_tables_of_a_lake_that_was_copied_stay_where_they_are(made: Lake, tmp_path: Path) -> None:
    copied = Lake(tmp_path / "copy")
    shutil.copytree(made.config.state_root, copied.config.state_root)
    plan = clean(copied.config)
    assert removed(plan) == [copied.config.state_root]
    assert "not below tables.root" in kept(plan)[made.table("ann_game")]


def test_while_a_table_cannot_be_read_what_says_whose_it_is_stays(made: Lake, tmp_path: Path) -> None:
    log = Path(made.table("ann_game"), "_delta_log", f"{0:020}.json")
    text = log.read_text()
    log.write_text("{")
    done = apply(clean(made.config))
    assert removed(done) == [made.table("bob_game")]
    assert "cannot be read" in kept(done)[made.table("ann_game")]
    assert made.table("ann_game") in kept(done)[made.config.state_root]
    with pytest.raises(CleanUnfinished):
        claim(made.config, None, made.store)
    log.write_text(text)
    assert removed(apply(clean(made.config))) == [made.table("ann_game"), made.config.state_root]


def _supervise(config: Pipeline) -> object:
    return supervise(LocalRun(Path("games.yaml"), config, None, Path("no logs")))


WRITERS: dict[str, Callable[[Pipeline], object]] = {
    "run": hops.run,
    "a share": lambda config: hops.run(config.for_share(Division.even(2).shares(1)[0])),
    "hop 1": lambda config: hops.run(config.model_copy(update={"layout": "two_hop"}), hops=(1,)),
    "hop 2": lambda config: hops.run(config.model_copy(update={"layout": "two_hop"}), hops=(2,)),
    "replay": replay,
    "workflow local": _supervise,
    "workflow plan --apply": lambda config: hand_over(config, Division.even(2)),
    "maintain": lambda config: list(maintain(config)),
    "pipeline run": lambda config: Runner(config, Path(), Options(once=True)).go(),
}


@pytest.mark.parametrize("way", WRITERS)
def test_nothing_writes_between_a_clean_up_that_died_and_its_end(made: Lake, way: str) -> None:
    begin(made.config, {}, (), made.store)
    with pytest.raises(CleanUnfinished):
        WRITERS[way](made.config)


def test_the_logs_of_local_streams_are_named_and_stay(made: Lake, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "1-of-2.log"
    log.parent.mkdir()
    log.write_text("x")
    write_streams(made.config.state_root, [StreamRecord("1-of-2", log=str(log))], made.store)
    assert "logs" in kept(apply(clean(made.config)))[str(log.parent)] and log.exists()


# -- layouts -------------------------------------------------------------------------------------------------


class TwoHop(Lake):
    """Bronze as Spark's sink leaves it, and hop 2 as a stream."""

    def __init__(self, root: Path, **keys: Any) -> None:
        super().__init__(root, layout="two_hop", **keys)
        make_bronze(self.config, self.store)
        claim_layout(self.config, self.store)
        checkpoint = Path(hop_1_checkpoint(self.config))
        (checkpoint / "commits").mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": "hop-1-stream"}))
        about = CommitProperties(app_transactions=[Transaction("hop-1-stream", 0)])
        rows = pa.table({name: pa.nulls(1, kind) for name, kind in zip(*_names_and_types(self.config), strict=True)})
        rows = rows.set_column(rows.schema.get_field_index("route_key"), "route_key", pa.array(["ann_game"]))
        write_deltalake(self.config.bronze_path, rows, mode="append", commit_properties=about)
        self.commit_offsets(0, {})
        self.batch(0, {route: {1: 3} for route in ("ann_game", "bob_game")})


def _names_and_types(config: Any) -> tuple[list[str], list[pa.DataType]]:
    schema = schema_of(config)
    return schema.names, schema.types


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_of_two_hops_bronze_goes_too(lake: Path, tmp_path: Path, apart: bool) -> None:
    places = {"checkpoint": str(tmp_path / "checkpoint"), "bronze": {"path": str(tmp_path / "raw" / "bronze")}}
    made = TwoHop(lake, **(places if apart else {}))
    Lake(lake, "other", tables={"name": "other_{route}"}).batch(0, {"ann_game": {1: 3}})
    before = everything(lake)
    done = apply(clean(made.config))
    assert made.config.bronze_path in removed(done)
    assert everything(lake) == {p for p in before if "other" in p} | {"_distributary"}
    assert not list(tmp_path.glob("checkpoint*")) and not Path(made.config.bronze_path).exists()


def test_hop_2_alone_is_cleaned_beside_a_hop_1_that_goes_on(lake: Path) -> None:
    made = TwoHop(lake)
    before = {p for p in everything(lake) if "_bronze" in p or "/hop1" in p}
    with only_run(made.config.state_root, "games", "hop1"):
        with pytest.raises(AlreadyRunning):
            clean(made.config)
        done = apply(clean(made.config, hop_2=True))
    assert "begins anew" in kept(done)[made.config.bronze_path]
    left = {p for p in everything(lake) if not p.endswith(("hop1.lock", "_distributary", "_distributary/games"))}
    assert left == before
    with pytest.raises(BadInput):
        clean(Lake(lake, "other").config, hop_2=True)


def test_a_bronze_that_another_hop_1_fills_stays(lake: Path) -> None:
    made = TwoHop(lake)
    Path(hop_1_checkpoint(made.config), "metadata").write_text(json.dumps({"id": "another"}))
    plan = clean(made.config)
    assert "ledger does not say" in kept(plan)[made.config.bronze_path]


def test_the_layout_that_has_run_is_cleaned_whatever_the_file_says_now(lake: Path) -> None:
    """As the refusal of a changed layout advises."""
    TwoHop(lake)
    apply(clean(Lake(lake).config))
    assert everything(lake) == set()


def test_a_wide_table_goes_with_the_names_of_its_views(lake: Path) -> None:
    made = Lake(lake, layout="wide", tables={"database": "games"})
    uri, txn = made.config.wide_path, Txn(made.stream, 0)
    rows = pa.table({KEY: ["ann_game", "bob_game"], ROUTE: ["ann_game", "bob_game"]})
    evolution = evolve(None, [rows.schema], Policy())
    Table(uri, made.store, Owner("games", "")).commit(None, evolution, [write_data_file(uri, rows, made.store)], txn)
    entries = [Entry(made.stream, 0, r, table=uri, rows_in=1, rows_written=1, created=True) for r in ("ann", "bob")]
    made.ledger.record(made.stream, 0, [*entries, Entry(made.stream, 0, None)], {})
    made.store.put_whole(f"{made.config.state_root}/views", "ann.sql", b"SELECT 1")
    plan = clean(made.config)
    assert removed(plan) == [uri, made.config.state_root] and plan.kept == ()
    assert [(e.name, e.text) for e in plan.catalog] == [("`games`.`ann`", "SELECT 1"), ("`games`.`wide`", None)]
    apply(plan)
    assert everything(lake) == set()


def test_datasets_of_a_declarative_pipeline_go_by_the_id_of_its_bronze(lake: Path) -> None:
    """Spark's own writers leave no mark: bronze's id is in the ledger, and the other datasets name the pipeline."""
    made = Lake(lake, layout="declarative")
    for name, route in (
        ("bronze", ""),
        ("silver_ann", "ann_game"),
        ("gold_ann", "ann_game"),
    ):
        write_deltalake(str(lake / name), pa.table({"x": [1]}), description=Owner("games", route).text())
    write_deltalake(str(lake / "mine"), pa.table({"x": [1]}))
    stream = str(DeltaTable(lake / "bronze").metadata().id)
    made.ledger.record(stream, 0, [Entry(stream, 0, None, table=str(lake / "bronze"))], {})
    plan = clean(made.config)
    assert [Path(path).name for path in removed(plan)] == [
        "bronze",
        "gold_ann",
        "silver_ann",
        "games",
    ]
    assert kept(plan) == {str(lake): "it also holds mine"}
    shutil.rmtree(lake / "bronze")
    write_deltalake(str(lake / "bronze"), pa.table({"x": [1]}), description=Owner("games", "").text())
    assert len(kept(clean(made.config))) == 3 + 1, "a bronze of another id proves nothing"


def test_flow_checkpoints_of_their_own_place_go_with_their_tables(lake: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    made = Lake(lake, layout="declarative", checkpoint=str(checkpoints))
    for name, route in (("bronze", ""), ("silver_ann", "ann_game"), ("mine", None)):
        about = None if route is None else Owner("games", route).text()
        write_deltalake(str(lake / name), pa.table({"x": [1]}), description=about)
        flow = checkpoints / "_checkpoints" / "spark_catalog" / "games" / name / name / "0"
        flow.mkdir(parents=True)
        (flow / "metadata").write_text('{"id": "a flow"}')
    stream = str(DeltaTable(lake / "bronze").metadata().id)
    made.ledger.record(stream, 0, [Entry(stream, 0, None, table=str(lake / "bronze"))], {})
    plan = clean(made.config)
    shutil.rmtree(lake / "silver_ann")  # as a clean-up that died here, or a user, would leave it
    assert removed(apply(plan)) == removed(plan)
    flows = {path.name for path in checkpoints.glob("_checkpoints/spark_catalog/games/*")}
    assert flows == {"mine"}


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
    real = delete_entry

    def dying(folder: str, name: str, store: Any) -> None:
        nonlocal left
        entry = Path(folder) / name
        for file in sorted(p for p in entry.rglob("*") if p.is_file()):
            if left == 0:
                raise _Death
            left -= 1
            file.unlink()
        real(folder, name, store)

    monkeypatch.setattr(removal, "delete_entry", dying)
    try:
        apply(clean(made.config))
    except _Death:
        monkeypatch.setattr(removal, "delete_entry", real)
        apply(clean(made.config))
    assert everything(lake) == {"mine"}


def test_in_an_object_store_a_folder_goes_without_those_that_begin_alike(
    made: Lake, lake: Path, monkeypatch: Any
) -> None:
    """Not the ones whose names begin alike. The same calls as for s3, on a local folder."""
    made.batch(1, {"ann_game_2": {1: 3}})
    monkeypatch.setattr("distributary.tables.files.local_path", lambda uri: None)
    monkeypatch.setattr("distributary.tables.store.local_path", lambda uri: None)
    delete_entry(str(lake), "ann_game", made.store)
    assert not [p for p in Path(made.table("ann_game")).rglob("*") if p.is_file()]
    assert DeltaTable(made.table("ann_game_2")).to_pyarrow_table().num_rows == 3
    file = next(Path(made.table("bob_game")).glob("*.parquet"))
    delete_entry(made.table("bob_game"), file.name, made.store)
    assert not file.exists() and DeltaTable(made.table("bob_game")).version() == 0
