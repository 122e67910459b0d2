"""The map side of a batch: source rows -> envelopes -> chunks of one route each, ready to be shuffled.

Runs inside Spark tasks. A chunk is one row for Spark and thousands of records for us: the records of one route, as one
Arrow batch in a binary column, sorted by writer schema. So the JVM moves a few large rows instead of many small ones,
a route's cost does not depend on its neighbours, and a hot route is many chunks that several tasks can take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.casts import in_calendar
from distributary.changes.dialects import DIALECTS
from distributary.engine.apart import limited
from distributary.engine.messages.chunks import GONE, KEY, Cut, one_array, rows_by_writer
from distributary.engine.messages.opening import EnvelopeReader, reading
from distributary.engine.messages.owned import OwnedCut
from distributary.engine.messages.record_keys import as_objects
from distributary.engine.messages.stored_changes import key_writers
from distributary.engine.messages.task_spec import killing
from distributary.engine.windows import windows
from distributary.errors import Reason, SchemaBroken
from distributary.errors.border import by_halves
from distributary.schemas.decoding import BadIndex
from distributary.schemas.formats import FORMATS
from distributary.schemas.json.inferred import shapes
from distributary.schemas.protobuf.framing import Frames
from distributary.sources.bronze_rows import RECORD_KEY, set_apart
from distributary.tables.quarantine import ORIGIN_FIELDS, REJECTED_SCHEMA

WINDOW_BYTES = 16 * 2**20
"""Source bytes that a task holds before it cuts chunks. Small enough that the allocator hands out the same warm pages
window after window: with 64 MB, page faults cost twice as much as the work (measured)."""


_Opened: TypeAlias = tuple[pa.Array, pa.Array, pa.Array, pa.Table]
"""Route, schema id, payload and origin of opened envelopes."""
_BAD = Reason.CORRUPT_ENVELOPE

Payloads: TypeAlias = "Callable[[pa.Array, pa.Array, pa.Array, pa.Table, EnvelopeReader, Cut], None]"
"""What takes opened envelopes: route, schema id, payload, origin."""


def demux(
    batches: Iterable[pa.RecordBatch], reader: EnvelopeReader, task: int, spool: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Cut the source rows of one task into chunks (`CHUNK_SCHEMA`). `spool`: a folder for their bytes.

    `batches` have the source's columns: `value` (or route, schema id, payload for plain columns), and as many of
    topic, partition, offset, timestamp as the source has.
    """
    seq = 0
    for window in windows(batches, WINDOW_BYTES):
        cut = Cut(task, seq) if reader.share is None else OwnedCut(task, seq, reader.share)
        with limited(reader.read_sec):
            _split(window, reader, cut)
        yield from cut.batches(spool)
        seq = cut.seq


# -- envelope -> (route, writer schema, payload, origin), bad ones apart ------------------------------------


def _split(window: pa.Table, reader: EnvelopeReader, cut: Cut) -> None:
    origin = row_origin(window, reader)
    if reader.bronze:
        window, origin = set_apart(window, origin, reader.names, cut)
    if reader.format == "columns":
        route, wrapped_id, payload = (one_array(window.column(name)) for name in reader.names)
        split_payloads(route, wrapped_id, payload, origin, reader, cut)
    else:
        split_values(one_array(window.column("value")), origin, reader, cut)


def split_values(
    value: pa.Array, origin: pa.Table, reader: EnvelopeReader, cut: Cut, then: Payloads | None = None
) -> None:
    """Read source values (binary; null is a tombstone) into `cut`. `origin`: `ORIGIN_FIELDS` of the same rows.

    `then` takes the opened ones; without it their payloads are read too (`split_payloads`).
    """
    then = then or split_payloads
    if value.null_count:
        has_value = pc.is_valid(value)
        if reader.deletes is None:
            cut.tombstones(None, value.null_count)
        else:
            is_tombstone = pc.invert(has_value)
            _route_records(value.filter(is_tombstone), origin.filter(is_tombstone), reader, cut, then)
        value, origin = value.filter(has_value), origin.filter(has_value)
    if not reader.opens:
        _route_records(value, origin, reader, cut, then)
        return
    if killers := killing(value, reader.killed):
        positions = pa.array(killers, pa.int64())
        details = pa.array(killers.values())
        cut.bad(rejected_envelopes(origin.take(positions), value.take(positions), Reason.KILLED_READER, details))
        others = pa.array(np.setdiff1d(np.arange(len(value)), list(killers)))
        value, origin = value.take(others), origin.take(others)
    if not reader.framed:
        body = value
        if reader.skips_header:
            value, body, origin = _headless(value, origin, cut)
        _unwrap(0, reader.message or "0", value, body, origin, reader, cut, then)
        return
    header = FORMATS[reader.format if reader.by_message is None else reader.payload_format]
    frames = header.split_frames(value, legacy_varints=reader.legacy_varints and reader.by_message is not None)
    if frames.reason.null_count < len(value):
        bad = pc.is_valid(frames.reason)
        cut.bad(rejected_envelopes(origin.filter(bad), value.filter(bad), frames.reason.filter(bad), "envelope header"))
    schema_ids = _with_schema(frames.schema_id, value, origin, reader, cut)
    for (schema_id, index), rows in rows_by_writer(schema_ids, frames.index):
        raw = value if rows is None else value.take(rows)
        body = frames.body if rows is None else frames.body.take(rows)
        _unwrap(schema_id, index, raw, body, origin if rows is None else origin.take(rows), reader, cut, then)


