"""The demo `declarative`."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from distributary.config import load
from distributary.errors import Exit
from distributary_simulate.demo.declarative import PLAN, DeclarativeFolder, rounds
from distributary_simulate.games.schemas import game_names
from tests.processes import command

GAMES = tuple(game_names(PLAN.games))


def test_the_rounds_bring_a_version_and_a_game_and_send_no_record_twice() -> None:
    sent = Counter((version, game) for _, parts in rounds(GAMES) for version, games in parts for game in games)
    assert set(sent.values()) == {1}
    assert {game for _, game in sent} == set(GAMES)
    first = [{game for _, games in parts for game in games} for _, parts in rounds(GAMES)]
    assert GAMES[-1] not in first[0]
    assert GAMES[-1] in first[1]


def test_the_pipeline_file_of_the_demo_is_valid(tmp_path: Path) -> None:
    folder = DeclarativeFolder(tmp_path / "demo")
    with folder.taken():
        config = folder.write_pipeline()
    assert config.layout == "declarative"
    assert config == load(folder.file)


@pytest.mark.spark
def test_the_demo_shows_gold_and_that_nothing_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        command("demo", "declarative", "--dir", str(tmp_path / "demo"), "--json"),
        capture_output=True, text=True, timeout=1000, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == Exit.OK, done.stderr[-3000:]
    assert [p.name for p in tmp_path.iterdir()] == ["demo"]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    demo, verified = said[-2:]
    assert (demo["ok"], demo["differences"]) == (True, [])
    assert [row["game"] for row in demo["gold"]] == sorted(GAMES)
    assert sum(row["events"] for row in demo["gold"]) == demo["rows_sent"] == verified["rows_written"]
    assert verified["ok"] is True
    updates = [one for one in said if one.get("kind") == "update"]
    assert len(updates) == len(rounds(GAMES))
    assert updates[0]["datasets"]["bronze"]["rows"] > 0
