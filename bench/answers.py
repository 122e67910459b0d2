"""What the commands cost that only answer: most of it is what Python imports."""

from __future__ import annotations

import resource
import subprocess
import sys

import yaml

from bench.result import Case, Result
from bench.workload import Place, Workload, WrongRows

NOTE = (
    "CPU seconds of a command, the least of nine, of a pipeline over a Delta source whose rows no run has taken yet. "
    "Other: a Python that imports the libraries which any of them needs (numpy, pyarrow, pydantic, typer)."
)
LIBRARIES = "import numpy, pyarrow.compute, pyarrow.parquet, pydantic, typer"


def run(place: Place) -> Result:
    load = Workload(place.root, 20)
    load.feed_delta(place.size(500, 5))
    config = {
        "pipeline": "answers",
        "source": load.delta_source(),
        "registry": {"path": str(place.root / "registry")},
        "tables": {"root": str(place.root / "lake")},
    }
    file = place.root / "answers.yaml"
    file.write_text(yaml.safe_dump(config))
    times = place.size(9, 1)
    least = _cpu([sys.executable, "-c", LIBRARIES], times)
    verbs = {"status": 0.5, "verify": 0.5, "check": 0.5}
    cases = [
        Case(
            verb,
            "s of CPU",
            _cpu([sys.executable, "-m", "distributary", verb, str(file)], times),
            least,
            goal=goal,
            goal_of="ours",
        )
        for verb, goal in verbs.items()
    ]
    return Result("answers", NOTE, tuple(cases))


def _cpu(command: list[str], times: int) -> float:
    return min(_once(command) for _ in range(times))


def _once(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise WrongRows(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
