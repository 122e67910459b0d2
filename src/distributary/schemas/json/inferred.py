"""Columns of JSON that nothing declares (`payload.types: inferred`): where a value goes follows from its record alone.

If a field had one type, its column would depend on the values that one has seen: `1`, then `1.5`, then `"1"`. So it has
a column for each kind of value, named for both: `score__bigint`, `score__double`, `score__string`. Objects are structs
under their own name, down to their values; an object without any is text (`meta__empty`).

Records are grouped by their **shape**, the columns that a record alone asks for. A shape takes the place of the schema
of a writer, so that all that follows (evolution, plans, replays) is as with any other. Records share a shape that holds
what each of them asks for: that changes no record's row, for what one does not have is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from distributary.schemas.header import WHOLE
from distributary.schemas.json.alone import BOM, UNREADABLE
from distributary.schemas.json.nodes import Field, Only, Record, Scalar
from distributary.schemas.json.token_kinds import number_kind
from distributary.schemas.json.typed import TypedReader, typed_reader

__all__ = ["columns_of", "covers", "own_shapes", "shapes", "united", "with_shape"]

FIRST: Final = 64
"""Records of a route that are looked at one by one, for what the others will have."""
AT_ONCE: Final = 4_096
"""Records that are looked at together."""
FEW: Final = 4
"""Where less than one in so many is as those before, the next ones are looked at one by one."""
MOST: Final = 1_000
"""Columns that a record, or a shape, may ask for."""
DEEPEST: Final = 8
"""Objects inside each other that become structs."""
_NAME: Final = re.compile(
    r"(?!(_undeclared|_origin|_change)$|.*__(bigint|double|boolean|string|json|empty)$)[^\s,;{}()=.`\x00-\x1f]{1,200}",
    re.I,
)
"""What may be the name of a column without more ado. Other fields are kept with what is not declared."""
_FIRST, _LAST = -(2**63), 2**63 - 1

_VALUES: Final[dict[type, Only | None]] = {
    str: "string", bool: "boolean", type(None): None, list: "json", float: "double", bytes: "json"
}  # fmt: skip
_READ: Final = msgspec.json.Decoder(
    dict[str, Any], float_hook=lambda token: 0.5 if number_kind(token) == "double" else b""
)
"""A record as values, of whose numbers only the kind counts: bytes stand for one that no column of numbers holds."""

Path = tuple[str, ...]
Leaf = tuple[Path, Only]
"""The path of a field, and the kind of its value."""


# -- the shapes of records ------------------------------------------------------------------------------------


def shapes(route: pa.StringArray, bodies: pa.BinaryArray, declared: Record) -> pa.StringArray:
    """The shape of each record, as the message of its writer; `WHOLE` where nothing is inferred.

    Records that differ in the spelling of a name only do not share one: evolution brings both into one column.
    """
    declared_shapes = _Declared(declared)
    encoded, all_bodies = route.dictionary_encode("encode"), bodies.to_pylist()
    codes = np.asarray(encoded.indices)
    texts: list[str] = [WHOLE] * len(all_bodies)
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    for rows in np.split(np.argsort(codes, kind="stable"), ends)[:-1]:
        of_route, places = _Shapes(declared_shapes), rows.tolist()
        shape_places = of_route.places([all_bodies[place] for place in places])
        for place, shape_place in zip(places, shape_places, strict=True):
            texts[place] = of_route.text(shape_place)
    return pa.array(texts, pa.string())


def own_shapes(bodies: pa.BinaryArray, declared: Record) -> list[str]:
    """Of each record the shape that it alone asks for; `WHOLE` where nothing is inferred."""
    declared_shapes, known_texts = _Declared(declared), dict[Asked | None, str]()
    texts = []
    for body in bodies.to_pylist():
        questions = _questions(body)
        if questions not in known_texts:
            leaves = _few_leaves(questions, declared_shapes)
            known_texts[questions] = _shape_text(leaves) if leaves else WHOLE
        texts.append(known_texts[questions])
    return texts


class _Declared:
    """The fields of an object that the pipeline file declares, and of which of them the fields are."""

    def __init__(self, record: Record | None) -> None:
        fields = record.fields if record is not None else ()
        self.inside: Mapping[str, _Declared | None] = {
            field.name: _Declared(field.node) if isinstance(field.node, Record) else None for field in fields
        }
        self.folded = frozenset(name.lower() for name in self.inside)
        self.is_flat = not any(self.inside.values())


_NOTHING: Final = _Declared(None)


class _Shapes:
    """The shapes of one route's records."""

    def __init__(self, declared: _Declared) -> None:
        self._declared = declared
        self._known: dict[Asked | None, int] = {}
        self._open: list[tuple[set[Leaf], dict[Path, Path | None]]] = []
        """What each asks for; and of each path, by its small letters, how it is spelled (None: an object without any
        value is there, where there is no struct then)."""
        self._texts: dict[int, str] = {-1: WHOLE}
        self._size = 0
        self._reader: TypedReader | None = None
        """Columns of the first shape, and what reads records that ask for no others."""

    def places(self, bodies: Sequence[bytes]) -> list[int]:
        """As `place`, of many. Once some have been looked at, most are found to ask for what these have asked for."""
        places = [self.place(body) for body in bodies[:FIRST]]
        is_use = True
        for begin in range(FIRST, len(bodies), AT_ONCE):
            some = bodies[begin : begin + AT_ONCE]
            reader = self._first_reader() if is_use else None
            fits = [False] * len(some) if reader is None else reader.fits(some).tolist()
            places += [0 if fit else self.place(body) for body, fit in zip(some, fits, strict=True)]
            is_use = not is_use or sum(fits) > len(some) // FEW
        return places

    def _first_reader(self) -> TypedReader | None:
        """What vouches for records of the first shape, as that is now."""
        if not self._open or not self._declared.is_flat:
            return None
        leaves, _ = self._open[0]
        if len(leaves) > self._size:
            self._size = len(leaves)
            self._reader = _reader_of(_shape_text(leaves), tuple(self._declared.inside))
        return self._reader

    def place(self, body: bytes) -> int:
        """The number of a record's shape; -1 for none: it asks for nothing, for too much, or cannot be read."""
        questions = _questions(body)
        if (place := self._known.get(questions)) is None:
            leaves = _few_leaves(questions, self._declared)
            place = self._known[questions] = self.shared(leaves) if leaves else -1
        return place

    def shared(self, leaves: tuple[Leaf, ...]) -> int:
        """The number of a shape that holds these columns too, which no name is spelled otherwise in."""
        spelled = _spelled(leaves)
        for place, (shape_leaves, names) in enumerate(self._open):
            if len(shape_leaves.union(leaves)) <= MOST and all(
                names.get(key, path) == path for key, path in spelled.items()
            ):
                shape_leaves.update(leaves)
                names.update(spelled)
                return place
        self._open.append((set(leaves), spelled))
        return len(self._open) - 1

    def text(self, place: int) -> str:
        if place not in self._texts:
            self._texts[place] = _shape_text(self._open[place][0])
        return self._texts[place]