def _with_schema(schema_id: pa.Array, value: pa.Array, origin: pa.Table, reader: EnvelopeReader, cut: Cut) -> pa.Array:
    """The ids whose schemas the reader has, null in place of the others: of these it asks for the unknown ones, and
    the rows of refused ones are set aside."""
    coded = schema_id.dictionary_encode()
    ids = coded.dictionary.to_pylist()
    if all(known_id in reader.schemas for known_id in ids):
        return schema_id
    why: list[tuple[Reason, str] | tuple[None, None]] = []
    for found_id in ids:
        refusal = None if found_id in reader.schemas else reader.refused.get(found_id)
        why.append(refusal or (None, None))
        if refusal is None and found_id not in reader.schemas:
            cut.unknown(found_id)
    reason, detail = (pa.array(texts, pa.string()).take(coded.indices) for texts in zip(*why, strict=True))
    refused = pc.is_valid(reason)
    if pc.any(refused).as_py():
        cut.bad(
            rejected_envelopes(
                origin.filter(refused), value.filter(refused), reason.filter(refused), detail.filter(refused)
            )
        )
    return pc.if_else(pa.array([found_id in reader.schemas for found_id in ids]).take(coded.indices), schema_id, None)


def _headless(value: pa.Array, origin: pa.Table, cut: Cut) -> tuple[pa.Array, pa.Array, pa.Table]:
    """Values with a header that does not matter, what is behind it, and their origin."""
    frames = FORMATS["json"].split_frames(value)
    if frames.reason.null_count == len(value):
        return value, frames.body, origin
    bad, good = pc.is_valid(frames.reason), pc.is_null(frames.reason)
    cut.bad(rejected_envelopes(origin.filter(bad), value.filter(bad), frames.reason.filter(bad), "envelope header"))
    return value.filter(good), frames.body.filter(good), origin.filter(good)


def _route_records(value: pa.Array, origin: pa.Table, reader: EnvelopeReader, cut: Cut, then: Payloads) -> None:
    """Messages whose route is known before they are read: what is wrong with them is their route's own affair."""
    route, ids = _by_record(origin, reader), pa.nulls(len(value), pa.int32())
    if (long := _too_long(route, reader)) is not None:
        cut.bad(rejected_envelopes(origin.filter(long), value.filter(long), Reason.ROUTE_TOO_LONG, _long_words(reader)))
        keep = pc.invert(long)
        route, ids, value, origin = route.filter(keep), ids.filter(keep), value.filter(keep), origin.filter(keep)
    then(route, ids, value, origin, reader, cut)


def _by_record(origin: pa.Table, reader: EnvelopeReader) -> pa.Array:
    assert reader.by_record is not None
    return reader.by_record.of(origin)


def _too_long(route: pa.Array, reader: EnvelopeReader) -> pa.Array | None:
    """Which routes are longer than may be; None where none is."""
    long = pc.fill_null(pc.greater(pc.binary_length(route), reader.max_route_length), False)
    return long if pc.any(long).as_py() else None


def _long_words(reader: EnvelopeReader) -> str:
    return f"its route has more than {reader.max_route_length:,} bytes (envelope.max_route_length)"


def _unwrap(
    schema_id: int,
    message: str,
    raw: pa.Array,
    body: pa.Array,
    origin: pa.Table,
    reader: EnvelopeReader,
    cut: Cut,
    then: Payloads,
) -> None:
    """Decode the envelopes that one schema wrote."""
    if not len(raw):
        return
    bad: list[pa.Table] = []
    passed: list[int] = []

    def work(begin: int, end: int) -> _Opened | None:
        count = end - begin
        some = (raw.slice(begin, count), body.slice(begin, count), origin.slice(begin, count))
        return _open(schema_id, message, *some, reader, bad, passed)

    def alone(begin: int, end: int, why: str) -> None:
        count = end - begin
        bad.append(rejected_envelopes(origin.slice(begin, count), raw.slice(begin, count), _BAD, why))

    # Whatever an envelope or its schema makes the decoder raise, only its own record is set aside.
    for opened in by_halves(0, len(raw), work, alone):
        while bad:
            cut.bad(bad.pop(0))
        if opened is not None:
            then(*opened, reader, cut)
    if any(passed):
        cut.tombstones(None, sum(passed))


