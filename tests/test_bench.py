"""The benchmarks run, prove what they measured, and keep figures in the promised form. No test looks at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench import event_log
from bench.__main__ import NAMES
from bench.result import LATEST, PAGE, Case, Result, keep, page
from bench.workload import WrongRows, as_installed, check_games

ROOT = Path(__file__).parent.parent


@pytest.mark.spark
def test_a_benchmark_runs_and_keeps_its_figures(tmp_path: Path) -> None:
    name = "append_vs_spark_jobs"
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", name, "--quick", f"--results={file}", f"--dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    kept = json.loads(file.read_text())
    assert kept.keys() == {"machine", "versions", "results"}
    found = kept["results"][name]
    assert found["ours"] > 0
    assert len(found["yardstick_sec"]) == 2 and min(found["yardstick_sec"]) > 0
    assert found["ratio"] == pytest.approx(found["other"] / found["ours"], rel=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_a_benchmark_finds_our_modules_compiled_whatever_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "module.py").write_text("x = 1\n")
    as_installed(tmp_path)
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ and not sys.dont_write_bytecode
    assert list((tmp_path / "__pycache__").iterdir())


def test_a_table_with_other_rows_than_expected_gives_no_figure(tmp_path: Path) -> None:
    import pyarrow as pa
    from bench.workload import Workload
    from deltalake import write_deltalake

    work = Workload(tmp_path, 1)
    config = work.config("ours", work.delta_source())
    write_deltalake(str(tmp_path / "ours" / work.names[0]), pa.table({"a": [1, 2]}))
    check_games(config, 2, work.names)
    with pytest.raises(WrongRows, match="2 rows, not 3"):
        check_games(config, 3, work.names)


@pytest.mark.parametrize(("less_is_better", "ratio"), [(True, 5.0), (False, 0.2)])
def test_a_ratio_says_how_many_times_better_ours_is(less_is_better: bool, ratio: float) -> None:
    assert Case("", "s", 2.0, 10.0, less_is_better=less_is_better).ratio == ratio


@pytest.mark.parametrize(
    ("case", "met"),
    [
        (Case("", "s", 1.0, 50.0, goal=40), True),
        (Case("", "s", 1.0, 30.0, goal=40), False),
        (Case("", "s", 5.0, goal=4.0, goal_of="ours"), False),
        (Case("", "rows/s", 5.0, goal=4.0, goal_of="ours", less_is_better=False), True),
        (Case("", "s", 5.0), None),
    ],
)
def test_a_goal_is_met_or_missed(case: Case, met: bool | None) -> None:
    assert case.met is met


def test_results_of_other_benchmarks_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    for name in ("skew", "freshness"):
        keep(Result(name, "What it is.", (Case("all", "s", 1.0),)), file)
    assert json.loads(file.read_text())["results"].keys() == {"skew", "freshness"}


def test_the_page_has_a_place_for_every_benchmark_and_shows_the_kept_figures() -> None:
    text = PAGE.read_text()
    for name in NAMES:
        assert f"<!-- results: {name} -->" in text
    latest = json.loads(LATEST.read_text()) if LATEST.exists() else {}
    assert page(text, latest) == text


def test_the_page_is_filled_from_the_results(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    keep(Result("skew", "What it is.", (Case("all", "s", 2.0, 3.0, goal=2, details={"cpu s": 4.5}),)), file)
    made = page("<!-- results: skew -->\nold\n<!-- end -->\n", json.loads(file.read_text()))
    assert "| all | 2 s | 3 s | 1.5 | ratio 2: **missed** | cpu s 4.5 |" in made
    assert "old" not in made


def test_the_page_says_when_a_result_was_measured_and_how_fast_the_machine_was_then(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    result = Result("skew", "What it is.", (Case("all", "s", 2.0),))
    for taken, said in (((1.5, 1.25), "; yardstick 1.50 s and 1.25 s."), ((), "; yardstick not taken.")):
        keep(result, file, taken)
        made = page("<!-- results: skew -->\n<!-- end -->\n", json.loads(file.read_text()))
        assert re.search(r"^Measured \d{4}-\d\d-\d\d \d\d:\d\d UTC" + re.escape(said) + "$", made, re.MULTILINE), made


def test_what_a_shuffle_moved_is_read_from_sparks_event_log(tmp_path: Path) -> None:
    def ended(at: int, written: int, local: int, remote: int) -> str:
        read = {"Remote Blocks Fetched": 9, "Local Bytes Read": local, "Remote Bytes Read": remote}
        metrics = {"Shuffle Read Metrics": read, "Shuffle Write Metrics": {"Shuffle Bytes Written": written}}
        return json.dumps({"Event": "SparkListenerTaskEnd", "Task Info": {"Finish Time": at}, "Task Metrics": metrics})

    lost = json.dumps({"Event": "SparkListenerTaskEnd", "Task Info": {"Finish Time": 2_500}})
    start = json.dumps({"Event": "SparkListenerApplicationStart", "Timestamp": 900})
    lines = [start, ended(1_000, 40, 0, 0), ended(2_000, 0, 10, 30), lost, ended(3_000, 7, 0, 0)]
    (tmp_path / "app-1.inprogress").write_text("\n".join(lines) + "\n")
    tasks = list(event_log.ended_tasks(tmp_path))
    assert [(task.written, task.read, task.from_others) for task in tasks] == [(40, 0, 0), (0, 40, 30), (7, 0, 0)]
    assert event_log.between(tasks, 1.5, 2.5) == [tasks[1]]
