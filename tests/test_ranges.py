"""What pyproject.toml asks for, what lowest.txt and constraints.txt try, and what docs/versions.md says of it."""

from __future__ import annotations

import json
import re
import runpy
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from distributary.spark.versions import KNOWN, minor
from tests import matrix, versions_page

PROJECT = tomllib.loads((matrix.ROOT / "pyproject.toml").read_text())["project"]
ALWAYS = [Requirement(line) for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"])]
EXTRAS = [
    Requirement(line) for name, extra in PROJECT["optional-dependencies"].items() if name != "dev" for line in extra
]


def versions(path: Path) -> dict[str, str]:
    lines = (line.split("==") for line in path.read_text().splitlines() if "==" in line)
    return {canonicalize_name(name): version for name, version in lines}


@pytest.mark.parametrize("wanted", ALWAYS, ids=lambda wanted: wanted.name)
def test_the_lowest_version_that_is_tried_is_the_lower_bound(wanted: Requirement) -> None:
    (bound,) = (part.version for part in wanted.specifier if part.operator in (">=", "=="))
    assert versions(matrix.LOWEST)[canonicalize_name(wanted.name)] == bound


@pytest.mark.parametrize("wanted", [*ALWAYS, *EXTRAS], ids=lambda wanted: wanted.name)
def test_the_pinned_version_is_in_the_range(wanted: Requirement) -> None:
    pinned = versions(matrix.PINS).get(canonicalize_name(wanted.name))
    assert pinned is None or pinned in wanted.specifier
    assert any(part.operator in ("<", "==") for part in wanted.specifier), "a next major version may break it"


def test_the_long_description_has_no_link_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    stand_in = ModuleType("setuptools")
    monkeypatch.setattr(stand_in, "setup", given.update, raising=False)
    monkeypatch.setitem(sys.modules, "setuptools", stand_in)
    runpy.run_path(str(matrix.ROOT / "setup.py"))
    text = given["long_description"]
    assert text.startswith("# distributary") and "One stream in, a Delta table per route out" in text
    assert not [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("http")]
    assert PROJECT["dynamic"] == ["readme"]


def test_the_matrix_tries_every_spark_and_python_that_is_named() -> None:
    assert {minor(case.spark) for case in matrix.CASES} == set(KNOWN)
    named = {match[1] for line in PROJECT["classifiers"] if (match := re.search(r":: Python :: (3\.\d+)$", line))}
    assert {case.python for case in matrix.CASES} == named
    assert [(case.spark, case.delta) for case in matrix.CASES if case.lowest] == [
        (versions(matrix.LOWEST)["pyspark"], versions(matrix.LOWEST)["delta-spark"])
    ]


def test_the_page_says_what_the_matrix_found() -> None:
    known = json.loads(versions_page.RESULTS.read_text())
    assert list(known) == [case.name for case in matrix.CASES if case.name in known]
    text = versions_page.PAGE.read_text()
    assert versions_page.page(text, list(known.values()), {part.name: part.what for part in matrix.PARTS}) == text


def test_a_failure_and_what_a_spark_lacks_stand_in_the_table() -> None:
    parts = [
        {"part": "a", "state": "failed", "detail": "x | y"},
        {"part": "b", "state": "not there", "detail": "needs Spark 4.1"},
    ]
    about = {"spark": "4.0.0", "delta": "4.0.1", "python": "3.11", "lowest": True, "date": "2026-11-30"}
    text = f"Before.\n{versions_page.BEGIN}\nold\n{versions_page.END}\nBehind."
    lines = versions_page.page(
        text, [{**about, "parts": parts}], {"a": "first", "b": "second", "c": "third"}
    ).splitlines()
    assert lines[0] == "Before." and lines[-1] == "Behind." and "old" not in lines
    assert "| first | failed: x \\| y |" in lines
    assert "| second | not there: needs Spark 4.1 |" in lines
    assert "| third | not tried |" in lines


def test_each_part_is_kept_when_it_was_tried_in_place_of_an_earlier_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    monkeypatch.setattr(matrix, "RESULTS", results)
    monkeypatch.setattr(matrix, "PAGE", page)
    page.write_text(f"{versions_page.BEGIN}\n{versions_page.END}\n")
    case = matrix.CASES[0]
    for part, state in (("cdc", "failed"), ("games", "passed"), ("cdc", "passed")):
        matrix.keep(case, matrix.Outcome(part, state))
    (kept,) = json.loads(results.read_text()).values()
    assert [(part["part"], part["state"]) for part in kept["parts"]] == [("games", "passed"), ("cdc", "passed")]
    lines = page.read_text().splitlines()
    assert [line.split(" | ")[-1] for line in lines if "`demo games`:" in line or "`demo cdc`" in line] == [
        "passed |"
    ] * 2
    assert sum(line.endswith("| not tried |") for line in lines) == len(matrix.PARTS) - 2


def test_the_lowest_versions_are_tried_with_the_python_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine has one Python as a rule, and need not have the first one that we name."""
    tried: list[matrix.Case] = []

    def keeps(case: matrix.Case, *_: object) -> list[matrix.Outcome]:
        tried.append(case)
        return []

    monkeypatch.setattr(matrix, "BUILD", tmp_path / "matrix")
    monkeypatch.setattr(matrix, "tried", keeps)
    monkeypatch.setattr(matrix, "built_wheel", lambda: matrix.BUILD)
    monkeypatch.setattr(matrix, "CASES", [replace(case, python="3.99") for case in matrix.CASES])
    monkeypatch.setattr(sys, "argv", ["matrix", "--lowest"])
    assert matrix.main() == 0
    assert [matrix.python_of(case.python) for case in tried] == [sys.executable]


def test_a_part_that_its_time_ended_is_told_from_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "distributary"
    program.parent.mkdir()
    states = []
    for line in ("sleep 20", "exit 1", "exit 0"):
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o700)
        monkeypatch.setattr(matrix, "PART_SEC", 1)
        states.append(matrix.attempt(matrix.CASES[0], matrix.PARTS[0], tmp_path).state)
    assert states == ["not done", "failed", "passed"]
