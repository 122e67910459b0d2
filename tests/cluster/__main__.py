"""Pipelines on clusters without a shared disk, killed in the middle: `python -m tests.cluster FOLDER [CASE ...]`.

The driver is started by `spark-submit`, with the words of docs/cluster.md. Tables, state, checkpoint and source lie in
a bucket (moto). Workers have folders of their own, and in a name space of their own (`unshare`, as root) see neither
the driver's folder nor this repository's `src`: the package comes with the job. While batches run, parts of the cluster
are killed. At the end every row that was sent must be in one place, once. What runs where: `TRIALS`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.cases import BATCHES, BySpark, Case, Changes, FanOut, Sink, TwoHop, Wide
from tests.cluster.package import wheel
from tests.cluster.standalone import ApartStandalone
from tests.cluster.submission import Driver
from tests.cluster.yarn import ApartYarn, ApartYarnClient
from tests.services.stores import S3

ROOT = Path(__file__).parents[2]
LONGEST_SEC = 600.0

Cluster = ApartStandalone | ApartYarn


@dataclass(frozen=True)
class Trial:
    """`kills`: what of the cluster is killed once so many batches are done."""

    case: type[Case]
    cluster: type[Cluster] = ApartStandalone
    kills: Mapping[str, int] = field(default_factory=lambda: {"executor": 2, "worker": 4})


TRIALS: Mapping[str, Trial] = {
    "fanout": Trial(FanOut),
    "two_hop": Trial(TwoHop, kills={"executor": 3, "worker": BATCHES + 1}),  # one in each hop
    "wide": Trial(Wide),
    "changes": Trial(Changes),
    "sink": Trial(Sink),
    "spark": Trial(BySpark),
    "yarn_client": Trial(FanOut, ApartYarnClient, {"executor": 2}),
    "yarn": Trial(FanOut, ApartYarn, {"executor": 2, "driver": 4}),
}


def follow(name: str, case: Case, driver: Driver, cluster: Cluster, kills: Mapping[str, int]) -> int:
    """Kill what is to be killed while the driver runs to its end; its exit code. Raises AssertionError."""
    left = dict(kills)
    end = time.monotonic() + LONGEST_SEC
    while (code := driver.exit_code()) is None and time.monotonic() < end:
        done = case.done(driver.output())
        for what in [what for what, after in left.items() if after <= done]:
            print(f"{name}: after {left.pop(what)} batches", flush=True)
            cluster.kill_part(what)
        time.sleep(0.2)
    assert code is not None, f"not done after {LONGEST_SEC:.0f} s: {driver.output()[-3000:]}"
    assert not left or code, f"it was over before these were killed: {', '.join(left)}"
    return code


def go(name: str, folder: Path) -> None:
    """One trial, from its source to its check. Raises AssertionError."""
    trial = TRIALS[name]
    driver, nodes = folder / "driver", folder / "nodes"
    for place in (driver, nodes):
        place.mkdir(parents=True)
    with S3(folder / "s3") as store:
        store.create("lake")
        case = trial.case(driver, store)
        case.prepare()
        shutil.copy(wheel(folder.parent / "packed"), driver / "distributary.zip")
        began = time.monotonic()
        with (
            trial.cluster(nodes, hidden=(driver, ROOT / "src")) as cluster,
            closing(cluster.submit(case, folder / "driver.log")) as running,
        ):
            code = follow(name, case, running, cluster, trial.kills)
            said = running.output()
        print(f"{name}: the driver ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
        assert code == 0, said[-4000:]
        print(f"{name}: {case.check()}", flush=True)


def main(folder: Path, names: list[str]) -> None:
    for name in names or TRIALS:
        try:
            go(name, folder / name)
        finally:
            shutil.rmtree(folder / name / "nodes", ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
