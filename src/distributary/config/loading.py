"""Pipeline file -> `Pipeline`: read, resolve secrets, check. No JVM, no network, nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from distributary.config.addresses import is_relative
from distributary.config.document import read_document
from distributary.config.pipeline import Pipeline
from distributary.config.problems import problems_of
from distributary.config.secrets import KeyPath, dotted, leaves, looks_secret, resolve
from distributary.errors import ConfigError
from distributary.redaction import hide

FOLDERS = (("tables", "root"), ("state",), ("checkpoint",), ("bronze", "path"))
"""Keys that name a folder, which a checked pipeline has from the root."""


def load(path: str | Path, *, secrets: bool = True) -> Pipeline:
    """The checked pipeline of the YAML file at `path`. Relative paths inside it count from the working directory.

    `secrets` False: references stay as they are written, for a machine that has no secrets and will not run it.

    Raises:
        ConfigFileMissing: there is no such file.
        ConfigError: anything wrong in it. `key` and `detail` are the first fault, `problems` all of them.
        SecretMissing: a secret reference has no value.
        NotYet: a source that is planned but not there.
    """
    document, lines = read_document(Path(path))
    return _checked(document, lines, str(path), secrets=secrets)


def line_of(path: str | Path, key: str) -> str:
    """` (line 7)`: where a key (as errors spell it) is in a pipeline file, or the nearest one above it; "" for none.

    Raises ConfigFileMissing, ConfigError.
    """
    by_name = {dotted(key_path): line for key_path, line in read_document(Path(path))[1].items()}
    while key and key not in by_name:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return f" (line {by_name[key]})" if key else ""


def load_document(document: Mapping[str, Any], *, name: str = "the pipeline") -> Pipeline:
    """As `load`, of what a pipeline file would hold. `name`: what errors call it.

    Raises ConfigError, SecretMissing, NotYet.
    """
    return _checked(dict(document), {}, name, secrets=True)


def _checked(document: dict[str, Any], lines: dict[KeyPath, int], name: str, *, secrets: bool) -> Pipeline:
    resolved, references = resolve(document, file=name, lines=lines) if secrets else (document, {})
    try:
        pipeline = Pipeline.model_validate(resolved)
    except ValidationError as error:
        problems = problems_of(error, document, lines)
        raise ConfigError(file=name, **problems[0], problems=problems) from None
    pipeline._references.update(references)
    if secrets:
        for value in _secrets(pipeline):
            hide(value)
    pipeline._relative = tuple(".".join(path) for path in FOLDERS if _is_relative(resolved, path))
    return pipeline


def _secrets(pipeline: Pipeline) -> Iterator[str]:
    """All secrets of a pipeline. A store's options are no secrets but by their names: a region is to be read."""
    for path, value in leaves(pipeline.model_dump()):
        if isinstance(value, SecretStr):
            if "storage_options" not in path or looks_secret(path):
                yield from _with_parts(value.get_secret_value())
        elif isinstance(value, str) and looks_secret(path):
            yield value


def _with_parts(secret: str) -> Iterator[str]:
    """A secret, and of an address its path, which a library may show alone."""
    yield secret
    if secret.startswith(("https://", "http://")):
        yield from (step for step in urlsplit(secret).path.split("/") if step)


def _is_relative(document: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Does the file give this folder from the working folder?"""
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return isinstance(value, str) and is_relative(value)
