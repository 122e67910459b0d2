"""What messages of one table say beside their rows, of all of them at once: as `heads` has it for each.

A message of which this cannot tell all (an op that is none, a position that is missing) is left to `heads`, which says
what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.debezium.heads import CHANGES, SNAPSHOTS, Form, whole_number
from distributary.changes.debezium.positions import place_of
from distributary.changes.model import DEBEZIUM, Kind, SourceTable
from distributary.changes.sequence import file_number

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint64]
"""Four numbers of each message."""

SOURCE = {
    "connector": pa.string(),
    "snapshot": pa.string(),
    "ts_ms": pa.int64(),
    "db": pa.string(),
    "schema": pa.string(),
    "table": pa.string(),
    "collection": pa.string(),
    "file": pa.string(),
    "pos": pa.int64(),
    "row": pa.int64(),
    "gtid": pa.string(),
    "lsn": pa.int64(),
    "txId": pa.string(),
    "commit_lsn": pa.string(),
    "change_lsn": pa.string(),
    "event_serial_no": pa.int64(),
    "scn": pa.string(),
    "rs_id": pa.string(),
    "ssn": pa.int64(),
    "row_id": pa.string(),
    "ord": pa.int64(),
}
"""Fields of `source` that are read here. Whole numbers are 0 or more, and less than 2^63; times less than 10^14; `txId`
is text, null for 0."""
_WIDEST = 10**14
_GTID = r"^[0-9]+-[0-9]+-(?P<number>[0-9]{1,18})$"


@dataclass(frozen=True)
class RecordOrigins:
    """Where messages were found. `moved`: their headers say that each is one half of a key change; None for none."""

    topic: pa.Array
    partition: pa.Array
    offset: pa.Array
    time_ms: pa.Array
    moved: pa.Array | None = None

    def take(self, at: pa.Array) -> RecordOrigins:
        moved = None if self.moved is None else self.moved.take(at)
        topic, partition, offset = (values.take(at) for values in (self.topic, self.partition, self.offset))
        return RecordOrigins(topic, partition, offset, self.time_ms.take(at), moved)


@dataclass(frozen=True)
class ChangeHeaders:
    """The changes of some messages, as far as they are not rows. `source`: `SOURCE`, as many of them as there are."""

    op: pa.Array
    source: Mapping[str, pa.Array]
    time_ms: pa.Array
    transaction: pa.Array

    def take(self, at: pa.Array) -> ChangeHeaders:
        source = {name: array.take(at) for name, array in self.source.items()}
        return ChangeHeaders(self.op.take(at), source, self.time_ms.take(at), self.transaction.take(at))

    def field(self, name: str) -> pa.Array:
        values = self.source.get(name)
        return pa.nulls(len(self.op), SOURCE[name]) if values is None else values

    @property
    def deleted(self) -> Bools:
        return _bools(pc.equal(self.op, "d"))

    @property
    def truncates(self) -> Bools:
        return _bools(pc.equal(self.op, "t"))

    @property
    def backfill(self) -> Bools:
        snapshot = pc.is_in(pc.utf8_lower(self.field("snapshot")), value_set=pa.array(sorted(SNAPSHOTS)))
        return _bools(pc.equal(self.op, "r")) | _bools(snapshot)

    @property
    def source_ms(self) -> pa.Array:
        time = self.field("ts_ms")
        return _millis(time)


def places(kind: Kind, headers: ChangeHeaders, origins: RecordOrigins, form: Form) -> tuple[Places, Bools]:
    """The place of each change, and of which it is known: only these may be given to `metadata`."""
    rows = len(headers.op)
    is_change = _bools(pc.is_in(headers.op, value_set=pa.array(list(CHANGES))))
    if form.by_offset or form.flattened:
        is_change &= ~headers.truncates
    offset, time = _whole(origins.offset), np.maximum(_whole(headers.source_ms), 0)
    out = np.zeros((rows, 4), np.uint64)
    if form.by_offset:
        out[:, 0] = offset
        out[:, 1] = np.maximum(_whole(headers.field("ssn")), 0)
        return out, is_change & (offset >= 0)
    backfill = headers.backfill
    numbers, is_placed = _PLACES.get(kind, _by_row)(kind, headers, time, np.maximum(offset, 0))
    out[:] = np.where(is_placed[:, None], numbers, 0)
    out[backfill] = 0
    out[backfill, 0] = time[backfill]
    return out, is_change & (is_placed | backfill)


def _mysql(kind: Kind, headers: ChangeHeaders, time: Longs, offset: Longs) -> tuple[Any, Bools]:
    coded = headers.field("file").dictionary_encode()
    numbers = [file_number(text) for text in coded.dictionary.to_pylist()]
    files = pa.array([n if n is not None and n < 2**63 else None for n in numbers], pa.int64()).take(coded.indices)
    gtid = headers.field("gtid")
    if gtid.null_count < len(gtid):
        sequence = pc.struct_field(pc.extract_regex(gtid, _GTID), "number").cast(pa.int64())
        # One of 19 digits may be none.
        odd = pc.and_(pc.is_null(sequence), pc.match_substring_regex(gtid, r"^[0-9]+-[0-9]+-[0-9]+$"))
        if pc.any(odd).as_py():
            return _by_row(kind, headers, time, offset)
        files = pc.coalesce(sequence, files)
    parts = [files, headers.field("pos"), headers.field("row")]
    has_place = _there(files) & _there(parts[1])
    return np.column_stack([*(np.maximum(_whole(number), 0) for number in parts), offset]), has_place


def _postgresql(kind: Kind, headers: ChangeHeaders, time: Longs, offset: Longs) -> tuple[Any, Bools]:
    lsn = headers.field("lsn")
    number = np.maximum(_whole(lsn), 0)
    return np.column_stack([number >> 32, number & 0xFFFF_FFFF, time, np.zeros_like(time)]), _there(lsn)


def _by_row(kind: Kind, headers: ChangeHeaders, time: Longs, offset: Longs) -> tuple[Any, Bools]:
    """As `positions` has it for each."""
    names = [name for name in SOURCE if name in headers.source]
    columns = [headers.source[name].to_pylist() for name in names]
    out, has_place = np.zeros((len(time), 4), np.uint64), np.zeros(len(time), bool)
    for at, (row, ms, where) in enumerate(
        zip(zip(*columns, strict=True) if columns else [()] * len(time), time.tolist(), offset.tolist(), strict=True)
    ):
        try:
            out[at], has_place[at] = place_of(kind, dict(zip(names, row, strict=True)), ms, where), True
        except ValueError:
            continue
    return out, has_place


_PLACES = {Kind.MYSQL: _mysql, Kind.POSTGRESQL: _postgresql}


def metadata(
    table: SourceTable,
    keys: Sequence[str],
    headers: ChangeHeaders,
    origins: RecordOrigins,
    places: Places,
    form: Form,
    schema_key: str,
) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
    """The fields of change files' metadata, and those of its source (`changes.metadata.Rows`)."""
    count = len(headers.op)
    backfill = headers.backfill
    source_ms = headers.source_ms
    if form.by_offset:
        source_ms = pc.coalesce(source_ms, origins.time_ms)
    everywhere = np.column_stack([places, _whole(origins.offset).astype(np.uint64)]).reshape(-1)
    parts = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 5 * count + 1, 5, dtype=np.int32)), pa.array(everywhere).cast(pa.string())
    )
    identity = (
        pc.fill_null(values.cast(pa.string()), "") for values in (origins.topic, origins.partition, origins.offset)
    )
    top = {
        "uuid": pc.binary_join_element_wise(*identity, "-"),
        "source_timestamp": source_ms,
        "read_timestamp": pc.coalesce(_millis(headers.time_ms), origins.time_ms),
        "sort_keys": parts,
        "read_method": pa.array(np.where(backfill, f"{DEBEZIUM}-backfill", DEBEZIUM), pa.string()),
        "object": origins.topic,
        "schema_key": pa.repeat(pa.scalar(schema_key), count),
    }
    names = {"database": table.database, "schema": table.schema, "table": table.table}
    source = {name: pa.repeat(pa.scalar(value), count) for name, value in names.items()}
    source["change_type"] = _change_types(headers, origins)
    listed = pa.array([list(keys)], pa.list_(pa.string()))
    source["primary_keys"] = listed.take(pa.array(np.zeros(count, np.int64)))
    return top, source | _kept(headers)


