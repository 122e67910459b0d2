"""What a task of hop 1 asks at its end: its rows count only if the source is still what the stream began with."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from distributary.config import KafkaSource
from distributary.engine.messages.opening import EnvelopeReader
from distributary.errors import DistributaryError, SourceDataLost, SourceMissing, SourceReplaced
from distributary.running.bronze.unwrap import EnvelopeQuestions, unwrap_task
from distributary.running.failures import translated
from distributary.sources.bronze_rows import bronze_schema
from distributary.sources.delta_source import TableId
from distributary.sources.kafka import TopicIds
from distributary.state.checkpoint import TopicIdsSeen
from distributary.state.identity import SameSource
from distributary.tables.store import Store
from tests.services.kafka import Kafka
from tests.test_stream_failures import from_worker

READER = EnvelopeReader(format="columns", framed=False, route="route", schema_id="schema_id", payload="payload")
ROW = pa.record_batch({"route": ["a"], "schema_id": pa.array([1], pa.int32()), "payload": [b"x"]})


def hop_1(tmp_path: Path, same: SameSource, between: Callable[[], None], rows: pa.RecordBatch = ROW) -> Iterator[Any]:
    """A task that reads `rows` twice; `between`: what happens at the source meanwhile."""

    def read() -> Iterator[pa.RecordBatch]:
        yield rows
        between()
        yield rows

    shipped = pickle.loads(pickle.dumps(same))
    asked = EnvelopeQuestions(str(tmp_path / "asked"), Store())
    return unwrap_task(read(), READER, bronze_schema(READER.names, headers=False), asked, shipped)


def told(tmp_path: Path, same: SameSource, between: Callable[[], None]) -> BaseException:
    """What the driver makes of the error that ends the task."""
    return translated(from_worker(lambda _: hop_1(tmp_path, same, between)), "source", "checkpoint")


def nothing() -> None:
    return None


@pytest.mark.services
def test_rows_of_a_topic_that_is_made_anew_while_a_task_reads_do_not_count(tmp_path: Path, kafka: Kafka) -> None:
    state = str(tmp_path / "state")
    with kafka.topic() as topic:
        given = kafka.source(topic)
        source = KafkaSource.model_validate(given)
        TopicIdsSeen(state, Store()).add(began := TopicIds(source).now())
        same = SameSource(TopicIds(source), began, state, Store())
        assert len(list(hop_1(tmp_path, same, nothing))) == 2

        def anew() -> None:
            kafka.delete_topic(topic)
            kafka.create_topic(topic)

        found = told(tmp_path, same, anew)
        assert isinstance(found, SourceDataLost) and topic in found.parameters["detail"]
        # A topic that has come since the query began is known by what the driver has noted of it.
        found = told(tmp_path, SameSource(TopicIds(source), {}, state, Store()), nothing)
        assert isinstance(found, SourceDataLost)
        kafka.delete_topic(topic)
        assert sum(rows.num_rows for rows in hop_1(tmp_path, same, nothing, ROW.slice(0, 0))) == 0
        assert isinstance(told(tmp_path, same, nothing), SourceMissing)
        kafka.create_topic(topic)


def test_rows_of_a_table_that_is_made_anew_while_a_task_reads_do_not_count(tmp_path: Path) -> None:
    uri = str(tmp_path / "source")
    rows = pa.table({"a": [1]})
    write_deltalake(uri, rows)
    began = str(DeltaTable(uri).metadata().id)
    same = SameSource(TableId(uri, Store()), {uri: began}, str(tmp_path / "state"), Store())
    assert len(list(hop_1(tmp_path, same, lambda: write_deltalake(uri, rows, mode="append")))) == 2

    def anew() -> None:
        shutil.rmtree(uri)
        write_deltalake(uri, rows)

    found = told(tmp_path, same, anew)
    assert isinstance(found, SourceReplaced)
    assert found.parameters == {"source": uri, "began": began, "now": str(DeltaTable(uri).metadata().id)}
    shutil.rmtree(uri)
    found = told(tmp_path, same, nothing)
    assert isinstance(found, DistributaryError) and found.condition == "SOURCE_REPLACED"