def _open(
    schema_id: int,
    message: str,
    raw: pa.Array,
    body: pa.Array,
    origin: pa.Table,
    reader: EnvelopeReader,
    bad: list[pa.Table],
    passed: list[int],
) -> _Opened | None:
    """What some envelopes hold; None where their schema is no envelope's. Those that cannot be read go to `bad`, and to
    `passed` how many say nothing of a row."""
    try:
        read_envelopes = reading(reader, schema_id, message)
    except (BadIndex, SchemaBroken) as e:
        bad.append(rejected_envelopes(origin, raw, _BAD, f"{e} (schema id {schema_id})"))
        return None
    opened = read_envelopes(body)
    passed.append(opened.passed)
    good = origin if opened.positions is None else origin.take(opened.positions)
    raw_read = raw if opened.positions is None else raw.take(opened.positions)
    if opened.rejected:
        positions = pa.array([row.position for row in opened.rejected])
        details = pa.array([row.detail for row in opened.rejected])
        bad.append(rejected_envelopes(origin.take(positions), raw.take(positions), _BAD, details))
    route = opened.route if opened.route is not None else _by_record(good, reader)
    ids, payload = opened.schema_id, raw_read if opened.payload is None else opened.payload
    if reader.dialect is not None:
        route, ids, payload, good = _divided(route, ids, payload, good, reader)
        raw_read = payload
    if (long := _too_long(route, reader)) is not None:
        bad.append(
            rejected_envelopes(good.filter(long), raw_read.filter(long), Reason.ROUTE_TOO_LONG, _long_words(reader))
        )
        keep = pc.invert(long)
        route, ids, payload, good = route.filter(keep), ids.filter(keep), payload.filter(keep), good.filter(keep)
    return route, ids, payload, good


def _divided(route: pa.Array, ids: pa.Array, payload: pa.Array, origin: pa.Table, reader: EnvelopeReader) -> _Opened:
    """A message that is several changes as so many, of one origin."""
    keys = origin.column(KEY).to_pylist() if KEY in origin.column_names else [None] * len(route)
    changes = DIALECTS[str(reader.dialect)].divided(route.to_pylist(), keys, payload.to_pylist(), reader.own_keys)
    if changes is None:
        return route, ids, payload, origin
    positions, routes, bodies = (
        pa.array(changes[0], pa.int64()),
        pa.array(changes[1]),
        pa.array(changes[2], pa.binary()),
    )
    return routes, ids.take(positions), bodies, origin.take(positions)


def split_payloads(
    route: pa.Array, wrapped_id: pa.Array, payload: pa.Array, origin: pa.Table, reader: EnvelopeReader, cut: Cut
) -> None:
    """Read the payload's own header, set rows without a route or a header apart, and cut the rest by route.

    `route` string, `wrapped_id` int32 (the envelope's schema id), `payload` binary; `origin`: `ORIGIN_FIELDS`.
    """
    origin = origin.append_column("envelope_schema_id", wrapped_id)
    if reader.record_key is not None and KEY in origin.column_names:
        keys = one_array(origin.column(KEY))
        read = as_objects(keys, reader.record_key, reader.schemas, reader.refused, cut.unknown)
        origin = origin.set_column(origin.schema.get_field_index(KEY), KEY, read)
    nameless = pc.fill_null(pc.equal(pc.binary_length(route), 0), True)
    if pc.any(nameless).as_py():
        value = pc.fill_null(payload.filter(nameless), b"")
        about = origin.filter(nameless)
        cut.bad(rejected_envelopes(about, value, Reason.NO_ROUTE, reader.no_route, "payload"))
        named = pc.invert(nameless)
        route, payload, origin = route.filter(named), payload.filter(named), origin.filter(named)
    if (unwanted := reader.route_filter.unwanted(route)) is not None:
        cut.excluded(route.filter(unwanted))
        is_wanted = pc.invert(unwanted)
        route, payload, origin = route.filter(is_wanted), payload.filter(is_wanted), origin.filter(is_wanted)
    if payload.null_count:
        has_payload = pc.is_valid(payload)
        _cut_gone(route.filter(pc.invert(has_payload)), origin.filter(pc.invert(has_payload)), reader, cut)
        route, payload, origin = route.filter(has_payload), payload.filter(has_payload), origin.filter(has_payload)
    frames, detail = _frames(payload, one_array(origin.column("envelope_schema_id")), reader)
    schema_id, index, body, reason = frames.schema_id, frames.index, frames.body, frames.reason
    if reason.null_count < len(reason):
        bad, good = pc.is_valid(reason), pc.is_null(reason)
        about, why, value = origin.filter(bad), reason.filter(bad), payload.filter(bad)
        cut.bad(rejected_envelopes(about, value, why, detail, "payload", route.filter(bad)))
        route, schema_id, index = route.filter(good), schema_id.filter(good), index.filter(good)
        body, origin = body.filter(good), origin.filter(good)
    if reader.has_key_schemas:
        index = key_writers(one_array(origin.column(KEY)), reader.payload_format, index)
    elif reader.by_message is not None:
        index = reader.by_message.part(index, route)
    if reader.infers is not None and len(body):
        index = shapes(route, body, reader.infers)
    cut.rows(route, schema_id, index, body, origin)


