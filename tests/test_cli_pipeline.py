"""`distributary pipeline` as a user meets it: what it refuses, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributary.cli.entry import execute
from distributary.errors import Exit
from distributary.state.lock import only_run

pytestmark = pytest.mark.usefixtures("old_signals")

PIPELINE = """\
pipeline: games
layout: {layout}
source: {{type: delta, path: {root}/source}}
registry: {{path: {root}/registry}}
tables: {{root: {root}/lake}}
"""


def pipeline(folder: Path, layout: str = "declarative", more: str = "") -> str:
    file = folder / f"{layout}.yaml"
    file.write_text(PIPELINE.format(root=folder, layout=layout) + more)
    return str(file)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that the user can put right, in one line."""
    assert execute(list(arguments)) == Exit.BAD_INPUT
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize("arguments", [["run"], ["init", "--out", "project"]])
def test_a_missing_file_and_another_layout_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    verb, *more = arguments
    assert "there is no such file" in refused(capsys, "pipeline", verb, str(tmp_path / "no.yaml"), *more)
    assert "needs layout: declarative" in refused(capsys, "pipeline", verb, pipeline(tmp_path, "fanout"), *more)


def test_check_reads_the_files_of_the_user_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pipeline(tmp_path, more="declarative: {libraries: [own.py]}\n")
    assert "own.py" in refused(capsys, "check", file)
    own = tmp_path / "own.py"
    own.write_text('@dp.table(name="t")\ndef t():\n    return spark.readStream.table("s").drop("x")\n')
    assert "own.py:3" in refused(capsys, "check", file)
    own.write_text('@dp.table(name="t")\ndef t():\n    return spark.readStream.table("s").select("x")\n')
    assert execute(["check", file]) == Exit.OK


def test_bronze_as_a_view_is_refused_in_one_line_that_says_what_would_be_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "pipeline", "run", pipeline(tmp_path, more="declarative: {bronze_as: view}\n"))
    assert "declarative.bronze_as" in said
    assert "would be lost" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("verb", ["run", "plan", "workflow plan --clusters 2", "workflow local --clusters 2"])
def test_verbs_of_the_other_layouts_name_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    file = pipeline(tmp_path)
    name, *more = verb.split(" --")
    flags = f"--{more[0]}".split() if more else []
    assert f"distributary pipeline run {file}" in refused(capsys, *name.split(), file, *flags)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--every banana", "--every 'banana'"),
        ("--full-refresh-all --refresh bronze", "--full-refresh-all does not go with"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, says: str
) -> None:
    assert says in refused(capsys, "pipeline", "run", pipeline(tmp_path), "--once", *flags.split())


def test_a_second_run_is_refused_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = pipeline(tmp_path)
    with only_run(f"{tmp_path}/lake/_distributary/games", "games"):
        error = refused(capsys, "pipeline", "run", file, "--once")
    assert "games" in error
    assert "running" in error


def test_the_lint_names_file_line_and_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.py"
    own.write_text('rows = spark.read.table("a")\nrows.withColumn("x", 1)\n')
    file = pipeline(tmp_path, more="declarative: {libraries: [own.py]}\n")
    error = refused(capsys, "pipeline", "run", file, "--once")
    assert f"{own}:2: .withColumn()" in error
    assert ".select('*'" in error


def test_init_says_what_it_has_written_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = pipeline(tmp_path), tmp_path / "project"
    assert execute(["pipeline", "init", file, "--out", str(out), "--no-database"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"wrote {out / 'spark-pipeline.yml'}"
    assert lines[-1] == f"run it: distributary pipeline run {file}, or as {out / 'README.md'} says"
    assert "not an empty folder" in refused(capsys, "pipeline", "init", file, "--out", str(out), "--no-database")
