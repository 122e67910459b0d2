"""A column of JSON tokens to an Arrow array of what avro would have stored.

So one mapping, `types.column`, serves both formats. A token is a value as it stands in the file: `2.50`, `"a\\nb"`,
`{"x": 1}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributary.datastream import casts
from distributary.datastream.avro_columns import arrow_type, is_nested_list
from distributary.datastream.avro_schema import NULL, Array, Node, Record, Scalar, solid
from distributary.datastream.model import Reading

TEXT = Scalar("string")
QUOTE = ord('"')
DIGITS = frozenset(b"-0123456789")
UNITS = {"millis": 1_000, "micros": 1, "nanos": 0}
CLOCK = re.compile(r"(-?)(\d+):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d)?)?$")
INTERVAL = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<years>-?\d+)Y)?(?:(?P<months>-?\d+)M)?(?:(?P<weeks>-?\d+)W)?(?:(?P<days>-?\d+)D)?"
    r"(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?(?:(?P<seconds>-?\d+(?:\.\d+)?)S)?)?$"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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


class Tokens:
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
            return _each(self.texts, pa.string(), _unquoted)[0]
        inner = pc.utf8_slice_codeunits(self.texts, 1, -1)
        return inner if self.first == {QUOTE} else pc.if_else(pc.starts_with(self.texts, '"'), inner, self.texts)


def metadata_array(tokens: Tokens) -> pa.Array:
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
    return [None if raw == "null" else _unquoted(raw) for raw in (bytes(one).decode() for one in _ARRAY.decode(token))]


def by_tokens(tokens: Tokens, reading: Reading) -> JsonColumn:
    """Without a schema: whole numbers are LONG, other numbers what the setting says, objects and lists their text.

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
            wanted = casts.named_type(reading.json_numbers) or pa.string()
            array, bad = casts.cast(tokens.texts, wanted)
            return JsonColumn(_as_is(wanted), array, _faults(tokens.texts, bad, reading.json_numbers))
    return JsonColumn(TEXT, tokens.unquoted())


def _as_is(kind: pa.DataType) -> Node:
    """A node without a logical type: the mapping gives such values on as they are."""
    return Scalar("double" if pa.types.is_floating(kind) else "string")


def by_node(node: Node, tokens: Tokens, reading: Reading) -> JsonColumn:
    """With a schema: each token as the type says, its spelling one of those that are met."""
    inner = solid(node)
    if isinstance(inner, Scalar) and inner.kind == "null":
        return JsonColumn(node, pa.nulls(len(tokens.texts)))
    array, bad = _stored(inner, tokens, reading)
    return JsonColumn(node, array, _faults(tokens.texts, bad, _name(inner)))


def _faults(texts: pa.Array, bad: casts.Mask | None, what: str) -> list[tuple[int, str]]:
    if bad is None:
        return []
    return [(int(place), f"{str(texts[int(place)])[:80]} is no {what}") for place in np.flatnonzero(bad)]


def _name(node: Node) -> str:
    return (node.logical or node.kind) if isinstance(node, Scalar) else getattr(node, "name", "value")


def _stored(node: Node, tokens: Tokens, reading: Reading) -> casts.Cast:
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
        return _fast(tokens.unquoted(), arrow_type(node), float)
    if node.kind in ("bytes", "fixed"):
        return _each(texts, pa.binary(), _bytes(reading))
    if node.logical.startswith(("timestamp", "local-timestamp")):
        return _times(tokens.unquoted(), node)
    if node.logical in ("date", "time-millis", "time-micros", "time-interval-micros"):
        return _each(tokens.unquoted(), arrow_type(node), _scalar(node, reading))
    return _fast(tokens.unquoted(), arrow_type(node), int)


def _fast(texts: pa.Array, kind: pa.DataType, convert: Callable[[str], Any]) -> casts.Cast:
    try:
        return texts.cast(kind), None
    except pa.ArrowInvalid:
        return _each(texts, kind, convert)


def _times(texts: pa.Array, node: Scalar) -> casts.Cast:
    divisor = UNITS[node.logical.rpartition("-")[2]]
    try:
        micros = pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:
        return _each(texts, pa.int64(), lambda text: _per_unit(_micros(text), divisor))
    if divisor == 1:
        return micros, None
    values = micros.fill_null(0).to_numpy(zero_copy_only=False)
    values = values // divisor if divisor else values * 1000
    return pa.array(values, mask=micros.is_null().to_numpy(zero_copy_only=False)), None


def _per_unit(micros: int, divisor: int) -> int:
    return micros // divisor if divisor else micros * 1000


def _each(array: pa.Array, kind: pa.DataType, convert: Callable[[str], Any]) -> casts.Cast:
    """Value by value; True in the mask, and null, where `convert` or the type refuses."""
    values: list[Any] = []
    bad = np.zeros(len(array), bool)
    for place, text in enumerate(array.to_pylist()):
        try:
            value = None if text is None else convert(text)
            pa.scalar(value, kind)
        except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError, pa.ArrowInvalid, msgspec.DecodeError):
            value, bad[place] = None, True
        values.append(value)
    return pa.array(values, kind), bad if bad.any() else None


# -- single tokens -------------------------------------------------------------------------------------------


def _unquoted(token: str) -> str:
    return str(json.loads(token)) if token.startswith('"') else token


def _boolean(token: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False, '"true"': True, '"false"': False}[token]


