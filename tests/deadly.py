"""Work that ends its process. It imports little: each process that it ends begins with it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributary.engine.apart import WorkerDied, WorkResult


class AtHome:
    """In place of `Apart`, for tests that change what the work calls."""

    def __init__(self, *_: Any) -> None: ...

    def each(self, work: Any, items: Sequence[Any], *_: Any) -> list[WorkResult[Any] | WorkerDied]:
        return [WorkResult(work(item)) for item in items]


def end(how: str) -> None:
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "loop":
        while True:
            pass
    if how == "raise":
        raise SystemExit(3)
    if how.startswith("once "):
        # As the kernel does to anybody when memory runs out.
        txn = Path(how.removeprefix("once "))
        if not txn.exists():
            txn.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def report(how: str) -> str:
    end(how)
    return how.upper()


class Foreign(Exception):
    """An error that pickles, and does not come back from it."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def raise_foreign(_: str) -> None:
    raise Foreign("a", "b")


def works(items: list[str]) -> None:
    for item in items:
        end(item)
