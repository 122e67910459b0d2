"""JSON records to columns by Arrow's own reader, all at once, as far as that one can be trusted.

It is twice as fast as cutting records into tokens. But it takes several objects for several records, knows NaN, ends
the process at a record that is no object, rounds numbers in silence, checks no UTF-8, and one record that does not
fit spoils all. So msgspec checks each record before, which costs little; numbers of many digits are compared
afterwards; and what it refuses is left to the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from distributary.schemas.json.nodes import Array, Field, Node, Record, Scalar, Tree, column_type
from distributary.schemas.json.numbers import as_double

__all__ = ["FastReader", "Vouched", "plain_fields"]

FEW: Final = 64
"""So many records are not halved any more to find the one that does not fit."""
MOST_FAILURES: Final = 12
"""Records of a part that may not fit; with more, the tokens are faster."""
LONG: Final = 16
"""Characters of a number from which on a double may not hold it."""
_KINDS: Final = frozenset({"bigint", "double", "boolean", "string"})
_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")
_NUMERIC: Final = bytes(code in b"0123456789.+-eE" for code in range(256))
_DIGIT: Final = np.isin(np.arange(256), [*b"0123456789"])
_NUMBER: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_ROUND: Final = 1e15
_OBJECT: Final = msgspec.json.Decoder(msgspec.defstruct("Anything", []))
_BAD = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

Vouched = list[tuple[list[Any], Any]]
"""Columns of the fields, and the places of their records."""


def plain_fields(tree: Tree) -> tuple[Field, ...]:
    """The fields that this reader can read."""
    return (
        ()
        if tree.is_whole or tree.is_part
        else tuple(f for f in tree.record.fields if f.only is None and _is_plain(f.node))
    )


def _is_plain(node: Node) -> bool:
    if isinstance(node, Scalar):
        return node.kind in _KINDS
    if isinstance(node, Array):
        return _is_plain(node.items)
    if not isinstance(node, Record):
        return False
    names = [field.name for field in node.fields]
    return [f.name for f in column_type(node)] == names and all(_is_plain(field.node) for field in node.fields)


class FastReader:
    """Reads some fields of records. `is_strict`: it does not vouch for a record that has others."""

    def __init__(self, fields: Sequence[Field], *, is_strict: bool) -> None:
        self._schema = pa.schema([pa.field(f.name, column_type(f.node)) for f in fields])
        self._has_doubles = any(_has_double(field.node) for field in fields)
        self._others = "error" if is_strict else "ignore"

    def read(self, bodies: Sequence[bytes], bad: Any) -> Vouched:
        """Columns of the records that it vouches for. `bad`: those that need not be looked at."""
        good = [place for place, body in enumerate(bodies) if not bad[place] and _is_object(body)]
        return self.read_objects([bodies[place] for place in good], np.array(good, np.int64))

    def read_objects(self, bodies: Sequence[bytes], places: Any) -> Vouched:
        """As `read`, of records that are one object each. `places`: their places."""
        vouched: Vouched = []
        self._read(bodies, places, vouched, [MOST_FAILURES])
        return vouched

    def _read(self, bodies: Sequence[bytes], places: Any, vouched: Vouched, failures: list[int]) -> None:
        if not bodies or not failures[0]:
            return
        try:
            text = _joined(bodies)
            table = self._table(text)
        except pa.ArrowInvalid:
            if len(bodies) <= FEW:
                failures[0] -= 1
                return
            middle = len(bodies) // 2
            self._read(bodies[:middle], places[:middle], vouched, failures)
            self._read(bodies[middle:], places[middle:], vouched, failures)
            return
        if len(table) != len(bodies):
            return
        rows = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=self._schema)
        if self._has_doubles and len(doubtful := self._doubtful(text, rows)):
            keep = np.ones(len(rows), bool)
            keep[doubtful] = False
            rows, places = rows.filter(pa.array(keep)), places[keep]
        vouched.append((rows.columns, places))

    def _table(self, text: bytes) -> pa.Table:
        return pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=self._schema, unexpected_field_behavior=self._others, newlines_in_values=False
            ),
        )

    def _doubtful(self, text: bytes, rows: pa.RecordBatch) -> Any:
        """Records with a number that a double might not hold: one that is long, or next to nothing."""
        codes = np.frombuffer(text, np.uint8)
        is_numeric = np.frombuffer(text.translate(_NUMERIC), np.bool_)
        edges = np.flatnonzero(is_numeric[1:] != is_numeric[:-1]) + 1
        if is_numeric[0]:
            edges = np.concatenate([[0], edges])
        if is_numeric[-1]:
            edges = np.concatenate([edges, [len(codes)]])
        begins, ends = edges[::2], edges[1::2]
        # A text in quotes is no number, and nor is what begins with a letter.
        long = (ends - begins >= LONG) & (codes[begins - 1] != ord('"'))
        wrong = _inexact(text, codes, begins[long], ends[long], _is_large(rows))
        places = np.concatenate([wrong, _tiny(text, codes)])
        if not len(places):
            return places
        lines = np.flatnonzero(codes == ord("\n"))
        return np.unique(np.searchsorted(lines, places))


def _joined(bodies: Sequence[bytes]) -> bytes:
    """A record a line: in one that is right, the end of a line is white space."""
    text = b"\n".join(bodies)
    if text.count(b"\n") == len(bodies) - 1 and b"\r" not in text:
        return text
    return b"\n".join([body.translate(_SPACES) for body in bodies])


def _is_object(body: bytes) -> bool:
    try:
        _OBJECT.decode(body)
    except _BAD:
        return False
    return True


def _has_double(node: Node) -> bool:
    if isinstance(node, Record):
        return any(_has_double(field.node) for field in node.fields)
    if isinstance(node, Array):
        return _has_double(node.items)
    return isinstance(node, Scalar) and node.kind == "double"


def _tiny(text: bytes, codes: Any) -> Any:
    """Where an exponent is -100 or less."""
    if b"e-" not in text and b"E-" not in text:
        return np.zeros(0, np.int64)
    exponents = np.flatnonzero(((codes[:-4] | 0x20) == ord("e")) & (codes[1:-3] == ord("-")))
    return exponents[_DIGIT[codes[exponents + 2]] & _DIGIT[codes[exponents + 3]] & _DIGIT[codes[exponents + 4]]]


def _is_large(rows: pa.RecordBatch) -> bool:
    """Is there a double that may have been a whole number of 16 digits or more?"""
    return any(_largest(column) >= _ROUND for column in rows.columns)


def _largest(array: Any) -> float:
    kind = array.type
    if pa.types.is_struct(kind):
        return max((_largest(child) for child in array.flatten()), default=0)
    if pa.types.is_list(kind):
        return _largest(array.flatten())
    if not pa.types.is_floating(kind):
        return 0
    ends = pc.min_max(array).as_py()
    return float(max(abs(ends["min"] or 0), abs(ends["max"] or 0)))


def _inexact(text: bytes, codes: Any, begins: Any, ends: Any, has_large: bool) -> Any:
    """Where the numbers begin that no double holds as they are written."""
    if not len(begins):
        return begins
    sizes = ends - begins
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    picked = codes[np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])]
    tokens = pa.Array.from_buffers(
        pa.string(), len(begins), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(picked)]
    )
    is_number = np.asarray(pc.match_substring_regex(tokens, _NUMBER))
    wrong = ~is_number
    number_places = np.flatnonzero(is_number)
    numbers = tokens.take(pa.array(number_places))
    same = pc.equal(numbers.cast(pa.float64()).cast(pa.string()), numbers)
    if not has_large:  # then whole numbers are those of a bigint, which holds them or refuses them
        same = pc.or_(same, pc.match_substring_regex(numbers, r"^-?[0-9]+$"))
    not_printed_so = np.flatnonzero(~np.asarray(same))
    wrong[number_places[not_printed_so]] = [
        as_double(token) is None for token in numbers.take(pa.array(not_printed_so)).to_pylist()
    ]
    return begins[wrong]
