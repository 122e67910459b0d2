"""Changes that came as columns (Avro, protobuf) to events in normal form: all messages of two schemas at once.

What a message says beside its row is worked out for all of a table together (`side_by_side`); one of which that cannot
be done is given to `heads`, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import casts
from distributary.changes.debezium.connect import Connect
from distributary.changes.debezium.heads import (
    FLAT_FIELDS,
    NO_DOCUMENT,
    ChangeHeader,
    Form,
    Record,
    Unusable,
    flat_table,
    head_of,
    kind_by_fields,
    source_table,
)
from distributary.changes.debezium.positions import KINDS, sequence
from distributary.changes.debezium.side_by_side import SOURCE, Bools, ChangeHeaders, RecordOrigins, metadata, places
from distributary.changes.debezium.stored_columns import AS_IS, column, unlogged
from distributary.changes.debezium.token_rows import schema_key_of
from distributary.changes.file_events import EventParts
from distributary.changes.metadata import Rows
from distributary.changes.model import BadEvent, FileEvents, Kind, Reading
from distributary.errors import Reason

Places = npt.NDArray[np.int64]
Arrays = dict[str, pa.Array]


@dataclass(frozen=True)
class StoredMessages:
    """Messages as their schemas store them. `kind`, `key_kind`: these schemas; None where nothing says more than the
    columns. `key`: the records' keys; None for records without one."""

    value: pa.RecordBatch
    kind: Connect | None
    key: pa.RecordBatch | None
    key_kind: Connect | None
    gone: bool = False
    """They have no value: each deletes the row of its key."""


@dataclass(frozen=True)
class _TakenChanges:
    """Messages taken apart. `row`: the columns of the rows, of deletes before the change; `there`: which have one;
    `kinds`: of their columns. `unlogged`: column -> rows of which the value was not logged."""

    said: ChangeHeaders
    row: Arrays
    there: Bools
    kinds: Mapping[str, Connect]
    unlogged: Mapping[str, Bools] = field(default_factory=dict)


def events_of(columns: StoredMessages, origins: RecordOrigins, reading: Reading, form: Form) -> FileEvents:
    """Every message: in `events` or in `bad`. Numbers are the places of the messages."""
    parts = EventParts(reading, typed=True, sequence=partial(sequence, by_offset=form.by_offset))
    changes_taken = _gone(columns) if columns.gone else _flattened(columns, form) if form.flattened else _whole(columns)
    if changes_taken is None:
        names = ", ".join(columns.value.schema.names[:8]) or "nothing"
        why = f"it is no change: it has {names}, not op, source, before and after"
        parts.bad += [BadEvent(n, Reason.CORRUPT_EVENT, why, b"") for n in range(columns.value.num_rows)]
        return parts.file_events()
    changes_taken = _without_unlogged(changes_taken, form)
    keys = () if columns.key is None else tuple(columns.key.schema.names)
    for at, connector in _groups(changes_taken, origins, form):
        _add(changes_taken, keys, at, connector, origins, reading, form, parts)
    return parts.file_events()


# -- apart ---------------------------------------------------------------------------------------------------


def _whole(columns: StoredMessages) -> _TakenChanges | None:
    value = columns.value
    if not {"op", "source"} <= set(value.schema.names) or not pa.types.is_struct(value.schema.field("source").type):
        return None
    count = value.num_rows
    source = _fields(value.column("source"))
    transaction = _fields(value.column("transaction")) if "transaction" in value.schema.names else {}
    time = value.column("ts_ms") if "ts_ms" in value.schema.names else pa.nulls(count, pa.int64())
    headers = _said(_cast(value.column("op"), pa.string()), source, time, transaction.get("id"))
    deleted = headers.deleted
    if pc.any(pc.equal(headers.field("connector"), "mongodb")).as_py():
        return _documents(columns, headers)
    images = {name: value.column(name) for name in ("after", "before") if name in value.schema.names}
    if not images or not all(pa.types.is_struct(image.type) for image in images.values()):
        return None
    after, before = (_fields(images[name]) if name in images else {} for name in ("after", "before"))
    names = dict.fromkeys([*after, *before])
    row = {name: _one_of(after.get(name), before.get(name), deleted) for name in names}
    has_image = np.where(deleted | headers.truncates, True, _valid(images.get("after"), count))
    kind = _kind_of(columns.kind, ("after", "before"))
    kinds = {name: kind.get(name, AS_IS) for name in names}
    return _TakenChanges(headers, _with_key(row, _named(columns.key), deleted), has_image, kinds)


def _gone(columns: StoredMessages) -> _TakenChanges | None:
    if columns.key is None:
        return None
    count = columns.key.num_rows
    kinds = {} if columns.key_kind is None else dict(columns.key_kind.fields)
    headers = _said(pa.repeat(pa.scalar("d"), count), {}, pa.nulls(count, pa.int64()), None)
    return _TakenChanges(
        headers, _named(columns.key), np.ones(count, bool), {n: kinds.get(n, AS_IS) for n in _named(columns.key)}
    )


