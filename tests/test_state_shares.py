"""The states of a divided pipeline: one division at a time, and sums over all that there have been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distributary.audit.history import history
from distributary.audit.status import render, status
from distributary.audit.verify import verify
from distributary.config import KafkaSource
from distributary.errors import AlreadyRunning, Exit, ShareConflict, SourceDown
from distributary.repair.clean import apply, clean
from distributary.shares import Cluster, Division, Share
from distributary.sources.kafka import Topic
from distributary.state.divisions import Current, claim, current, current_parts, follow, parts
from distributary.state.ledger import Ledger
from distributary.state.lock import only_run
from distributary.state.streams import StreamRecord, StreamState, write_streams
from distributary.tables.store import Store
from tests.lake import Lake

STORE = Store()
SOURCE = {"type": "delta", "path": "/there/is/none"}
PLANNED = Division((Cluster("c1", ("ann_game",)), Cluster("c2")), ("c2",))


class Part(Lake):
    """One share of a pipeline at rest."""

    def __init__(self, root: Path, share: Share, **keys: Any) -> None:
        super().__init__(root, **keys)
        self.config = self.config.for_share(share)
        self.stream = f"stream-{share.generation}-{share.name}"
        self.ledger = Ledger(self.config.state_root, self.config.pipeline, self.store)
        self.quarantine = f"{self.config.state_root}/quarantine"


def test_the_first_share_that_runs_decides_the_division(lake: Path) -> None:
    config = Lake(lake).config
    assert claim(config, Division.even(3), STORE) == 1
    assert claim(config, Division.even(3), STORE) == 1
    for other in (Division.even(4), PLANNED, None):
        with pytest.raises(ShareConflict):
            claim(config, other, STORE)
    assert [p.share.name for p in current_parts(config, STORE) if p.share] == ["1-of-3", "2-of-3", "3-of-3"]


def test_a_pipeline_that_has_run_whole_is_not_divided_by_the_way(lake: Path) -> None:
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 1}})
    with pytest.raises(ShareConflict):
        claim(made.config, Division.even(2), STORE)
    assert claim(made.config, None, STORE) == 0 and current(made.config, STORE) is None


def test_a_pipeline_that_runs_whole_writes_nothing_about_shares(lake: Path) -> None:
    made = Lake(lake)
    claim(made.config, None, STORE)
    assert parts(made.config, STORE) == [made.config] and not Path(made.config.state_root).exists()


def test_a_division_that_comes_back_has_new_states(lake: Path) -> None:
    config = Lake(lake).config
    places = set()
    for generation, division in enumerate([Division.even(2), PLANNED, Division.even(2)], start=1):
        follow(config, Current(division, generation), STORE)
        places |= {p.state_root for p in current_parts(config, STORE)}
    assert len(places) == 6
    assert len(parts(config, STORE)) == 7
    assert current(config, STORE) == Current(Division.even(2), 3)


def divided(lake: Path) -> Lake:
    """ann and bob by two shares; the routes changed hands once, and both generations wrote to both tables."""
    whole = Lake(lake, source=SOURCE)
    for generation, division in ((1, Division.even(2)), (2, PLANNED)):
        follow(whole.config, Current(division, generation), STORE)
        for number, share in enumerate(division.shares(generation)):
            part = Part(lake, share, source=SOURCE)
            part.begin()
            part.offset = 1000 * (10 * generation + number)
            rows = {r: {1: 10} for r in ("ann_game", "bob_game") if share.owns(r)}
            part.batch(0, rows, bad={None: 2} if number == 0 else {}, tombstones=1)
            part.commit_offsets(0, {"events": {"0": 5}})
    return whole


def test_verify_adds_up_all_shares_of_all_divisions(lake: Path) -> None:
    said = verify(divided(lake).config)
    assert said.ok and said.exit_code == Exit.OK, said.problems
    assert (said.rows_in, said.rows_written, said.rows_quarantined, said.tombstones) == (44, 40, 4, 4)
    assert {t.route: t.rows_written for t in said.tables} == {"ann_game": 20, "bob_game": 20}


def test_verify_finds_what_one_share_lost(lake: Path) -> None:
    import shutil

    whole = divided(lake)
    part = parts(whole.config, STORE)[-2]
    shutil.rmtree(f"{part.state_root}/quarantine")
    said = verify(whole.config)
    assert not said.ok and said.rows_lost == 2


def test_verify_takes_the_unfinished_batch_of_one_share_for_pending(lake: Path) -> None:
    whole = divided(lake)
    share = PLANNED.share("c1", 2)
    part = Part(lake, share)
    part.offset = 90_000
    part.batch(1, {"ann_game": {1: 7}}, finished=False)
    said = verify(whole.config)
    assert said.ok, said.problems
    assert next(t for t in said.tables if t.route == "ann_game").rows_pending == 7


def test_status_adds_up_and_shows_the_streams(lake: Path) -> None:
    whole = divided(lake)
    root = whole.config.state_root
    records = [
        StreamRecord("c1", StreamState.RUNNING, pid=1),
        StreamRecord("c2", StreamState.PARKED, error="no broker"),
    ]
    write_streams(root, records, STORE)
    with only_run(root, "games", "supervisor"):
        said = status(whole.config)
    assert (said.rows, said.quarantined, len(said.tables)) == (40, 4, 2)
    assert [s.state for s in said.streams] == [StreamState.RUNNING, StreamState.PARKED]
    assert said.exit_code == Exit.ATTENTION and any("no broker" in line for line in said.attention)
    assert render(said) is not None and said.to_json()["streams"][1]["state"] == "parked"


@pytest.mark.parametrize("down", [False, True])
def test_the_source_is_asked_once_for_all_shares(lake: Path, monkeypatch: pytest.MonkeyPatch, down: bool) -> None:
    """Also one that does not answer: its time-out is not waited for once per share."""
    from distributary.sources import kafka_source

    asked: list[str] = []

    def describe(source: KafkaSource) -> list[Topic]:
        asked.append(source.bootstrap_servers)
        if down:
            raise SourceDown(source="Kafka", detail="nobody there")
        return [Topic("events", "id", {0: 0}, {0: 9})]

    monkeypatch.setattr(kafka_source, "describe_topics", describe)
    whole = Lake(lake)
    follow(whole.config, Current(Division.even(3), 1), STORE)
    for number, share in enumerate(Division.even(3).shares()):
        part = Part(lake, share)
        part.begin()
        part.commit_offsets(0, {"events": {"0": 5 + number}})
    said = status(whole.config)
    assert asked == ["127.0.0.1:1"]
    assert said.lag_rows == (None if down else 4), "that of the share which is farthest behind"


def test_status_does_not_believe_a_supervisor_that_is_gone(lake: Path) -> None:
    whole = divided(lake)
    write_streams(whole.config.state_root, [StreamRecord("c1", StreamState.RUNNING, pid=1)], STORE)
    said = status(whole.config)
    assert (said.streams[0].state, said.streams[0].pid, said.running) == (StreamState.STOPPED, None, False)
    assert any("c1 is stopped" in line for line in said.attention)


def test_a_divided_pipeline_runs_while_one_of_its_shares_does(lake: Path) -> None:
    whole = divided(lake)
    part = current_parts(whole.config, STORE)[1]
    with only_run(part.state_root, "games"):
        assert status(whole.config).running is True
        with pytest.raises(AlreadyRunning), only_run(part.state_root, "games"):
            pass


def test_clean_removes_the_states_of_all_shares_and_nothing_else(lake: Path) -> None:
    whole = divided(lake)
    write_streams(whole.config.state_root, [StreamRecord("c1")], STORE)
    neighbour = Lake(lake, "other", tables={"name": "other_{route}"})
    neighbour.batch(0, {"ann_game": {1: 3}})
    found = clean(whole.config)
    assert {t.route for t in found.remove if t.kind == "table"} == {"ann_game", "bob_game"}
    with only_run(current_parts(whole.config, STORE)[0].state_root, "games"), pytest.raises(AlreadyRunning):
        clean(whole.config)
    apply(found)
    assert not Path(whole.config.state_root).exists()
    assert not Path(whole.table("ann_game")).exists() and not Path(whole.table("bob_game")).exists()
    assert verify(neighbour.config).rows_written == 3


def test_clean_removes_the_checkpoints_of_shares_that_have_a_place_of_their_own(lake: Path) -> None:
    elsewhere, kept = lake / "checkpoints", lake / "state"
    whole = Lake(lake, checkpoint=str(elsewhere), state=str(kept))
    follow(whole.config, Current(Division.even(1), 1), STORE)
    part = Part(lake, Division.even(1).share("1-of-1"), checkpoint=str(elsewhere), state=str(kept))
    part.begin()
    part.batch(0, {"ann_game": {1: 3}})
    assert (elsewhere / "shares" / "1" / "1-of-1" / "metadata").exists()
    apply(clean(whole.config))
    assert not list(elsewhere.rglob("metadata")) and not list(kept.rglob("*.json"))


def test_the_history_of_a_route_that_went_from_share_to_share_is_in_the_order_of_time(lake: Path) -> None:
    whole = Lake(lake, source=SOURCE)
    follow(whole.config, Current(PLANNED, 1), STORE)
    share = Part(lake, PLANNED.shares(1)[0], source=SOURCE)
    share.batch(0, {"ann_game": {1: 2}})
    # Its state is the first that is read, and it was the last to write.
    whole.batch(7, {"ann_game": {1: 1, 2: 1}})
    found = history(whole.config, "ann_game")
    assert [step.batch for step in found.steps] == [0, 7]
    assert [step.new_schemas for step in found.steps] == [(1,), (2,)]
