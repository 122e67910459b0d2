"""A pipeline that is killed by SIGKILL again and again, while records, versions and games are added to its source."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import pytest

from distributary.errors import Exit
from distributary.state.ledger import is_batch
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.stream import Games
from tests.extent import either
from tests.killing import processes
from tests.processes import SMALL_SPARK
from tests.scenarios import Scenario

KILLS = either(3, 20)
WAIT_SEC = (0.5, 6.0)


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
        spark=SMALL_SPARK,
    )
    producer = Producer(scenario, games, dice)
    modes = list(islice(cycle(["continuous", "once"]), KILLS))
    log = lake / "children.log"
    kills = 0
    with processes(scenario.file, log, KILLS + 1, "tests.crash_child") as following:
        for number, mode in enumerate(modes):
            producer.add(number / KILLS)
            child = following()
            child.go([mode])
            wait = dice.uniform(*WAIT_SEC)
            time.sleep(wait / 2)
            producer.add(number / KILLS)
            time.sleep(wait / 2)
            kills += child.kill()
        last = following()
        last.go(["last"])
        assert last.finish(300) == 0, log.read_text()[-4000:]
    assert kills == KILLS, log.read_text()[-4000:]
    scenario.check(tombstones=scenario.truth.tombstones)
    assert len(scenario.quarantined()) == scenario.truth.quarantined
    batches = [e for e in scenario.entries() if e.route is None and is_batch(e.stream)]
    assert len({e.stream for e in batches}) == 1
    assert len(batches) == len({e.batch for e in batches}) > KILLS / 2


HANGS = """
import sys, time
from distributary.cli import main
from distributary.state.ledger import Ledger

def hangs(self, *_):
    print("hangs", flush=True)
    time.sleep(1000)

Ledger.record = hangs
main(["run", sys.argv[1]])
"""
"""A command whose batches never end: their tables are written, and they are not decided."""


@pytest.mark.crash
@pytest.mark.parametrize(("within", "signals"), [(None, 2), ("1 second", 1)], ids=["a second signal", "its time"])
def test_a_batch_that_hangs_is_ended_by_a_second_sigterm_or_by_its_time_and_is_finished_by_the_next_run(
    lake: Path, within: str | None, signals: int
) -> None:
    scenario = Scenario(lake, spark=SMALL_SPARK)
    games = scenario.games(Plan(games=2, versions=1, records=20, seed=3, faults=Faults(corrupt=4)))
    scenario.send_games(games, 1)
    scenario.configure(trigger={"mode": "continuous", **({"stop_within": within} if within else {})}, spark=SMALL_SPARK)
    run = [sys.executable, "-c", HANGS, str(scenario.file)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert any(line == "hangs\n" for line in process.stdout)
        process.terminate()
        if signals == 2:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.terminate()
        assert process.wait(120) == Exit.INTERRUPTED
    assert scenario.entries() == []
    assert scenario.table_names()
    scenario.configure(trigger="once", spark=SMALL_SPARK)
    scenario.run()
    assert len(scenario.batches) == 1
    scenario.check()
