"""Bring decoded rows into a table's schema, along the slots that `evolve` worked out; keep aside what may not enter.

Works on whole columns. Lists and maps are rebuilt from their offsets, since a slice, or a null list that still spans
elements, makes Arrow's own offsets unfit for `from_arrays`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.errors import Reason
from distributary.tables.evolve import Slot
from distributary.tables.exact import exact_cast

Cause = tuple[Reason, str]


@dataclass(frozen=True, slots=True)
class Conformed:
    """`columns` in the order of `schema`, for all rows; `rejected` maps a row's position to (reason, column).

    `column` is the incoming field's name; of a field inside a struct its path, as in `player.score`.
    """

    columns: list[pa.Array]
    rejected: dict[int, Cause]

    def entering(self, schema: pa.Schema) -> pa.Table:
        """The rows that may enter, in the columns `schema`; none where it has no column that could hold one."""
        rows = pa.table(self.columns, schema=schema)
        if not self.rejected or not rows.num_columns:
            return rows
        keep = np.ones(rows.num_rows, dtype=bool)
        keep[list(self.rejected)] = False
        return rows.filter(pa.array(keep))


@dataclass(frozen=True, slots=True)
class _Fault:
    """`where`: True for each row of the column at hand that holds a value that may not enter."""

    where: np.ndarray
    reason: Reason
    column: str


def by_cause(rejected: Mapping[int, Cause]) -> dict[Cause, list[int]]:
    """(reason, column) -> the positions of the rows."""
    positions: dict[Cause, list[int]] = {}
    for position, cause in sorted(rejected.items()):
        positions.setdefault(cause, []).append(position)
    return positions


_Entered = tuple[pa.Array, list[_Fault]]


def conform(batch: pa.RecordBatch, slots: Sequence[Slot], schema: pa.Schema) -> Conformed:
    """`batch` as columns of `schema`: absent columns are null, moved and widened ones follow their slot.

    Rows in `rejected` are still in `columns` (with null in the column concerned): the caller filters them out.
    """
    every = np.ones(batch.num_rows, dtype=bool)
    columns, faults = _fields(batch.columns, slots, list(schema), every, "")
    rejected: dict[int, Cause] = {}
    for fault in faults:
        for position in np.flatnonzero(fault.where).tolist():
            rejected.setdefault(position, (fault.reason, fault.column))
    return Conformed(columns, rejected)


def _fields(
    columns: Sequence[pa.Array], slots: Sequence[Slot], fields: Sequence[pa.Field], present: np.ndarray, path: str
) -> tuple[list[pa.Array], list[_Fault]]:
    """The columns of a row or struct; `present` is False where the struct itself is null."""
    kinds = {f.name: f.type for f in fields}
    entered: dict[str, pa.Array] = {}
    faults: list[_Fault] = []
    for slot, column in zip(slots, columns, strict=True):
        name = f"{path}{slot.source}"
        if slot.target is None:
            faults += _faults(_has_value(column), slot.reject or Reason.NEW_COLUMN, name)
        else:
            entered[slot.target], inner = _enter(column, slot, kinds[slot.target], name)
            faults += inner
    arrays = [entered[f.name] if f.name in entered else pa.nulls(len(present), f.type) for f in fields]
    for field, array in zip(fields, arrays, strict=True):
        if not field.nullable:
            faults += _faults(present & ~_valid(array), Reason.VALUE_OUT_OF_RANGE, f"{path}{field.name}")
    return arrays, faults


def _enter(column: pa.Array, slot: Slot, kind: pa.DataType, path: str) -> _Entered:
    if slot.fit:
        array = exact_cast(column, kind)
        return array, list(_faults(_valid(column) & ~_valid(array), slot.reject or Reason.VALUE_OUT_OF_RANGE, path))
    if column.type == kind:
        return column, []
    if pa.types.is_null(column.type) or not len(column):
        return pa.nulls(len(column), kind), []
    if pa.types.is_struct(kind):
        fields, present = list(kind), _valid(column)
        arrays, faults = _fields(column.flatten(), slot.children, fields, present, f"{path}.")
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=_null_mask(column)), faults
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _enter_elements(column, slot.children[0], kind, path)
    return column.cast(kind), []


def _enter_elements(column: pa.Array, slot: Slot, kind: pa.DataType, path: str) -> _Entered:
    """A list's elements or a map's values; a fault of one is a fault of the row that holds it."""
    offsets, picked = _spans(column)
    is_list = pa.types.is_list(kind)
    inside = picked(column.values if is_list else column.items)
    field = kind.value_field if is_list else kind.item_field
    elements, faults = _enter(inside, slot, field.type, path)
    if not field.nullable:
        faults += _faults(~_valid(elements), Reason.VALUE_OUT_OF_RANGE, path)
    lifted = [_Fault(_any_per_list(offsets, f.where), f.reason, f.column) for f in faults]
    starts, mask = pa.array(offsets, pa.int32()), _null_mask(column)
    if is_list:
        return pa.ListArray.from_arrays(starts, elements, type=kind, mask=mask), lifted
    return pa.MapArray.from_arrays(starts, picked(column.keys), elements, type=kind, mask=mask), lifted


@dataclass(frozen=True, slots=True)
class _Pick:
    """Takes from a list column's whole child array the elements that its rows really hold, in order."""

    begin: int
    length: int
    positions: np.ndarray | None

    def __call__(self, child: pa.Array) -> pa.Array:
        if self.positions is None:
            return child.slice(self.begin, self.length)
        return child.take(pa.array(self.positions))


def _spans(column: pa.Array) -> tuple[np.ndarray, _Pick]:
    """Offsets that start at 0 and leave nothing between rows, and how to pick the elements for them."""
    raw = np.asarray(column.offsets).astype(np.int64)
    lengths = np.where(_valid(column), np.diff(raw), 0)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    begin, last = int(raw[0]), int(offsets[-1])
    if last == int(raw[-1]) - begin:
        return offsets, _Pick(begin, last, None)
    return offsets, _Pick(begin, last, np.repeat(raw[:-1] - offsets[:-1], lengths) + np.arange(last))


def _any_per_list(offsets: np.ndarray, bad: np.ndarray) -> np.ndarray:
    running = np.concatenate(([0], np.cumsum(bad)))
    return np.asarray(running[offsets[1:]] > running[offsets[:-1]], dtype=bool)


def _faults(bad: np.ndarray, reason: Reason, column: str) -> Iterator[_Fault]:
    if bad.any():
        yield _Fault(bad, reason, column)


def _has_value(column: pa.Array) -> np.ndarray:
    """True where the value is there and says something: not null, and not an empty list or map."""
    present = _valid(column)
    if len(column) and (pa.types.is_list(column.type) or pa.types.is_map(column.type)):
        present = present & (np.diff(np.asarray(column.offsets)) > 0)
    return present


def _valid(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), dtype=bool)


def _null_mask(column: pa.Array) -> pa.Array | None:
    return pc.is_null(column) if column.null_count else None