def _bytes(reading: Reading) -> Callable[[str], bytes]:
    decode = casts.unbase64 if reading.json_bytes == "base64" else casts.unhex
    return lambda token: decode(_unquoted(token))


def _scalar(node: Scalar, reading: Reading) -> Callable[[str], Any]:
    """From an unquoted text."""
    if node.logical == "date":
        return lambda text: int(text) if _is_number(text) else _days(text)
    if node.logical.startswith("time-"):
        divisor = UNITS[node.logical.rpartition("-")[2]]
        return lambda text: int(text) if _is_number(text) else _clock(text)[0] // divisor
    if node.logical.startswith(("timestamp", "local-timestamp")):
        divisor = UNITS[node.logical.rpartition("-")[2]]
        return lambda text: _per_unit(_micros(text), divisor)
    if node.kind in ("float", "double"):
        return float
    if node.kind == "boolean":
        return _boolean
    if node.kind in ("bytes", "fixed"):
        return casts.unbase64 if reading.json_bytes == "base64" else casts.unhex
    return int if node.kind in ("int", "long") else str


def _nested(node: Node, reading: Reading) -> Callable[[str], Any]:
    """From a token, the value of a node that is no scalar."""
    if isinstance(node, Array):
        item = _value(node.items, reading)
        return lambda token: [item(bytes(one).decode()) for one in _ARRAY.decode(token)]
    if not isinstance(node, Record):
        return _unquoted
    names = set(node.names)
    if is_nested_list(node):
        item = _value(node.field("elementValue") or NULL, reading)
        return lambda token: [item(one) for one in _leaves(token)]
    if node.name == "varchar" and "value" in names:
        return lambda token: {"value": _unquoted(token)}
    if names == {"timestamp", "offset"}:
        return lambda token: dict(zip(("timestamp", "offset"), _instant(_unquoted(token)), strict=True))
    if names == {"date", "time"}:
        return lambda token: dict(zip(("date", "time"), divmod(_micros(_unquoted(token)), casts.DAY_US), strict=True))
    if names == {"time", "offset"}:
        return lambda token: dict(zip(("time", "offset"), _clock(_unquoted(token)), strict=True))
    if names == {"months", "hours", "micros"}:
        return lambda token: _interval(_unquoted(token))
    return _record(node, reading)


def _record(node: Record, reading: Reading) -> Callable[[str], Any]:
    parts = {field.name: _value(field.node, reading) for field in node.fields}

    def record(token: str) -> dict[str, Any]:
        found = msgspec.json.decode(token, type=dict[str, msgspec.Raw])
        return {name: part(bytes(found[name]).decode()) if name in found else None for name, part in parts.items()}

    return record


def _value(node: Node, reading: Reading) -> Callable[[str], Any]:
    inner = solid(node)
    if not isinstance(inner, Scalar):
        convert = _nested(inner, reading)
    elif inner.logical == "json":
        convert = str
    else:
        scalar = _scalar(inner, reading)
        convert = lambda token: scalar(_unquoted(token))  # noqa: E731  # one of three forms of one thing
    return lambda token: None if token == "null" else convert(token)


def _leaves(token: str) -> list[str]:
    leaves: list[str] = []
    for raw in _ARRAY.decode(token):
        one = bytes(raw).decode()
        leaves += _leaves(one) if one.startswith("[") else [one]
    return leaves


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _days(text: str) -> int:
    return _micros(text) // casts.DAY_US


def _micros(text: str) -> int:
    return _instant(text)[0]


def _instant(text: str) -> tuple[int, int]:
    """Microseconds in UTC and the offset in ms; PostgreSQL's infinities as avro has them."""
    if _is_number(text):
        return int(text), 0
    if text in ("infinity", "-infinity"):
        return (casts.LAST_US if text == "infinity" else casts.FIRST_US), 0
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:  # years that Python does not have
        return int(np.datetime64(text.strip().removesuffix("Z"), "us").astype(np.int64)), 0
    offset = moment.utcoffset() or timedelta()
    micros = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
    return micros // timedelta(microseconds=1), offset // timedelta(milliseconds=1)


def _clock(text: str) -> tuple[int, int]:
    """Microseconds and the offset in ms of `07:05:00.25`, `-838:59:59`, `07:05:00+01:00`."""
    found = CLOCK.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    sign, hours, minutes, seconds, fraction, zone = found.groups()
    micros = (int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)) * 1_000_000
    micros += int((fraction or "0")[:6].ljust(6, "0"))
    offset = 0
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 60 + int(digits[2:])) * 60_000 * (-1 if zone[0] == "-" else 1)
    return (-micros if sign else micros), offset


def _interval(text: str) -> dict[str, int]:
    found = INTERVAL.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    part = {name: value or "0" for name, value in found.groupdict().items() if name != "sign"}
    sign = -1 if found["sign"] == "-" else 1
    whole, _, fraction = part["seconds"].lstrip("-").partition(".")
    micros = int(whole) * 1_000_000 + int(fraction[:6].ljust(6, "0") or 0)
    micros = -micros if part["seconds"].startswith("-") else micros
    days = int(part["weeks"]) * 7 + int(part["days"])
    return {
        "months": sign * (int(part["years"]) * 12 + int(part["months"])),
        "hours": sign * (days * 24 + int(part["hours"])),
        "micros": sign * (int(part["minutes"]) * 60_000_000 + micros),
    }