def _change_types(headers: ChangeHeaders, origins: RecordOrigins) -> pa.Array:
    names = pa.array(list(CHANGES.values())).take(pc.index_in(headers.op, value_set=pa.array(list(CHANGES))))
    if origins.moved is None:
        return names
    moved = pc.if_else(pc.equal(names, "DELETE"), "UPDATE-DELETE", "UPDATE-INSERT")
    can_move = pc.is_in(names, value_set=pa.array(["DELETE", "INSERT"]))
    return pc.if_else(pc.and_(pc.fill_null(origins.moved, False), can_move), moved, names)


def _kept(headers: ChangeHeaders) -> dict[str, pa.Array]:
    """As `heads` keeps them, in the fields that change files have too."""
    lsn = headers.field("lsn")
    if lsn.null_count < len(lsn):
        texts = [None if n is None else f"{n >> 32:X}/{n & 0xFFFF_FFFF:X}" for n in lsn.to_pylist()]
        lsn = pc.coalesce(pa.array(texts, pa.string()), headers.field("commit_lsn"))
    else:
        lsn = headers.field("commit_lsn")
    scn = headers.field("scn")
    numbers = None if scn.null_count == len(scn) else [whole_number(text) for text in scn.to_pylist()]
    transaction = (_some(texts_of) for texts_of in (headers.field("txId"), headers.field("gtid"), headers.transaction))
    return {
        "log_file": headers.field("file"),
        "log_position": headers.field("pos"),
        "scn": pa.nulls(len(scn), pa.int64()) if numbers is None else pa.array(numbers, pa.int64()),
        "rs_id": headers.field("rs_id"),
        "ssn": headers.field("ssn"),
        "row_id": headers.field("row_id"),
        "lsn": lsn,
        "tx_id": pc.coalesce(*transaction),
    }


def _some(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _millis(time: pa.Array) -> pa.Array:
    fits = pc.and_(pc.less(time, _WIDEST), pc.greater(time, -_WIDEST))
    return pc.if_else(fits, time, pa.scalar(None, pa.int64()))


def _there(numbers: pa.Array) -> Bools:
    return _bools(pc.greater_equal(numbers, 0))


def _whole(numbers: pa.Array) -> Longs:
    """Null as 0."""
    return np.asarray(pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))


def _bools(flags: pa.Array) -> Bools:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), bool)
