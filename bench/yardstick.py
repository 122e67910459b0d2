"""How fast the machine is at the moment: the seconds of a fixed piece of work on all cores that the goals are for.

`python -m bench.yardstick` says it; each benchmark's result keeps it, so that figures of two days can be compared.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

CORES = 2
"""As many processes side by side as the benchmarks have task slots."""
OBJECTS = 1_000_000
"""Python objects that one process makes and looks up: about half of its time."""
WRITES = 8
"""Times that it writes the rows as Parquet: the other half."""
ROWS = 200_000


def yardstick() -> float:
    """Seconds of wall time until the slower of the processes is done, the least of two tries; their start not counted.

    Raises subprocess.CalledProcessError when one of them fails.
    """
    return min(_side_by_side() for _ in range(2))


def _side_by_side() -> float:
    command = [sys.executable, "-m", "bench.yardstick", "--one"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(CORES)]
    said = [process.communicate()[0] for process in running]
    for process in running:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    return max(float(text) for text in said)


def _work() -> float:
    """Seconds of one process's share."""
    numbers = pa.array(range(ROWS), pa.int64())
    names = pa.array([f"name-{n * 7919 % ROWS}" for n in range(ROWS)])
    table = pa.table({"number": numbers, "name": names})
    begin = time.perf_counter()
    found = {str(n): n for n in range(OBJECTS)}
    sum(found[key] for key in found)
    for _ in range(WRITES):
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd")
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(_work() if "--one" in sys.argv else f"{yardstick():.2f} s")
