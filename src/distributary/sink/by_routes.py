"""A task's rows of any DataFrame -> files of its routes' tables, which the batch's commit takes in.

Each route's table is opened, so that rows are written as its columns are: a type that changes finds the column that it
would have in every other layout (`tables.evolve`). Nothing is committed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.engine.messages.chunks import runs_of
from distributary.engine.outcomes import Fault
from distributary.engine.windows import windows
from distributary.errors import Reason
from distributary.errors.border import in_words
from distributary.sink.plain_columns import plain_schema
from distributary.sink.sink_options import SinkOptions
from distributary.sink.written import RouteFiles, WrittenFiles, removed_on_failure
from distributary.tables.conform import by_cause, conform
from distributary.tables.engines import policy_of, why_spark
from distributary.tables.evolve import Evolution
from distributary.tables.quarantine import REJECTED_SCHEMA, write_rejected
from distributary.tables.snapshot import columns_of
from distributary.tables.table import Table
from distributary.tables.widening import evolve_table

HELD_BYTES = 64 << 20
"""Rows that a task holds before it writes them: a file of each route's."""
MOST_ROUTES = 20_000
"""Routes that a task remembers the columns of."""


@dataclass(frozen=True)
class RouteRows:
    """Takes rows that have a column with their route."""

    options: SinkOptions

    def take(self, batches: Iterable[pa.RecordBatch], stream: str, batch: int, task: str) -> WrittenFiles:
        """Write them. `task` names the task within the batch. What it wrote goes again when it fails.

        Raises StoreDown: the whole store cannot be written.
        """
        work = _Task(self.options)
        with removed_on_failure(work.taken, self.options):
            for rows in windows(batches, HELD_BYTES):
                work.write(rows)
            work.write_rejected(stream, batch, task)
        return work.taken


class _Task:
    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.taken = WrittenFiles()
        self.rejected: list[pa.Table] = []
        self._evolved: dict[str, Evolution] = {}

    def write(self, rows: pa.Table) -> None:
        rows = rows.cast(plain_schema(rows.schema))
        good = []
        for is_text, piece in by_text(rows):
            if is_text:
                good.append(piece)
            else:
                detail = "a text in it is no UTF-8, as a CAST of bytes can be"
                self.rejected.append(rejected(None, piece, Reason.VALUE_OUT_OF_RANGE, detail))
        for route, route_rows in split(pa.concat_tables(good), self.options.route) if good else ():
            if route is None:
                self.rejected.append(
                    rejected(None, route_rows, Reason.NO_ROUTE, f"column {self.options.route!r} is empty")
                )
            else:
                self._route(route, route_rows)

    def write_rejected(self, stream: str, batch: int, task: str) -> None:
        if self.rejected:
            options = self.options
            file = write_rejected(options.quarantine, self.rejected, stream, batch, task, options.store)
            self.taken.quarantine.append(file)

    def _route(self, route: str, rows: pa.Table) -> None:
        table = self.options.target(route)
        try:
            self._fitted(table, route, rows)
        except BaseException as e:
            why = Fault.of(e).own(table.uri)
            self.rejected.append(rejected(route, rows, Reason.TABLE_PARKED, why))

    def _fitted(self, table: Table, route: str, rows: pa.Table) -> None:
        evolution = self._evolution(route, rows.schema)
        if not len(evolution.schema):
            self.rejected.append(rejected(route, rows, Reason.TOO_MANY_COLUMNS, "the table can hold no column of it"))
            return
        fitted = conform(rows.combine_chunks().to_batches()[0], evolution.slots[0], evolution.schema)
        good = fitted.entering(evolution.schema)
        if good.num_rows:
            self.taken.parts.append(RouteFiles.of(route, table.uri, good, table.write(good)))
        for (reason, column), at in by_cause(fitted.rejected).items():
            self.rejected.append(rejected(route, rows.take(pa.array(at)), reason, f"column {column!r}"))

    def _evolution(self, route: str, incoming: pa.Schema) -> Evolution:
        if (evolved := self._evolved.get(route)) is not None:
            return evolved
        tables = self.options.tables
        table = self.options.target(route).open()
        evolution = evolve_table(table, columns_of(table), [incoming], policy_of(tables, route))
        if (why := why_spark(table, tables, route, evolution)) is not None:
            raise ValueError(f"only Spark's own writer may append to it ({why})")
        if len(self._evolved) < MOST_ROUTES:
            self._evolved[route] = evolution
        return evolution


def by_text(rows: pa.Table) -> Iterator[tuple[bool, pa.Table]]:
    """Rows whose texts all are UTF-8, which Spark does not ask of them, and single ones that have another text."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        if rows.num_rows <= 1:
            yield False, rows
            return
        half = rows.num_rows // 2
        # Taken, not sliced: of a slice of a struct Arrow looks at all its children.
        for begin, end in ((0, half), (half, rows.num_rows)):
            yield from by_text(rows.take(pa.array(range(begin, end))))
        return
    if rows.num_rows:
        yield True, rows


def split(rows: pa.Table, column: str) -> Iterator[tuple[str | None, pa.Table]]:
    """The rows of each route, in the order in which they came; None: of no route, null or empty."""
    values = pc.fill_null(rows.column(column).cast(pa.string()), "").combine_chunks().dictionary_encode()
    order, runs = runs_of(np.asarray(values.indices), len(values.dictionary))
    sorted_rows = rows if len(runs) == 1 else rows.take(pa.array(order))
    for route, run in zip(values.dictionary.to_pylist(), runs, strict=True):
        yield route or None, sorted_rows.slice(*run)


def rejected(route: str | None, rows: pa.Table, reason: Reason, detail: str) -> pa.Table:
    """Quarantine rows. `value` is the row as JSON: a DataFrame's rows have no bytes of their own."""
    count = rows.num_rows
    filled: dict[str, Any] = {
        "route": pa.array([route] * count, pa.string()),
        "reason": pa.array([reason.value] * count),
        "detail": pa.array([detail] * count),
        "level": pa.array(["row"] * count),
        "value": pa.array([_json(row) for row in _values(rows)], pa.binary()),
    }
    columns = [filled[f.name] if f.name in filled else pa.nulls(count, f.type) for f in REJECTED_SCHEMA]
    return pa.table(columns, schema=REJECTED_SCHEMA)


def _values(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python's values. Where it has none for a time (beyond the year 9999) that is a number, as it is stored,
    and where it has none for a text (no UTF-8), its bytes."""
    try:
        return list(rows.to_pylist())
    except (ValueError, OverflowError):
        columns = {name: rows.column(name) for name in rows.column_names}
        return [{name: _value(column.slice(at, 1)) for name, column in columns.items()} for at in range(rows.num_rows)]


def _value(cell: pa.ChunkedArray) -> Any:
    for kind in (cell.type, _stored(cell.type, with_texts=False)):
        try:
            return cell.cast(kind)[0].as_py()
        except (ValueError, OverflowError):
            pass
    return cell.cast(_stored(cell.type, with_texts=True))[0].as_py()


def _stored(kind: pa.DataType, *, with_texts: bool) -> pa.DataType:
    """The type with times as numbers; `with_texts`: and with texts as bytes."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type, with_texts=with_texts)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_stored(kind.key_type, with_texts=with_texts), _stored(kind.item_type, with_texts=with_texts))
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type, with_texts=with_texts))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.binary() if with_texts and pa.types.is_string(kind) else kind


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, default=_shown).encode(errors="replace")


def _shown(value: Any) -> str:
    """What JSON has no word for, as text; bytes in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    try:
        return str(value)
    except Exception as e:
        return in_words(e)
