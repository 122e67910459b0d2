"""Envelope schemas of hop 1: those that its tasks are given, and what they tell the driver of others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from distributary.engine.messages.envelopes import VERSIONS, Envelopes
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.schemas import Schemas, registry_of
from distributary.running.bronze.unwrap import EnvelopeQuestions, UnknownEnvelopes, unwrap_task
from distributary.schemas.protobuf.framing import frame
from distributary.sources.bronze_rows import bronze_schema
from distributary.tables.store import Store
from tests.scenarios import Scenario


def test_the_ids_that_tasks_need_are_left_for_the_driver_once(tmp_path: Path) -> None:
    reader = EnvelopeReader(format="protobuf", framed=True, route="r", schema_id="s", payload="p")
    schema = bronze_schema(reader.names, headers=False)
    asked = EnvelopeQuestions(str(tmp_path / "asked"), Store())
    assert asked.take() == set()
    for ids in ((7, 9, 7), (9,), (9,)):
        values = pa.array([frame(schema_id, b"") for schema_id in ids], pa.binary())
        with pytest.raises(UnknownEnvelopes):
            list(unwrap_task(iter([pa.RecordBatch.from_arrays([values], ["value"])]), reader, schema, asked))
    assert len(list((tmp_path / "asked").iterdir())) == 2, "however many tasks ask, and however often they are tried"
    assert asked.take() == {7, 9}
    assert asked.take() == set()


def test_the_driver_knows_every_version_of_the_envelope_before_the_first_task(tmp_path: Path) -> None:
    """A version that tasks are not given costs a batch as many attempts as `spark.task.maxFailures` says."""
    laid = Scenario(tmp_path, layout="two_hop", envelope={"subject": "events-value"})
    texts = [f'syntax = "proto3"; message w {{ string game_name = 1; int32 v{n} = {n + 9}; }}' for n in range(40)]
    ids = [laid.schema("events-value", text) for text in texts]
    registry = registry_of(laid.config)
    assert Envelopes(laid.config, Schemas(registry)).registered() == set(ids[-VERSIONS:])
    unnamed = laid.configure(layout="two_hop")
    assert Envelopes(unnamed, Schemas(registry)).registered() == set(), "its subject is not known"
    absent = laid.configure(layout="two_hop", envelope={"subject": "other-value"})
    assert Envelopes(absent, Schemas(registry)).registered() == set(), "nor in the registry"
