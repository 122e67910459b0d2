"""JSON payloads to Arrow.

A parser that makes numbers of numbers loses digits, and one that reads all records as one text lets a bad one spoil its
neighbours. So a record is only cut into its tokens, its values as they stand, which msgspec does (and checks the whole
of it: a record is good or bad by itself); then the tokens of a column, of all records at once, become its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from distributary.errors import Reason
from distributary.names import shown
from distributary.schemas.decoding import Rejected, Split
from distributary.schemas.json.fast import fast_reader
from distributary.schemas.json.nodes import VALUE, Array, Field, Map, Node, Record, Scalar, Tree, column_type
from distributary.schemas.json.values import ABSENT, values

AT_ONCE: Final = 16_384
"""Records that Arrow's reader gets at a time."""
CUT_AT_ONCE: Final = 4_096
"""Records that are cut at a time: a great many small objects slow Python down."""
DEEPEST: Final = 64
"""Objects and lists inside each other in a record."""
BOM: Final = b"\xef\xbb\xbf"
NULL: Final = msgspec.Raw(b"null")
SHOWN: Final = 60

Object = dict[str, msgspec.Raw]
_OBJECT: Final[msgspec.json.Decoder[Object]] = msgspec.json.Decoder(Object)
_PERHAPS: Final[msgspec.json.Decoder[Object | None]] = msgspec.json.Decoder(Object | None)
_LIST: Final[msgspec.json.Decoder[list[msgspec.Raw] | None]] = msgspec.json.Decoder(list[msgspec.Raw] | None)
_ANY: Final[msgspec.json.Decoder[msgspec.Raw]] = msgspec.json.Decoder(msgspec.Raw)
_BAD = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class JsonDecoder:
    """Decodes the records of one tree."""

    engine = "json"

    def __init__(self, tree: Tree) -> None:
        self._tree, self._fast = tree, fast_reader(tree)
        self.full_name = tree.full_name
        self.columns = tree.columns

    def decode(self, payloads: pa.BinaryArray) -> Split:
        """Decode records without header; there are no nulls."""
        batches: list[pa.RecordBatch] = []
        places: list[Any] = []
        rejected: list[Rejected] = []
        for begin in range(0, len(payloads), AT_ONCE):
            self._decode(payloads.slice(begin, AT_ONCE), begin, batches, places, rejected)
        if not batches:
            return Split(pa.RecordBatch.from_pylist([], self.columns), None, [])
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        order = np.concatenate(places)
        if (np.diff(order) < 0).any():
            ranks = np.argsort(order)
            rows, order = rows.take(pa.array(ranks)), order[ranks]
        return Split(rows, pa.array(order, pa.int64()) if rejected else None, rejected)

    def _decode(
        self, payloads: pa.BinaryArray, begin: int, batches: list[Any], places: list[Any], rejected: list[Rejected]
    ) -> None:
        """Some records: by Arrow's reader those for which that one vouches, by their tokens the others."""
        bodies, bad = payloads.to_pylist(), _no_text(payloads)
        left = np.arange(len(bodies))
        if self._fast is not None:
            for rows, at in self._fast.read(bodies, bad):
                batches.append(rows)
                places.append(begin + at)
                left = np.setdiff1d(left, at, assume_unique=True)
        for first in range(0, len(left), CUT_AT_ONCE):
            some = left[first : first + CUT_AT_ONCE]
            part = _Part(self._tree, [bodies[place] for place in some], bad[some])
            batches.append(part.batch(self.columns))
            places.append(begin + some[~part.bad])
            for place in np.flatnonzero(part.bad).tolist():
                rejected.append(Rejected(begin + int(some[place]), Reason.CORRUPT_PAYLOAD, part.why(place)))


