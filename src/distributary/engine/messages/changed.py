"""Messages that are changes of Debezium, as events: the other kind beside messages with keys (`events.keyed`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.debezium.column_changes import events_of
from distributary.changes.debezium.heads import NEW_KEY, OLD_KEY, Form, Message, Record
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.side_by_side import RecordOrigins
from distributary.changes.dialects import DIALECTS
from distributary.changes.file_events import spelled_in
from distributary.changes.model import BadEvent, Events, FileEvents, Reading, SourceTable
from distributary.changes.truncates import is_truncate, truncates_apart
from distributary.engine.changes.fitting import column_name
from distributary.engine.changes.table_settings import DebeziumNames
from distributary.engine.messages.chunks import GONE, KEY
from distributary.engine.messages.events import MadeEvents, WriterRecords
from distributary.engine.messages.stored_changes import columns_of
from distributary.engine.messages.task_spec import MessageSpec
from distributary.errors import Reason
from distributary.errors.border import by_halves
from distributary.tables.table import Table

_PASSED = "it says nothing of a row"
_NO_PLACE = Reason.BAD_POSITION, "the record does not say its topic, partition and offset"


def changed(some: WriterRecords, spec: MessageSpec) -> MadeEvents:
    """What the changes say."""
    count = len(some.records)
    if (nowhere := _nowhere(some.records)).any():
        left = pa.array(np.flatnonzero(~nowhere))
        rows = some.rows.take(left) if some.rows.num_columns else some.rows
        made_events = changed(replace(some, rows=rows, records=some.records.take(left)), spec)
        return _only(made_events, left, [BadEvent(int(n), *_NO_PLACE, b"") for n in np.flatnonzero(nowhere)])
    read = _by_columns(some, spec) if spec.has_key_schemas else _by_messages(some, spec)

    def moved(begin: int, end: int) -> FileEvents:
        return _moved(read(begin, end), begin)

    def alone(begin: int, end: int, why: str) -> FileEvents:
        return FileEvents([], [BadEvent(n, Reason.DECODER_FAILED, why, b"") for n in range(begin, end)])

    # Whatever a message makes the reader raise, only it is set aside.
    decoded_parts = list(by_halves(0, count, moved, alone))
    events = [some for file_events in decoded_parts for item in file_events.events for some in truncates_apart(item)]
    unusable = dict(_unusable(some.route, events, spec))
    bad = [item for file_events in decoded_parts for item in file_events.bad]
    bad += [BadEvent(n, *why, b"") for index, why in unusable.items() for n in events[index].numbers.to_pylist()]
    usable = (item for index, item in enumerate(events) if index not in unusable)
    events = [named for item in usable if (named := _with_key(item, spec, bad)) is not None]
    # The demultiplexer has passed over what says nothing; what is left here is told, not lost.
    is_told = np.zeros(count, bool)
    for item in events:
        is_told[item.numbers.to_numpy()] = True
    is_told[[item.row for item in bad]] = True
    bad += [BadEvent(int(n), Reason.CORRUPT_EVENT, _PASSED, b"") for n in np.flatnonzero(~is_told)]
    return MadeEvents(events, bad)


def _nowhere(records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which records do not say where they were in a topic, by which each is known. Only tables have such."""
    places = (records.column(name).is_null() for name in ("topic", "partition", "offset"))
    return np.asarray(np.logical_or.reduce([place.to_numpy(zero_copy_only=False) for place in places]), bool)


def _only(made_events: MadeEvents, left: pa.Array, bad: list[BadEvent]) -> MadeEvents:
    """What was made of the records at `left`, counted among all of them, and the others."""
    numbers = (pa.chunked_array([left.take(item.numbers.combine_chunks())]) for item in made_events.events)
    events = [replace(item, numbers=placed) for item, placed in zip(made_events.events, numbers, strict=True)]
    return MadeEvents(events, [*(replace(item, row=left[item.row].as_py()) for item in made_events.bad), *bad])


Read = Callable[[int, int], FileEvents]
"""Reads the messages from one to another. Raises anything."""


def _rules(spec: MessageSpec) -> tuple[Reading, Form]:
    assert isinstance(spec.named, DebeziumNames)
    return Reading(json_numbers="double"), spec.named.form


def _by_messages(some: WriterRecords, spec: MessageSpec) -> Read:
    """Messages in JSON."""
    reading, form = _rules(spec)
    values = [None] * len(some.records) if some.writer == GONE else some.rows.column(0).to_pylist()
    messages = [
        Message(record, key, value)
        for record, key, value in zip(_records(some.records), some.records.column(KEY).to_pylist(), values, strict=True)
    ]
    assert isinstance(spec.named, DebeziumNames)
    if spec.named.dialect is None:
        return lambda begin, end: read_messages(messages[begin:end], reading, form)
    own, as_debezium = spec.named.own(some.route).keys or (), DIALECTS[spec.named.dialect].as_debezium
    return lambda begin, end: read_messages([as_debezium(m, own) for m in messages[begin:end]], reading, form)


