"""The tasks of a written bundle, run one after the other by the entry point that they name, as a platform would."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributary.audit.verify import verify
from distributary.cli import job
from distributary.cli.entry import execute
from distributary.fleet.workflow.bundle import ENTRY_POINT, FILES, PACKAGE
from distributary_simulate.games.records import Plan
from tests.scenarios import Scenario
from tests.shop import Shop, change, mysql_table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BY_SCHEDULE = {"node_type": "m5d.xlarge", "schedule": "0 0 * * * ?"}


def written(file: Path, root: Path, *arguments: str) -> dict[str, Any]:
    """The job of the bundle that the command writes."""
    wheel, out = root / "distributary-0-py3-none-any.whl", root / "bundle"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("METADATA", "RECORD"):
            archive.writestr(f"distributary-0.dist-info/{name}", "Name: distributary\n\n")
    assert execute(["workflow", "databricks", str(file), "--out", str(out), "--wheel", str(wheel), *arguments]) == 0
    (resource,) = (out / "resources").iterdir()
    (found,) = yaml.safe_load(resource.read_text())["resources"]["jobs"].values()
    return dict(found)


def in_order(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each once all that it waits for is done."""
    left = list(tasks)
    done: set[str] = set()
    while left:
        ready = [t for t in left if {d["task_key"] for d in t.get("depends_on", ())} <= done]
        assert ready, left
        for task in ready:
            yield task
            done.add(task["task_key"])
            left.remove(task)


def run_tasks(settings: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run them all; their keys in this order. Raises JobFailed."""
    ran = []
    for task in in_order(settings["tasks"]):
        wheel = task["python_wheel_task"]
        assert (wheel["package_name"], wheel["entry_point"]) == (PACKAGE, ENTRY_POINT)
        parameters = [text.replace(FILES, str(root / "bundle" / "src")) for text in wheel["parameters"]]
        monkeypatch.setattr(sys, "argv", [ENTRY_POINT, *parameters])
        job.main()
        ran.append(task["task_key"])
    return ran


@pytest.mark.parametrize(
    ("layout", "arguments", "expected"),
    [
        ("fanout", ["--clusters", "2"], ["c1", "c2"]),
        ("fanout", ["--per-route"], ["r-{0}", "r-{1}", "new-routes"]),
        ("two_hop", ["--clusters", "2"], ["bronze", "c1", "c2"]),
        ("wide", ["--clusters", "1"], ["c1"]),
    ],
    ids=["fanout", "a task per route", "two hops", "wide"],
)
def test_the_tasks_of_a_bundle_do_the_pipeline_s_work(
    layout: str, arguments: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, layout=layout, databricks=BY_SCHEDULE)
    games = scenario.games(Plan(games=2, records=5, versions=1))
    scenario.send_games(games, 1)
    settings = written(scenario.file, tmp_path, *arguments)
    assert run_tasks(settings, tmp_path, monkeypatch) == [name.format(*games.names) for name in expected]
    said = verify(scenario.config)
    assert said.ok and said.rows_in == len(scenario.sent), said.problems


def test_of_change_files_one_task_does_all(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(lake, databricks=BY_SCHEDULE)
    shop.send(change(mysql_table(), "INSERT", {"id": 1, "status": "new"}, 100))
    settings = written(shop.file, lake)
    assert run_tasks(settings, lake, monkeypatch) == ["stream"]
    assert not (lake / "bundle" / "src" / "plan.json").exists()
    assert shop.living("shop_orders") == [(1, "new")]


@pytest.mark.parametrize("arguments", [["--clusters", "2"], ["--per-route"], ["--streams-per-cluster", "3"]])
def test_change_files_are_not_spread_over_clusters(
    arguments: list[str], lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(lake, databricks=BY_SCHEDULE)
    assert execute(["workflow", "databricks", str(shop.file), *arguments]) == 2
    assert execute(["workflow", "plan", str(shop.file), "--clusters", "2"]) == 2
    assert "one stream" in capsys.readouterr().err
