"""The demo: what is sent, where it goes, and the whole of it once."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.config import load
from distributary.errors import AlreadyRunning, Exit
from distributary_simulate.demo.games import PLAN, Folder, rounds
from distributary_simulate.errors import DemoFolderTaken
from distributary_simulate.games.encodings import Format
from distributary_simulate.games.schemas import game_names
from distributary_simulate.games.truth import Truth
from tests.processes import command

GAMES = game_names(PLAN.games)


def test_the_rounds_send_each_record_once() -> None:
    half = PLAN.records // 2
    sent = Counter(
        (version, game, start)
        for one in rounds(GAMES, PLAN.records)
        for version, games, start in one.parts
        for game in games
    )
    assert sent == Counter((v, g, s) for v in (1, 2, 3) for g in GAMES for s in (0, half))


def test_old_versions_go_on_beside_new_ones_and_one_game_begins_half_way() -> None:
    every = rounds(GAMES, PLAN.records)
    versions = [{version for version, _, _ in one.parts} for one in every]
    assert {1, 2} in versions
    first = {g: next(n for n, one in enumerate(every) if any(g in games for _, games, _ in one.parts)) for g in GAMES}
    assert Counter(first.values()) == {0: PLAN.games - 1, len(every) // 2: 1}


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DemoFolderTaken) as caught, Folder(tmp_path).taken():
        pass
    assert caught.value.parameters == {"folder": str(tmp_path)}
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_an_earlier_demo_is_replaced_but_not_what_a_user_put_beside_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "demo")
    with folder.taken():
        folder.write_pipeline()
        (folder.lake / "game").mkdir(parents=True)
    (folder.root / "notes.txt").write_text("mine")
    with folder.taken():
        assert not folder.lake.exists()
        assert not folder.file.exists()
    assert (folder.root / "notes.txt").read_text() == "mine"


def test_two_demos_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "demo")
    with folder.taken(), pytest.raises(AlreadyRunning), Folder(folder.root).taken():
        pass


def test_the_pipeline_file_of_a_demo_is_valid_also_in_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path / 'a b: "c" #d')
    with folder.taken():
        config = folder.write_pipeline()
    assert config == load(folder.file)
    assert config.tables.root == str(folder.lake)


@pytest.mark.spark
@pytest.mark.parametrize("form", ["protobuf", "avro", "json"])
def test_a_demo_s_payloads_are_of_the_format_that_was_asked_for(tmp_path: Path, form: Format) -> None:
    folder = Folder(tmp_path / "demo", form=form)
    with folder.taken():
        assert folder.write_pipeline().payload.format == form


def test_the_demo_shows_that_nothing_is_lost(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "demo")
    done = subprocess.run(
        command("demo", "games", "--dir", str(folder.root), "--json"),
        capture_output=True, text=True, timeout=1000, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == Exit.OK, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    batches, (run, compared, verified) = said[:-3], said[-3:]
    assert {one["kind"] for one in batches} == {"batch"}
    assert run["kind"] == "run"
    assert run["batches"] == len(batches) >= 4
    truth = Truth.load(folder.truth)
    assert truth.records_total == PLAN.total
    assert compared["ok"] is True, compared
    assert (compared["rows_found"], compared["quarantined_found"]) == (truth.rows_total, truth.quarantined)
    assert verified["ok"] is True
    assert (verified["rows_written"], verified["rows_quarantined"]) == (truth.rows_total, truth.quarantined)
    assert len(verified["tables"]) == PLAN.games
    assert all(len(one["schema_ids"]) == PLAN.versions for one in verified["tables"])
    newest = DeltaTable(str(folder.lake / GAMES[-1])).to_pyarrow_table()
    assert newest.num_rows == truth.rows_of(GAMES[-1])
    assert f"col_{GAMES[-1]}_{PLAN.versions}" in newest.column_names