def _by_columns(some: WriterRecords, spec: MessageSpec) -> Read:
    """Messages that `stored_changes` has read. Without a value, they delete the row of their key."""
    reading, form = _rules(spec)
    origins, is_gone = _found(some.records), some.writer[0] == GONE[0]

    def read(begin: int, end: int) -> FileEvents:
        columns = replace(columns_of(some.rows.slice(begin, end - begin)), gone=is_gone)
        return events_of(columns, origins.take(pa.array(np.arange(begin, end))), reading, form)

    return read


def _found(records: pa.RecordBatch) -> RecordOrigins:
    moved = None
    headers = _header_names(records)
    if any(headers):
        moved = pa.array([bool(names & {NEW_KEY, OLD_KEY}) for names in headers])
    topic, partition, offset = (records.column(name) for name in ("topic", "partition", "offset"))
    return RecordOrigins(topic, partition, offset, _times(records), moved)


def _moved(file_events: FileEvents, by: int) -> FileEvents:
    """With numbers that are greater by `by`."""
    events = [replace(item, numbers=pc.add(item.numbers, by)) for item in file_events.events]
    return replace(file_events, events=events, bad=[replace(item, row=item.row + by) for item in file_events.bad])


def _unusable(route: str, events: list[Events], spec: MessageSpec) -> Iterator[tuple[int, tuple[Reason, str]]]:
    """Which events no table of the route may take, and why."""
    keys = [
        () if spec.named is None else spec.named.keys(table_events.table, table_events.keys) for table_events in events
    ]
    key_columns = _keys_of_table(events[0].table, spec) if events else ()
    key_columns = key_columns or next((names for names in keys if names), ())
    for index, table_events in enumerate(events):
        if is_truncate(table_events):  # names no row, so it has no key
            continue
        if table_events.table.route != route:
            yield (
                index,
                (Reason.CORRUPT_EVENT, f"it is of another table ({table_events.table.route}) than it seems to be"),
            )
        elif key_columns and not keys[index]:
            detail = f"the record has no key, and the table's rows have one ({', '.join(key_columns)})"
            yield index, (Reason.NO_KEY_VALUE, detail)
        elif _folded(keys[index]) != _folded(key_columns) and spec.named is not None and not spec.named.own(route).keys:
            detail = (
                f"the record's key is {', '.join(keys[index])}; that of the table's rows is {', '.join(key_columns)}"
            )
            yield index, (Reason.OTHER_KEY, detail)


def _with_key(events: Events, spec: MessageSpec, bad: list[BadEvent]) -> Events | None:
    """Those that say which row of the merged table they change; the others go to `bad`. A delete of Oracle may name its
    row by its row id, which only files' events can wait for (`engine.changes.orphans`)."""
    keys = () if spec.named is None else spec.named.keys(events.table, events.keys)
    if not keys or spec.named is None or spec.named.merged(events.table) is None or is_truncate(events):
        return events
    names = events.rows.column_names[:-1]
    columns = [events.rows.column(name) for key in keys if (name := spelled_in(names, key)) is not None]
    if any(not column.null_count for column in columns):
        return events
    has_key = reduce(pc.or_, (column.is_valid() for column in columns), pa.repeat(False, events.rows.num_rows))
    named, nameless = events.numbers.filter(has_key), events.numbers.filter(pc.invert(has_key))
    detail = f"no value in the key column {', '.join(keys)}"
    bad += [BadEvent(n, Reason.NO_KEY_VALUE, detail, b"") for n in nameless.to_pylist()]
    return replace(events, rows=events.rows.filter(has_key), numbers=named) if len(named) else None


def _folded(keys: Sequence[str]) -> frozenset[str]:
    return frozenset(column_name(key).lower() for key in keys)


def _keys_of_table(source: SourceTable, spec: MessageSpec) -> tuple[str, ...]:
    """The columns by which the merged table tells its rows apart; none where there is no such table."""
    if (tip := spec.merge_tips.get(source.route)) is not None:
        return tuple(tip.keys)
    uri = None if spec.named is None else spec.named.merged(source)
    table = None if uri is None else Table(uri, spec.store).open()
    return () if table is None or table.owner is None else tuple(table.owner.keys)


def _records(records: pa.RecordBatch) -> list[Record]:
    times = _times(records).to_pylist()
    columns = (records.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return [
        Record(topic or "", partition or 0, offset or 0, time, names)
        for topic, partition, offset, time, names in zip(*columns, times, _header_names(records), strict=True)
    ]


def _times(records: pa.RecordBatch) -> pa.Array:
    """Milliseconds since 1970."""
    return records.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _header_names(records: pa.RecordBatch) -> list[frozenset[str]]:
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return [frozenset()] * len(headers)
    names = pc.struct_field(headers.flatten(), "key").to_pylist()
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)).tolist()
    return [frozenset(names[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
