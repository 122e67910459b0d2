"""A column of JSON tokens to an Arrow array of what avro would have stored.

So one mapping, `types.column`, serves both formats. A token is a value as it stands in the file: `2.50`, `"a\\nb"`,
`{"x": 1}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.avro.schema import NULL, Array, Node, Record, Scalar, solid
from distributary.avro.walk_columns import arrow_type, is_nested_list
from distributary.changes import casts
from distributary.changes.json_times import (
    TEMPORAL,
    UNITS,
    clock,
    instant,
    interval,
    micros_of,
    per_unit,
    temporal,
    unquoted,
)
from distributary.changes.model import Reading

TEXT = Scalar("string")
QUOTE = ord('"')
DIGITS = frozenset(b"-0123456789")
LONGEST_DECIMAL = 1_000
"""Digits; no database has more, and a number such as 1e999999999 must not be written out."""
_WIDE = (pa.decimal128(20, 0), pa.decimal128(casts.WIDEST_DECIMAL, 0))
"""For whole numbers beyond bigint: into the first, a bigint column is widened."""
_ARRAY: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class JsonColumn:
    """`array` has type `arrow_type(node)`, but decimals are texts. `faults`: (row, detail) of tokens that `node` can't
    take; they are null in `array`."""

    node: Node
    array: pa.Array
    faults: Sequence[tuple[int, str]] = ()


def token_array(raw: Sequence[msgspec.Raw]) -> pa.Array:
    """Tokens as one array; null for the token `null`."""
    offsets = np.zeros(len(raw) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)), out=offsets[1:])
    data = b"".join(raw)
    absent = np.frombuffer(data, np.uint8)[offsets[:-1]] == ord("n") if data else np.zeros(0, bool)
    bitmap = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent.any() else None
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(raw), buffers)


class EventTokens:
    """The tokens of a column; null where an event has no such field, or null."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts
        starts = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts)]
        if texts.null_count:
            starts = starts[texts.is_valid().to_numpy(zero_copy_only=False)]
        data = texts.buffers()[2]
        bytes_ = np.frombuffer(data, np.uint8)[starts] if data and len(starts) else np.zeros(0, np.uint8)
        self.first = frozenset(np.flatnonzero(np.bincount(bytes_, minlength=256)).tolist())

    def unquoted(self) -> pa.Array:
        """Strings without quotes and escapes; all other tokens as they are."""
        if QUOTE not in self.first:
            return self.texts
        if pc.any(pc.match_substring(self.texts, "\\")).as_py():
            return _each(self.texts, pa.string(), unquoted)[0]
        inner = pc.utf8_slice_codeunits(self.texts, 1, -1)
        return inner if self.first == {QUOTE} else pc.if_else(pc.starts_with(self.texts, '"'), inner, self.texts)


def metadata_array(tokens: EventTokens) -> pa.Array:
    """Whole numbers, booleans and lists (of texts) as such, all else as text."""
    first, texts = tokens.first, tokens.texts
    if not first:
        return pa.nulls(len(texts))
    if first <= set(b"tf"):
        return pc.equal(texts, "true")
    if first <= DIGITS:
        try:
            return texts.cast(pa.int64())
        except pa.ArrowInvalid:
            return texts
    return _lists(texts) if first == {ord("[")} else tokens.unquoted()


def _lists(texts: pa.Array) -> pa.Array:
    """Lists such as `[1640410924408,1706664,"",0]`, each item as text."""
    inner = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(texts, 1, -1))
    if not pc.any(pc.or_(pc.equal(inner, ""), pc.match_substring_regex(inner, r"[\\\[{]"))).as_py():
        lists = pc.split_pattern(inner, ",")
        items = pc.utf8_trim_whitespace(lists.flatten())
        opened, closed = pc.starts_with(items, '"'), pc.ends_with(items, '"')
        if pc.all(pc.equal(opened, closed)).as_py() and not pc.any(pc.equal(items, '"')).as_py():
            bare = pc.if_else(pc.equal(items, "null"), pa.scalar(None, pa.string()), items)
            plain = pc.if_else(opened, pc.utf8_slice_codeunits(items, 1, -1), bare)
            return pa.ListArray.from_arrays(lists.offsets, plain, mask=texts.is_null() if texts.null_count else None)
    return _each(texts, pa.list_(pa.string()), _items)[0]  # with commas or escapes in it, or empty


def _items(token: str) -> list[str | None]:
    return [None if raw == "null" else unquoted(raw) for raw in (bytes(item).decode() for item in _ARRAY.decode(token))]


