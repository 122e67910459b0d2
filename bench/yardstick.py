"""How fast the machine is at the moment: the seconds of a fixed piece of work on all cores that the goals are for.

`python -m bench.yardstick` says it; each benchmark's result keeps it, so that figures of two days can be compared.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from bench.workload import CORES, ReadyProcesses

OBJECTS = 1_000_000
"""Python objects that one process makes and looks up: about half of its time."""
WRITES = 8
"""Times that it writes the rows as Parquet: the other half."""
ROWS = 200_000


def yardstick() -> float:
    """Seconds of wall time until the slower process is done, the least of two tries; their start is not counted."""
    return min(_side_by_side() for _ in range(2))


def _side_by_side() -> float:
    with ReadyProcesses(_prepare, [()] * CORES, _work) as processes:
        return processes.round()


_TABLES: list[pa.Table] = []
"""What `_prepare` left in this process."""


def _prepare() -> None:
    numbers = pa.array(range(ROWS), pa.int64())
    names = pa.array([f"name-{n * 7919 % ROWS}" for n in range(ROWS)])
    _TABLES.append(pa.table({"number": numbers, "name": names}))


def _work() -> None:
    found = {str(n): n for n in range(OBJECTS)}
    sum(found[key] for key in found)
    for _ in range(WRITES):
        pq.write_table(_TABLES[0], pa.BufferOutputStream(), compression="zstd")


if __name__ == "__main__":
    print(f"{yardstick():.2f} s")
