"""A process that runs a pipeline and is killed for it: `python -m tests.crash_child FILE once|continuous`.

It starts Spark, says `ready`, waits for a line on its input, and then runs: so the next process can start Spark while
this one is at work. `once` runs to the end again and again, so that it never ends by itself; `last` runs to the end
and stops.
"""

from __future__ import annotations

import sys

from distributary.config import load
from distributary.pipeline import run, session_of


def main(file: str, mode: str) -> None:
    config = load(file)
    session_of(config)
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        run(config, once=mode != "continuous")
        if mode == "last":
            print("done", flush=True)
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