def _shape_text(leaves: Iterable[Leaf]) -> str:
    return json.dumps([[*path, kind] for path, kind in sorted(leaves)])


@lru_cache(64)
def _reader_of(shape: str, ignored: tuple[str, ...]) -> TypedReader | None:
    record = with_shape(Record(), shape)
    return None if _has_alike(record, ignored) else typed_reader(record, ignored)


def _has_alike(record: Record, others: Iterable[str] = ()) -> bool:
    """Do two names of one object differ in case only? A record that has both asks for no columns (`_leaves`)."""
    names = {*others, *(field.name for field in record.fields)}
    inside = (field.node for field in record.fields if isinstance(field.node, Record))
    return len({name.lower() for name in names}) < len(names) or any(map(_has_alike, inside))


def _spelled(leaves: Iterable[Leaf]) -> dict[Path, Path | None]:
    path_of: dict[Path, Path | None] = {}
    for path, kind in leaves:
        for n in range(1, len(path) + 1):
            is_struct = n < len(path) or kind == "empty"
            key = (*(name.lower() for name in path[:n]), *(["{"] if is_struct else []))
            is_empty = n == len(path) and kind == "empty"
            path_of[key] = None if is_empty else path[:n]
            if is_empty:  # and spelled in one way only
                path_of[(*key, "}")] = path[:n]
    return path_of


Asked = tuple[tuple[str, Any], ...]
"""Of each field of an object its name and its kind; of an object what that one asks for."""


def _questions(body: bytes) -> Asked | None:
    """What a record asks for; None where it cannot be read, or is too deep."""
    try:
        return _asked(_READ.decode(body.removeprefix(BOM)))
    except (*UNREADABLE, _Odd):
        return None


