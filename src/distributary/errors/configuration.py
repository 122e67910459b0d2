"""What is wrong with a pipeline file."""

from __future__ import annotations

from typing import Any

from distributary.errors.roots import BadInput, for_people


class ConfigError(BadInput):
    """A pipeline file is wrong. `key` and `detail` are the first fault; `problems`, where given, lists all of them as
    {"key", "detail"}, and the message then has a line for each."""

    condition = "CONFIG_INVALID"
    template = "{file}: {key}: {detail}"

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        problems = parameters.get("problems") or [parameters]
        self.args = ("\n".join(self.template.format(**for_people({**parameters, **problem})) for problem in problems),)


class ConfigFileMissing(BadInput):
    condition = "CONFIG_FILE_MISSING"
    template = "{file}: there is no such file. Give the path of a pipeline file (YAML)."


class SecretMissing(BadInput):
    condition = "SECRET_MISSING"
    template = "{file}: {key}: {reference} has no value{line}. {remedy}"


class NotYet(BadInput):
    condition = "NOT_YET"
    template = "{what} is not available yet in this version. Available: {available}."


class LintFailed(BadInput):
    condition = "LINT_FAILED"
    template = "{detail}"


class SqlInvalid(BadInput):
    condition = "SQL_INVALID"
    template = "{key}: {sql!r} cannot be evaluated: {detail}"