def by_tokens(tokens: EventTokens, reading: Reading) -> JsonColumn:
    """Without a schema: whole numbers are LONG, other numbers what the setting says, objects and lists their text.

    Where that is a float, whole numbers beyond LONG are decimals: a float would round them, and all beside them.
    Strings stay strings: a text that looks like a time may be one, or not, from one file to the next.
    """
    first = tokens.first
    if not first:
        return JsonColumn(NULL, pa.nulls(len(tokens.texts)))
    if first <= set(b"tf"):
        return JsonColumn(Scalar("boolean"), pc.equal(tokens.texts, "true"))
    if first == {QUOTE}:
        return JsonColumn(TEXT, tokens.unquoted())
    if first <= DIGITS:
        try:
            return JsonColumn(Scalar("long"), tokens.texts.cast(pa.int64()))
        except pa.ArrowInvalid:
            return _numbers(tokens.texts, reading)
    return JsonColumn(TEXT, tokens.unquoted())


def _numbers(texts: pa.Array, reading: Reading) -> JsonColumn:
    """Numbers of which not all are LONG."""
    number_type = casts.named_type(reading.json_numbers) or pa.string()
    name = reading.json_numbers
    if not pa.types.is_floating(number_type):
        array, bad = casts.cast(texts, number_type)
    elif pc.any(pc.match_substring_regex(texts, "[.eE]")).as_py():
        array, bad = _each(texts, number_type, _float)
    else:
        array, bad = _wide(texts)
        name, number_type = f"decimal({array.type.precision},0)", array.type
    return JsonColumn(_as_is(number_type), array, _faults(texts, bad, name))


def _wide(texts: pa.Array) -> casts.Cast:
    """Whole numbers; those of more than 38 digits are out of place."""
    try:
        return texts.cast(_WIDE[0]), None
    except pa.ArrowInvalid:
        return casts.cast(texts, _WIDE[1])


def _float(token: str) -> float:
    """Raises ValueError for a number that is beyond all floats, and for a whole one that a float would round."""
    number = float(token)
    is_whole = not set(".eE") & set(token)
    if math.isinf(number) or (is_whole and int(token) not in (int(number), Decimal(repr(number)))):
        raise ValueError(token)
    return number


def _as_is(kind: pa.DataType) -> Node:
    """A node without a logical type: the mapping gives such values on as they are."""
    return Scalar("double" if pa.types.is_floating(kind) else "string")


def by_node(node: Node, tokens: EventTokens, reading: Reading) -> JsonColumn:
    """With a schema: each token as the type says, its spelling one of those that are met."""
    inner = solid(node)
    if isinstance(inner, Scalar) and inner.kind == "null":
        return JsonColumn(node, pa.nulls(len(tokens.texts)))
    array, bad = _stored(inner, tokens, reading)
    return JsonColumn(node, array, _faults(tokens.texts, bad, _name(inner)))


def _faults(texts: pa.Array, bad: casts.Mask | None, type_name: str) -> list[tuple[int, str]]:
    if bad is None:
        return []
    return [(int(place), f"{str(texts[int(place)])[:80]} is no {type_name}") for place in np.flatnonzero(bad)]


def _name(node: Node) -> str:
    return (node.logical or node.kind) if isinstance(node, Scalar) else getattr(node, "name", "value")


def _stored(node: Node, tokens: EventTokens, reading: Reading) -> casts.Cast:
    texts = tokens.texts
    if not isinstance(node, Scalar):
        return _each(texts, arrow_type(node), _nested(node, reading))
    if node.logical == "json":
        return texts, None
    if node.kind in ("string", "enum"):
        return tokens.unquoted(), None
    if node.logical == "decimal":
        return tokens.unquoted(), None
    if node.kind == "boolean":
        plain = tokens.first <= set(b"tf")
        return (pc.equal(texts, "true"), None) if plain else _each(texts, pa.bool_(), _boolean)
    if node.kind in ("float", "double"):
        return _floats(tokens.unquoted(), arrow_type(node))
    if node.kind in ("bytes", "fixed"):
        return _each(texts, pa.binary(), _bytes(reading))
    if node.logical.startswith(("timestamp", "local-timestamp")):
        return _times(tokens, node)
    if node.logical.startswith(TEMPORAL):
        return _each(texts, arrow_type(node), temporal(node))
    return _fast(tokens.unquoted(), arrow_type(node), int)


def _fast(texts: pa.Array, kind: pa.DataType, convert: Callable[[str], Any]) -> casts.Cast:
    try:
        return texts.cast(kind), None
    except pa.ArrowInvalid:
        return _each(texts, kind, convert)


def _floats(texts: pa.Array, kind: pa.DataType) -> casts.Cast:
    """A number beyond all of the type has no place in it: Arrow and Python would make an infinity of it."""
    array, bad = _fast(texts, kind, _finite)
    spelled_out = pc.match_substring(texts, "inf", ignore_case=True)
    endless = pc.fill_null(pc.and_not(pc.is_inf(array), spelled_out), False)
    if not pc.any(endless).as_py():
        return array, bad
    mask = endless.to_numpy(zero_copy_only=False)
    return pc.if_else(endless, pa.scalar(None, kind), array), mask if bad is None else mask | bad


def _finite(text: str) -> float:
    """Raises ValueError for no number, and for one beyond all floats; `Infinity` is a value."""
    number = float(text)
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError(text)
    return number


