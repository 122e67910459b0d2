"""JSON payloads to Arrow.

A parser that makes numbers of numbers loses digits, and one that reads all records as one text lets a bad one spoil its
neighbours. So a record is only cut into its tokens, its values as they stand, which msgspec does (and checks the whole
of it: a record is good or bad by itself); then the tokens of a column, of all records at once, become its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from distributary.errors import Reason
from distributary.schemas.decoding import Rejected, Split
from distributary.schemas.json.alone import (
    DEEPEST,
    LIST,
    PERHAPS,
    UNREADABLE,
    Object,
    cut_object,
    depth_of,
    finder,
    is_text,
    step,
    strangers_of,
    takes,
    why,
    words,
)
from distributary.schemas.json.fast import FastReader, Vouched, plain_fields
from distributary.schemas.json.nodes import (
    Array,
    Field,
    Map,
    Node,
    Record,
    Scalar,
    Tree,
    column_type,
    has_record,
)
from distributary.schemas.json.token_kinds import kind_of
from distributary.schemas.json.typed import typed_reader
from distributary.schemas.json.values import ABSENT, values

AT_ONCE: Final = 16_384
"""Records that Arrow's reader gets at a time."""
CUT_AT_ONCE: Final = 4_096
"""Records that are cut at a time: a great many small objects slow Python down."""


class JsonDecoder:
    """Decodes the records of one tree."""

    engine = "json"

    def __init__(self, tree: Tree) -> None:
        self._tree, plain = tree, plain_fields(tree)
        self._whole = FastReader(plain, is_strict=True) if plain and plain == tree.record.fields else None
        self._part = FastReader(plain, is_strict=False) if len(plain) > 1 else None
        self._typed = typed_reader(tree.record) if tree.is_inferred else None
        self._plain = plain
        self._meets_more = False
        """Have records of late had fields that are not declared? It only says which way is the faster one."""
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
        bodies, bad = payloads.to_pylist(), no_text(payloads)
        unread = np.arange(len(bodies))
        if not self._meets_more:
            for arrays, vouched_places in self._vouched(bodies, bad):
                rest = [pa.nulls(len(vouched_places), pa.string())] if self._tree.has_undeclared else []
                batches.append(pa.RecordBatch.from_arrays([*arrays, *rest], schema=self.columns))
                places.append(begin + vouched_places)
                unread = np.setdiff1d(unread, vouched_places, assume_unique=True)
        with_more = 0
        for first in range(0, len(unread), CUT_AT_ONCE):
            some = unread[first : first + CUT_AT_ONCE]
            chunk = _Part(self._tree, [bodies[place] for place in some], bad[some], self._part, self._plain)
            batches.append(chunk.batch(self.columns))
            places.append(begin + some[~chunk.bad])
            with_more += chunk.more
            for place in np.flatnonzero(chunk.bad).tolist():
                rejected.append(Rejected(begin + int(some[place]), Reason.CORRUPT_PAYLOAD, chunk.why(place)))
        self._meets_more = with_more > len(bodies) // 4

    def _vouched(self, bodies: Sequence[bytes], bad: Any) -> Vouched:
        """Columns of the records that are as they mostly are, and their places."""
        if self._typed is not None:
            return [self._typed.read(bodies, bad | too_deep(bodies))]
        return [] if self._whole is None else self._whole.read(bodies, bad)