def _named(rows: pa.RecordBatch | None) -> Arrays:
    return {} if rows is None else dict(zip(rows.schema.names, rows.columns, strict=True))


def _documents(columns: StoredMessages, headers: ChangeHeaders) -> _TakenChanges:
    """Of MongoDB: a document and its id are JSON in a text."""
    value, count = columns.value, columns.value.num_rows
    key = None if columns.key is None else columns.key.column(0)
    after = value.column("after") if "after" in value.schema.names else pa.nulls(count, pa.string())
    data = pc.if_else(pa.array(headers.deleted), pa.scalar(None, pa.string()), after.cast(pa.string()))
    row = {"_id": pa.nulls(count, pa.string()) if key is None else key.cast(pa.string()), "data": data}
    has_image = headers.deleted | np.asarray(data.is_valid().to_numpy(zero_copy_only=False), bool)
    return _TakenChanges(headers, row, has_image, {"_id": Connect("string"), "data": Connect("string")})


def _flattened(columns: StoredMessages, form: Form) -> _TakenChanges:
    value = columns.value
    kinds = dict(columns.kind.fields) if columns.kind is not None else {}
    meta: Arrays = {}
    row: Arrays = {}
    for name, array in zip(value.schema.names, value.columns, strict=True):
        inner = name.removeprefix(form.prefix).removeprefix("source_") if name.startswith(form.prefix) else ""
        if inner in FLAT_FIELDS:
            meta[inner if inner != "ts_ms" or "source" in name else "read_ms"] = array
        else:
            row[name] = array
    count = value.num_rows
    nothing = pa.nulls(count, pa.string())
    is_deleted = pc.equal(pc.utf8_lower(_cast(meta.get("deleted", nothing), pa.string())), "true")
    op = _cast(meta.get("op", nothing), pa.string())
    op = pc.if_else(pc.equal(pc.fill_null(op, ""), ""), "u", op)
    op = pc.if_else(pc.fill_null(is_deleted, False), "d", op)
    headers = _said(op, meta, meta.get("read_ms", pa.nulls(count, pa.int64())), None)
    row = _with_key(row, _named(columns.key), headers.deleted)
    return _TakenChanges(headers, row, np.ones(count, bool), {name: kinds.get(name, AS_IS) for name in row})


def _said(op: pa.Array, source: Arrays, time: pa.Array, transaction: pa.Array | None) -> ChangeHeaders:
    source_fields = {name: _source_field(source[name], kind) for name, kind in SOURCE.items() if name in source}
    missing = pa.nulls(len(op), pa.string())
    transaction = missing if transaction is None else _cast(transaction, pa.string())
    return ChangeHeaders(op, source_fields, _cast(time, pa.int64()), transaction)


def _source_field(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) and pa.types.is_integer(array.type):  # a transaction's number, of which 0 is none
        array = pc.if_else(pc.equal(array, 0), pa.scalar(None, array.type), array)
    return _cast(array, kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """As this type; null where a value is none of it."""
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(array), kind)
    except pa.ArrowInvalid:  # one value must not take those of its neighbours with it
        return casts.each(array, kind, lambda value: value)[0]


def _fields(struct: pa.Array) -> Arrays:
    if not pa.types.is_struct(struct.type):
        return {}
    return {field.name: pc.struct_field(struct, [number]) for number, field in enumerate(struct.type)}


def _kind_of(kind: Connect | None, names: tuple[str, ...]) -> dict[str, Connect]:
    image_kind = (
        None
        if kind is None
        else next((kind_of_name for kind_of_name in map(kind.field, names) if kind_of_name is not None), None)
    )
    return {} if image_kind is None else dict(image_kind.fields)


def _one_of(first: pa.Array | None, other: pa.Array | None, is_other: Bools) -> pa.Array:
    """The values of `first`, and those of `other` where that is meant."""
    if first is None or other is None or first.type != other.type:
        only_one = other if first is None else first
        assert only_one is not None
        wrong = is_other if only_one is first else ~is_other
        return only_one.take(pa.array(np.arange(len(only_one)), mask=wrong)) if wrong.any() else only_one
    if not is_other.any():
        return first
    return pa.concat_arrays([first, other]).take(pa.array(np.arange(len(first)) + len(first) * is_other))


def _with_key(row: Arrays, key: Arrays, deleted: Bools) -> Arrays:
    """A delete's key is that of its record: what is before it may be nothing at all."""
    if not deleted.any():
        return row
    columns_of_row = dict(row)
    for name, values in key.items():
        if name in row:
            values = _cast(values, row[name].type)
            use = deleted & np.asarray(values.is_valid().to_numpy(zero_copy_only=False), bool)
            columns_of_row[name] = _one_of(row[name], values, use)
    return columns_of_row


