"""Chunks: one row for Spark, thousands of records for us.

A chunk holds records of one route as one Arrow batch in a binary column, sorted by writer schema. So the JVM moves a
few large rows instead of many small ones, and a hot route is many chunks that several tasks can share.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from distributary.engine.messages.spool import write_spool
from distributary.tables.quarantine import ORIGIN_FIELDS, REJECTED_SCHEMA

CHUNK_ROWS = 65_536
"""The most records in one chunk: the grain at which a hot route spreads over tasks."""
MOST_COUNTED = 2**16
"""Up to so many possible numbers, distinct ones are found by counting, which is faster than sorting."""
YIELD_BYTES = 32 * 2**20
"""Chunks go to the JVM in record batches of about this size."""

ChunkKind = Literal["rows", "bad", "tombstones", "excluded", "unknown"]

CHUNK_SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("seq", pa.int32()),
        ("kind", pa.string()),
        ("route", pa.string()),
        ("rows", pa.int64()),
        ("size", pa.int64()),
        ("newest", pa.int64()),
        ("groups", pa.string()),
        ("blob", pa.binary()),
        ("file", pa.string()),
        ("begin", pa.int64()),
    ]
)
"""`newest`: the newest record's time in microseconds. `groups`: JSON, [[schema id, message, rows] ...] in row order; of
a chunk of kind `bad` its rows by reason, of kind `unknown` the ids.
`blob`: the records, or null where they are `size` bytes of `file` from `begin` on (engine/messages/spool.py)."""
CHUNK_DDL = (
    "task int, seq int, kind string, route string, rows bigint, size bigint, newest bigint, groups string, "
    "blob binary, file string, begin bigint"
)

KEY = "key"
"""The column of records' keys, where the pipeline file asks for them."""
RECORD_SCHEMA = pa.schema(
    [("payload", pa.binary()), ("envelope_schema_id", pa.int32()), *ORIGIN_FIELDS, (KEY, pa.binary())]
)
"""What a chunk of kind `rows` holds per record. Its writer schema is in the chunk's `groups`."""

WriterSchema = tuple[int, str]
"""Who wrote a payload: schema id, and message index path (or full name) inside that schema."""
GONE: WriterSchema = (-1, "")
"""In place of a writer: of records without a value, which say that the row of their key is gone."""
Groups = list[list[Any]]
"""[[schema id, message, rows] ...]: who wrote a chunk's records, in row order."""


def read_records(blob: pa.Buffer | bytes) -> pa.RecordBatch:
    """The records of a chunk of kind `rows` (`RECORD_SCHEMA`)."""
    return pa.ipc.read_record_batch(pa.py_buffer(blob), RECORD_SCHEMA)


def read_rejected(blob: pa.Buffer | bytes) -> pa.RecordBatch:
    """The rows of a chunk of kind `bad` (`REJECTED_SCHEMA`)."""
    return pa.ipc.read_record_batch(pa.py_buffer(blob), REJECTED_SCHEMA)


def asked_for(chunks: Iterable[Mapping[str, Any]]) -> set[int]:
    """Ids of schemas that the reader was not given."""
    return {schema_id for c in chunks if c["kind"] == "unknown" for schema_id in json.loads(c["groups"])}


