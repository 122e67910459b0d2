"""Secret references: `${env:NAME}`, `${file:PATH}`, `${databricks:SCOPE/KEY}`, always the whole of a value."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic import SecretStr

from distributary.config.environment import environment
from distributary.config.quantities import REFERENCE
from distributary.config.text_files import FileTooLarge, read_text
from distributary.errors import ConfigError, SecretMissing

KeyPath = tuple[str | int, ...]

_PLATFORM = re.compile(r"\{\{secrets/[^{}]+\}\}")
"""A reference to a secret in Databricks' own settings."""
_FREE = frozenset({"options", "conf", "spark_conf", "storage_options"})
"""Keys of free options: what of these is secret, only a name can tell."""
_NO_SECRET = re.compile(r"(?i)(provider|class|enabled|type|location|file|path|ur[il]|endpoint)s?$")
_BEGIN = re.compile(r"\$\{\w+:")
_OF_SHELL = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Z_][A-Z0-9_]+))")
"""What a shell would replace, as a whole value; Spark's and Hadoop's own variables have a dot or a colon."""
_SECRET_KEY = re.compile(
    r"(?i)secret|passw|passphrase|token|(access|account|private|keystore).?key|key\.pem|jaas|credential|\bsas\b"
)


def dotted(path: KeyPath) -> str:
    """`source.topic` from ("source", "topic"). In brackets: list positions, and keys that do not print on one line."""
    plain = (step if isinstance(step, str) and step.isprintable() else None for step in path)
    shown = (f"[{step!r}]" if text is None else f".{text}" for step, text in zip(path, plain, strict=True))
    return "".join(shown).removeprefix(".")


def looks_secret(path: KeyPath) -> bool:
    """Whether a free option (Spark, Kafka, store) is secret by its name, like Spark's own redaction rule."""
    return len(path) > 1 and isinstance(path[-1], str) and bool(_SECRET_KEY.search(path[-1]))


def literal_secrets(values: Mapping[str, Any], references: Collection[KeyPath]) -> list[str]:
    """Keys whose secret is in the file itself. `values`: a pipeline's; `references`: paths that were resolved."""
    written = ((path, value) for path, value in leaves(values) if path not in references)
    return [dotted(path) for path, value in written if _is_literal(path, value)]


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """All values of a document that hold no others, each with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def _is_literal(path: KeyPath, value: Any) -> bool:
    # All options of a store are masked when they are shown, its region too.
    free = len(path) > 1 and path[-2] in _FREE
    if free and (not looks_secret(path) or _NO_SECRET.search(str(path[-1]))):
        return False
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    elif not free or not isinstance(value, str):
        return False
    return bool(value) and not (REFERENCE.fullmatch(value) or _PLATFORM.fullmatch(value))


def resolve(document: Any, *, file: str, lines: Mapping[KeyPath, int] | None = None) -> tuple[Any, dict[KeyPath, str]]:
    """A copy of `document` with references replaced by their values, and the reference at each path. `lines`: of each
    key path, for errors.

    Raises:
        SecretMissing: a reference has no value.
        ConfigError: a reference of an unknown kind, one that is only a part of a value, or a variable of a shell.
    """
    references: dict[KeyPath, str] = {}
    lines = lines or {}

    def walk(value: Any, path: KeyPath) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        line = f" (line {lines[path]})" if path in lines else ""
        if (shell := _OF_SHELL.fullmatch(value)) is not None:
            name = shell[1] or shell[2]
            detail = f"a shell's ${name} is not replaced here; write ${{env:{name}}} as the whole value{line}"
            raise ConfigError(file=file, key=dotted(path), detail=detail)
        if not _BEGIN.search(value):
            return value
        references[path] = value
        return _value(value, file, dotted(path), line)

    return walk(document, ()), references


def _value(reference: str, file: str, key: str, line: str) -> str:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        detail = f"a reference like ${{env:NAME}} must be the whole value, not a part of it{line}"
        raise ConfigError(file=file, key=key, detail=detail)
    reader = _READERS.get(match[1])
    if reader is None:
        allowed = ", ".join(f"${{{kind}:...}}" for kind in _READERS)
        detail = f"unknown reference ${{{match[1]}:...}}; allowed: {allowed}{line}"
        raise ConfigError(file=file, key=key, detail=detail)
    value, remedy = reader(match[2])
    if not value:
        raise SecretMissing(file=file, key=key, reference=reference, line=line, remedy=remedy)
    return value


def _from_env(name: str) -> tuple[str | None, str]:
    return environment().get(name), f"Set the environment variable {name}."


def _from_file(name: str) -> tuple[str | None, str]:
    try:
        return read_text(name).rstrip("\r\n"), f"The file {name} is empty."
    except (OSError, UnicodeDecodeError, FileTooLarge) as error:
        why = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        if isinstance(error, OSError):
            why = error.strerror or "cannot be read"
        return None, f"Write the value to the file {name} ({why})."


def _from_databricks(name: str) -> tuple[str | None, str]:
    scope, slash, key = name.partition("/")
    if not (scope and slash and key):
        return None, "Write it as ${databricks:scope/key}."
    if "DATABRICKS_RUNTIME_VERSION" not in environment():
        return None, "Databricks secrets can be read on Databricks only; elsewhere use ${env:NAME} or ${file:PATH}."
    remedy = f"Check that the secret scope {scope} has the key {key} and that this job may read it."
    try:
        # Part of every Databricks runtime; imported by name because it exists nowhere else.
        secrets = importlib.import_module("databricks.sdk.runtime").dbutils.secrets
        return str(secrets.get(scope=scope, key=key)), remedy
    except Exception as error:  # the runtime raises Py4J errors of many classes
        return None, f"{remedy} ({type(error).__name__})"


_READERS: Mapping[str, Callable[[str], tuple[str | None, str]]] = {
    "env": _from_env,
    "file": _from_file,
    "databricks": _from_databricks,
}
