"""A source that was deleted and made anew while the run goes on: seen before its rows are decided."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from distributary.audit.verify import verify
from distributary.engine.messages.micro_batch import Fanout
from distributary.errors import SourceDataLost, SourceReplaced
from distributary.running.bronze.ingest import Ingest
from distributary.sources.kafka import TopicIds
from tests.scenarios import Scenario, message
from tests.services.kafka import Kafka
from tests.test_kafka_pipeline import EVENT, KafkaScenario
from tests.test_new_checkpoint import OnKafka

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.usefixtures("spark")]


def once_before(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, do: Callable[[], None]) -> None:
    """The first call of `target.name` finds what `do` has left."""
    whole = getattr(target, name)
    done: list[bool] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        if not done:
            done.append(True)
            do()
        return whole(*args, **kwargs)

    monkeypatch.setattr(target, name, called)


@pytest.mark.parametrize("moment", ["before the batch is read", "after it was read"])
def test_a_topic_made_anew_while_the_run_goes_on_is_refused_before_anything_is_written(
    lake: Path, kafka: Kafka, registry_url: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It has grown past the old offset, where Spark goes on without a word."""
    with kafka.topic(partitions=1) as topic:
        scenario = KafkaScenario(lake, kafka, topic, registry_url)
        scenario.send(*(scenario.simple("a", str(n)) for n in range(3)))
        scenario.run()

        def anew() -> None:
            kafka.delete_topic(topic)
            kafka.create_topic(topic, partitions=1)
            scenario.sent.clear()
            scenario.send(*(scenario.simple("a", f"new {n}") for n in range(9)))

        scenario.send(*(scenario.simple("a", f"more {n}") for n in range(3)))
        with monkeypatch.context() as patch:
            target, name = (Fanout, "cut") if moment.startswith("before") else (TopicIds, "now")
            once_before(patch, target, name, anew)
            with pytest.raises(SourceDataLost) as caught:
                scenario.run()
        assert topic in caught.value.parameters["detail"]
        assert scenario.values("a", "user") == ["0", "1", "2"]
        with pytest.raises(SourceDataLost):
            scenario.run()
        assert verify(scenario.config).ok


def test_a_source_table_made_anew_while_the_run_goes_on_is_refused_before_anything_is_written(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By way of Spark and by its files alike: it has grown past the old version, where Spark goes on without a word."""
    scenario = Scenario(lake)
    schema = scenario.schema("event", EVENT)

    def send(user: str) -> None:
        scenario.send(scenario.event("a", schema, message(EVENT, "event", user=user)))

    send("0")
    scenario.run()
    began = DeltaTable(scenario.source).metadata().id

    def anew() -> None:
        shutil.rmtree(scenario.source)
        for number in range(4):
            send(f"new {number}")

    send("1")
    with monkeypatch.context() as patch:
        once_before(patch, Fanout, "cut", anew)
        with pytest.raises(SourceReplaced) as caught:
            scenario.run()
    assert caught.value.parameters["began"] == began
    assert scenario.values("a", "user") == ["0"]
    with pytest.raises(SourceReplaced) as caught:
        scenario.run()
    assert caught.value.parameters == {**caught.value.parameters, "began": began}
    assert verify(scenario.config).ok


def test_no_row_of_a_topic_made_anew_under_hop_1_reaches_bronze(
    lake: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has grown past the old offset, and Spark alone reads and writes: its tasks see it."""
    with kafka.topic(partitions=1) as topic:
        laid = OnKafka(lake, kafka, topic)
        laid.put("1", "2", "3")
        laid.run()
        laid.put("4")

        def anew() -> None:
            kafka.delete_topic(topic)
            kafka.create_topic(topic, partitions=1)
            laid.put(*(f"new {n}" for n in range(9)))

        with monkeypatch.context() as patch:
            once_before(patch, Ingest, "_rows", anew)
            for _ in range(2):
                with pytest.raises(SourceDataLost) as caught:
                    laid.run()
                assert topic in caught.value.parameters["detail"]
        bronze = DeltaTable(laid.config.bronze_path).to_pyarrow_table()
        assert bronze.num_rows == 3
        assert laid.values("a", "user") == ["1", "2", "3"]
