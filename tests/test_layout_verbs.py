"""The layouts two_hop and wide as a user meets them: by the command line, and in the demo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distributary.cli.entry import execute
from distributary.errors import Exit
from distributary.running.progress import LineDisplay
from distributary_simulate.demo.games import Folder, play
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.schemas import game_names
from tests.layouts import TWO_HOP, WIDE, Laid, LayoutCase
from tests.scenarios import message

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "old_signals")]

EVENT = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; }'
LATE = 'syntax = "proto3"; message event { string user = 1; int32 score = 2; string late = 3; }'


@pytest.mark.parametrize("layout", [TWO_HOP, WIDE], ids=lambda layout: layout.name)
def test_all_verbs_work_by_the_command_line(lake: Path, layout: LayoutCase, capfd: pytest.CaptureFixture[str]) -> None:
    laid = Laid(lake, layout)
    known, late = laid.schema("a-value", EVENT), laid.envelope_id + 1
    laid.send(*(laid.event(r, known, message(EVENT, "event", user="u")) for r in "ab"))
    laid.send(laid.event("b", late, message(LATE, "event", user="u", late="x")), b"not an envelope", None)

    def said(*arguments: str, code: Exit = Exit.OK) -> str:
        assert execute([arguments[0], str(laid.file), *arguments[1:]]) == code, capfd.readouterr().err
        return capfd.readouterr().out

    assert "is valid" in said("check")
    plan = json.loads(said("plan", "--json"))
    assert {t["route"]: (t["new"], t["rows_written"]) for t in plan["tables"]} == {"a": (True, 1), "b": (True, 1)}
    assert "2 written" in said("run", "--once")
    assert json.loads(said("plan", "--json"))["rows_in"] == 0
    assert json.loads(said("status", "--json"))["quarantined"] == 2
    assert json.loads(said("verify", "--json"))["ok"]
    laid.schema("late-value", LATE)
    # The envelope that nobody can read stays, and the exit code says so.
    replayed = json.loads(said("replay", "--json", code=Exit.ATTENTION))
    assert (replayed["rows"], replayed["left"]) == ({"b": 1}, {"": 1})
    if layout is WIDE:
        assert [json.loads(line)["name"] for line in said("views", "--json").splitlines()] == ["a", "b"]
    else:
        assert json.loads(said("resync", "--route", "b", "--json"))["rows"] == 2
    found = json.loads(said("verify", "--json"))
    assert (found["ok"], found["rows_in"], found["rows_written"], found["tombstones"]) == (True, 4, 3, 1)
    laid.check(tombstones=1)
    assert "would" in said("clean")
    said("clean", "--yes")
    assert [path for path in laid.tables.rglob("*") if path.is_file()] == []
    assert (lake / "source").is_dir()


@pytest.mark.parametrize("layout", [TWO_HOP, WIDE], ids=lambda layout: layout.name)
def test_the_demo_plays_in_this_layout(tmp_path: Path, layout: LayoutCase) -> None:
    said: list[str] = []
    plan = Plan(games=3, versions=3, records=20, seed=7, faults=Faults(corrupt=3, tombstones=2), topic="events")
    found = play(Folder(tmp_path / "demo", layout.keys["layout"]), LineDisplay(said.append), plan=plan)
    assert found.comparison.differences == ()
    assert found.verification.problems == ()
    assert found.ok
    assert sum(row[1] for row in found.query.rows) == found.tally.total[game_names(3)[0]].rows_written
