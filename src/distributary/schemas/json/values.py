"""Values of a JSON payload as they stand in it (tokens) to the values of a column, all rows at once.

Arrow's casts do what they can; a token that they refuse is looked at alone. None is changed: what its column cannot
hold is a misfit.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.schemas.json.nodes import Scalar, column_type
from distributary.schemas.json.numbers import as_double, as_integer

Mask = npt.NDArray[np.bool_]
Converted = tuple[Any, Mask | None]

ABSENT: Final = msgspec.Raw(b"")
"""In the place of a field that a record does not have."""
_QUOTE, _NULL = ord('"'), ord("n")
_NUMERIC: Final = np.isin(np.arange(256), [*b"-0123456789"])
_SHORT: Final = 15
"""So many digits any double holds."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.(?P<part>\d+))?)?([Zz]|[+-]\d\d(:?\d\d)?)?", re.ASCII
)
"""Python's own reader takes more, and of a comma's digits drops some without a word."""


class Tokens:
    """The tokens of a column. `texts`: null where there is none, or `null`; `first`: the first byte of each, else 0."""

    def __init__(self, raws: Sequence[msgspec.Raw]) -> None:
        offsets = np.zeros(len(raws) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, raws), np.int64, len(raws)), out=offsets[1:])
        data = b"".join(raws)
        codes = np.frombuffer(data + b"\0", np.uint8)
        self.first = np.where(np.diff(offsets) > 0, codes[offsets[:-1]], 0)
        self.first[self.first == _NULL] = 0
        self.is_escaped = b"\\" in data
        bitmap = None if self.first.all() else pa.py_buffer(np.packbits(self.first > 0, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
        self.texts = pa.Array.from_buffers(pa.string(), len(raws), buffers)


def values(node: Scalar, raws: Sequence[msgspec.Raw]) -> Converted:
    """The column of some tokens (null for a misfit), and which are misfits (None: none)."""
    tokens = Tokens(raws)
    if node.kind == "json":
        return tokens.texts, None
    if node.kind == "word":
        return _words(tokens), None
    if node.kind == "boolean":
        return _of_kind(tokens, np.isin(tokens.first, [ord("t"), ord("f")]), lambda texts: pc.equal(texts, "true"))
    if node.kind == "string":
        return _of_kind(tokens, tokens.first == _QUOTE, lambda texts: _unquoted(texts, tokens.is_escaped))
    if node.kind in ("bigint", "double", "decimal"):
        texts, wrong = _only(tokens.texts, tokens.first, _NUMERIC[tokens.first])
        array, misfits = _doubles(texts) if node.kind == "double" else _numbers(node, texts)
        return array, _either(wrong, misfits)
    texts, wrong = _only(tokens.texts, tokens.first, tokens.first == _QUOTE)
    array, misfits = _said(node, _unquoted(texts, tokens.is_escaped))
    return array, _either(wrong, misfits)


def _of_kind(tokens: Tokens, fit: Mask, make: Callable[[Any], Any]) -> Converted:
    texts, wrong = _only(tokens.texts, tokens.first, fit)
    return make(texts), wrong


def _only(texts: Any, first: Any, fit: Mask) -> Converted:
    """The tokens that are of the right kind, and which others there are."""
    wrong: Mask = ~fit & (first > 0)
    if not wrong.any():
        return texts, None
    return pc.if_else(pa.array(wrong), pa.scalar(None, pa.string()), texts), wrong


def _either(left: Mask | None, right: Mask | None) -> Mask | None:
    return right if left is None else left if right is None else left | right


def _unquoted(texts: Any, is_escaped: bool) -> Any:
    """Texts without quotes and escapes."""
    inner = pc.binary_slice(texts.view(pa.binary()), 1, -1).view(pa.string())
    if not is_escaped:
        return inner
    escaped = pc.fill_null(pc.match_substring(texts, "\\"), False)
    unescaped = [msgspec.json.decode(text, type=str) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(inner, escaped, pa.array(unescaped, pa.string()))


def _words(tokens: Tokens) -> Any:
    """Texts, whole numbers and truth values as text; null for all else."""
    texts, _ = _only(tokens.texts, tokens.first, tokens.first == _QUOTE)
    words = _unquoted(texts, tokens.is_escaped)
    if words.null_count == tokens.texts.null_count:
        return words
    plain = pc.match_substring_regex(tokens.texts, r"^(-?[0-9]+|true|false)$")
    return pc.if_else(pc.fill_null(plain, False), tokens.texts, words)


def _numbers(node: Scalar, texts: Any) -> Converted:
    """Whole numbers and decimals."""
    kind = column_type(node)
    try:
        if node.kind == "bigint":
            return texts.cast(kind), None
    except pa.ArrowInvalid:
        pass
    return _each(texts, kind, as_integer if node.kind == "bigint" else lambda text: _decimal(node, text))


def _doubles(texts: Any) -> Converted:
    """A double is right that is spelled as the token is, or that has few digits. Others are looked at."""
    doubles = texts.cast(pa.float64())
    doubtful = pc.fill_null(pc.not_equal(doubles.cast(pa.string()), texts), False)
    if not doubtful.true_count:
        return doubles, None
    doubtful_places = np.flatnonzero(doubtful)
    some = texts.take(pa.array(doubtful_places))
    digits = pc.binary_length(pc.replace_substring_regex(some, r"[eE].*|[-.]", ""))
    far = pc.match_substring_regex(some, r"[eE]-|[eE]\+?[0-9]{3}|^-?0\.0000")
    simple = pc.and_not(pc.less_equal(digits, _SHORT), far)
    doubtful_places = doubtful_places[~np.asarray(simple)]
    misfits = np.zeros(len(texts), bool)
    misfits[doubtful_places] = [as_double(text) is None for text in texts.take(pa.array(doubtful_places)).to_pylist()]
    if not misfits.any():
        return doubles, None
    return pc.if_else(pa.array(misfits), pa.scalar(None, pa.float64()), doubles), misfits


def _decimal(node: Scalar, text: str) -> Decimal | None:
    number = Decimal(text)
    if not number:
        return Decimal(0)
    sign, digits, exponent = number.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    exponent = int(exponent) + len(digits) - len(significant)
    if -exponent > node.scale or len(significant) + exponent > node.precision - node.scale:
        return None
    return Decimal((sign, tuple(map(int, significant)), exponent))


def _said(node: Scalar, texts: Any) -> Converted:
    """Texts that say something else: a day, a time, bytes."""
    if node.kind == "binary":
        return _each(texts, pa.binary(), lambda text: base64.b64decode(text, validate=True))
    kind = column_type(node)
    return _each(texts, kind, _READ[node.kind])


def _day(text: str) -> date | None:
    return date.fromisoformat(text) if _DAY.fullmatch(text) else None


def _moment(text: str) -> datetime | None:
    time = _clock(text)
    return None if time is None or time.tzinfo is None else time.astimezone(UTC)


def _local(text: str) -> datetime | None:
    time = _clock(text)
    return None if time is None or time.tzinfo is not None else time


def _clock(text: str) -> datetime | None:
    """A day and a time to microseconds; what is finer would be lost."""
    match = _CLOCK.fullmatch(text)
    if match is None or (match["part"] or "")[6:].strip("0"):
        return None
    return datetime.fromisoformat(text.upper())


_READ: Final[dict[str, Callable[[str], Any]]] = {"date": _day, "timestamp": _moment, "timestamp_ntz": _local}


def _each(texts: Any, kind: Any, parse: Callable[[str], Any]) -> Converted:
    """Values one by one; `parse` gives None, or raises, for a misfit."""
    parsed: list[Any] = []
    misfits = np.zeros(len(texts), bool)
    for place, text in enumerate(texts.to_pylist()):
        try:
            value = None if text is None else parse(text)
        except (ValueError, ArithmeticError):
            value = None
        misfits[place] = value is None and text is not None
        parsed.append(value)
    return pa.array(parsed, kind), misfits if misfits.any() else None
