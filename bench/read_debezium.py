"""Debezium's messages: what do they cost to read beside the change files of the same history?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median

import pyarrow as pa

from bench.result import Case, Result
from bench.workload import Place, WrongRows
from distributary.changes.debezium.column_changes import events_of
from distributary.changes.debezium.heads import PLAIN, Message, Record
from distributary.changes.debezium.json_messages import read_messages
from distributary.changes.debezium.side_by_side import RecordOrigins
from distributary.changes.file_events import read_events
from distributary.changes.model import FileEvents, Reading
from distributary.engine.messages.chunks import KEY
from distributary.engine.messages.stored_changes import ChangeDecoder, columns_of, key_writers
from distributary.schemas.avro.payload import AvroSchema
from distributary.schemas.decoding import CompiledSchema
from distributary.schemas.formats import FORMATS
from distributary.schemas.registry.compile import compile_text
from distributary_simulate.change_files.events import Event, Layout, event_schema
from distributary_simulate.change_messages.connect_avro_form import AvroForm
from distributary_simulate.change_messages.connect_protobuf_form import ProtobufForm
from distributary_simulate.change_messages.debezium import DebeziumTopics
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.model import Change, Table

NOTE = (
    "Changes of one MySQL table of twelve columns to events in normal form, in one process, median of the rounds: "
    "events per second of Debezium's messages in JSON, with the schema in each message and without (ours), against the "
    "same changes as a Datastream file of JSON lines with its .schema file (other). In Avro and protobuf, each has its "
    "key's schema too. Checked: both give every change."
)


def run(place: Place) -> Result:
    events, rounds = place.size(20_000, 300), place.size(5, 1)
    tables = tuple(table for table in HistoryPlan().tables if table.route == "shop.users")
    history = History(HistoryPlan(tables=tables, seed=3, backfill=False, schema_changes=0))
    changes = list(history.changes(events))
    body, schema = _file(tables[0], changes)
    reading = Reading(json_numbers="double")
    by_file, files = _rate(lambda: read_events(body, "users.jsonl", reading, schema), len(changes), rounds)
    cases = []
    for label, schemas in (("with its schema in each message", True), ("without schemas", False)):
        messages = _messages(changes, schemas=schemas)
        rate, found = _rate(lambda sent=messages: read_messages(sent, reading), len(changes), rounds)  # type: ignore[misc]
        if _rows(found) != len(changes) or _rows(files) != len(changes):
            raise WrongRows(f"{label}: {_rows(found)} and {_rows(files)} of {len(changes)} changes")
        size = round(sum(len(m.value or b"") for m in messages) / len(messages))
        details = {"events": len(changes), "bytes a message": size}
        cases.append(Case(label, "events/s", rate, by_file, less_is_better=False, details=details))
    for label, format in (("Avro", "avro"), ("protobuf", "protobuf")):
        rate, found = _rate(_by_columns(_messages(changes, schemas=True), format, reading), len(changes), rounds)
        if _rows(found) != len(changes):
            raise WrongRows(f"{label}: {_rows(found)} of {len(changes)} changes")
        details = {"events": len(changes)}
        cases.append(Case(f"in {label}", "events/s", rate, by_file, less_is_better=False, details=details))
    return Result("read_debezium", NOTE, tuple(cases))


def _by_columns(messages: list[Message], format: str, reading: Reading) -> Callable[[], FileEvents]:
    """What reads the same messages in Avro or protobuf, as a task does."""
    ids: dict[str, int] = {}
    kind = AvroForm if format == "avro" else ProtobufForm
    form = kind(lambda subject, text: ids.setdefault(text, len(ids) + 1))
    sent = [form.both(m.record.topic, m.key, m.value) for m in messages]
    schemas: dict[int, CompiledSchema] = {
        number: AvroSchema(number, (text,)) if format == "avro" else compile_text(text, id=number)
        for text, number in ids.items()
    }
    keys, values = (pa.array(column, pa.binary()) for column in zip(*sent, strict=True))
    frames = FORMATS[format].split_frames(values)
    records = pa.RecordBatch.from_arrays([frames.body, keys], ["payload", KEY])
    writer = frames.schema_id[0].as_py(), key_writers(keys, format, frames.index)[0].as_py()
    count = len(messages)
    found = RecordOrigins(
        pa.array([m.record.topic for m in messages]),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(range(count), pa.int64()),
        pa.repeat(pa.scalar(0, pa.int64()), count),
    )
    return lambda: events_of(
        columns_of(ChangeDecoder(writer, schemas, format).decode(records).rows), found, reading, PLAIN
    )


def _rate(read: Callable[[], FileEvents], events: int, rounds: int) -> tuple[float, FileEvents]:
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        found = read()
        rates.append(events / (time.perf_counter() - began))
    return median(rates), found


def _rows(found: FileEvents) -> int:
    return sum(events.rows.num_rows for events in found.events)


def _messages(changes: Iterable[Change], *, schemas: bool) -> list[Message]:
    topics = DebeziumTopics(schemas=schemas, tombstones=False)
    made = [message for change in changes for message in topics.messages(change)]
    return [Message(Record(m.topic, 0, offset, 0), m.key, m.value) for offset, m in enumerate(made)]


def _file(table: Table, changes: Iterable[Change]) -> tuple[bytes, str]:
    written = event_schema(table, Layout.Y2025, "stream")
    lines = [written.line(Event(change, f"{n:032x}", change.seen_ms)) for n, change in enumerate(changes)]
    return "\n".join(lines).encode(), written.text
