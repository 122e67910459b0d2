"""Hop 1 inside Spark's tasks: source rows -> rows of bronze. Envelopes are opened, payloads are left as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from distributary.bronze.rows import routed, tombstones, unrouted
from distributary.errors import Reason
from distributary.fanout.chunks import Cut, one_array
from distributary.fanout.demux import EnvelopeReader, rejected_envelopes, row_origin, split_values
from distributary.fanout.workers import in_worker

_UNKNOWN = "distributary: unknown envelope schemas"


class UnknownEnvelopes(Exception):
    """Envelope schemas that this task was not given: the driver looks them up and begins the batch again."""

    def __init__(self, ids: set[int]) -> None:
        super().__init__(f"{_UNKNOWN} [{', '.join(map(str, sorted(ids)))}]")


def unknown_in(text: str) -> set[int]:
    """The ids of an `UnknownEnvelopes` that has come through Spark as text; empty for any other error."""
    found = re.search(re.escape(_UNKNOWN) + r" \[([\d, ]+)\]", text)
    return set() if found is None else {int(one) for one in found[1].split(",")}


class _Rows(Cut):
    """Takes the rows of bronze in place of chunks."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(0, 0)
        self.schema = schema
        self.found: list[pa.RecordBatch] = []
        self.missing: set[int] = set()

    def bad(self, rows: pa.Table) -> None:
        self.found.append(unrouted(rows, self.schema))

    def unknown(self, schema_id: int) -> None:
        self.missing.add(schema_id)

    def take(
        self, route: pa.Array, wrapped_id: pa.Array, payload: pa.Array, origin: pa.Table, reader: EnvelopeReader, _: Cut
    ) -> None:
        """Opened envelopes; those that name no route go apart."""
        named = pc.fill_null(pc.greater(pc.binary_length(route), 0), False)
        if not pc.all(named).as_py():
            no = pc.invert(named)
            about = origin.filter(no).append_column("envelope_schema_id", wrapped_id.filter(no))
            value = pc.fill_null(payload.filter(no), b"")
            self.bad(rejected_envelopes(about, value, Reason.NO_ROUTE, "the envelope names no route", "payload"))
            route, wrapped_id, payload = route.filter(named), wrapped_id.filter(named), payload.filter(named)
            origin = origin.filter(named)
        if len(route):
            self.found.append(routed(route, wrapped_id, payload, origin, self.schema))


@in_worker
def unwrap_task(
    batches: Iterator[pa.RecordBatch], reader: EnvelopeReader, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Source rows -> rows of `schema` (`bronze_schema`). Raises UnknownEnvelopes."""
    for batch in batches:
        window = pa.Table.from_batches([batch])
        rows = _Rows(schema)
        _unwrap(window, reader, rows)
        if rows.missing:
            raise UnknownEnvelopes(rows.missing)
        yield from rows.found


def _unwrap(window: pa.Table, reader: EnvelopeReader, rows: _Rows) -> None:
    origin = row_origin(window, reader)
    if reader.format == "columns":
        route, wrapped_id, payload = (one_array(window.column(n)) for n in reader.names)
        rows.take(route, wrapped_id, payload, origin, reader, rows)
        return
    value = one_array(window.column("value"))
    if value.null_count:
        rows.found.append(tombstones(origin.filter(pc.is_null(value)), rows.schema))
        there = pc.is_valid(value)
        value, origin = value.filter(there), origin.filter(there)
    if len(value):
        split_values(value, origin, reader, rows, rows.take)