class _Part:
    """Some records side by side."""

    def __init__(self, tree: Tree, bodies: Sequence[bytes], bad: Any) -> None:
        self._tree, self._bodies, self.bad = tree, bodies, bad | _too_deep(bodies)
        self._words: dict[int, str] = {}
        self._more: dict[int, Object] = {}
        """What is not declared, by record and by its place in it."""
        self._walked: set[int] = set()
        """Records in which something below the top is not declared."""

    def batch(self, columns: pa.Schema) -> pa.RecordBatch:
        """The good records as rows."""
        objects, rows = self._objects()
        arrays = self._fields(self._tree.record.fields, objects, rows, is_top=True)
        if self._tree.has_undeclared:
            arrays.append(self._undeclared(objects, rows))
        good = ~self.bad[rows]
        found = pa.RecordBatch.from_arrays(arrays, schema=columns)
        return found if good.all() else found.filter(pa.array(good))

    def why(self, place: int) -> str:
        """In words why a record is bad."""
        body = self._bodies[place]
        if place not in self._words:
            self._words[place] = _why(self._tree, body)
        return self._words[place]

    def _objects(self) -> tuple[list[Object], Any]:
        """The records that are objects, and which they are."""
        found: list[Object] = []
        rows: list[int] = []
        whole = self._tree.is_whole
        for place, body in enumerate(self._bodies):
            if self.bad[place]:
                continue
            try:
                found.append(_object(body, whole))
            except _BAD as error:
                self.bad[place] = True
                self._words[place] = _words(error)
            else:
                rows.append(place)
        return found, np.array(rows, np.int64)

    def _fields(self, fields: Sequence[Field], objects: Sequence[Object], rows: Any, *, is_top: bool) -> list[Any]:
        """The columns of some objects. `rows`: the record of each."""
        arrays = []
        if self._tree.is_part:
            return [self._column(f.node, [one.get(f.name, ABSENT) for one in objects], rows) for f in fields]
        known = np.zeros(len(objects), np.int64)
        for field in fields:
            raws = [one.get(field.name, ABSENT) for one in objects]
            known += np.fromiter(map(len, raws), np.int64, len(raws)) > 0
            arrays.append(self._column(field.node, raws, rows))
        more = np.flatnonzero(np.fromiter(map(len, objects), np.int64, len(objects)) > known)
        if not is_top:
            self._walked.update(rows[more].tolist())
            return arrays
        names = frozenset(field.name for field in fields)
        for place in more.tolist():
            one = objects[place]
            self._more[int(rows[place])] = {_step(name): one[name] for name in one if name not in names}
        return arrays

    def _column(self, node: Node, raws: Sequence[msgspec.Raw], rows: Any) -> Any:
        """The column of some tokens; where one does not fit, its record is bad."""
        if isinstance(node, Scalar):
            array, misfits = values(node, raws)
            if misfits is not None:
                self.bad[rows[misfits]] = True
            return array
        if isinstance(node, Array):
            return self._list(node, raws, rows)
        objects = [self._cut(_PERHAPS, raw, row) for raw, row in zip(raws, rows.tolist(), strict=True)]
        there = np.fromiter((one is not None for one in objects), bool, len(objects))
        if isinstance(node, Map):
            return self._map(node, objects, there, rows)
        arrays = self._fields(node.fields, [one or {} for one in objects], rows, is_top=False)
        mask = None if there.all() else pa.array(~there)
        return pa.StructArray.from_arrays(arrays, fields=list(column_type(node)), mask=mask)

    def _cut(self, decoder: Any, raw: msgspec.Raw, row: int) -> Any:
        if not len(raw):
            return None
        try:
            return decoder.decode(raw)
        except _BAD:
            self.bad[row] = True
            return None

    def _list(self, node: Array, raws: Sequence[msgspec.Raw], rows: Any) -> Any:
        lists = [self._cut(_LIST, raw, row) for raw, row in zip(raws, rows.tolist(), strict=True)]
        sizes = np.fromiter((len(one) if one else 0 for one in lists), np.int64, len(lists))
        items = self._column(node.items, list(chain.from_iterable(one or () for one in lists)), np.repeat(rows, sizes))
        mask = _nulls(lists)
        return pa.ListArray.from_arrays(_offsets(sizes), items, type=column_type(node), mask=mask)

    def _map(self, node: Map, objects: Sequence[Object | None], there: Any, rows: Any) -> Any:
        sizes = np.fromiter((len(one) if one else 0 for one in objects), np.int64, len(objects))
        keys = pa.array(list(chain.from_iterable(one or () for one in objects)), pa.string())
        raws = list(chain.from_iterable((one or {}).values() for one in objects))
        items = self._column(node.values, raws, np.repeat(rows, sizes))
        mask = None if there.all() else pa.array(~there)
        return pa.MapArray.from_arrays(_offsets(sizes), keys, items, type=column_type(node), mask=mask)

    def _undeclared(self, objects: Sequence[Object], rows: Any) -> Any:
        at = {int(row): place for place, row in enumerate(rows)} if self._walked else {}
        for row in self._walked:
            if not self.bad[row]:
                found = dict(_strangers(self._tree.record, objects[at[row]], ""))
                self._more[row] = self._more.get(row, {}) | found
        if not self._more:
            return pa.nulls(len(rows), pa.string())
        encode = msgspec.json.encode
        texts = [encode(self._more[row]) if row in self._more else None for row in rows.tolist()]
        return pa.array(texts, pa.binary()).cast(pa.string())


def _object(body: bytes, is_whole: bool) -> Object:
    """A record cut into its fields. Raises `_BAD`."""
    if body[:1] == BOM[:1]:
        body = body.removeprefix(BOM)
    return {VALUE: _ANY.decode(body)} if is_whole else _OBJECT.decode(body)


