"""Processes that work apart (`engine.apart`), kept for the next test: to start one costs more than most tests do.

Everything else is the product's: a process that dies, or that was left in the middle of its answers, is not kept, and
one that began under other environment variables, paths or in another folder is not given.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from distributary.engine import apart

_IDLE: dict[tuple[object, ...], list[Any]] = {}
_ROOM = 2


class _Watched:
    """A connection that knows whether answers are still to come."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.open_answers = 0

    def send(self, question: tuple[Any, ...]) -> None:
        self.open_answers = 1
        self.whole.send(question)
        self.open_answers = len(question[1])

    def recv(self) -> Any:
        answer = self.whole.recv()
        self.open_answers -= 1
        return answer


class _Lent:
    """In place of `apart.Child`: its end is to be kept for the next one, if it can be."""

    def __init__(self, whole: Any, surroundings: tuple[object, ...]) -> None:
        self.whole = whole
        self.connection = _Watched(whole.connection)
        self._surroundings = surroundings
        self._is_over = False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = self.whole.process
        return process

    def end(self) -> int:
        if self._is_over:
            return 0
        self._is_over = True
        idle = _IDLE.setdefault(self._surroundings, [])
        if self.connection.open_answers or self.process.poll() is not None or len(idle) >= _ROOM:
            return int(self.whole.end())
        idle.append(self.whole)
        return 0


def _surroundings() -> tuple[object, ...]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return (os.getcwd(), tuple(sys.path), frozenset(variables.items()))


def keep(patch: pytest.MonkeyPatch) -> None:
    """From now on, until `patch` is undone."""
    begin = apart.begin

    def lend() -> Any:
        now = _surroundings()
        idle = _IDLE.get(now, [])
        return _Lent(idle.pop() if idle else begin(), now)

    patch.setattr(apart, "begin", lend)


def end_all() -> None:
    for idle in _IDLE.values():
        while idle:
            idle.pop().end()