class _Part:
    """Some records side by side."""

    def __init__(
        self, tree: Tree, bodies: Sequence[bytes], bad: Any, reader: FastReader | None, plain: Sequence[Field]
    ) -> None:
        self._tree, self._bodies, self.bad = tree, bodies, bad | too_deep(bodies)
        self._reader, self._plain = reader, plain
        self._words: dict[int, str] = {}
        self._more: dict[int, Object] = {}
        """What is not declared, by record and by its place in it."""
        self._walked: set[int] = set()
        """Records in which something below the top is not declared."""

    @property
    def more(self) -> int:
        """Records with a field that is not declared."""
        return len(self._more)

    def batch(self, columns: pa.Schema) -> pa.RecordBatch:
        """The good records as rows."""
        objects, rows = self._objects()
        fields = self._tree.record.fields
        read_columns = self._read(objects, rows) if self._reader is not None else {}
        arrays = [read_columns[f.name] if f.name in read_columns else self._field(f, objects, rows) for f in fields]
        if self._tree.has_undeclared:
            names = frozenset(field.name for field in fields)
            for row, record in zip(rows.tolist(), objects, strict=True):
                if not names.issuperset(record):
                    self._more[row] = {step(name): raw for name, raw in record.items() if name not in names}
            arrays.append(self._undeclared(objects, rows))
        good = ~self.bad[rows]
        rows_read = pa.RecordBatch.from_arrays(arrays, schema=columns)
        return rows_read if good.all() else rows_read.filter(pa.array(good))

    def _field(self, field: Field, objects: Sequence[Object], rows: Any) -> Any:
        return self._column(field.node, _tokens(field, objects), rows)

    def _read(self, objects: Sequence[Object], rows: Any) -> dict[str, Any]:
        """The plain fields: by Arrow's reader, and of records for which it does not vouch by their tokens."""
        assert self._reader is not None
        vouched = self._reader.read_objects([self._bodies[row] for row in rows], np.arange(len(rows)))
        places = [vouched_places for _, vouched_places in vouched]
        order = np.concatenate(places) if places else np.zeros(0, np.int64)
        nested = [(field.name, find) for field in self._plain if (find := finder(field.node)) is not None]
        for place in order.tolist() if nested else ():
            record = objects[place]
            if any(name in record and find(record[name]) for name, find in nested):
                self._walked.add(int(rows[place]))
        rest = np.setdiff1d(np.arange(len(rows)), order, assume_unique=True)
        unread = [objects[place] for place in rest]
        ranks = pa.array(np.argsort(np.concatenate([order, rest])))
        columns = {}
        for number, field in enumerate(self._plain):
            arrays_of = [arrays[number] for arrays, _ in vouched]
            arrays_of += [self._field(field, unread, rows[rest])] if unread or not arrays_of else []
            columns[field.name] = arrays_of[0] if len(arrays_of) == 1 else pa.concat_arrays(arrays_of).take(ranks)
        return columns

    def why(self, place: int) -> str:
        """In words why a record is bad."""
        body = self._bodies[place]
        if place not in self._words:
            self._words[place] = why(self._tree, body)
        return self._words[place]

    def _objects(self) -> tuple[list[Object], Any]:
        """The records that are objects, and which they are."""
        objects: list[Object] = []
        rows: list[int] = []
        is_whole = self._tree.is_whole
        for place, body in enumerate(self._bodies):
            if self.bad[place]:
                continue
            try:
                objects.append(cut_object(body, is_whole))
            except UNREADABLE as error:
                self.bad[place] = True
                self._words[place] = words(error)
            else:
                rows.append(place)
        return objects, np.array(rows, np.int64)

    def _fields(self, fields: Sequence[Field], objects: Sequence[Object], rows: Any) -> list[Any]:
        """The columns of objects inside of records. `rows`: the record of each."""
        arrays = []
        declared_count = np.zeros(len(objects), np.int64)
        for field in fields:
            raws = _tokens(field, objects)
            declared_count += np.fromiter(map(len, raws), np.int64, len(raws)) > 0
            arrays.append(self._column(field.node, raws, rows))
        has_more = np.fromiter(map(len, objects), np.int64, len(objects)) > declared_count
        self._walked.update(rows[has_more].tolist())
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
        objects = [self._cut(PERHAPS, raw, row) for raw, row in zip(raws, rows.tolist(), strict=True)]
        is_present = np.fromiter((record is not None for record in objects), bool, len(objects))
        if isinstance(node, Map):
            return self._map(node, objects, is_present, rows)
        arrays = self._fields(node.fields, [record or {} for record in objects], rows)
        mask = None if is_present.all() else pa.array(~is_present)
        return pa.StructArray.from_arrays(arrays, fields=list(column_type(node)), mask=mask)

    def _cut(self, decoder: Any, raw: msgspec.Raw, row: int) -> Any:
        if not len(raw):
            return None
        try:
            return decoder.decode(raw)
        except UNREADABLE:
            self.bad[row] = True
            return None

    def _list(self, node: Array, raws: Sequence[msgspec.Raw], rows: Any) -> Any:
        lists = [self._cut(LIST, raw, row) for raw, row in zip(raws, rows.tolist(), strict=True)]
        sizes = np.fromiter((len(items_of) if items_of else 0 for items_of in lists), np.int64, len(lists))
        items = self._column(
            node.items, list(chain.from_iterable(items_of or () for items_of in lists)), np.repeat(rows, sizes)
        )
        mask = _nulls(lists)
        return pa.ListArray.from_arrays(_offsets(sizes), items, type=column_type(node), mask=mask)

    def _map(self, node: Map, objects: Sequence[Object | None], is_present: Any, rows: Any) -> Any:
        sizes = np.fromiter((len(record) if record else 0 for record in objects), np.int64, len(objects))
        keys = pa.array(list(chain.from_iterable(record or () for record in objects)), pa.string())
        raws = list(chain.from_iterable((record or {}).values() for record in objects))
        items = self._column(node.values, raws, np.repeat(rows, sizes))
        mask = None if is_present.all() else pa.array(~is_present)
        return pa.MapArray.from_arrays(_offsets(sizes), keys, items, type=column_type(node), mask=mask)

    def _undeclared(self, objects: Sequence[Object], rows: Any) -> Any:
        nested = [field for field in self._tree.record.fields if has_record(field.node)]
        place_of = {int(row): place for place, row in enumerate(rows)} if self._walked else {}
        for row in self._walked:
            if not self.bad[row]:
                record, undeclared = objects[place_of[row]], self._more.setdefault(row, {})
                for field in nested:
                    if field.name in record and takes(field, record[field.name]):
                        undeclared |= strangers_of(field.node, record[field.name], step(field.name))
        if not self._more:
            return pa.nulls(len(rows), pa.string())
        if self._tree.is_inferred:
            filled = {row: _without_nulls(undeclared) for row, undeclared in self._more.items()}
            self._more = {row: undeclared for row, undeclared in filled.items() if undeclared}
        encode = msgspec.json.encode
        texts = [encode(self._more[row]) if row in self._more else None for row in rows.tolist()]
        return pa.array(texts, pa.binary()).cast(pa.string())


