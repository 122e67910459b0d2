"""Hop 1's tasks: what they tell the driver of envelope schemas that they were not given."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from distributary.engine.messages.opening import EnvelopeReader
from distributary.running.bronze.unwrap import EnvelopeQuestions, UnknownEnvelopes, unwrap_task
from distributary.schemas.protobuf.framing import frame
from distributary.sources.bronze_rows import bronze_schema
from distributary.tables.store import Store


def test_the_ids_that_tasks_need_are_left_for_the_driver_once(tmp_path: Path) -> None:
    reader = EnvelopeReader(format="protobuf", framed=True, route="r", schema_id="s", payload="p")
    schema = bronze_schema(reader.names, headers=False)
    asked = EnvelopeQuestions(str(tmp_path / "asked"), Store())
    assert asked.take() == set()
    for ids in ((7, 9, 7), (9,)):
        values = pa.array([frame(schema_id, b"") for schema_id in ids], pa.binary())
        with pytest.raises(UnknownEnvelopes):
            list(unwrap_task(iter([pa.RecordBatch.from_arrays([values], ["value"])]), reader, schema, asked))
    assert asked.take() == {7, 9}
    assert asked.take() == set()
