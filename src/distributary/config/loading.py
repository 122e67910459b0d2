"""Pipeline file -> `Pipeline`: read, resolve secrets, check. No JVM, no network, nothing is written."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from distributary.config.document import read_document
from distributary.config.pipeline import Pipeline
from distributary.config.problems import problems_of
from distributary.config.secrets import resolve
from distributary.errors import ConfigError


def load(path: str | Path, *, secrets: bool = True) -> Pipeline:
    """The checked pipeline of the YAML file at `path`. Relative paths inside it count from the working directory.

    `secrets` False: references stay as they are written, for a machine that has no secrets and will not run it.

    Raises:
        ConfigFileMissing: there is no such file.
        ConfigError: anything wrong in it. `key` and `detail` are the first fault, `problems` all of them.
        SecretMissing: a secret reference has no value.
        NotYet: a source or payload format that is planned but not there.
    """
    document, lines = read_document(Path(path))
    resolved, references = resolve(document, file=str(path)) if secrets else (document, {})
    try:
        pipeline = Pipeline.model_validate(resolved)
    except ValidationError as error:
        problems = problems_of(error, document, lines)
        raise ConfigError(file=str(path), **problems[0], problems=problems) from None
    pipeline._references.update(references)
    return pipeline
