"""TRUNCATE: one event that names no row and deletes all that are older.

To a table it is a delete, at its own place, of each key that an older event has. So of the events of a key the newest
still holds, whatever comes first: an event that is older than a TRUNCATE counts as that delete. Of a merged table the
newest TRUNCATE is all that must be remembered; of a history, in which versions end between two of them, each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes import anew
from distributary.changes.digits import metadata_in
from distributary.changes.keys import KeyIndex
from distributary.changes.metadata import TRUNCATE
from distributary.changes.model import Events
from distributary.changes.reduce import Ranked
from distributary.changes.sequence import Bools, OrderSettings

PROPERTY = "distributary.truncates"
"""Table property: the TRUNCATEs that the table has taken, as a JSON array of their metadata."""


NO_TABLE = "the source's table was emptied by TRUNCATE, and no row of it has come yet"


class Truncates:
    """Some TRUNCATEs of one table, each once, in their order. `metadata`: as their events had it."""

    def __init__(self, metadata: pa.Array, order: OrderSettings) -> None:
        numbers = Ranked.of(metadata, order, oracle=False).numbers
        self.numbers, first = np.unique(numbers, return_index=True)
        self.metadata: pa.Array = metadata.take(pa.array(first))
        self._order = order

    def __bool__(self) -> bool:
        return bool(len(self.numbers))

    @classmethod
    def read(cls, text: str | None, kind: pa.DataType, order: OrderSettings) -> Truncates:
        """Those of a table's property."""
        return cls(pa.array(json.loads(text or "[]"), kind), order)

    def written(self) -> str:
        """As a table's property."""
        return json.dumps(self.metadata.to_pylist(), ensure_ascii=False, separators=(",", ":"))

    def joined(self, other: Truncates) -> Truncates:
        return Truncates(pa.concat_arrays([self.metadata, other.metadata.cast(self.metadata.type)]), self._order)

    def places_of(self, some: Truncates) -> list[int]:
        """Where among these `some` of them are."""
        return np.flatnonzero(np.isin(self.numbers, some.numbers)).tolist()

    def newest(self) -> Truncates:
        """The greatest one alone."""
        return Truncates(self.metadata.slice(max(0, len(self.metadata) - 1)), self._order)

    def are_newer(self, metadata: pa.Array, number: int = -1) -> Bools:
        """Which events TRUNCATE `number` is newer than: not than the delete that it is itself. Raises BegunAnew where
        the two cannot be of one log."""
        numbers = Ranked.of(metadata, self._order, oracle=False).numbers
        own = np.full(len(numbers), self.numbers[number], self.numbers.dtype)
        newer = np.asarray(own > numbers)
        anew.check(np.where(newer, own, numbers), np.where(newer, numbers, own), self._order)
        return newer

    # -- events ------------------------------------------------------------------------------------------------

    def emptied(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Events of which those that are older than the newest TRUNCATE are its deletes."""
        if not self:
            return rows
        old = pa.array(self.are_newer(_metadata(rows)))
        if not pc.any(old).as_py():
            return rows
        return pa.concat_tables([rows.filter(pc.invert(old)), self.deletes(rows.filter(old), keys, rows.schema)])

    def ended(self, rows: pa.Table, keys: Sequence[str], olds: pa.Table | None = None) -> pa.Table:
        """Events, and for each TRUNCATE a delete of each key that has an older one among them, or among `olds`: keys
        and metadata of what a table has."""
        added = []
        for number in range(len(self.numbers)):
            for events in (rows, olds):
                if events is not None and events.num_rows:
                    older = events.filter(pa.array(self.are_newer(_metadata(events), number)))
                    added.append(self.deletes(older, keys, rows.schema, number))
        return pa.concat_tables([rows, *added]) if added else rows

    def deletes(self, rows: pa.Table, keys: Sequence[str], schema: pa.Schema, number: int = -1) -> pa.Table:
        """A delete of each key of `rows`, with the columns of `schema`."""
        index = KeyIndex(rows, keys)
        _, first = np.unique(index.codes, return_index=True)
        own = rows.select(list(keys)).take(pa.array(first))
        name = metadata_in(schema.names)
        metadata = self.metadata.take(pa.array(np.full(own.num_rows, number % len(self.numbers))))
        columns = {
            field.name: own.column(field.name).cast(field.type)
            if field.name in keys
            else metadata.cast(field.type)
            if field.name == name
            else pa.nulls(own.num_rows, field.type)
            for field in schema
        }
        return pa.table(columns, schema=schema)


def apart(rows: pa.Table) -> tuple[pa.Table, pa.Array]:
    """The events of rows, and the metadata of TRUNCATEs among them."""
    metadata = _metadata(rows)
    if metadata.type.get_field_index("change_type") < 0:  # of messages with keys
        return rows, metadata.slice(0, 0)
    truncates = pc.fill_null(pc.equal(pc.struct_field(metadata, "change_type"), TRUNCATE), False)
    if not pc.any(truncates).as_py():
        return rows, metadata.slice(0, 0)
    # A delete that a TRUNCATE was made into has a key.
    return rows.filter(pc.invert(truncates)), metadata.filter(truncates)


def is_truncate(events: Events) -> bool:
    """Are these TRUNCATEs? Of events that `truncates_apart` has given."""
    row = events.metadata[0].as_py() if len(events.metadata) else {}
    return row.get("change_type") == TRUNCATE


def truncates_apart(events: Events) -> list[Events]:
    """The events and the TRUNCATEs among them, each where there are some."""
    chosen = pc.fill_null(pc.equal(pc.struct_field(events.metadata, "change_type"), TRUNCATE), False)
    if not pc.any(chosen).as_py():
        return [events]
    apart_events = (
        replace(events, rows=events.rows.filter(mask), numbers=events.numbers.filter(mask))
        for mask in (pc.invert(chosen), chosen)
    )
    return [some for some in apart_events if some.rows.num_rows]


def _metadata(rows: pa.Table) -> pa.Array:
    column = rows.column(metadata_in(rows.column_names))
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
