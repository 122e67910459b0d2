"""A process that runs a pipeline and is killed for it: `python -m tests.crash_child FILE`.

It waits for its mode as `tests.killing` does for a command. `once` runs to the end again and again, so that it never
ends by itself; `last` runs to the end and stops.
"""

from __future__ import annotations

import sys

from distributary.config import load
from distributary.running.stream import run
from tests.killing import ordered


def main(file: str) -> None:
    (mode,) = ordered(file)
    config = load(file)
    while True:
        run(config, once=mode != "continuous")
        if mode == "last":
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
