"""The roots of all errors: who can mend it, which exit code it has, whether to try again."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import PurePath
from typing import Any, ClassVar

from distributary.names import printable


class Exit(IntEnum):
    """Exit codes of the command line; scripts depend on them."""

    OK = 0
    ATTENTION = 1
    BAD_INPUT = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


class DistributaryError(Exception):
    """Root of all errors. `template` is rendered with the keyword parameters the error is raised with."""

    condition: ClassVar[str] = "ERROR"
    template: ClassVar[str] = "{detail}"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[Exit] = Exit.ATTENTION

    def __init__(self, **parameters: Any) -> None:
        self.parameters = parameters
        super().__init__(self.template.format(**for_people(parameters)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.parameters)


def for_people(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a message has them: names on one line, `detail` on some, and nothing that does not print."""
    return {key: _for_people(key, value) for key, value in parameters.items()}


def _for_people(key: str, value: Any) -> Any:
    if not isinstance(value, str | BaseException | PurePath):
        return value
    return printable(str(value), keep="\n") if key == "detail" else printable(str(value))


def _rebuild(cls: type[DistributaryError], parameters: dict[str, Any]) -> DistributaryError:
    return cls(**parameters)


class BadInput(DistributaryError):
    condition = "BAD_INPUT"
    exit_code = Exit.BAD_INPUT


class NeedsAttention(DistributaryError):
    condition = "NEEDS_ATTENTION"
    exit_code = Exit.ATTENTION


class EnvironmentFault(DistributaryError):
    condition = "ENVIRONMENT"
    exit_code = Exit.ENVIRONMENT


class Outage(EnvironmentFault):
    """Something outside is away for now. The batch fails and is retried; no row is ever quarantined for it."""

    condition = "OUTAGE"
    retryable = True
