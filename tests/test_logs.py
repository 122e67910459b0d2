"""Log lines with time, level, pipeline, batch and route, and what a run says as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distributary.cli import log_format
from distributary.cli.entry import execute
from distributary.cli.log_format import JsonLines, RunOutput, TextLines, set_up
from distributary.engine.batch import BatchReport
from distributary.errors import Exit
from distributary.log_context import about, of_process
from distributary.redaction import MASK, hide
from distributary.running.report import RunReport, added

REPORT = BatchReport(
    stream="s", batch=3, rows_in=1200, rows_written=1190, rows_quarantined=10, tombstones=0, tables=2,
    created=("chess",), evolved=("go",), parked=("poker",), recovered=(), seconds={"total": 1.24},
    reasons={"BAD_MAGIC": 10}, written={"chess": 700, "go": 490}, refused={"go": 7, "poker": 3},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    yield
    set_up("plain")
    root.handlers[:] = handlers
    of_process(pipeline=None, stream=None)


def record(text: str, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("distributary", logging.WARNING, __file__, 1, text, (), None)
    made.created = 1764445201.5
    vars(made).update(more)
    return made


def test_a_line_says_time_level_pipeline_batch_and_route() -> None:
    of_process(pipeline="games")
    with about(batch=7):
        line = TextLines().format(record("parked", route="chess"))
        found = json.loads(JsonLines().format(record("parked", route="chess")))
    assert line == "2025-11-29T19:40:01.500Z WARNING games batch=7 route=chess: parked"
    assert found == {
        "time": "2025-11-29T19:40:01.500Z", "level": "warning", "pipeline": "games", "batch": 7, "route": "chess",
        "message": "parked",
    }  # fmt: skip
    assert "batch" not in json.loads(JsonLines().format(record("later")))


def test_no_line_has_a_second_line_a_control_character_or_a_secret() -> None:
    secret = "s3cr3t-t0ken-of-the-broker"
    hide(secret)
    bad = record(f"one\ntwo {secret}\x1b[2J", route="a\nb")
    for form in (TextLines(), JsonLines()):
        line = form.format(bad)
        assert secret not in line and MASK in line
        assert "\n" not in line and "\x1b" not in line
    assert json.loads(JsonLines().format(bad))["route"] == "a\nb"


def test_a_traceback_is_part_of_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        one = record("it fell", exc_info=sys.exc_info())
    assert "ValueError: broken" in json.loads(JsonLines().format(one))["traceback"]


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_is_told_by_log_lines_a_table_that_stays_parked_only_once(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("json")
    logging.getLogger("distributary").setLevel(logging.INFO)
    output = RunOutput(as_json=False)
    output.batch(REPORT)
    output.batch(replace(REPORT, batch=4, created=(), evolved=(), rows_quarantined=0, reasons={}, refused={}))
    said = capsys.readouterr()
    assert said.out == ""
    found = lines_of(said.err)
    assert [(one["batch"], one.get("route"), one["level"]) for one in found] == [
        (3, None, "warning"), (3, "chess", "info"), (3, "go", "info"), (3, "poker", "warning"),
        (3, "go", "warning"), (3, "poker", "warning"), (4, None, "info"),
    ]  # fmt: skip
    assert found[4]["message"] == "7 rows were set aside, 490 written" and found[4]["rows_quarantined"] == 7
    assert found[0]["rows_in"] == 1200 and found[0]["reasons"] == {"BAD_MAGIC": 10}


def test_json_has_time_stamps_tables_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    of_process(pipeline="games")
    output = RunOutput(as_json=True)
    output.say("not here")
    output.batch(REPORT)
    output.end(added(RunReport("games", 0, 0, 0, 0, 0, ()), REPORT), "games.yaml")
    batch, run = lines_of(capsys.readouterr().out)
    assert batch["kind"] == "batch" and batch["pipeline"] == run["pipeline"] == "games"
    assert str(batch["at"]).endswith("Z") and str(run["at"]) >= str(batch["at"])
    assert batch["written"] == {"chess": 700, "go": 490} and batch["refused"] == {"go": 7, "poker": 3}
    assert run["tables"] == ["chess", "go"] and run["reasons"] == {"BAD_MAGIC": 10}


def test_errors_are_log_lines_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert execute(["--log-format", "json", "check", str(tmp_path / "no.yaml")]) == Exit.BAD_INPUT
    (found,) = lines_of(capsys.readouterr().err)
    assert found["level"] == "error" and "there is no such file" in str(found["message"])
    assert execute(["check", str(tmp_path / "no.yaml")]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: ")


def test_the_environment_chooses_the_form_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTRIBUTARY_LOG_FORMAT", "text")
    execute(["check", str(tmp_path / "no.yaml")])
    assert " ERROR -: " in capsys.readouterr().err
    execute(["--log-format", "json", "run", str(tmp_path / "no.yaml")])
    assert json.loads(capsys.readouterr().err)["level"] == "error", "a flag is nearer than the environment"
    execute(["--log-format", "json", "run", "--log-format", "text", str(tmp_path / "no.yaml")])
    assert " ERROR -: " in capsys.readouterr().err
    assert log_format.are_structured()
