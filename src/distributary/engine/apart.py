"""Work that may end its process (a segmentation fault, all memory) tried in a process of its own: which items do that?

Only for the search after a death, never on the way of a batch: a process takes a second to start.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from distributary.engine.apart import main; main()"
_BEGUN, _DONE = b".", b"!"


def killers(work: Callable[[T], Any], items: Sequence[T]) -> dict[int, str]:
    """Numbers of the items for which `work(item)` ends its process by a signal, and which signal. What it raises or
    returns plays no part. `work` and `items` pickle. Raises OSError where no process can be started."""
    found: dict[int, str] = {}
    begin = 0
    while begin < len(items):
        died = _run(work, items[begin:])
        if died is None:
            break
        found[begin + died[0]] = died[1]
        begin += died[0] + 1
    return found


def _run(work: Callable[[T], Any], items: Sequence[T]) -> tuple[int, str] | None:
    """The first item that ends its process, and how; None where all pass."""
    command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
    done = subprocess.run(
        command, input=pickle.dumps((work, items)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    if done.returncode >= 0 or not done.stdout.startswith(_BEGUN) or done.stdout.endswith(_DONE):
        return None
    return len(done.stdout) - 1, signal.Signals(-done.returncode).name


def main() -> None:
    """The process: a byte for each item that it begins, and one when it is through."""
    says = os.dup(1)
    os.dup2(2, 1)
    work, items = pickle.load(sys.stdin.buffer)
    for item in items:
        os.write(says, _BEGUN)
        with contextlib.suppress(BaseException):  # only its death counts here
            work(item)
    os.write(says, _DONE)
