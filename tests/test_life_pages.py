"""The pages about upgrades, back-ups and losses, typed by a machine, over the state of an earlier release."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.scenarios import Scenario, append_source, message
from tests.test_state_format import OLDER
from tests.typed_pages import Typist

OLD = 'syntax = "proto3"; message player { int64 id = 1; string nick = 2; int32 level = 3; }'
NEW = 'syntax = "proto3"; message player { int64 id = 1; string nick = 2; int32 level = 3; bool vip = 4; }'

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "old_signals")]


class Pipeline:
    """`/data` of the pages: source, registry, tables with nine records in, and what may happen to them."""

    def __init__(self, folder: Path) -> None:
        with tarfile.open(OLDER) as archive:
            archive.extractall(folder, filter="data")
        self.folder = folder
        self.scenario = Scenario(folder)
        (folder / "pipeline.yaml").rename(folder / "games.yaml")
        self.offset = 9
        self.meanwhile = {
            "records come": self.records_come,
            "records of a new schema come": lambda: self.records_come(NEW),
            "a newer release runs": self.newer_release_runs,
            "the source is made anew": self.source_is_made_anew,
        }

    def records_come(self, text: str = OLD) -> None:
        schema_id = self.scenario.schema("chess", text)
        bodies = [message(text, "player", id=self.offset + n) for n in range(2)]
        values = [self.scenario.event("chess", schema_id, body) for body in bodies]
        append_source(self.scenario.source, values, 0, self.offset)
        self.offset += 2

    def newer_release_runs(self) -> None:
        said = {"format": 2, "release": "9.9.0"}
        (Path(self.scenario.config.state_root) / "format.json").write_text(json.dumps(said))

    def source_is_made_anew(self) -> None:
        shutil.rmtree(self.scenario.source)
        append_source(self.scenario.source, [b"another"], 0, 0)


@pytest.mark.parametrize(("page", "commands"), [("upgrade.md", 10), ("backup.md", 8), ("disaster.md", 25)])
def test_each_command_of_the_page_does_what_it_says(
    page: str, commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(tmp_path)
    assert Typist(tmp_path, capsys, pipeline.meanwhile).type_all(page) >= commands
