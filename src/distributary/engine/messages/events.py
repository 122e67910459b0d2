"""Messages as change events: where the engine of messages meets the log, the reduction and the merge of change files.

    decoded rows + records -> [made: Events, and what is none] -> RouteEvents -> engine.changes.deliver.deliver_route

A kind of messages that are events says what they are in one function, `Maker`: here that of messages with keys
(`tables.keys`), where each is a new version of the row of its key. All else is the same for every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.casts import named_type
from distributary.changes.file_events import spelled_in
from distributary.changes.key_text import as_type
from distributary.changes.message_order import message_numbers
from distributary.changes.model import CHANGE, MESSAGE_METADATA_TYPE, METADATA, BadEvent, Events, Kind, SourceTable
from distributary.engine.changes.fitting import FilePart, RouteEvents
from distributary.engine.changes.rejected_events import RECORD
from distributary.engine.messages.chunks import GONE, KEY, WriterSchema
from distributary.engine.messages.decode import Decoded
from distributary.engine.messages.record_keys import beside, fitting, key_fields
from distributary.engine.messages.rejected import rejected_rows
from distributary.engine.messages.task_spec import ORIGIN, MessageSpec, payload_columns, renamed
from distributary.errors import Reason
from distributary.schemas.raw import utf8_texts
from distributary.tables.merge_rows import DELETED, DELETED_AT, DELETED_AT_TYPE
from distributary.tables.snapshot import columns_of

OF_ORIGIN = f"{ORIGIN}."
"""Begins the names of what is known of a record besides its message, where a column can be named."""
_OURS = (CHANGE, METADATA)
"""Columns of what is known of an event."""


@dataclass(frozen=True)
class MadeEvents:
    """What was made of some records: `events`, whose numbers count the records, and what is none (`BadEvent.row`
    likewise)."""

    events: list[Events] = field(default_factory=list)
    bad: list[BadEvent] = field(default_factory=list)


@dataclass(frozen=True)
class WriterRecords:
    """One writer's rows of a route, as decoded. `records`: `RECORD_SCHEMA` of the same rows, where each was, and its
    key. Of `GONE`, records without a value, the rows have no columns. `beside`: the columns of the route's other rows
    in this task."""

    route: str
    writer: WriterSchema
    rows: pa.RecordBatch
    records: pa.RecordBatch
    beside: tuple[pa.Schema, ...] = ()


class Maker(Protocol):
    def __call__(self, some: WriterRecords, spec: MessageSpec) -> MadeEvents:
        """What decoded rows are. Raises what is wrong with their route as a whole."""
        ...


def route_events(route: str, decoded: Decoded, spec: MessageSpec, maker: Maker) -> tuple[RouteEvents, list[pa.Table]]:
    """What a task holds of a route, as events, and the records that are none, for the quarantine.

    Raises ValueError, DistributaryError: what is wrong with the route as a whole.
    """
    events_of_route = RouteEvents(SourceTable(Kind.MESSAGES, "", "", route))
    rejected: list[pa.Table] = []
    beside = tuple(batch.schema for batch in decoded.batches)
    starts = accumulate((len(records) for records in decoded.origins), initial=0)
    for writer, rows, records, start in zip(decoded.writers, decoded.batches, decoded.origins, starts, strict=False):
        if not records.num_rows:
            continue
        made_events = maker(WriterRecords(route, writer, rows, records, beside), spec)
        for events in made_events.events:
            positions = events.numbers.combine_chunks()
            event_records = records.take(positions)
            events_of_route.source = events.table
            placed = _renumbered(events, event_records, positions)
            numbers = pc.add(positions.cast(pa.int64()), start)
            events_of_route.parts.append(FilePart(placed, places(event_records), records=numbers))
        if made_events.bad:
            why = (
                [b.row for b in made_events.bad],
                [b.reason for b in made_events.bad],
                [b.detail for b in made_events.bad],
            )
            rejected.append(rejected_rows(route, writer, records, *why, spec))
    return events_of_route, rejected


def rejected_records(route: str, events: Sequence[pa.Table], decoded: Decoded, spec: MessageSpec) -> Iterator[pa.Table]:
    """Events that no table took (`EVENT_REJECTED_SCHEMA`), as the records that they were. Not by their places: changes
    of one message share one, and so may rows of a table that is no topic's."""
    why: dict[int, tuple[Reason, str]] = {}
    for rows in events:
        columns = (rows.column(name).to_pylist() for name in (RECORD, "reason", "detail"))
        why |= {record: (Reason(reason), detail) for record, reason, detail in zip(*columns, strict=True)}
    start = 0
    for writer, records in zip(decoded.writers, decoded.origins, strict=True) if why else ():
        rejections = [(n, *why[start + n]) for n in range(len(records)) if start + n in why]
        start += len(records)
        if rejections:
            position, reasons, details = zip(*rejections, strict=True)
            yield rejected_rows(route, writer, records, position, reasons, details, spec)


def places(records: pa.RecordBatch) -> pa.Array:
    """What stands for the file of each event: its topic and partition."""
    topic = pc.fill_null(records.column("topic"), "")
    partition = pc.fill_null(records.column("partition").cast(pa.string()), "")
    return pc.binary_join_element_wise(topic, partition, "/")


def _renumbered(events: Events, records: pa.RecordBatch, positions: pa.Array) -> Events:
    """What stands for the number of each event in its file: its offset; where the source gives none, its place here,
    below 0."""
    offsets = pc.coalesce(records.column("offset"), pc.subtract(-1, positions.cast(pa.int64())))
    return Events(events.table, events.schema_key, events.keys, events.rows, pa.chunked_array([offsets]), events.typed)


# -- messages with keys ------------------------------------------------------------------------------------


