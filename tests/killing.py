"""Processes of the command line that are killed by SIGKILL at random moments: `python -m tests.killing FILE`.

Such a process starts Spark, says `ready`, waits for a line with the arguments on its input, and then is `distributary`
with these arguments: so the next one can start Spark while the one before it is at work, and a kill every few seconds
is possible.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.processes import command

ROOT = Path(__file__).parent.parent


class Process:
    """In a session of its own, with its JVM and its Python workers. `module` is run, and begins with `ordered`."""

    def __init__(self, file: Path, log: Path, module: str) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(file)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def go(self, arguments: Sequence[str]) -> None:
        """Do this, as soon as Spark is up."""
        assert self._process.stdin is not None and self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"it did not start; see {self._log.name}"
        self._process.stdin.write("\t".join(arguments) + "\n")
        self._process.stdin.flush()

    def kill(self) -> bool:
        """End it and everything that it started, at once; False when it had ended by itself."""
        alive = self._process.poll() is None
        family = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._end()
        psutil.wait_procs(family, timeout=120)
        return alive

    def finish(self, timeout_sec: float) -> int:
        """Its exit code, once it has ended by itself."""
        code = self._process.wait(timeout_sec)
        self._end()
        return code

    def _end(self) -> None:
        self._process.wait(120)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


@contextmanager
def processes(
    file: Path, log: Path, count: int | None = None, module: str = "tests.killing"
) -> Iterator[Callable[[], Process]]:
    """Gives one process after the other, each of which has begun to start when the one before it was given; `count` of
    them at most."""
    started = [Process(file, log, module)]
    given = iter(started)

    def following() -> Process:
        process = next(given)
        if count is None or len(started) < count:
            started.append(Process(file, log, module))
        return process

    try:
        yield following
    finally:
        for process in started:
            process.kill()


def run_and_kill(
    file: Path,
    log: Path,
    dice: random.Random,
    is_over: Callable[[int], bool],
    between: Callable[[int], None] = lambda _: None,
    wait_sec: tuple[float, float] = (0.5, 5.0),
) -> int:
    """Run a pipeline and kill it, again and again, until `is_over` (asked with the number of kills); then run it to its
    end. `between` is called while each one is at work. Returns how often a running process was killed."""
    kills = 0
    with processes(file, log) as following:
        while not is_over(kills):
            process = following()
            process.go(["run", str(file)])
            wait = dice.uniform(*wait_sec)
            time.sleep(wait / 2)
            between(kills)
            time.sleep(wait / 2)
            alive = process.kill()
            assert alive, f"it ended by itself:\n{log.read_text()[-4000:]}"
            kills += 1
        process = following()
        process.go(["run", str(file), "--once"])
        assert process.finish(300) == 0, log.read_text()[-4000:]
    return kills


def check_by_command(file: Path) -> None:
    """`distributary verify`, as a user has it: nothing is lost or doubled, and merged tables are the fold of logs."""
    done = subprocess.run(command("verify", file, "--json"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["ok"], said["rows_lost"], said["rows_duplicated"]) == (True, 0, 0)


def ordered(file: str) -> list[str]:
    """In the process: what `go` says, once Spark is up."""
    from distributary.config import load
    from distributary.running.stream import session_of

    session_of(load(Path(file)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    arguments = sys.stdin.readline().rstrip("\n").split("\t")
    # What is said from now on would fill the pipe.
    sys.stdout = sys.stderr
    return arguments


def main(file: str) -> None:
    from distributary.cli.entry import execute

    sys.exit(execute(ordered(file)))


if __name__ == "__main__":
    main(*sys.argv[1:])
