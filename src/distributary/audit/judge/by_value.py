"""Is there a row for each record? For tables whose rows do not say which record they are of: by all their values.

Records with the same payload of one writer are one, so many times; so many rows must say what it says. A row is looked
for among those that have the record's whole numbers and texts (`_narrowed`), and then compared value by value.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from distributary.audit.judge.likeness import Names, names_of
from distributary.audit.judge.opened_records import UNREADABLE, RecordOpener, Writer
from distributary.audit.judge.plain_values import plain, spelled
from distributary.audit.judge.read_payload import ReadPayload, Simple

HELD = 100_000
"""Payloads that are held at a time; of more, the records and the tables are read several times."""
READ_ROWS = 200_000
"""About the most records that are looked through, where not all are compared."""
ORIGIN = "_origin"

Payloads = Counter[tuple[Writer, bytes]]
"""How often each payload was written, by its writer and its body."""


def number_of(body: bytes) -> int:
    """The same for the same payload: by it samples are drawn, and payloads dealt out to passes."""
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")


@dataclass
class PayloadSample:
    """The payloads of each writer with the smallest numbers, `size` of them, and how often each was put in."""

    size: int
    _heaps: dict[Writer, list[tuple[int, bytes]]] = field(default_factory=dict)
    _counts: Payloads = field(default_factory=Counter)

    def add(self, writer: Writer, body: bytes) -> None:
        if (writer, body) in self._counts:
            self._counts[writer, body] += 1
            return
        heap, number = self._heaps.setdefault(writer, []), -number_of(body)
        if len(heap) < self.size:
            heappush(heap, (number, body))
        elif number > heap[0][0]:
            del self._counts[writer, heapreplace(heap, (number, body))[1]]
        else:
            return
        self._counts[writer, body] = 1

    def payloads(self) -> Payloads:
        return Counter(self._counts)


@dataclass
class _Expected:
    payload: ReadPayload
    rows: int
    found: int = 0


def missing(
    opener: RecordOpener, payloads: Payloads, pieces: Iterable[pa.Table], beside: Collection[str] = ()
) -> tuple[int, int]:
    """(rows that records were compared with, records that have no row). `pieces`: the columns of a route's table;
    `beside`: those of them that no payload says, unless it has a field of that name.

    A payload that the official library cannot read has no row: whether it was set aside is a matter of counts.
    """
    by_writer: dict[Writer, list[_Expected]] = {}
    for (writer, body), rows in payloads.items():
        if rows > 0:
            try:
                by_writer.setdefault(writer, []).append(_Expected(opener.read(writer, body), rows))
            except UNREADABLE:
                continue
    searches = {writer: _Search(expected, beside) for writer, expected in by_writer.items()}
    for piece in pieces:
        origin = piece.column(ORIGIN).combine_chunks()
        rows = piece.drop_columns([ORIGIN])
        for writer, search in searches.items():
            search.among(_of_writer(rows, origin, writer))
    every = [record for expected in by_writer.values() for record in expected]
    return sum(record.found for record in every), sum(max(0, record.rows - record.found) for record in every)


def _of_writer(rows: pa.Table, origin: pa.Array, writer: Writer) -> pa.Table:
    if not pa.types.is_struct(origin.type):
        return rows.slice(0, 0)
    mine = pc.equal(pc.struct_field(origin, "schema_id"), writer.schema_id)
    if origin.type.get_field_index("batch") >= 0:
        mine = pc.and_(mine, pc.is_valid(pc.struct_field(origin, "batch")))
    return rows.filter(mine)


_Key = tuple[str | None, ...]


class _Search:
    """The records of one writer, by what a row of theirs is looked for with."""

    def __init__(self, expected: list[_Expected], beside: Collection[str]) -> None:
        self.expected = expected
        self.beside = beside
        self._values = [record.payload.simple() for record in expected]
        self._columns: tuple[str, ...] | None = None

    def among(self, rows: pa.Table) -> None:
        """Count the records that `rows` say."""
        names = names_of(tuple(rows.column_names))
        if names.columns != self._columns:
            self._arrange(names)
        first = self._values[0]
        for row in _plain_rows(_narrowed(rows, self._values, self._fields, names)):
            key = tuple(_spelled_or_default(row[names.of(name)[0]], first[name]) for name in self._fields)
            self._count(key, row)

    def _arrange(self, names: Names) -> None:
        self._columns = names.columns
        # A record's row has this very value of such a field, in one column, whatever the column's type is.
        self._fields = [name for name in self._values[0] if len(names.of(name)) == 1]
        self._missing: dict[_Key, list[_Expected]] = {}
        """Records that have not all their rows yet."""
        self._next: dict[_Key, int] = {}
        """Behind the last of them that a row was of: mostly, rows stand in a file as their records came."""
        self._complete: dict[_Key, list[_Expected]] = {}
        for record, simple in zip(self.expected, self._values, strict=True):
            key = tuple(spelled(simple[name].value) for name in self._fields)
            by_key = self._missing if record.found < record.rows else self._complete
            by_key.setdefault(key, []).append(record)

    def _count(self, key: _Key, row: Mapping[str, Any]) -> None:
        missing, begin = self._missing.get(key, []), self._next.get(key, 0)
        for place in chain(range(begin, len(missing)), range(begin)):
            if _is_alike((record := missing[place]).payload, row, self.beside):
                record.found += 1
                self._next[key] = place + 1
                if record.found == record.rows:
                    self._complete.setdefault(key, []).append(missing.pop(place))
                    self._next[key] = place
                return
        for record in self._complete.get(key, ()):
            if _is_alike(record.payload, row, self.beside):
                record.found += 1  # one row more than there are records
                return


def _is_alike(payload: ReadPayload, row: Mapping[str, Any], beside: Collection[str]) -> bool:
    cells = {name: cell for name, cell in row.items() if name not in beside or payload.has(name)}
    return payload.differs(cells) is None


def _spelled_or_default(value: Any, field: Simple) -> str | None:
    return spelled(field.default if value is None else value)


def _narrowed(rows: pa.Table, expected: list[Mapping[str, Simple]], fields: Iterable[str], names: Names) -> pa.Table:
    """Rows whose values are among those of the wanted ones, column by column; a column of another type is let be."""
    for name in fields:
        column = rows.column(names.of(name)[0])
        of_kind = _is_string if expected[0][name].is_text else pa.types.is_integer
        if not of_kind(column.type):
            continue
        try:
            values = pa.array([None, *{values_of[name].value for values_of in expected} - {None}]).cast(column.type)
        except (pa.ArrowInvalid, OverflowError):
            continue
        rows = rows.filter(pc.is_in(column, value_set=values))
    return rows


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    for begin in range(0, rows.num_rows, 4_096):
        some = rows.slice(begin, 4_096)
        columns = [plain(column) for column in some.columns] if some.num_columns else []
        for values in zip(*columns, strict=True):
            yield dict(zip(some.column_names, values, strict=True))


def less(payloads: Payloads, others: Mapping[tuple[Writer, bytes], int]) -> Payloads:
    """`payloads` without so many of each."""
    return Counter({payload: rows - others.get(payload, 0) for payload, rows in payloads.items()})
