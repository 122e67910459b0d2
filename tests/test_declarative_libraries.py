"""The user's own files beside the generated datasets."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.pipelines.graph_element_registry import GraphElementRegistry

from distributary.config import Pipeline
from distributary.declarative.libraries import (
    Library,
    find_functions,
    find_libraries,
    forget_modules,
    load_function,
    load_library,
)
from distributary.errors import ConfigError, UpdateFailed


def config(libraries: list[str] | None = None, **tables: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "games",
            "layout": "declarative",
            "source": {"type": "delta", "path": "/s"},
            "registry": {"path": "/r"},
            "tables": {"root": "/t", **tables},
            "declarative": {"libraries": libraries or []},
        }
    )


class Registered(GraphElementRegistry):
    """What is registered, as it comes."""

    def __init__(self) -> None:
        self.sql: list[str] = []

    def register_output(self, output: Any) -> None: ...
    def register_flow(self, flow: Any) -> None: ...
    def register_auto_cdc_flow(self, flow: Any) -> None: ...
    def register_sql(self, sql_text: str, file_path: Path) -> None:
        self.sql.append(sql_text)


def test_files_and_whole_folders_are_found_once(tmp_path: Path) -> None:
    for name in ("own.py", "more/a.sql", "more/deep/b.py", "more/__pycache__/b.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_libraries(config(["own.py", "more/**", "more/a.sql", str(tmp_path / "own.py")]), tmp_path)
    assert [lib.path.relative_to(tmp_path.resolve()).as_posix() for lib in found] == [
        "own.py", "more/a.sql", "more/deep/b.py",
    ]  # fmt: skip


@pytest.mark.parametrize(("pattern", "word"), [("none/**", "names no file"), ("notes.txt", "neither Python")])
def test_an_entry_that_names_nothing_or_something_else_is_an_error(tmp_path: Path, pattern: str, word: str) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "own.py").touch()
    with pytest.raises(ConfigError) as caught:
        find_libraries(config(["own.py", pattern]), tmp_path)
    assert caught.value.parameters["key"] == "declarative.libraries[1]"
    assert word in str(caught.value)


def test_python_is_run_with_spark_and_sql_is_registered_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from pathlib import Path\nPath(__file__ + '.ran').write_text(str(spark))\n")
    (tmp_path / "own.sql").write_text("CREATE VIEW a AS SELECT 1")
    registry = Registered()
    session: Any = "the session"
    for name in ("own.py", "own.sql"):
        load_library(Library(tmp_path / name, tmp_path), session, registry)
    assert (tmp_path / "own.py.ran").read_text() == "the session"
    assert registry.sql == ["CREATE VIEW a AS SELECT 1"]


@pytest.mark.parametrize("text", ["x = 1\ny = nosuch\n", "x = 1\nraise KeyError('a')\n"])
def test_a_file_that_raises_names_itself_and_the_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text(text)
    session: Any = None
    with pytest.raises(UpdateFailed) as caught:
        load_library(Library(tmp_path / "own.py", tmp_path), session, Registered())
    assert f"{tmp_path / 'own.py'}:2: " in caught.value.parameters["detail"]


def test_a_function_is_found_by_file_and_name_for_all_routes_or_one(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(rows):\n    return rows\ndef g(rows):\n    return None\n")
    given = config(function="own.py:f", routes={"a": {"function": "own.py:g"}})
    (library,) = find_functions(given, tmp_path)
    assert library.functions == ("f", "g")
    own: Any = object()
    every, one = load_function(given, "other", tmp_path), load_function(given, "a", tmp_path)
    assert every is not None and one is not None
    assert every(own) is own
    assert one(own) is None
    assert load_function(config(), "a", tmp_path) is None


@pytest.mark.parametrize("text", ["own.py", "none.py:f", "own.py:not a name", "own.txt:f"])
def test_a_function_that_cannot_be_found_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").touch()
    (tmp_path / "own.txt").touch()
    with pytest.raises(ConfigError) as caught:
        find_functions(config(function=text), tmp_path)
    assert caught.value.parameters["key"] == "tables.function"


def test_a_file_without_the_function_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("f = 1\n")
    with pytest.raises(ConfigError):
        load_function(config(function="own.py:f"), "a", tmp_path)


def test_the_next_update_reads_a_module_of_the_users_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text("import beside\n")
    beside = tmp_path / "beside.py"
    beside.write_text("x = 1\n")
    library = Library(tmp_path / "own.py", tmp_path)
    registry = Registered()
    session: Any = None
    load_library(library, session, registry)
    assert sys.modules["beside"].x == 1
    beside.write_text("x = 12\n")
    forget_modules([library])
    load_library(library, session, registry)
    assert sys.modules["beside"].x == 12
    del sys.modules["beside"]


def test_what_is_installed_below_the_folder_is_not_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "thing_of_others.py").touch()
    monkeypatch.syspath_prepend(installed)
    module = importlib.import_module("thing_of_others")
    # A copy: the tests themselves lie below one of the folders, and are forgotten.
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    forget_modules([Library(tmp_path / "own.py", tmp_path), Library(Path(__file__), tmp_path)])
    assert sys.modules.pop("thing_of_others") is module
    assert "distributary.config" in sys.modules