class Cut:
    """Collects the chunks of one window of one task. (`task`, `seq`) names a chunk within its batch."""

    def __init__(self, task: int, seq: int) -> None:
        self.task = task
        self.seq = seq
        self._out: list[dict[str, Any]] = []
        self._unknown: set[int] = set()

    def tombstones(self, route: str | None, rows: int) -> None:
        self._add("tombstones", route, rows, None, None)

    def excluded(self, route: pa.Array) -> None:
        """Records of these routes (string) are left out. One count for all: whoever sends them makes up the names."""
        self._add("excluded", None, len(route), None, None)

    def unknown(self, schema_id: int) -> None:
        """A schema that this reader was not given: the driver looks it up and cuts again."""
        self._unknown.add(schema_id)

    def bad(self, rows: pa.Table) -> None:
        """Rows for the quarantine, as far as their route is known by route. `groups`: their reasons."""
        for route, rows_of_route in by_value(rows.combine_chunks(), "route"):
            for batch in rows_of_route.to_batches(max_chunksize=CHUNK_ROWS):
                reasons = Counter(batch.column("reason").to_pylist())
                self._add("bad", route or None, batch.num_rows, dict(reasons), batch)

    def rows(self, route: pa.Array, schema_id: pa.Array, index: pa.Array, body: pa.Array, origin: pa.Table) -> None:
        """Sort by (route, writer) and cut where the route changes or a chunk is full."""
        if not len(route):
            return
        routes, by_route = _codes(route)
        writers, by_writer = writers_of(schema_id, index)
        key = by_route * len(writers) + by_writer
        # numpy sorts 16-bit keys by radix, several times faster
        order = np.argsort(key.astype(np.uint16) if len(routes) * len(writers) < 2**16 else key, kind="stable")
        if KEY not in origin.column_names:
            origin = origin.append_column(KEY, pa.nulls(len(route), pa.binary()))
        records = pa.table([body, *(origin.column(n) for n in RECORD_SCHEMA.names[1:])], schema=RECORD_SCHEMA)
        batch = records.take(pa.array(order)).combine_chunks().to_batches()[0]
        in_order = key[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=-1))
        pending = _Pending(self, batch)
        ends = [*starts[1:].tolist(), len(order)]
        for code, start, end in zip(in_order[starts].tolist(), starts.tolist(), ends, strict=True):
            route_code, writer = divmod(code, len(writers))
            pending.take(routes[route_code], writers[writer], end - start)
        pending.flush()

    def _add(
        self,
        kind: ChunkKind,
        route: str | None,
        rows: int,
        groups: Any,
        batch: pa.RecordBatch | None,
        newest: int | None = None,
    ) -> None:
        blob = _NOTHING if batch is None else batch.serialize()
        chunk = (self.task, self.seq, kind, route, rows, blob.size, newest, json.dumps(groups), blob, None, None)
        self._out.append(dict(zip(CHUNK_SCHEMA.names, chunk, strict=True)))
        self.seq += 1

    def routes(self) -> Iterator[tuple[str, Groups, pa.Buffer]]:
        """(route, groups, blob) of the chunks that hold records."""
        for chunk in self._out:
            if chunk["kind"] == "rows":
                yield chunk["route"], json.loads(chunk["groups"]), chunk["blob"]

    def unknown_ids(self) -> set[int]:
        return set(self._unknown)

    def batches(self, spool: str | None = None) -> Iterator[pa.RecordBatch]:
        """The chunks as record batches (`CHUNK_SCHEMA`) of bounded size. `spool`: a folder for their bytes."""
        if self._unknown:
            self._add("unknown", None, 0, sorted(self._unknown), None)
        if spool is not None:
            yield _as_batch(_spooled(self._out, spool))
            return
        pending: list[dict[str, Any]] = []
        size = 0
        for chunk in self._out:
            pending.append({**chunk, "blob": chunk["blob"].to_pybytes()})
            size += chunk["size"]
            if size >= YIELD_BYTES:
                yield _as_batch(pending)
                pending, size = [], 0
        if pending:
            yield _as_batch(pending)


_NOTHING = pa.py_buffer(b"")


