"""What holds for every function that Spark calls in its Python workers."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from distributary import errors
from distributary.errors import DistributaryError, Outage, SourceDataLost, SourceMissing, SourceReplaced

P = ParamSpec("P")
R = TypeVar("R")

_TOLD = (Outage, SourceDataLost, SourceMissing, SourceReplaced)
"""Not of one record or table: the driver has to say it as the task has."""
_NOTE = "distributary fault "
_DIED = re.compile(
    r"Python worker exited unexpectedly"
    r"|java\.(?:io\.(?:IO|EOF)|net\.Socket)Exception[^\n]*\n"
    r"(?:\s+at (?:java|sun|jdk|scala)[^\n]*\n)*\s+at org\.apache\.spark\.(?:api|sql\.execution)\.python\."
    r"|\n\s+at org\.apache\.spark\.api\.python\.PythonWorkerFactory"
)
"""Its pipe may break anywhere where the runner itself reads or writes it, and a new one may end before it answers."""
_NOTED = re.compile(rf"^\s*{_NOTE}(\{{.*\}})\s*$", re.MULTILINE)


def in_worker(task: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Mark a function that runs in Spark's Python workers, and yields what it has made.

    Spark brings an error of a worker to the driver as a text: one of the neighbours' gets a line by which `told_fault`
    finds it.

    After each task Spark has the worker collect its garbage (pyspark 4.2.0, daemon.py), and the worker's next task
    waits for that: 45 ms over all that our imports leave in memory (measured), none of which is garbage, ever.
    """

    @wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        _spare_imports()
        try:
            yield from task(*args, **kwargs)
        except _TOLD as e:
            if not hasattr(e, "__notes__"):
                e.add_note(_NOTE + json.dumps({"is": type(e).__name__, **_texts(e)}))
            raise

    return run


def told_fault(text: str) -> DistributaryError | None:
    """The outage, or fault of the source, that ended a worker, from what Spark says of it; None where it was none."""
    try:
        fields = json.loads(_NOTED.findall(text)[-1])
        kind = getattr(errors, fields.pop("is"), None)
        return kind(**fields) if isinstance(kind, type) and issubclass(kind, _TOLD) else None
    except (ValueError, LookupError, TypeError):
        return None


def told_death(text: str) -> bool:
    """Whether a worker, or the process that forks them, has died, from what Spark says of a job that failed, with its
    stack (`BasePythonRunner`, `PythonWorkerFactory`, Spark 4.2.0)."""
    return _DIED.search(text) is not None and "Cannot run program" not in text


def _texts(error: DistributaryError) -> dict[str, str]:
    return {name: str(value) for name, value in error.parameters.items()}


@cache
def _spare_imports() -> None:
    """Take what is there now out of the collector's sight: with the first task all modules have come."""
    gc.freeze()