def _times(tokens: EventTokens, node: Scalar) -> casts.Cast:
    divisor = UNITS[node.logical.rpartition("-")[2]]
    try:
        micros = pc.utf8_rtrim(tokens.unquoted(), "Z").cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:
        return _each(tokens.texts, pa.int64(), temporal(node))
    if divisor == 1:
        return micros, None
    if not divisor:
        return _each(micros, pa.int64(), lambda value: per_unit(value, divisor))
    values = micros.fill_null(0).to_numpy(zero_copy_only=False) // divisor
    return pa.array(values, mask=micros.is_null().to_numpy(zero_copy_only=False)), None


def _each(array: pa.Array, kind: pa.DataType, convert: Callable[[Any], Any]) -> casts.Cast:
    """Value by value; True in the mask, and null, where `convert` or the type refuses."""
    values: list[Any] = []
    bad = np.zeros(len(array), bool)
    for place, text in enumerate(array.to_pylist()):
        try:
            value = None if text is None else convert(text)
            pa.scalar(value, kind)
        except Exception:  # whatever a value does to its conversion is that value's fault
            value, bad[place] = None, True
        values.append(value)
    return pa.array(values, kind), bad if bad.any() else None


# -- single tokens -------------------------------------------------------------------------------------------


def _boolean(token: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False, '"true"': True, '"false"': False}[token]


def _bytes(reading: Reading) -> Callable[[str], bytes]:
    decode = casts.unbase64 if reading.json_bytes == "base64" else casts.unhex
    return lambda token: decode(unquoted(token))


def _unscaled(text: str, node: Scalar) -> bytes:
    """A decimal as avro stores it. Raises ValueError: no number, or one with digits that the scale has no place for."""
    number = Decimal(text)
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or abs(number.adjusted()) > LONGEST_DECIMAL:
        raise ValueError(text)
    size: int = int("".join(map(str, digits)))
    shift = exponent + node.scale
    size, remainder = (size * 10**shift, 0) if shift >= 0 else divmod(size, 10**-shift)
    if remainder:
        raise ValueError(text)
    size = -size if sign else size
    return int.to_bytes(size, size.bit_length() // 8 + 1, "big", signed=True)


def _scalar(node: Scalar, reading: Reading) -> Callable[[str], Any]:
    """From an unquoted text."""
    if node.kind in ("float", "double"):
        return _finite
    if node.kind == "boolean":
        return _boolean
    if node.logical == "decimal":
        return lambda text: _unscaled(text, node)
    if node.kind in ("bytes", "fixed"):
        return casts.unbase64 if reading.json_bytes == "base64" else casts.unhex
    return int if node.kind in ("int", "long") else str


def _nested(node: Node, reading: Reading) -> Callable[[str], Any]:
    """From a token, the value of a node that is no scalar."""
    if isinstance(node, Array):
        item = _value(node.items, reading)
        return lambda token: [item(bytes(raw).decode()) for raw in _ARRAY.decode(token)]
    if not isinstance(node, Record):
        return unquoted
    names = set(node.names)
    if is_nested_list(node):
        item = _value(node.field("elementValue") or NULL, reading)
        return lambda token: [item(raw) for raw in _leaves(token)]
    if node.name == "varchar" and "value" in names:
        return lambda token: {"value": unquoted(token)}
    if names == {"timestamp", "offset"}:
        return lambda token: dict(zip(("timestamp", "offset"), instant(unquoted(token)), strict=True))
    if names == {"date", "time"}:
        return lambda token: dict(zip(("date", "time"), divmod(micros_of(unquoted(token)), casts.DAY_US), strict=True))
    if names == {"time", "offset"}:
        return lambda token: dict(zip(("time", "offset"), clock(unquoted(token)), strict=True))
    if names == {"months", "hours", "micros"}:
        return lambda token: interval(unquoted(token))
    return _record(node, reading)


def _record(node: Record, reading: Reading) -> Callable[[str], Any]:
    loaders = {field.name: _value(field.node, reading) for field in node.fields}

    def record(token: str) -> dict[str, Any]:
        tokens = msgspec.json.decode(token, type=dict[str, msgspec.Raw])
        return {name: load(bytes(tokens[name]).decode()) if name in tokens else None for name, load in loaders.items()}

    return record


def _value(node: Node, reading: Reading) -> Callable[[str], Any]:
    inner = solid(node)
    if not isinstance(inner, Scalar):
        convert = _nested(inner, reading)
    elif inner.logical == "json":
        convert = str
    elif inner.logical.startswith(TEMPORAL):
        convert = temporal(inner)
    else:
        scalar = _scalar(inner, reading)
        convert = lambda token: scalar(unquoted(token))  # noqa: E731  # one of three forms of one thing
    return lambda token: None if token == "null" else convert(token)


def _leaves(token: str) -> list[str]:
    leaves: list[str] = []
    for raw in _ARRAY.decode(token):
        token_text = bytes(raw).decode()
        leaves += _leaves(token_text) if token_text.startswith("[") else [token_text]
    return leaves
