"""`distributary run` in layouts two_hop (both hops in the process) and wide, killed by SIGKILL at random moments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from distributary.simulate.games.records import Faults, Plan
from distributary.state.ledger import is_batch
from tests.killing import check_by_command, run_and_kill
from tests.layouts import TWO_HOP, WIDE, Laid, Shape
from tests.processes import SMALL_SPARK

KILLS = 2
ROWS = 12
PLAN = Plan(games=3, versions=KILLS + 1, records=60, seed=6, faults=Faults(corrupt=15, unknown_id=10, tombstones=8))


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", [TWO_HOP, WIDE], ids=lambda shape: shape.name)
def test_killed_at_random_moments_a_layout_loses_and_doubles_nothing(lake: Path, shape: Shape) -> None:
    dice = random.Random(11)
    keys = {"bronze": {"max_files_per_batch": 2}} if shape is TWO_HOP else {}
    laid = Laid(lake, shape, source={"max_files_per_batch": 1}, trigger="continuous", spark=SMALL_SPARK, **keys)
    games = laid.games(PLAN)
    laid.send_games(games, 1, games.names[:2], records=ROWS)

    def add(kills: int) -> None:
        """A version more, of one game more at first; late records of an older version."""
        chosen = games.names[: 2 + min(kills, 1)]
        laid.send_games(games, kills + 2, chosen, records=ROWS)
        laid.send_games(games, 1 + kills // 2, chosen[:1], records=ROWS, start=(kills % 2 + 1) * ROWS)

    log = lake / "processes.log"
    assert run_and_kill(laid.file, log, dice, lambda kills: kills == KILLS, add, wait_sec=(2.0, 7.0)) == KILLS
    laid.check(tombstones=laid.truth.tombstones)
    assert len(laid.quarantined()) == laid.truth.quarantined > 0
    batches = [e for e in laid.entries() if e.route is None and is_batch(e.stream)]
    assert len({e.stream for e in batches}) == 1
    assert len(batches) == len({e.batch for e in batches}) > KILLS
    check_by_command(laid.file)
