"""A process that runs a pipeline and ends itself by SIGKILL, with its JVM, at a moment of its choice:
`python -m tests.dying_child FILE`.

It waits for its words as `tests.killing` does for a command: nothing, and it takes what is there and stops; or one of
`MOMENTS` and the first batch in which that counts. The next process does the batch again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import psutil

from distributary.config import load
from distributary.engine.messages.micro_batch import Fanout
from distributary.running.stream import run
from distributary.state.ledger import Ledger
from distributary.tables import spark_merge
from distributary.tables.spark_engine import SparkEngine
from tests.killing import ordered

MOMENTS: Final[Mapping[str, tuple[Any, str, bool]]] = {
    "a table has its columns": (SparkEngine, "prepare", True),
    "a table has its rows": (SparkEngine, "append", True),
    "a merge has its rows and not its mark": (spark_merge, "_merge", True),
    "all tables have their rows": (Ledger, "record", False),
    "the ledger has its lines": (Ledger, "record", True),
}
"""Name -> a function, and whether the process ends after it has done its work, or before."""


def main(file: str) -> None:
    words = [word for word in ordered(file) if word]
    config = load(file)
    if words:
        _end_at(*MOMENTS[words[0]], int(words[1]))
    run(config, once=True)


def _end_at(owner: Any, name: str, after: bool, batch: int) -> None:
    fanout: Any = Fanout
    whole, spec, begun = getattr(owner, name), fanout.spec, [-1]

    def noted(self: Fanout, stream: str, number: int, *arguments: Any, **named: Any) -> Any:
        begun.append(number)
        return spec(self, stream, number, *arguments, **named)

    def end(*arguments: Any, **named: Any) -> Any:
        is_last = max(begun) >= batch
        result = whole(*arguments, **named) if after or not is_last else None
        if is_last:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, end)
    fanout.spec = noted


if __name__ == "__main__":
    main(*sys.argv[1:])