def _tokens(field: Field, objects: Sequence[Object]) -> list[msgspec.Raw]:
    """A field's token in each object; `ABSENT` where there is none of its kind."""
    raws = [members.get(field.name, ABSENT) for members in objects]
    return raws if field.only is None else [raw if _is_of(field, raw) else ABSENT for raw in raws]


def _is_of(field: Field, raw: msgspec.Raw) -> bool:
    """Is a token this field's, of all fields of its name?"""
    kind = kind_of(raw)
    return kind == field.only or (kind == "object" and field.only == "empty")


def _without_nulls(more: Object) -> Object:
    return {place: raw for place, raw in more.items() if bytes(raw) != b"null"}


def _offsets(sizes: Any) -> Any:
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]), pa.int32())


def _nulls(column_values: Sequence[Any]) -> Any:
    is_null = np.fromiter((value is None for value in column_values), bool, len(column_values))
    return pa.array(is_null) if is_null.any() else None


def no_text(payloads: pa.BinaryArray) -> Any:
    """Which records are no UTF-8, which msgspec does not see."""
    bad = np.zeros(len(payloads), bool)
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        bad[:] = [not is_text(body) for body in payloads.to_pylist()]
    return bad


def too_deep(bodies: Sequence[bytes]) -> Any:
    """Which records are nested too deep: msgspec goes as deep as its caller's stack lets it."""
    are_deep = (body.count(b"{") + body.count(b"[") > DEEPEST and depth_of(body) > DEEPEST for body in bodies)
    return np.fromiter(are_deep, bool, len(bodies))


@lru_cache(maxsize=64)
def field_decoder(path: tuple[str, ...]) -> JsonDecoder:
    """What reads one field of a record, at a path, as a route: text, a whole number or a truth value."""
    node: Node = Scalar("word")
    for name in reversed(path):
        node = Record((Field(name, node),))
    assert isinstance(node, Record)
    return JsonDecoder(Tree("record", node, is_part=True))
