"""The places in a state folder: each has its name once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import distributary
from distributary.config import DeclarativeFolder, HopFolder, SharesFolder, StateFolder
from tests.scenarios import Scenario
from tests.state_folders import unknown_names

FOLDERS = (StateFolder, SharesFolder, HopFolder, DeclarativeFolder)
SOURCES = Path(distributary.__file__).parent
OWNER = SOURCES / "config" / "state_folder.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_place_has_a_name_of_its_own_and_says_what_follows_where_it_is_gone(folder: type[StateFolder]) -> None:
    places = folder.places()
    assert not [name for name, times in Counter(place.name for place in places).items() if times > 1]
    assert all(place.holds and place.lost for place in places)


def test_a_place_of_a_folder_is_its_path() -> None:
    assert StateFolder("s3://lake/state").topics == "s3://lake/state/topics.json"
    assert StateFolder.topics.name == "topics.json"


def test_files_of_the_state_folder_are_named_in_one_module() -> None:
    """Names that are plain words, such as `files`, mean other things elsewhere too."""
    names = {place.name for folder in FOLDERS for place in folder.places() if "." in place.name}
    assert len(names) > 10
    found = [
        (path.relative_to(SOURCES).as_posix(), node.value)
        for path in SOURCES.rglob("*.py")
        if path != OWNER
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not found


def test_what_no_page_names_is_found(lake: Path) -> None:
    config = Scenario(lake).configure()
    folder = StateFolder(config.state_root)
    for path in (folder.ledger, f"{folder.shares}/1/small/oddity", f"{folder.hop_1}/strange"):
        Path(path).mkdir(parents=True)
    (Path(folder.shares) / "1" / SharesFolder.division_file).touch()
    assert sorted(unknown_names(config)) == ["hop1/strange", "shares/1/small/oddity"]
