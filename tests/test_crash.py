"""A pipeline that is killed by SIGKILL again and again, while records, versions and games are added to its source."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from distributary.simulate.games.records import Faults, Plan
from distributary.simulate.games.stream import Games
from distributary.state.ledger import is_batch
from tests.scenarios import Scenario

KILLS = 20
WAIT_SEC = (0.5, 6.0)
ROOT = Path(__file__).parent.parent


class Child:
    """A pipeline's process in a session of its own, with its JVM and its Python workers."""

    def __init__(self, scenario: Scenario, mode: str, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_child", str(scenario.file), mode],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", f"it did not start; see {self._log.name}"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
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
        psutil.wait_procs(family, timeout=30)
        return alive

    def finish(self, timeout_sec: float) -> int:
        code = self._process.wait(timeout_sec)
        self._end()
        return code

    def _end(self) -> None:
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


class Producer:
    """Adds records bit by bit: later versions and games come as the kills go on; every part is new."""

    def __init__(self, scenario: Scenario, games: Games, dice: random.Random) -> None:
        self._scenario = scenario
        self._games = games
        self._dice = dice
        self._next = dict.fromkeys(range(1, games.plan.versions + 1), 0)

    def add(self, progress: float) -> None:
        """`progress`: how much of the test is over, from 0 to 1."""
        newest = 1 + int(progress * (self._games.plan.versions - 1) + 0.5)
        count = max(2, int(len(self._games.names) * min(1.0, 0.4 + progress)))
        chosen = self._games.names[:count]
        for version in range(1, newest + 1):
            self._games.register(version, chosen)
        for version in sorted({newest, self._dice.randint(1, newest)}):
            rows = self._dice.randint(3, 12)
            start = self._next[version]
            self._next[version] += rows
            self._scenario.send_games(self._games, version, chosen, records=rows, start=start)


@contextmanager
def children(scenario: Scenario, modes: list[str], log: Path) -> Iterator[Iterator[Child]]:
    """A process per mode, in this order. Each starts while the one before it is at work."""
    started: list[Child] = []

    def start() -> Iterator[Child]:
        started.append(Child(scenario, modes[0], log))
        for mode in modes[1:]:
            started[-1].wait_ready()
            started.append(Child(scenario, mode, log))
            yield started[-2]
        started[-1].wait_ready()
        yield started[-1]

    try:
        yield start()
    finally:
        for child in started:
            child.kill()


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_killed_at_random_moments_it_loses_and_doubles_nothing(lake: Path) -> None:
    dice = random.Random(20)
    plan = Plan(games=5, versions=4, records=400, seed=3, faults=Faults(corrupt=200, unknown_id=100, tombstones=60))
    scenario = Scenario(lake)
    games = scenario.games(plan)
    scenario.configure(
        trigger="continuous",
        source={"max_files_per_batch": 2},
        tables={"routes": {games.names[1]: {"engine": "spark"}}},
        spark={
            "master": "local[2]",
            "conf": {
                "spark.driver.memory": "1g",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
            },
        },
    )
    producer = Producer(scenario, games, dice)
    modes = [dice.choice(["once", "continuous"]) for _ in range(KILLS)]
    log = lake / "children.log"
    kills = 0
    with children(scenario, [*modes, "last"], log) as processes:
        for number, child in enumerate(processes):
            if number == KILLS:
                child.go()
                assert child.finish(300) == 0, log.read_text()[-4000:]
                break
            producer.add(number / KILLS)
            child.go()
            wait = dice.uniform(*WAIT_SEC)
            time.sleep(wait / 2)
            producer.add(number / KILLS)
            time.sleep(wait / 2)
            kills += child.kill()
    assert kills == KILLS, log.read_text()[-4000:]
    scenario.check(tombstones=scenario.truth.tombstones)
    assert len(scenario.quarantined()) == scenario.truth.quarantined
    batches = [e for e in scenario.entries() if e.route is None and is_batch(e.stream)]
    assert len({e.stream for e in batches}) == 1
    assert len(batches) == len({e.batch for e in batches}) > KILLS / 2