def _as_batch(chunks: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(chunks, schema=CHUNK_SCHEMA)


def _spooled(chunks: list[dict[str, Any]], spool: str) -> list[dict[str, Any]]:
    """The chunks with their bytes in one file of the spool."""
    path, begins = write_spool(spool, [chunk["blob"] for chunk in chunks])
    return [{**c, "blob": None, "file": path, "begin": begin} for c, begin in zip(chunks, begins, strict=True)]


@dataclass(slots=True)
class _Pending:
    """The chunk being filled: rows `begin` to `begin + held` of the sorted batch, all of one route."""

    cut: Cut
    batch: pa.RecordBatch
    route: str = ""
    begin: int = 0
    held: int = 0
    groups: Groups = field(default_factory=list)

    def take(self, route: str, writer: WriterSchema, rows: int) -> None:
        if route != self.route:
            self.flush()
            self.route = route
        while rows:
            fitting = min(rows, CHUNK_ROWS - self.held)
            self.groups.append([*writer, fitting])
            self.held += fitting
            rows -= fitting
            if self.held == CHUNK_ROWS:
                self.flush()

    def flush(self) -> None:
        if not self.held:
            return
        records = self.batch.slice(self.begin, self.held)
        self.cut._add("rows", self.route, self.held, self.groups, records, _newest(records))
        self.begin += self.held
        self.held, self.groups = 0, []


def _newest(records: pa.RecordBatch) -> int | None:
    stamps = records.column("timestamp")
    if stamps.null_count == len(stamps):
        return None
    return int(np.asarray(stamps.cast(pa.int64()).fill_null(0)).max())


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A table's column as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def by_value(rows: pa.Table, column: str) -> Iterator[tuple[str | None, pa.Table]]:
    """Rows by a text of theirs, in their order; once for each batch of the table that has rows of it."""
    for batch in rows.to_batches():
        texts, codes = _codes(batch.column(column))
        order, runs = runs_of(codes, len(texts))
        in_order = batch.take(pa.array(order))
        for text, run in zip(texts, runs, strict=True):
            yield text, pa.Table.from_batches([in_order.slice(*run)])


def runs_of(codes: Any, count: int) -> tuple[Any, list[tuple[int, int]]]:
    """Positions sorted by their codes (whole numbers of 0 to `count` - 1), those of one code in their order; and where
    the run of each code begins, with its length."""
    sizes = np.bincount(codes, minlength=count)
    begins = np.cumsum(sizes) - sizes
    return np.argsort(codes, kind="stable"), list(zip(begins.tolist(), sizes.tolist(), strict=True))


def _codes(values: pa.Array) -> tuple[list[str], Any]:
    encoded = values.dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64)


def rows_by_writer(schema_id: pa.Array, index: pa.Array) -> list[tuple[WriterSchema, pa.Array | None]]:
    """Positions of each writer's rows, ascending; None for all rows. Rows without an id are left out."""
    positions = None
    if schema_id.null_count:
        positions = np.flatnonzero(schema_id.is_valid())
        schema_id, index = (column.take(pa.array(positions)) for column in (schema_id, index))
    writers, by_writer = writers_of(schema_id, index)
    if positions is None and len(writers) == 1:
        return [(writers[0], None)]
    order, runs = runs_of(by_writer, len(writers))
    rows = pa.array(order if positions is None else positions[order])
    return [(writer, rows.slice(*run)) for writer, run in zip(writers, runs, strict=True)]


def writers_of(schema_id: pa.Array, index: pa.Array) -> tuple[list[WriterSchema], Any]:
    """Distinct writers in ascending order, and each row's number among them. No nulls."""
    ids, by_id = _codes(schema_id)
    paths, by_path = _codes(index)
    pairs, by_pair = _distinct(by_id * len(paths) + by_path, len(ids) * len(paths))
    writers = [(ids[pair // len(paths)], paths[pair % len(paths)]) for pair in pairs.tolist()]
    order = sorted(range(len(writers)), key=writers.__getitem__)
    number = np.empty(len(writers), np.int64)
    number[order] = np.arange(len(writers))
    return [writers[place] for place in order], number[by_pair]


def _distinct(values: Any, limit: int) -> tuple[Any, Any]:
    """Distinct whole numbers of 0 to `limit` - 1, ascending, and each row's place among them."""
    if limit > MOST_COUNTED:
        return np.unique(values, return_inverse=True)
    present = np.flatnonzero(np.bincount(values, minlength=limit))
    place = np.empty(limit, np.int64)
    place[present] = np.arange(len(present))
    return present, place[values]