def _valid(array: pa.Array | None, count: int) -> Bools:
    if array is None:
        return np.zeros(count, bool)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)


def _without_unlogged(changes_taken: _TakenChanges, form: Form) -> _TakenChanges:
    row, marked = dict(changes_taken.row), {}
    living = ~changes_taken.said.deleted
    for name, array in changes_taken.row.items():
        mask = unlogged(array, form.placeholder)
        if mask is not None and (mask & living).any():
            marked[name] = mask & living
            row[name] = array.take(pa.array(np.arange(len(array)), mask=marked[name]))
    return _TakenChanges(changes_taken.said, row, changes_taken.there, changes_taken.kinds, marked)


# -- by table ------------------------------------------------------------------------------------------------


def _groups(changes_taken: _TakenChanges, origins: RecordOrigins, form: Form) -> Iterator[tuple[Places, str | None]]:
    """The places of messages of one table, in which the same columns were not logged; and their connector."""
    headers = changes_taken.said
    names = [headers.field(name) for name in ("connector", "db", "schema", "table", "collection")]
    if form.flattened:
        names.append(origins.topic)
    txns = [pa.array(mask).cast(pa.string()) for mask in changes_taken.unlogged.values()]
    if (nameless := headers.field("connector")).null_count:  # then the fields say what the source is
        txns += [
            headers.field(text).is_valid().cast(pa.string()) for text in SOURCE if pc.any(nameless.is_null()).as_py()
        ]
    parts = [pc.fill_null(text, "\x1e") for text in (*names, *txns)]
    coded = pc.binary_join_element_wise(*parts, "\x1f").dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else ():
        yield at.astype(np.int64), headers.field("connector")[int(at[0])].as_py()


def _add(
    changes_taken: _TakenChanges,
    keys: tuple[str, ...],
    at: Places,
    connector: str | None,
    origins: RecordOrigins,
    reading: Reading,
    form: Form,
    parts: EventParts,
) -> None:
    indices = pa.array(at)
    headers, has_image, places_here = changes_taken.said.take(indices), changes_taken.there[at], origins.take(indices)
    first = _source_at(headers, 0)
    kind = _kind(first)
    try:
        topic = places_here.topic[0].as_py() or ""
        table = flat_table(kind, topic, form) if form.flattened else source_table(kind, first, form)
        where, sure = places(table.kind, headers, places_here, form)
    except Unusable as exc:
        parts.bad += [BadEvent(int(n), exc.reason, exc.detail, b"") for n in at]
        return
    good = sure & has_image
    for place in np.flatnonzero(~good).tolist():
        parts.bad.append(BadEvent(int(at[place]), *_why(headers, places_here, place, form), b""))
    if not good.any():
        return
    if not good.all():
        left = pa.array(np.flatnonzero(good))
        headers, places_here, where, at = headers.take(left), places_here.take(left), where[good], at[good]
        indices = pa.array(at)
    columns, faults = [], []
    for name, array in changes_taken.row.items():
        converted = column(changes_taken.kinds[name], array.take(indices))
        columns.append((name, converted.node, converted.array))
        faults += [(place, Reason.VALUE_OUT_OF_RANGE, f"column {name}: {why}") for place, why in converted.faults]
    silent = tuple(sorted(name for name, mask in changes_taken.unlogged.items() if mask[at[0]]))
    names = ("_id",) if connector == "mongodb" and not form.flattened else keys
    top, source = metadata(table, names, headers, places_here, where, form, schema_key_of(columns, silent, typed=True))
    parts.add(Rows(at, top, source, columns, tuple(faults)), table.kind)


def _kind(source: Mapping[str, Any]) -> Kind:
    connector = source.get("connector")
    if connector is not None:
        return KINDS.get(connector, Kind.GENERIC)
    return kind_by_fields(source)


def _source_at(headers: ChangeHeaders, place: int) -> dict[str, Any]:
    return {name: array[place].as_py() for name, array in headers.source.items()}


def _why(headers: ChangeHeaders, origins: RecordOrigins, place: int, form: Form) -> tuple[Reason, str]:
    """What is wrong with one of them."""
    parts = (values[place].as_py() for values in (origins.topic, origins.partition, origins.offset, origins.time_ms))
    topic, partition, offset, time = parts
    record = Record(topic or "", partition or 0, offset or 0, time)
    try:
        head_of(ChangeHeader(headers.op[place].as_py() or "", _source_at(headers, place)), record, form)
    except Unusable as exc:
        return exc.reason, exc.detail
    return Reason.NO_ROW_IMAGE, NO_DOCUMENT
