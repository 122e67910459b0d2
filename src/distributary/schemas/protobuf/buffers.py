"""Arrow arrays seen as the numpy arrays they are made of, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def offsets(values: Any) -> NDArray[np.int32]:
    """Offsets of strings, binaries, lists or maps: one more than there are values, into the whole data."""
    buffer = values.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(values) + 1, np.int32)
    return np.frombuffer(buffer, np.int32, len(values) + 1, values.offset * 4)


def numbers(values: Any) -> Ints:
    """Integers as int64. A uint64 above 2**63 is negative, and nulls are whatever is stored under them."""
    width = values.type.bit_width // 8
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(len(values), np.int64)
    unsigned = pa.types.is_unsigned_integer(values.type) and width < 8
    code = f"{'u' if unsigned else 'i'}{width}"
    return np.frombuffer(buffer, code, len(values), values.offset * width).astype(np.int64, copy=False)


def valid(values: Any) -> Bools | None:
    """Which values are not null; None if all of them are."""
    if not values.null_count:
        return None
    bits = np.frombuffer(values.buffers()[0], np.uint8)
    flags = np.unpackbits(bits, count=values.offset + len(values), bitorder="little")
    return flags[values.offset :].view(np.bool_)


def without_nulls(values: Any) -> Any:
    """The values with what is stored under their nulls: zeros and empty strings, in arrays that a builder made."""
    if not values.null_count:
        return values
    if pa.types.is_struct(values.type):
        children = [values.field(i) for i in range(values.type.num_fields)]
        return pa.Array.from_buffers(values.type, len(values), [None], null_count=0, children=children)
    stored = [None, *values.buffers()[1:]]
    return pa.Array.from_buffers(values.type, len(values), stored, null_count=0, offset=values.offset)
