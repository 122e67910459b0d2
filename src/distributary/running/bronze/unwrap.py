"""Hop 1 inside Spark's tasks: source rows -> rows of bronze. Envelopes are opened, payloads are left as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from distributary.engine.apart import Apart, limited
from distributary.engine.messages.chunks import Cut, one_array
from distributary.engine.messages.demux import rejected_envelopes, row_origin, split_values
from distributary.engine.messages.killers import find_envelope_killers
from distributary.engine.messages.opening import EnvelopeReader
from distributary.engine.workers import in_worker
from distributary.errors import Reason
from distributary.sources.bronze_rows import routed, tombstones, unrouted
from distributary.state.identity import SameSource
from distributary.tables.files import names_in
from distributary.tables.store import Store


class UnknownEnvelopes(Exception):
    """Envelope schemas that this task was not given: the driver looks them up and begins the batch again."""


@dataclass(frozen=True)
class EnvelopeQuestions:
    """Where tasks leave the ids of the envelope schemas they need: of an error, Spark passes on words only."""

    folder: str
    store: Store

    def leave(self, ids: set[int]) -> None:
        """In a task; all tasks and their attempts leave an id in one place. Raises OSError."""
        for schema_id in ids:
            self.store.put(self.folder, str(schema_id), b"asked")

    def take(self) -> set[int]:
        """On the driver: all ids that were left, once. Raises OSError."""
        names = names_in(self.folder, self.store)
        for name in names:
            self.store.delete(self.folder, name)
        return {int(name.partition("-")[0]) for name in names}  # names of earlier versions go on behind a hyphen


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
            self.bad(rejected_envelopes(about, value, Reason.NO_ROUTE, reader.no_route, "payload"))
            route, wrapped_id, payload = route.filter(named), wrapped_id.filter(named), payload.filter(named)
            origin = origin.filter(named)
        if len(route):
            self.found.append(routed(route, wrapped_id, payload, origin, self.schema))


@in_worker
def unwrap_task(
    batches: Iterator[pa.RecordBatch],
    reader: EnvelopeReader,
    schema: pa.Schema,
    questions: EnvelopeQuestions,
    same: SameSource | None = None,
    careful: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Source rows -> rows of `schema` (`bronze_schema`). Raises UnknownEnvelopes, and leaves their ids in `questions`.

    `careful`: envelopes are opened in a process apart first; those that end it are set apart. `same`: fails the task,
    and with it the batch, where its rows may be of another source than the stream began with; raises as its `check`.
    """
    has_read = False
    with Apart(reader.read_sec) as apart:
        for batch in batches:
            window = pa.Table.from_batches([batch])
            rows = _Rows(schema)
            if careful and reader.opens:
                values = one_array(window.column("value")).drop_null()
                reader = replace(reader, killed=find_envelope_killers(values, reader, apart))
            with limited(reader.read_sec):
                _unwrap(window, reader, rows)
            if rows.missing:
                questions.leave(rows.missing)
                raise UnknownEnvelopes(f"envelope schemas {sorted(rows.missing)}")
            yield from rows.found
            has_read = has_read or window.num_rows > 0
    if has_read and same is not None:
        same.check()


def _unwrap(window: pa.Table, reader: EnvelopeReader, rows: _Rows) -> None:
    origin = row_origin(window, reader)
    if reader.format == "columns":
        route, wrapped_id, payload = (one_array(window.column(n)) for n in reader.names)
        rows.take(route, wrapped_id, payload, origin, reader, rows)
        return
    value = one_array(window.column("value"))
    if value.null_count and reader.deletes is None:
        rows.found.append(tombstones(origin.filter(pc.is_null(value)), rows.schema))
        has_value = pc.is_valid(value)
        value, origin = value.filter(has_value), origin.filter(has_value)
    if len(value):
        split_values(value, origin, reader, rows, rows.take)