def _few_leaves(questions: Asked | None, declared: _Declared) -> tuple[Leaf, ...]:
    """The columns that a record asks for; none where these are too many, or it is odd."""
    try:
        leaves = () if questions is None else tuple(_leaves(questions, (), declared))
    except _Odd:
        return ()
    return leaves if len(leaves) <= MOST else ()


def _asked(document: Mapping[str, Any], depth: int = 0) -> Asked:
    """Raises _Odd: it is too deep."""
    questions: list[tuple[str, Any]] = []
    for name, value in document.items():
        kind = type(value)
        if kind in _VALUES:
            questions.append((name, _VALUES[kind]))
        elif kind is int:
            questions.append((name, "bigint" if _FIRST <= value <= _LAST else "json"))
        elif depth >= DEEPEST:
            raise _Odd
        else:
            questions.append((name, _asked(value, depth + 1)))
    return tuple(questions)


class _Odd(ValueError):
    """All of a record is kept with what is not declared: it is too deep, or two of its names differ in case only."""


def _leaves(questions: Asked, path: Path, declared: _Declared) -> Iterator[Leaf]:
    """The columns that an object asks for. Raises _Odd."""
    if len({name.lower() for name, _ in questions}) < len(questions):
        raise _Odd
    for name, kind in questions:
        leaf_path = (*path, name)
        if name in declared.inside:
            inside = declared.inside[name]
            if inside is not None and isinstance(kind, tuple):
                yield from _leaves(kind, leaf_path, inside)
        elif name.lower() in declared.folded or not _NAME.fullmatch(name):
            continue
        elif isinstance(kind, tuple):
            below = list(_leaves(kind, leaf_path, _NOTHING))
            yield from below or [(leaf_path, "empty")]
        elif kind is not None:
            yield leaf_path, kind


# -- shapes that were found apart -------------------------------------------------------------------------------


def covers(shape: str, other: str) -> bool:
    """Does `shape` hold all that `other` asks for? Then it reads the records of that one, each to the same row."""
    return _leaves_of(other) <= _leaves_of(shape)


def united(messages: Iterable[str]) -> set[str]:
    """Few shapes that cover all of these, and `WHOLE`. The same for the same messages, whatever their order."""
    together = _Shapes(_NOTHING)
    groups = sorted({_leaves_of(message) for message in messages}, key=lambda leaves: (-len(leaves), sorted(leaves)))
    places = {together.shared(tuple(sorted(leaves))) for leaves in groups if leaves}
    return {WHOLE, *(together.text(place) for place in places)}


def columns_of(message: str) -> list[str]:
    """The columns that a shape asks for, as a person reads them: `meta.at__bigint`."""
    return [f"{'.'.join(path)}__{kind}" for path, kind in sorted(_leaves_of(message))]


@lru_cache(256)
def _leaves_of(message: str) -> frozenset[Leaf]:
    return frozenset(() if message == WHOLE else ((tuple(path), kind) for *path, kind in json.loads(message)))


# -- a shape as a tree ------------------------------------------------------------------------------------------


def with_shape(declared: Record, message: str) -> Record:
    """What is declared, with the fields of a shape."""
    leaves = [(tuple(path), kind) for *path, kind in json.loads(message)]
    return _grown(declared, leaves)


def _grown(record: Record, leaves: Iterable[tuple[Sequence[str], Any]]) -> Record:
    inside: dict[str, list[tuple[Sequence[str], Any]]] = {}
    kinds: dict[str, list[Any]] = {}
    for (name, *rest), kind in leaves:
        if rest:
            inside.setdefault(name, []).append((rest, kind))
        else:
            kinds.setdefault(name, []).append(kind)
    fields = [
        Field(f.name, _grown(f.node, inside.pop(f.name))) if f.name in inside and isinstance(f.node, Record) else f
        for f in record.fields
    ]
    inferred = [
        # All values of the records are of the only kind that they ask for.
        Field(
            name,
            Scalar("json" if kind == "empty" else kind),
            kind if len(kinds_found) > 1 or name in inside else None,
            f"__{kind}",
        )
        for name, kinds_found in kinds.items()
        for kind in kinds_found
    ]
    structs = [
        Field(name, _grown(Record(), kinds_found), "object" if name in kinds else None)
        for name, kinds_found in inside.items()
    ]
    return Record((*fields, *sorted([*inferred, *structs], key=lambda field: field.column)))
