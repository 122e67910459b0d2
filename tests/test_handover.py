"""From one division to another: no route is written twice or left out, wherever its streams were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from distributary.audit.verify import verify
from distributary.config import Pipeline
from distributary.errors import AlreadyRunning, HandoverFailed, ShareConflict
from distributary.fleet.workflow.handover import farthest, hand_over
from distributary.running.stream import run
from distributary.shares import Cluster, Division
from distributary.state.checkpoint import last_committed, read_offsets
from distributary.state.divisions import claim, current, current_parts, parts
from distributary.state.lock import only_run
from distributary.tables.store import Store
from distributary_simulate.games.records import Plan
from distributary_simulate.games.stream import Games
from tests.lake import Lake
from tests.scenarios import Scenario, dying
from tests.services.kafka import Kafka

STORE = Store()


def test_the_farthest_position_is_found_per_partition_or_by_version() -> None:
    one, two = {"t": {"0": 5, "1": 9}}, {"t": {"0": 7, "1": 2}, "u": {"0": 1}}
    assert farthest([one, two]) == {"t": {"0": 7, "1": 9}, "u": {"0": 1}}
    three, four = {"reservoirVersion": 3, "index": -1}, {"reservoirVersion": 2, "index": 10}
    assert farthest([three, four]) == three


def test_before_the_first_batch_a_division_is_changed_without_starting_anything(lake: Path) -> None:
    config = Lake(lake).config
    claim(config, Division.even(2), STORE)
    found = hand_over(config, Division.even(3))
    assert found.generation == 2 and current(config, STORE) == found
    assert hand_over(config, Division.even(3)) == found


def test_nothing_is_handed_over_while_a_stream_runs(lake: Path) -> None:
    made = Lake(lake)
    made.batch(0, {"ann_game": {1: 1}})
    with only_run(made.config.state_root, "games"), pytest.raises(AlreadyRunning):
        hand_over(made.config, Division.even(2))
    with only_run(made.config.state_root, "games", "supervisor"), pytest.raises(AlreadyRunning):
        hand_over(made.config, Division.even(2))
    assert current(made.config, STORE) is None


class Divided:
    """A scenario whose source grows by one commit per step."""

    def __init__(self, root: Path, scenario: Scenario | None = None) -> None:
        self.scenario = scenario or Scenario(root, source={"max_files_per_batch": 1})
        self.games: Games = self.scenario.games(Plan(games=6, records=40, versions=2))
        self.sent = 0

    def send(self, version: int = 1) -> None:
        self.scenario.send_games(self.games, version, records=3, start=self.sent)
        self.sent += 3

    def run(self, which: Sequence[int]) -> None:
        found = current_parts(self.scenario.config, STORE)
        for number in which:
            run(found[number], once=True)

    def part(self) -> None:
        """Two streams, the first of which has got farther than the second."""
        self.send()
        hand_over(self.scenario.config, Division.even(2))
        self.run([0, 1])
        self.send()
        self.run([0])

    def check(self) -> None:
        assert sorted(self.scenario._places()) == sorted(self.scenario.sent)
        said = verify(self.scenario.config)
        assert said.ok and said.rows_in == len(self.scenario.sent), said.problems


@pytest.mark.spark
def test_routes_change_hands_though_every_stream_is_somewhere_else(spark: object, tmp_path: Path) -> None:
    """From whole to two clusters, to two with a plan, and back to the first division."""
    made = Divided(tmp_path)
    config = made.scenario.config
    made.send()
    run(config, once=True)
    hand_over(config, Division.even(2))
    made.check()
    made.send()
    made.run([0])
    made.send(2)
    planned = Division((Cluster("c1", (made.games.names[0], made.games.names[4])), Cluster("c2")), ("c2",))
    said: list[str] = []
    hand_over(config, planned, said.append)
    assert sum("goes on to where" in line for line in said) == 1
    made.send()
    made.run([1, 0])
    hand_over(config, Division.even(2))
    made.send(2)
    made.run([0, 1])
    made.check()
    assert len(parts(config, STORE)) == 1 + 2 + 2 + 2
    with pytest.raises(ShareConflict):
        claim(config, planned, STORE)


class Topic(Scenario):
    """The source is a Kafka topic of two partitions; the registry is our own."""

    def __init__(self, root: Path, kafka: Kafka, topic: str) -> None:
        self.kafka, self.topic = kafka, topic
        super().__init__(root, source={**kafka.source(topic), "max_offsets_per_batch": 40})

    def send(self, *values: bytes | None, partition: int = 0) -> list[int]:
        sent = self.kafka.send(self.topic, ((n % 3 % 2, value) for n, value in enumerate(values)))
        self.sent.update(sent)
        return [offset for _, offset in sent]


@pytest.mark.spark
@pytest.mark.services
def test_routes_of_a_topic_change_hands_at_the_same_offsets(spark: object, tmp_path: Path, kafka: Kafka) -> None:
    """The streams are in different batches, and each partition at another place."""
    with kafka.topic(partitions=2) as topic:
        made = Divided(tmp_path, Topic(tmp_path, kafka, topic))
        config = made.scenario.config
        made.send()
        hand_over(config, Division.even(2))
        made.run([0])
        made.send()
        made.run([1])
        made.send()
        said: list[str] = []
        hand_over(config, Division((Cluster("c1", (made.games.names[0],)), Cluster("c2")), ("c2",)), said.append)
        assert any("goes on to where" in line for line in said), said
        made.send(2)
        made.run([0, 1])
        made.check()
        places = [last_offsets(part) for part in current_parts(config, STORE)]
        assert places[0] == places[1]


def last_offsets(part: Pipeline) -> list[dict[str, Any]] | None:
    batch = last_committed(part.checkpoint_path, STORE)
    return None if batch is None else read_offsets(part.checkpoint_path, STORE, batch)


@pytest.mark.spark
def test_a_hand_over_that_dies_is_done_again(spark: object, tmp_path: Path) -> None:
    from distributary.fleet.workflow import handover

    made = Divided(tmp_path)
    config = made.scenario.config
    made.part()
    for step in ("_run_batch", "_check", "_seed", "follow"):
        with dying(handover, step):
            hand_over(config, Division.even(1))
        assert current(config, STORE) is not None and len(current_parts(config, STORE)) == 2
    hand_over(config, Division.even(1))
    made.send(2)
    made.run([0])
    made.check()


@pytest.mark.spark
def test_streams_that_cannot_be_brought_together_change_nothing(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributary.fleet.workflow import handover

    made = Divided(tmp_path)
    config = made.scenario.config
    made.part()
    monkeypatch.setattr(handover, "_run_batch", lambda *_: None)
    with pytest.raises(HandoverFailed):
        hand_over(config, Division.even(3))
    assert len(current_parts(config, STORE)) == 2
