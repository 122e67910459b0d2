"""Records that are set aside a writer at a time, or many writers at a time: the same rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from distributary.config import Pipeline
from distributary.engine.messages.chunks import GONE, RECORD_SCHEMA, WriterSchema
from distributary.engine.messages.rejected import Refused, refused_rows, rejected_rows
from distributary.engine.messages.task_spec import MessageSpec
from distributary.errors import Reason
from distributary.tables.store import Store

CONFIG = Pipeline.model_validate(
    {
        "pipeline": "games",
        "source": {"type": "delta", "path": "/source"},
        "registry": {"path": "/registry"},
        "tables": {"root": "/lake"},
    }
)


def orders(framed: bool) -> MessageSpec:
    return MessageSpec(
        pipeline="games",
        stream="s",
        batch=0,
        tables=CONFIG.tables,
        store=Store(),
        quarantine="",
        payload_framed=framed,
        raw_nested_indexes=False,
    )


def records(payloads: list[bytes]) -> pa.RecordBatch:
    rows = [{"payload": payload, "topic": "t", "partition": 0, "offset": n} for n, payload in enumerate(payloads)]
    return pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA)


WRITERS = st.tuples(st.integers(0, 2**31 - 1), st.sampled_from(["0", "3", "0.200"])) | st.just(GONE)
REASONS = st.sampled_from([Reason.UNKNOWN_SCHEMA_ID, Reason.BAD_INDEX])


@given(
    parts=st.lists(st.tuples(WRITERS, st.lists(st.binary(max_size=9), min_size=1, max_size=4), REASONS), min_size=1),
    framed=st.booleans(),
)
def test_rows_of_many_refused_writers_are_those_of_each(
    parts: list[tuple[WriterSchema, list[bytes], Reason]], framed: bool
) -> None:
    spec = orders(framed)
    refused = [Refused(writer, records(some), reason, f"of {writer}") for writer, some, reason in parts]
    each = [
        rejected_rows("r", part.writer, part.records, np.arange(len(part.records)), part.reason, part.detail, spec)
        for part in refused
    ]
    assert refused_rows("r", refused, spec).to_pylist() == pa.concat_tables(each).to_pylist()
