"""Which runs are over before their JVM has had many rows. With a broker: `test_kafka_pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distributary.config import Pipeline
from distributary.running.short_runs import is_short
from tests.scenarios import Scenario
from tests.services import free_ports


def test_a_run_over_files_is_short_where_it_ends_by_itself_unless_spark_writes_their_rows(tmp_path: Path) -> None:
    config = Scenario(tmp_path).config
    assert is_short(config, once=True)
    assert not is_short(_other(config, trigger="continuous"), once=False)
    for by_spark in (
        {"engine": "spark"},
        {"routes": {"a": {"engine": "spark"}}},
        {"routes": {"a": {"evolution": {"type_change": "type_widening"}}}, "engine": "auto"},
    ):
        assert not is_short(_other(config, tables={"root": config.tables.root, **by_spark}), once=True)


def test_a_run_is_not_taken_for_short_where_the_broker_does_not_answer(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    source = {"type": "kafka", "bootstrap_servers": f"127.0.0.1:{port}", "topic": "events"}
    assert not is_short(_other(Scenario(tmp_path).config, source=source), once=True)


def _other(config: Pipeline, **keys: Any) -> Pipeline:
    return Pipeline.model_validate({**config.model_dump(), **keys})
