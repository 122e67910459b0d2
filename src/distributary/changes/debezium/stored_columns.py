"""A column as Avro or protobuf stores it to what the one type mapping takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import Array, Scalar
from distributary.avro.walk_columns import arrow_type
from distributary.changes.debezium.connect import BITS, DECIMAL, LOGICAL, NANO_TIME, VARIABLE, Connect, loader, node_of
from distributary.changes.debezium.connect_protobuf import MESSAGE, column_of, stands_for_value
from distributary.changes.debezium.unlogged import placeholders
from distributary.changes.json_values import JsonColumn

AS_IS = Connect("as is")
"""Of a column that is what the table gets."""


def column(kind: Connect, stored: pa.Array) -> JsonColumn:
    """`kind`: as the message's schema says it."""
    if kind.kind == MESSAGE and stands_for_value(kind):
        return column_of(kind, stored)
    if kind == AS_IS or kind.kind == MESSAGE:
        return JsonColumn(Scalar("string"), stored)
    if kind.kind == "array" and kind.item is not None and kind.item.kind == MESSAGE:
        return _listed(kind.item, stored)
    node = node_of(kind)
    arrow = arrow_type(node)
    if kind.name == NANO_TIME:
        return JsonColumn(node, _micros(stored))
    if kind.name in LOGICAL and kind.is_text:
        times = _times(kind, stored, arrow)
        return _loaded(kind, stored) if times is None else JsonColumn(node, times)
    if _is_plain(kind) and kind.name != BITS:
        return JsonColumn(node, stored if stored.type == arrow else stored.cast(arrow))
    return _loaded(kind, stored)


def _is_plain(kind: Connect) -> bool:
    """Are values stored as the mapping takes them?"""
    if kind.kind == "array":
        return kind.item is not None and kind.item.kind not in ("struct", "array", "map") and _is_as_stored(kind.item)
    return kind.kind not in ("struct", "map") and _is_as_stored(kind)


def _is_as_stored(kind: Connect) -> bool:
    return kind.name == DECIMAL or (
        kind.name not in (VARIABLE, NANO_TIME, BITS) and not (kind.name in LOGICAL and kind.is_text)
    )


def _listed(item: Connect, stored: pa.Array) -> JsonColumn:
    """Lists of messages that stand for values."""
    lengths = pc.fill_null(pc.list_value_length(stored), 0).to_numpy(zero_copy_only=False)
    inner = column(item, stored.flatten())
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, inner.array, mask=stored.is_null())
    rows = np.repeat(np.arange(len(stored)), lengths).tolist()
    return JsonColumn(Array(inner.node), lists, [(rows[place], why) for place, why in inner.faults])


def _micros(stored: pa.Array) -> pa.Array:
    numbers = pc.fill_null(stored.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.floor_divide(numbers, 1000), pa.int64(), mask=_nulls(stored))


def _times(kind: Connect, stored: pa.Array, arrow: pa.DataType) -> pa.Array | None:
    """Instants of UTC, all at once; None where one is spelled in another way."""
    if LOGICAL[kind.name] == "date" or not pc.all(pc.fill_null(pc.ends_with(stored, "Z"), True)).as_py():
        return None
    try:
        return pc.utf8_slice_codeunits(stored, 0, -1).cast(pa.timestamp("us")).cast(arrow)
    except pa.ArrowInvalid:
        return None


def _loaded(kind: Connect, stored: pa.Array) -> JsonColumn:
    """Value by value; what is none of the type is null, and a fault."""
    node, load = node_of(kind), loader(kind, stored=True)
    arrow = arrow_type(node)
    values: list[Any] = []
    faults: list[tuple[int, str]] = []
    for place, plain in enumerate(stored.to_pylist()):
        value = None
        try:
            value = None if plain is None else load(plain)
            pa.scalar(value, arrow)
        except Exception:  # whatever a value does to its conversion is that value's fault
            value = None
            faults.append((place, f"{str(plain)[:80]} is no {kind.name or kind.kind}"))
        values.append(value)
    return JsonColumn(node, pa.array(values, arrow), faults)


def unlogged(stored: pa.Array, placeholder: str) -> npt.NDArray[np.bool_] | None:
    """Which values stand for one that was not logged; None where none does."""
    forms = placeholders(placeholder)
    if pa.types.is_string(stored.type):
        placeholders_known = pa.array([form for form in forms if isinstance(form, str)])
    elif pa.types.is_binary(stored.type):
        placeholders_known = pa.array([placeholder.encode()], pa.binary())
    elif pa.types.is_list(stored.type):
        return _unlogged_lists(stored, placeholder)
    else:
        return None
    stands_for = pc.is_in(stored, value_set=placeholders_known)
    return np.asarray(stands_for.to_numpy(zero_copy_only=False), bool) if pc.any(stands_for).as_py() else None


def _unlogged_lists(stored: pa.Array, placeholder: str) -> npt.NDArray[np.bool_] | None:
    text, body = placeholder, placeholder.encode()
    forms = (
        [text],
        [body],
        list(body),
        [{"key": text, "value": text}],
        [form[0] for form in placeholders(placeholder) if isinstance(form, list) and len(form) == 1][-1:],
    )
    lengths = pc.fill_null(pc.list_value_length(stored), 0).to_numpy(zero_copy_only=False)
    stands_for = np.zeros(len(stored), bool)
    for place in np.flatnonzero((lengths == 1) | (lengths == len(body))).tolist():
        stands_for[place] = stored[place].as_py() in forms
    return stands_for if stands_for.any() else None


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool) if array.null_count else None