def _frames(payload: pa.Array, wrapped_id: pa.Array, reader: EnvelopeReader) -> tuple[Frames, str]:
    """What the payload's own header says, or the envelope in its place; and where a reason for refusing was found."""
    if reader.payload_framed:
        header = FORMATS[reader.payload_format]
        return header.split_frames(payload, legacy_varints=reader.legacy_varints), "payload header"
    index = pa.repeat(reader.payload_message, len(payload))
    reason = pc.if_else(pc.is_null(wrapped_id), Reason.NO_SCHEMA_ID.value, pa.scalar(None, pa.string()))
    return Frames(wrapped_id, index, payload, reason), "the envelope has no schema id"


def _cut_gone(route: pa.Array, origin: pa.Table, reader: EnvelopeReader, cut: Cut) -> None:
    """Records without a value: those that delete the row of their key go on as rows, the others are counted."""
    if reader.deletes is not None and KEY in origin.column_names:
        encoded = route.dictionary_encode()
        keyed = pa.array([reader.deletes(name) for name in encoded.dictionary.to_pylist()], pa.bool_())
        goes_on = pc.and_(keyed.take(encoded.indices), pc.is_valid(one_array(origin.column(KEY))))
        count, rows = origin.filter(goes_on), goes_on.true_count
        schema_id, index = (pa.repeat(scalar, rows) for scalar in (pa.scalar(GONE[0], pa.int32()), GONE[1]))
        if reader.has_key_schemas:
            index = key_writers(one_array(count.column(KEY)), reader.payload_format, pa.nulls(rows, pa.string()))
        cut.rows(route.filter(goes_on), schema_id, index, pa.repeat(pa.scalar(b"", pa.binary()), rows), count)
        route = route.filter(pc.invert(goes_on))
    for count in pc.value_counts(route).to_pylist():
        cut.tombstones(count["values"], count["counts"])


def row_origin(window: pa.Table, reader: EnvelopeReader) -> pa.Table:
    """topic, partition, offset, timestamp of each row; null where the source does not say. Producers give any time:
    one that no reader can hold is null too."""
    rows = window.num_rows
    columns = []
    for field in ORIGIN_FIELDS:
        if field.name in window.column_names:
            values = one_array(window.column(field.name)).cast(field.type)
            columns.append(in_calendar(values)[0] if pa.types.is_timestamp(field.type) else values)
        elif field.name == "topic" and reader.topic is not None:
            columns.append(pa.repeat(reader.topic, rows))
        else:
            columns.append(pa.nulls(rows, field.type))
    origin = pa.table(columns, schema=pa.schema(ORIGIN_FIELDS))
    if reader.needs_key:
        name = RECORD_KEY if reader.bronze else KEY
        keys = one_array(window.column(name)) if name in window.column_names else pa.nulls(rows, pa.binary())
        origin = origin.append_column(KEY, keys)
    return origin


def rejected_envelopes(
    origin: pa.Table,
    value: pa.Array,
    reason: Reason | pa.Array,
    detail: str | pa.Array,
    level: str = "envelope",
    route: pa.Array | None = None,
) -> pa.Table:
    """Rows for the quarantine (`REJECTED_SCHEMA`)."""
    rows = len(value)
    filled = {
        "route": pa.nulls(rows, pa.string()) if route is None else route,
        "reason": pa.repeat(reason.value, rows) if isinstance(reason, Reason) else reason,
        "detail": pa.repeat(detail, rows) if isinstance(detail, str) else detail,
        "level": pa.repeat(level, rows),
        "value": value,
    }
    columns = [
        filled[f.name]
        if f.name in filled
        else one_array(origin.column(f.name)).cast(f.type)
        if f.name in origin.column_names
        else pa.nulls(rows, f.type)
        for f in REJECTED_SCHEMA
    ]
    return pa.table(columns, schema=REJECTED_SCHEMA)