def _offsets(sizes: Any) -> Any:
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), pa.int32())


def _nulls(found: Sequence[Any]) -> Any:
    gone = np.fromiter((one is None for one in found), bool, len(found))
    return pa.array(gone) if gone.any() else None


def _no_text(payloads: pa.BinaryArray) -> Any:
    """Which records are no UTF-8, which msgspec does not see."""
    bad = np.zeros(len(payloads), bool)
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        bad[:] = [not _is_text(body) for body in payloads.to_pylist()]
    return bad


def _too_deep(bodies: Sequence[bytes]) -> Any:
    """Which records are nested too deep: msgspec goes as deep as its caller's stack lets it."""
    found = (body.count(b"{") + body.count(b"[") > DEEPEST and _depth(body) > DEEPEST for body in bodies)
    return np.fromiter(found, bool, len(bodies))


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _depth(body: bytes) -> int:
    """How deep brackets are nested, those in texts left out."""
    depth = deepest = 0
    is_text = is_escaped = False
    for code in body:
        if is_text:
            is_text, is_escaped = is_escaped or code != 0x22, not is_escaped and code == 0x5C
        elif code == 0x22:
            is_text = True
        elif code in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif code in b"}]":
            depth -= 1
    return deepest


# -- one record, in words ---------------------------------------------------------------------------------------


def _words(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return f"it is no JSON object: {error}"


def _why(tree: Tree, body: bytes) -> str:
    if not _is_text(body):
        return "it is not UTF-8"
    if _depth(body) > DEEPEST:
        return f"it is nested more than {DEEPEST} levels deep"
    for pointer, raw, node in _misfits(tree.record, _object(body, tree.is_whole), ""):
        said = shown(bytes(raw).decode())
        said = said if len(said) <= SHOWN else f"{said[:SHOWN]}..."
        return f"{'' if tree.is_whole and pointer == '/value' else pointer + ': '}{said} is no {_kind(node)}"
    return "a value does not fit its type"


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        if node.kind == "double":
            return "number that a double holds"
        return f"decimal({node.precision},{node.scale})" if node.kind == "decimal" else node.kind
    return "list" if isinstance(node, Array) else "object"


def _misfits(record: Record, one: Object, prefix: str) -> Iterator[tuple[str, msgspec.Raw, Node]]:
    """(JSON pointer, token, what should be there) of all values that do not fit."""
    for field in record.fields:
        yield from _misfits_of(field.node, one.get(field.name, NULL), f"{prefix}/{_step(field.name)}")


def _misfits_of(node: Node, raw: msgspec.Raw, pointer: str) -> Iterator[tuple[str, msgspec.Raw, Node]]:
    if isinstance(node, Scalar):
        if values(node, [raw])[1] is not None:
            yield pointer, raw, node
        return
    try:
        inner: Any = (_LIST if isinstance(node, Array) else _PERHAPS).decode(raw)
    except _BAD:
        yield pointer, raw, node
        return
    if isinstance(node, Record):
        yield from _misfits(node, inner or {}, pointer)
    elif isinstance(node, Array):
        for number, item in enumerate(inner or ()):
            yield from _misfits_of(node.items, item, f"{pointer}/{number}")
    else:
        for name, item in (inner or {}).items():
            yield from _misfits_of(node.values, item, f"{pointer}/{_step(name)}")


def _strangers(record: Record, one: Object, prefix: str) -> Iterator[tuple[str, msgspec.Raw]]:
    """(place, token) of all fields of a good record that are not declared."""
    fields = {field.name: field.node for field in record.fields}
    for name, raw in one.items():
        place = prefix + _step(name)
        if name not in fields:
            yield place, raw
        else:
            yield from _strangers_of(fields[name], raw, place)


def _strangers_of(node: Node, raw: msgspec.Raw, place: str) -> Iterator[tuple[str, msgspec.Raw]]:
    if isinstance(node, Scalar):
        return
    inner: Any = (_LIST if isinstance(node, Array) else _PERHAPS).decode(raw)
    if isinstance(node, Record):
        yield from _strangers(node, inner or {}, f"{place}/")
    elif isinstance(node, Array):
        for number, item in enumerate(inner or ()):
            yield from _strangers_of(node.items, item, f"{place}/{number}")
    else:
        for name, item in (inner or {}).items():
            yield from _strangers_of(node.values, item, f"{place}/{_step(name)}")


def _step(name: str) -> str:
    """A name in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=64)
def field_decoder(path: tuple[str, ...]) -> JsonDecoder:
    """What reads one field of a record, at a path, as a route: text, a whole number or a truth value."""
    node: Node = Scalar("word")
    for name in reversed(path):
        node = Record((Field(name, node),))
    assert isinstance(node, Record)
    return JsonDecoder(Tree("record", node, is_part=True))
