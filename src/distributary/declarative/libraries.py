"""The user's own definitions: files of Python or SQL beside the generated datasets."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from distributary.config import Pipeline
from distributary.errors import ConfigError, UpdateFailed, without_stack

if TYPE_CHECKING:
    from pyspark.pipelines.graph_element_registry import GraphElementRegistry

SUFFIXES = (".py", ".sql")


@dataclass(frozen=True)
class Library:
    """One file. `root`: the folder that its path is shown relative to. `functions`: of `tables.function` in it."""

    path: Path
    root: Path
    functions: tuple[str, ...] = ()


def find_libraries(config: Pipeline, base: Path) -> list[Library]:
    """The files that `declarative.libraries` names. `base`: the folder of the pipeline file.

    Raises ConfigError: an entry names nothing, or a file that is neither Python nor SQL.
    """
    libraries: dict[Path, Library] = {}
    for number, pattern in enumerate(config.declarative.libraries):
        root = base if not Path(pattern).is_absolute() else Path(Path(pattern).anchor)
        relative = str(Path(pattern).relative_to(root)) if Path(pattern).is_absolute() else pattern
        # As Spark's own command has it: `folder/**` is every file below.
        relative = f"{relative}/*" if relative.endswith("**") else relative
        paths = sorted(p for p in root.glob(relative) if p.is_file() and "__pycache__" not in p.parts)
        key = f"declarative.libraries[{number}]"
        if not paths:
            raise ConfigError(file="the pipeline", key=key, detail=f"{pattern!r} names no file below {root}")
        for path in paths:
            if path.suffix not in SUFFIXES:
                detail = f"{path} is neither Python (.py) nor SQL (.sql)"
                raise ConfigError(file="the pipeline", key=key, detail=detail)
            libraries[path.resolve()] = Library(path.resolve(), base.resolve())
    return list(libraries.values())


def load_library(library: Library, spark: SparkSession, registry: GraphElementRegistry) -> None:
    """Register what is in the file, as `spark-pipelines` does: Python with `spark` as a global name.

    Raises UpdateFailed: the file raised something.
    """
    path = library.path
    try:
        if path.suffix == ".sql":
            registry.register_sql(path.read_text(encoding="utf-8"), path)
        else:
            _run(path, spark=spark)
    except Exception as e:
        raise UpdateFailed(detail=f"{path}{_line(e, path)}: {type(e).__name__}: {without_stack(e)[:500]}") from e


def _line(error: Exception, path: Path) -> str:
    """Where in the file it was raised, as `:7`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _run(path: Path, **names: Any) -> ModuleType:
    """The module that a file makes. `names`: global names that are there when it begins."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


def find_functions(config: Pipeline, base: Path) -> list[Library]:
    """The files of `tables.function`. Raises ConfigError: there is none of that name."""
    libraries: dict[Path, Library] = {}
    for key, text in config.tables.each("function").items():
        if text is None:
            continue
        file, colon, name = text.rpartition(":")
        path = (base / file).resolve()
        if not colon or not name.isidentifier() or path.suffix != ".py" or not path.is_file():
            detail = f"{text!r} is not a Python file and a function, as own.py:name, with the file below {base}"
            raise ConfigError(file="the pipeline", key=key, detail=detail)
        others = libraries[path].functions if path in libraries else ()
        libraries[path] = Library(path, base.resolve(), tuple(dict.fromkeys((*others, name))))
    return list(libraries.values())


def load_function(config: Pipeline, route: str, base: Path) -> Callable[[DataFrame], DataFrame] | None:
    """The user's function over a route's silver rows. Raises ConfigError: the file has no such function."""
    text = config.tables.row_settings_of(route)[2]
    if text is None:
        return None
    file, _, name = text.rpartition(":")
    path = (base / file).resolve()
    function: Callable[[DataFrame], DataFrame] | None = getattr(_run(path), name, None)
    if not callable(function):
        raise ConfigError(file=str(path), key="tables.function", detail=f"has no function {name!r}")
    return function


def forget_modules(libraries: list[Library]) -> None:
    """Let the next import read again what the user's files import from beside them: each update is of today's code.

    An environment may be there too (a project's `.venv`): what is installed stays, and so do we.
    """
    folders = {library.path.parent for library in libraries}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name == "__main__" or name.partition(".")[0] == __name__.partition(".")[0]:
            continue
        path = Path(file)
        if not _INSTALLED & set(path.parts) and any(path.is_relative_to(folder) for folder in folders):
            del sys.modules[name]


_INSTALLED = {"site-packages", "dist-packages"}
