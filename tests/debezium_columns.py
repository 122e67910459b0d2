"""Debezium's messages in Avro or protobuf, read column by column, held against the same messages in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from distributary.changes.debezium.column_changes import events_of
from distributary.changes.debezium.heads import Form, Message
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.side_by_side import RecordOrigins
from distributary.changes.model import METADATA, FileEvents, Kind, Reading
from distributary.engine.messages.chunks import KEY
from distributary.engine.messages.stored_changes import ChangeDecoder, columns_of, key_writers
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS
from distributary_simulate.change_messages.connect_form import ConnectForm
from distributary_simulate.changes.history import History, HistoryPlan
from tests.test_debezium_histories import messages_of


def written(form: ConnectForm, message: Message) -> Message:
    """As a converter writes it."""
    key, value = form.both(message.record.topic, message.key, message.value)
    return message._replace(key=key, value=value)


def read_columns(
    sent: Sequence[Message], schemas: Mapping[int, CompiledSchema], encoding: Literal["avro", "protobuf"], form: Form
) -> FileEvents:
    """By the way of a task, without the tables."""
    values, keys = (pa.array([getattr(m, name) for m in sent], pa.binary()) for name in ("value", "key"))
    frames = FORMATS[encoding].split_frames(values)
    writers = key_writers(keys, encoding, frames.index if encoding == "protobuf" else None)
    pairs = list(zip(frames.schema_id.to_pylist(), writers.to_pylist(), strict=True))
    events, bad = [], []
    for pair in dict.fromkeys(pairs):
        at = [n for n, one in enumerate(pairs) if one == pair]
        columns = [frames.body.take(pa.array(at)), keys.take(pa.array(at))]
        split = ChangeDecoder(pair, schemas, encoding).decode(pa.RecordBatch.from_arrays(columns, ["payload", KEY]))
        assert split.rejected == []
        found = events_of(columns_of(split.rows), origins_of([sent[n] for n in at]), Reading(), form)
        for one in found.events:
            numbers = pa.chunked_array([pa.array([at[n] for n in one.numbers.to_pylist()], pa.int64())])
            events.append(type(one)(one.table, one.schema_key, one.keys, one.rows, numbers, one.typed))
        bad += [type(one)(at[one.row], one.reason, one.detail, one.raw) for one in found.bad]
    return FileEvents(events, bad)


def origins_of(messages: Sequence[Message]) -> RecordOrigins:
    records = [message.record for message in messages]
    return RecordOrigins(
        pa.array([one.topic for one in records]),
        pa.array([one.partition for one in records], pa.int32()),
        pa.array([one.offset for one in records], pa.int64()),
        pa.array([one.time_ms for one in records], pa.int64()),
        pa.array([bool(one.headers) for one in records]),
    )


def said(found: FileEvents) -> list[Any]:
    """What the events say, in the order of the messages."""
    rows = [
        (number, events.table, events.keys, _plain(row))
        for events in found.events
        for number, row in zip(events.numbers.to_pylist(), events.rows.to_pylist(), strict=True)
    ]
    return sorted(rows, key=lambda row: row[0])


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    about = {**row[METADATA], "schema_key": row[METADATA]["schema_key"].partition("!")[2]}
    return {**row, METADATA: about}


def says_what_json_says(by_columns: FileEvents, in_json: Sequence[Message], form: Form) -> list[Any]:
    """Both ways say the same, and this."""
    by_json = read_messages(in_json, Reading(), form)
    assert said(by_columns) == said(by_json)
    assert [(bad.row, bad.reason) for bad in by_columns.bad] == [(bad.row, bad.reason) for bad in by_json.bad]
    return said(by_columns)


def history_of(kind: Kind, seed: int, changes: int) -> list[Message]:
    """The messages of a history of one kind of database, with their schemas; no tombstones."""
    tables = tuple(table for table in HistoryPlan().tables if table.kind is kind)
    messages = messages_of(History(HistoryPlan(tables=tables, seed=seed)), changes, schemas=True)
    return [message for message in messages if message.value is not None]
