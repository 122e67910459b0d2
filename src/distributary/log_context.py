"""What a log line is about besides its text: pipeline, stream, batch. Set where it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

_of_process: dict[str, Any] = {}
_here: Final[ContextVar[Mapping[str, Any]]] = ContextVar("log_context", default={})  # noqa: B039 - never changed


def of_process(**fields: Any) -> None:
    """For all lines of this process from now on; None takes a field away."""
    _of_process.update(fields)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """For lines of this thread while the block runs."""
    token = _here.set({**_here.get(), **fields})
    try:
        yield
    finally:
        _here.reset(token)


def log_fields() -> dict[str, Any]:
    """What is known here and now."""
    return {key: value for key, value in {**_of_process, **_here.get()}.items() if value is not None}
