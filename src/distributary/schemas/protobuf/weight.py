"""How many bytes the decoded rows need on the wire: a proof that a fast decoder has overlooked nothing.

ptars skips without a word what it does not expect: a known field with another wire type, a broken tail of a packed
list; it keeps both members of a oneof and both entries of a map key. All such bytes are *more* than the decoded
values need. So a row whose payload is exactly as long as its values need has been read completely, and a row that is
longer is read again by the official library. Sizes come from the Arrow buffers, a few ns a value.

A payload can also be *shorter* than canonical (a list packed against its declaration, a negative int32 in 5 bytes).
What a row could have saved that way is its `slack`: with two bytes of it, or
more, something else could be hidden behind the saving, and equal length proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor as F

from distributary.schemas.protobuf.buffers import numbers, offsets, valid, without_nulls
from distributary.schemas.protobuf.columns import INSTANT, OPAQUE, Field, MessageFields, wrapped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Refused = Callable[[Field, Any], Bools]

NO_PROOF: Final = 1 << 40
"""Slack of a row that is wrong or doubtful whatever its length."""
HIDES: Final = 2
"""The shortest record: a tag and a byte."""
SECONDS_MIN: Final = -62_135_596_800
SECONDS_MAX: Final = 253_402_300_799
"""Range of `google.protobuf.Timestamp`: the years 1 to 9999."""
DURATION_MAX: Final = 315_576_000_000
"""Range of `google.protobuf.Duration`, in seconds."""
NANOS_MAX: Final = 999_999_999
"""A Timestamp's nanos are 0 or more, a Duration's have the sign of its seconds (timestamp.proto, duration.proto)."""
_INT64_MIN: Final = -(2**63)

_FIXED: Final = {F.TYPE_DOUBLE: 8, F.TYPE_FIXED64: 8, F.TYPE_SFIXED64: 8} | dict.fromkeys(
    (F.TYPE_FLOAT, F.TYPE_FIXED32, F.TYPE_SFIXED32), 4
)
_BYTES: Final = (F.TYPE_STRING, F.TYPE_BYTES)


@dataclass(slots=True)
class Weight:
    """Per value: bytes on the wire without tag and length, and what a sender could have saved."""

    size: Ints
    slack: Ints | int = 0


def weigh(message: MessageFields, columns: Sequence[Any], rows: int, refused: Refused) -> Weight:
    """Weigh rows of a message.

    Args:
        message: the message type.
        columns: one array per field, as ptars gives them for the reduced descriptors.
        rows: length of all arrays.
        refused: tells which bytes of an opaque field the official library does not vouch for.
    """
    size = np.zeros(rows, np.int64)
    slack: Ints | int = 0
    members: dict[str, Ints] = {}
    for field, column in zip(message.fields, columns, strict=True):
        if field.repeated:
            weight = (
                _map(field, *field.entry, column, refused) if field.entry is not None else _list(field, column, refused)
            )
            size += weight.size
        else:
            weight, present = _value(field, column, refused), valid(column)
            weight.size += _tag(field.number)
            if present is not None:
                weight = Weight(weight.size * present, weight.slack * present if _any(weight.slack) else 0)
            size += weight.size
            if field.oneof is not None:
                presence = np.ones(rows, np.int64) if present is None else present.astype(np.int64)
                members[field.oneof] = presence + members.get(field.oneof, 0)
        if _any(weight.slack):
            slack = slack + weight.slack
    for count in members.values():
        if count.max(initial=0) > 1:
            slack = slack + np.where(count > 1, NO_PROOF, 0)
    return Weight(size, slack)


def _any(slack: Ints | int) -> bool:
    return not isinstance(slack, int) or slack != 0


def _value(field: Field, values: Any, refused: Refused) -> Weight:
    """Weigh single values with their length prefix, without their tag; whatever is null weighs anything."""
    if field.form in ("scalar", "enum"):
        return _scalar(field.kind, values)
    if field.form in OPAQUE:
        size = np.diff(offsets(values))
        bad = refused(field, values)
        return Weight(size + length_size(size), np.where(bad, NO_PROOF, 0) if bad.any() else 0)
    if field.form == "empty":
        return Weight(np.ones(len(values), np.int64))
    if field.form == "struct":
        assert field.message is not None
        inner = weigh(
            field.message, [values.field(f"f{member.number}") for member in field.message.fields], len(values), refused
        )
    elif field.form == "wrapper":
        inner = weigh(wrapped(field.kind), [values.field("f1")], len(values), refused)
    else:
        inner = _instant(field, values)
    return Weight(inner.size + length_size(inner.size), inner.slack)


def _instant(field: Field, values: Any) -> Weight:
    """A Timestamp or a Duration. Values out of range get no proof: the other decoder words the refusal."""
    columns = [values.field("f1"), values.field("f2")]
    inner = weigh(INSTANT, columns, len(values), _none_refused)
    seconds, nanos = numbers(columns[0]), numbers(columns[1])
    if field.form == "timestamp":
        bad = (seconds < SECONDS_MIN) | (seconds > SECONDS_MAX) | (nanos < 0) | (nanos > NANOS_MAX)
    else:
        bad = (np.abs(seconds) > DURATION_MAX) | (seconds == _INT64_MIN) | (np.abs(nanos) > NANOS_MAX)
        bad |= np.sign(seconds) * np.sign(nanos) < 0
    if bad.any():
        inner.slack = inner.slack + np.where(bad, NO_PROOF, 0)
    return inner


def _none_refused(_: Field, values: Any) -> Bools:
    return np.zeros(len(values), bool)


def _list(field: Field, lists: Any, refused: Refused) -> Weight:
    bounds = offsets(lists)
    weight = _value(field, lists.values, refused)
    tag, count = _tag(field.number), np.diff(bounds)
    inner, slack = _sums(weight.size, bounds), _slack_sums(weight.slack, bounds)
    apart = inner + count * tag
    if field.form not in ("scalar", "enum") or field.kind in _BYTES:
        return Weight(apart, slack)
    packed = np.where(count > 0, inner + length_size(inner) + tag, 0)
    declared, undeclared = (packed, apart) if field.packed else (apart, packed)
    return Weight(declared, slack + np.maximum(declared - undeclared, 0))


def _map(field: Field, key: Field, value: Field, maps: Any, refused: Refused) -> Weight:
    entries = replace(field, entry=None, message=MessageFields("", (key, value)))
    weight, bounds = _list(entries, maps, refused), offsets(maps)
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    again = _seen_before(rows, without_nulls(maps.values.field("f1")))
    return Weight(weight.size, weight.slack + _sums(np.where(again, NO_PROOF, 0), bounds)) if again.any() else weight


def _seen_before(rows: Ints, keys: Any) -> Bools:
    """Which entries repeat a key of their own row."""
    codes = keys.dictionary_encode()
    pairs = rows * max(len(codes.dictionary), 1) + np.asarray(codes.indices)
    repeats = np.ones(len(pairs), bool)
    repeats[np.unique(pairs, return_index=True)[1]] = False
    return repeats


def _scalar(kind: int, values: Any) -> Weight:
    if kind in _BYTES:
        size = np.diff(offsets(values))
        return Weight(size + length_size(size))
    if kind == F.TYPE_BOOL:
        return Weight(np.ones(len(values), np.int64))
    if kind in _FIXED:
        return Weight(np.full(len(values), _FIXED[kind], np.int64))
    stored = numbers(values)
    if kind in (F.TYPE_SINT32, F.TYPE_SINT64):
        return Weight(varint_size((stored << 1) ^ (stored >> 63)))
    negative = stored < 0 if kind in (F.TYPE_INT32, F.TYPE_ENUM) else None
    # A negative int32 takes 10 bytes, but 5 are read as the same number.
    return Weight(varint_size(stored), 5 * negative if negative is not None and negative.any() else 0)


def varint_size(values: Ints) -> Ints:
    """Bytes of the varints of 64-bit numbers; negative ones take ten."""
    bits = values.view(np.uint64)
    size = np.ones(len(values), np.int64)
    top = int(bits.max(initial=0))
    for shift in range(7, 64, 7):
        if top >> shift == 0:
            break
        size += bits >= np.uint64(1 << shift)
    return size


def length_size(lengths: NDArray[np.signedinteger[Any]]) -> Ints:
    """Bytes of the varints of lengths, which are 0 or more and below 2**31."""
    size = np.ones(len(lengths), np.int64)
    top = int(lengths.max(initial=0))
    for shift in range(7, 35, 7):
        if top >> shift == 0:
            break
        size += lengths >= 1 << shift
    return size


def _tag(number: int) -> int:
    return (number.bit_length() + 3 + 6) // 7


def _sums(values: Ints, bounds: NDArray[np.int32]) -> Ints:
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
    return ends[bounds[1:]] - ends[bounds[:-1]]


def _slack_sums(slack: Ints | int, bounds: NDArray[np.int32]) -> Ints | int:
    return slack if isinstance(slack, int) else _sums(slack, bounds)
