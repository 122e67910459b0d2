"""Which columns of a table are its key, and each event's key in them, whatever became of the columns' types.

A value that its column cannot hold lies in a second column, `id__string` beside `id` (`tables.evolve`); in `id` it left
a null, which is no key. The log knows the key as the event has it (`_origin.key`), and its second columns hold it too,
which mends logs that were begun before they had keys. So the key of a merged table is one column of a type that holds
the values of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from distributary.changes.key_text import as_type, holding_both, in_type, key_parts, spelled
from distributary.changes.model import METADATA
from distributary.engine.changes.fitting import column_name
from distributary.engine.changes.task_spec import ORIGIN
from distributary.tables.column_names import home, second_columns
from distributary.tables.common_types import common_type

KeyTypes = Mapping[str, pa.DataType]
"""Key column -> the type that holds every key."""

KEY, KEY_COLUMNS = f"{ORIGIN}.key", f"{ORIGIN}.key_columns"
_NUMBER = f"{METADATA}.change_sequence_number"
NEWEST = (KEY_COLUMNS, _NUMBER)
"""What `newest_key_columns` reads of a log's rows: paths of columns."""


def key_columns(names: Sequence[str], keys: Iterable[str]) -> tuple[str, ...]:
    """The columns, of those with these `names`, that hold the key which events name so; in the order of `keys`."""
    return tuple(home(names, column_name(key)) or column_name(key) for key in keys)


def newest_key_columns(pieces: Iterable[pa.Table]) -> tuple[str, ...] | None:
    """The key columns that the newest event of a log names; None where none does. `pieces`: columns `NEWEST`."""
    newest, newest_columns = "", None
    for piece in pieces:
        if not pa.types.is_null(piece.column(KEY_COLUMNS).type):
            for row in piece.group_by(KEY_COLUMNS).aggregate([(_NUMBER, "max")]).to_pylist():
                if row[KEY_COLUMNS] is not None and row[f"{_NUMBER}_max"] > newest:
                    newest, newest_columns = row[f"{_NUMBER}_max"], row[KEY_COLUMNS]
    return None if newest_columns is None else tuple(json.loads(newest_columns))


def key_types(log: pa.Schema, keys: Sequence[str], merged: pa.Schema | None = None) -> KeyTypes:
    """The type of each key column that holds its values in the log, and in the merged table as it is."""
    return {key: _holding_all(key, log, merged) for key in keys}


def _holding_all(key: str, log: pa.Schema, merged: pa.Schema | None) -> pa.DataType:
    kinds = [log.field(name).type for name in (key, *second_columns(log.names, key)) if name in log.names]
    if merged is not None and key in merged.names:
        kinds.append(merged.field(key).type)
    return reduce(_both, kinds) if kinds else pa.string()


def _both(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return common_type(left, right) or holding_both(left, right)


def with_types(schema: pa.Schema, types: KeyTypes) -> pa.Schema:
    """The columns with the keys in these types."""
    return pa.schema([f.with_type(types.get(f.name, f.type)) for f in schema])


def paths_of(names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """What `whole` reads of a log's rows: paths of columns."""
    return [*keys, *(name for key in keys for name in second_columns(names, key)), KEY, KEY_COLUMNS]


def whole(rows: pa.Table, types: KeyTypes) -> pa.Table:
    """Rows of a log with each key in its own column, of the type in `types`. Columns of `_origin` may stand by path.

    Raises ValueError for a key that the type does not hold: `key_types` gives none such.
    """
    for key, kind in types.items():
        column = _column(rows, key, kind)
        index = rows.schema.get_field_index(key)
        if index < 0:
            rows = rows.append_column(pa.field(key, kind), column)
        elif column is not rows.column(index):
            rows = rows.set_column(index, rows.schema.field(index).with_type(kind), column)
    return rows


def _column(rows: pa.Table, key: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    has_column = key in rows.column_names
    if has_column and not rows.column(key).null_count:
        return in_type(rows.column(key), kind)
    others = [rows.column(name) for name in second_columns(rows.column_names, key)]
    if has_column and not others:
        return in_type(rows.column(key), kind)
    spellings = [spelled(rows.column(key))] if has_column else []
    spellings += [text for text in (_as_the_event_has_it(rows, key),) if text is not None]
    texts = (
        pc.coalesce(*spellings, *map(spelled, others)) if spellings or others else pa.nulls(rows.num_rows, pa.string())
    )
    values = as_type(texts, kind)
    if values is None:
        raise ValueError(f"key column {key!r} has values that {kind} does not hold")
    return values


def _as_the_event_has_it(rows: pa.Table, key: str) -> pa.Array | None:
    """The spelling of the key in `_origin`, null for events that name other keys; None where rows do not have it."""
    texts, names = _origin(rows, KEY), _origin(rows, KEY_COLUMNS)
    if texts is None or names is None:
        return None
    spelling = pa.nulls(rows.num_rows, pa.string())
    for named in pc.unique(names).to_pylist():
        if named is None:
            continue
        columns = key_columns(rows.column_names, json.loads(named))
        if key in columns:
            mine = pc.if_else(pc.equal(names, named), texts, None)
            spelling = pc.coalesce(spelling, key_parts(mine, len(columns))[columns.index(key)])
    return spelling


def _origin(rows: pa.Table, path: str) -> pa.Array | None:
    if path in rows.column_names:
        column = rows.column(path).combine_chunks()
        return column.cast(pa.string())
    name = path.rsplit(".", 1)[-1]
    if ORIGIN not in rows.column_names or rows.schema.field(ORIGIN).type.get_field_index(name) < 0:
        return None
    return pc.struct_field(rows.column(ORIGIN).combine_chunks(), name)
