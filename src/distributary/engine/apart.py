"""Work that may end its process (a segmentation fault, all memory, a loop without end), done in a process of its own.

`Apart.each` tells what comes of each item: where it would end a person's command or the driver of a run, and in the
search after a worker has died (`killers`). A task guards its own work with `limited`, so that what never ends dies too.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, Self, TypeVar

from distributary.errors.border import in_words

T = TypeVar("T")
R = TypeVar("R")

PARTS = 32
"""Into so many parts a range is cut that ends its process: 65,536 records take four rounds to find one."""
PATIENCE = 20
"""So many times its seconds of CPU, and a minute, may work last: what waits for ever takes none."""
_TIMED_OUT = (signal.SIGPROF, signal.SIGALRM)
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from distributary.engine.apart import main; main(int(sys.argv[2]))"
)


@dataclass(frozen=True)
class WorkResult(Generic[R]):
    """What the work returned, or raised."""

    result: R | None = None
    error: BaseException | None = None


@dataclass(frozen=True)
class WorkerDied:
    """The work ended its process. `how`: the signal's name, `exit code N`, or that it took too long."""

    how: str

    @property
    def detail(self) -> str:
        return detail_of(self.how)


def detail_of(how: str) -> str:
    """In the quarantine's words: a record or file with the reason KILLED_READER."""
    return f"it ended the process that read it: {how}"


@contextlib.contextmanager
def limited(cpu_sec: float) -> Iterator[None]:
    """End this process by a signal if what is done here takes more CPU time of it, or many times as long by the clock.

    A timer of the kernel does that: code that never comes back lets no other thread of Python run. One at a time.
    """
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_sec)
        signal.setitimer(signal.ITIMER_REAL, 60 + PATIENCE * cpu_sec)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


class Apart:
    """Does work in another process: started when it is first needed, anew after a death; ended by `close`, or with this
    object. Threads may share one.

    `cpu_sec`: CPU time that one item may take. `threads`: items that it works at at a time.
    """

    def __init__(self, cpu_sec: float, threads: int = 1) -> None:
        self.cpu_sec = cpu_sec
        self._threads = threads
        self._child: WorkProcess | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._end()

    def each(
        self, work: Callable[[T], R], items: Sequence[T], cpu_sec: float | None = None
    ) -> list[WorkResult[R] | WorkerDied]:
        """What comes of each item, in their order. `work`, `items` and results pickle. `cpu_sec`: instead of the usual.

        An item counts as dead if it ends two processes: the first may have been ended by somebody else, or by another
        item of its time. Raises OSError where no process can be had.
        """
        limit, threads = cpu_sec or self.cpu_sec, self._threads
        answers: list[WorkResult[R] | WorkerDied] = []
        with self._lock:
            while len(answers) < len(items):
                status = self._ask(work, items[len(answers) :], limit, threads, answers)
                if status is None:
                    break
                if threads > 1 or -status not in _TIMED_OUT:
                    status = self._ask(work, items[len(answers) : len(answers) + 1], limit, 1, answers)
                if status is not None:
                    answers.append(WorkerDied(_how(status, limit)))
                threads = 1
        return answers

    def _ask(
        self,
        work: Callable[[T], R],
        items: Sequence[T],
        limit: float,
        threads: int,
        answers: list[WorkResult[R] | WorkerDied],
    ) -> int | None:
        """Adds the answers to `answers`; the status of the process where it ends before it has given them all."""
        child = self._child or self._start()
        try:
            child.connection.send((work, items, limit, threads))
            for _ in items:
                answers.append(child.connection.recv())
        except (EOFError, OSError):
            return self._end()
        except BaseException:  # the rest of its answers would be taken for those to the next question
            child.process.kill()
            self._end()
            raise
        return None

    def _start(self) -> WorkProcess:
        self._child = begin()
        weakref.finalize(self, self._child.end)
        return self._child

    def _end(self) -> int:
        child, self._child = self._child, None
        return 0 if child is None else child.end()


@dataclass(frozen=True)
class WorkProcess:
    """A process that waits for work."""

    process: subprocess.Popen[bytes]
    connection: Connection

    def end(self) -> int:
        """The status of the process, which ends when there is nobody to ask it."""
        self.connection.close()
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def begin() -> WorkProcess:
    """Start one. Raises OSError."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in a terminal is for this process
        )
    child = WorkProcess(process, ours)
    try:
        ours.recv()
    except (EOFError, OSError):
        raise OSError(f"a process that was to work apart ended as it began, with status {child.end()}") from None
    return child


def _how(status: int, limit: float) -> str:
    if -status in _TIMED_OUT:
        return f"it took more than {limit:g} s of CPU time"
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def killers(
    work: Callable[[T], Any], cut: Callable[[int, int], T], count: int, apart: Apart, *, singly: bool = False
) -> dict[int, str]:
    """Which of `count` items end the process that works at them, and how. What the work raises plays no part.

    `work(cut(begin, end))` works at a range of them; a range that ends its process is cut into `PARTS`, until it is one
    item. `singly`: they are tried one by one from the start. Raises OSError.
    """
    how_of: dict[int, str] = {}
    ranges, limit = [(0, count)] if count else [], apart.cpu_sec
    step = 1 if singly else count
    while ranges:
        pieces = [(n, min(n + step, end)) for begin, end in ranges for n in range(begin, end, step)]
        answers = apart.each(work, [cut(begin, end) for begin, end in pieces], limit)
        dead = [
            (piece, answer.how) for piece, answer in zip(pieces, answers, strict=True) if isinstance(answer, WorkerDied)
        ]
        how_of |= {begin: how for (begin, end), how in dead if end - begin == 1}
        ranges = [piece for piece, _ in dead if piece[1] - piece[0] > 1]
        step, limit = -(-step // PARTS), limit / 2  # a part of 1/32 in half the time is given 16 times as much
    return how_of


# -- the process -------------------------------------------------------------------------------------------


def main(handle: int) -> None:
    """Work, items, limit and threads in; what came of each item out, one by one."""
    connection = Connection(handle)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory runs out, this process is to go first
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            work, items, limit, threads = connection.recv()
            with ThreadPoolExecutor(threads) as pool:
                coming = pool.map(lambda item, work=work: _done(work, item), items) if threads > 1 else None
                for item in items:
                    with limited(limit):
                        answer = _done(work, item) if coming is None else next(coming)
                    connection.send_bytes(_pickled(answer))
    os._exit(0)  # there is nothing to tidy up, and somebody waits


def _done(work: Callable[[T], R], item: T) -> WorkResult[R]:
    try:
        return WorkResult(work(item))
    except BaseException as error:  # only its death counts here
        return WorkResult(error=error)


def _pickled(answer: WorkResult[Any]) -> bytes:
    try:
        body = pickle.dumps(answer)
        pickle.loads(body) if answer.error is not None else None
        return body
    except Exception as error:  # an error of a foreign class may not come through
        return pickle.dumps(WorkResult(error=RuntimeError(in_words(answer.error or error))))