def keyed(some: WriterRecords, spec: MessageSpec) -> MadeEvents:
    """Each message is the row of its key; one without a value says that the row is gone."""
    records = some.records
    columns = _columns(some, spec)
    keys = tuple(spelled_in(list(columns), key) or key for key in spec.tables.keys_of(some.route))
    bad = dict(_without_key(keys, columns, len(records)))
    numbered = message_numbers(
        _newest_by(some.route, columns, records, spec),
        *(records.column(n) for n in ("offset", "partition", "topic", "payload")),
    )
    for row, detail in numbered.bad:
        bad.setdefault(row, (Reason.BAD_POSITION, detail))
    rejected = [BadEvent(row, reason, detail, b"") for row, (reason, detail) in sorted(bad.items())]
    if len(bad) == len(records):
        return MadeEvents(bad=rejected)
    metadata = _metadata(some.writer, records, numbered.numbers)
    table = pa.table([*columns.values(), metadata], names=[*columns, CHANGE])
    positions = pa.array(np.setdiff1d(np.arange(len(records)), list(bad)), pa.int64())
    source = SourceTable(Kind.MESSAGES, "", "", some.route)
    events = Events(source, str(some.writer[0]), keys, table.take(positions), pa.chunked_array([positions]))
    return MadeEvents([events], rejected)


def as_merged(incoming: pa.Schema, spec: MessageSpec) -> pa.Schema:
    """The columns of a merged table that takes rows of a writer (`decode.incoming_schema`)."""
    columns = list(renamed(pa.schema([f for f in incoming if f.name != ORIGIN]), _OURS))
    record_key = spec.record_key
    if record_key is not None and record_key.format != "text":
        columns += beside(pa.schema(columns), key_fields(record_key, is_keyed=True))
    elif record_key is not None and spelled_in([f.name for f in columns], str(record_key.column)) is None:
        kind = None if record_key.type is None else named_type(record_key.type)
        columns.append(pa.field(str(record_key.column), kind or pa.string()))
    our_fields = [(CHANGE, MESSAGE_METADATA_TYPE), (DELETED, pa.bool_()), (DELETED_AT, DELETED_AT_TYPE)]
    return pa.schema([*columns, *our_fields])


def _columns(some: WriterRecords, spec: MessageSpec) -> dict[str, pa.Array]:
    """What a table gets of each message, by the name that the column has beside our own."""
    names = renamed(payload_columns(some.rows.schema), _OURS).names
    named = dict(zip(names, some.rows.columns, strict=True))
    record_key = spec.record_key
    if record_key is None or record_key.format != "text":
        return named  # with the columns of structured keys, where these are read
    name = spelled_in(list(named), str(record_key.column)) or str(record_key.column)
    if name not in named:
        named[name] = _of_record_key(some, name, spec)
    return named


def _of_record_key(some: WriterRecords, name: str, spec: MessageSpec) -> pa.Array:
    """The records' keys as a column, of the type that it has already, if they fit."""
    texts = utf8_texts(some.records.column(KEY))
    kind = _known_type(some, name, spec)
    typed = None if kind is None else as_type(texts, kind)
    if typed is None and kind is not None and spec.record_key is not None and spec.record_key.type is not None:
        return fitting(texts, kind)
    return texts if typed is None else typed


def _known_type(some: WriterRecords, name: str, spec: MessageSpec) -> pa.DataType | None:
    """As the pipeline file says, or the table has it, or the messages beside."""
    if spec.record_key is not None and spec.record_key.type is not None:
        return named_type(spec.record_key.type)
    tip = spec.merge_tips.get(some.route)
    table = tip.arrow_schema() if tip is not None else columns_of(spec.target(some.route).open())
    schemas = (table, *some.beside)
    return next((schema.field(name).type for schema in schemas if schema is not None and name in schema.names), None)


def _without_key(
    keys: Sequence[str], columns: dict[str, pa.Array], rows: int
) -> Iterator[tuple[int, tuple[Reason, str]]]:
    """Rows of which no table could say which they are, and why."""
    missing = [key for key in keys if key not in columns]
    if missing:
        detail = f"the message has no key column {', '.join(missing)}"
        yield from ((row, (Reason.NO_KEY_VALUE, detail)) for row in range(rows))
        return
    has_key = pa.repeat(False, rows)
    for key in keys:
        has_key = pc.or_(has_key, columns[key].is_valid())
    detail = f"no value in the key column {', '.join(keys)}"
    for row in np.flatnonzero(~has_key.to_numpy(zero_copy_only=False)).tolist():
        yield row, (Reason.NO_KEY_VALUE, detail)


def _newest_by(route: str, columns: dict[str, pa.Array], records: pa.RecordBatch, spec: MessageSpec) -> pa.Array | None:
    name = spec.tables.newest_by_of(route)
    if name is None:
        return None
    if name.startswith(OF_ORIGIN):
        return records.column(name.removeprefix(OF_ORIGIN))
    column = spelled_in(list(columns), name)
    return pa.nulls(len(records), pa.int64()) if column is None else columns[column]


def _metadata(writer: WriterSchema, records: pa.RecordBatch, numbers: pa.Array) -> pa.StructArray:
    rows = len(records)
    time = records.column("timestamp")
    filled = {
        "source_timestamp": time.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()),
        "change_sequence_number": numbers,
        "is_deleted": pa.repeat(writer == GONE, rows),
        "is_backfill": pa.repeat(False, rows),
        "schema_key": pa.repeat(str(writer[0]), rows),
    }
    columns = [filled[f.name] if f.name in filled else records.column(f.name) for f in MESSAGE_METADATA_TYPE]
    return pa.StructArray.from_arrays(columns, fields=list(MESSAGE_METADATA_TYPE))
