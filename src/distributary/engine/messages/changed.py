"""Messages that are changes of Debezium, as events: the other kind beside messages with keys (`events.keyed`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.debezium.heads import Record
from distributary.changes.debezium.json_messages import Message, read_messages
from distributary.changes.model import BadEvent, Reading
from distributary.engine.changes.table_settings import DebeziumNames
from distributary.engine.messages.chunks import GONE, KEY
from distributary.engine.messages.events import Made, Some
from distributary.engine.messages.orders import Orders
from distributary.errors import Reason

_PASSED = "it says nothing of a row"


def changed(some: Some, orders: Orders) -> Made:
    """What the changes say."""
    assert isinstance(orders.named, DebeziumNames)
    values = [None] * len(some.records) if some.writer == GONE else some.rows.column(0).to_pylist()
    messages = [
        Message(record, key, value)
        for record, key, value in zip(_records(some.records), some.records.column(KEY).to_pylist(), values, strict=True)
    ]
    found = read_messages(messages, Reading(json_numbers="double"), orders.named.form)
    taken = {n for events in found.events for n in events.numbers.to_pylist()} | {bad.row for bad in found.bad}
    # The demultiplexer has passed over what says nothing; what is left here is told, not lost.
    passed = [BadEvent(n, Reason.CORRUPT_EVENT, _PASSED, b"") for n in range(len(messages)) if n not in taken]
    return Made(found.events, [*found.bad, *passed] if passed else found.bad)


def _records(records: pa.RecordBatch) -> list[Record]:
    times = records.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    columns = (records.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return [
        Record(topic or "", partition or 0, offset or 0, time, names)
        for topic, partition, offset, time, names in zip(*columns, times, _header_names(records), strict=True)
    ]


def _header_names(records: pa.RecordBatch) -> list[frozenset[str]]:
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return [frozenset()] * len(headers)
    names = pc.struct_field(headers.flatten(), "key").to_pylist()
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)).tolist()
    return [frozenset(names[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
