"""Records of which it is known what kind of value each field has: read at once, by msgspec's reader of structs.

A struct says of each field what a token must be, to the letter: it takes no `7.0` for a whole number, no field that is
not named, no half of a surrogate pair. So a record that becomes one has the kinds that are known of it; numbers with a
point stay tokens, for a struct would round them. It vouches for nothing else: all other records are left to their
tokens, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distributary.schemas.json.alone import UNREADABLE
from distributary.schemas.json.nodes import Field, Record, Scalar, column_type
from distributary.schemas.json.token_kinds import kind_of
from distributary.schemas.json.values import ABSENT, Tokens, values

__all__ = ["TypedReader", "typed_reader"]

Mask = npt.NDArray[np.bool_]
_BIGINT: Final = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
_EXACT: Final[dict[str, Any]] = {"string": str | None, "boolean": bool | None, "bigint": _BIGINT}
_POINT: Final = r"[.eE]"


class TypedReader:
    """Reads the records of one tree, whose fields have one kind each, or several."""

    def __init__(self, record: Record, ignored: Iterable[str] = ()) -> None:
        """`ignored`: fields that may be there, whatever they are. Raises ValueError: a tree that it cannot read."""
        self._object = _Object.of(record, ignored)
        self._decode = msgspec.json.Decoder(self._object.type).decode

    def fits(self, bodies: Sequence[bytes]) -> Mask:
        """Which records ask for columns of the tree, for one at least, and for no others."""
        structs, places = self._structs(bodies)
        good = np.ones(len(structs), bool)
        self._object.hold(structs, good, np.arange(len(structs)))
        fit = np.zeros(len(bodies), bool)
        fit[places[good]] = True
        return fit

    def read(self, bodies: Sequence[bytes], bad: Mask) -> tuple[list[Any], npt.NDArray[np.int64]]:
        """The columns of the records that it vouches for, and the places of these. `bad`: not to be looked at."""
        structs, places = self._structs(bodies, bad)
        good = np.ones(len(structs), bool)
        arrays = self._object.columns(structs, good, np.arange(len(structs)))
        if good.all():
            return arrays, places
        return [array.filter(pa.array(good)) for array in arrays], places[good]

    def _structs(self, bodies: Sequence[bytes], bad: Mask | None = None) -> tuple[list[Any], npt.NDArray[np.int64]]:
        structs: list[Any] = []
        places: list[int] = []
        for place, body in enumerate(bodies):
            if bad is not None and bad[place]:
                continue
            try:
                structs.append(self._decode(body))
            except UNREADABLE:
                continue
            places.append(place)
        return structs, np.array(places, np.int64)


def typed_reader(record: Record, ignored: Iterable[str] = ()) -> TypedReader | None:
    """None where the tree has what it cannot read: lists and maps that are declared."""
    try:
        return TypedReader(record, ignored)
    except ValueError:
        return None


@dataclass(frozen=True)
class _Slot:
    """The fields of one name. `inner`: of an object; `is_exact`: the struct has their value, else their token."""

    get: Callable[[Any], Any]
    fields: tuple[Field, ...]
    inner: _Object | None = None
    is_exact: bool = False


@dataclass(frozen=True)
class _Object:
    """An object as a struct. `empty`: one without any value."""

    type: Any
    slots: tuple[_Slot, ...]
    empty: Any

    @classmethod
    def of(cls, record: Record, ignored: Iterable[str] = ()) -> _Object:
        """Raises ValueError."""
        by_name: dict[str, list[Field]] = {}
        for field in record.fields:
            by_name.setdefault(field.name, []).append(field)
        slots, types = [], []
        for number, fields in enumerate(by_name.values()):
            inner = cls.of(fields[0].node) if len(fields) == 1 and isinstance(fields[0].node, Record) else None
            kind = _kind(fields) if inner is None else inner.type | None
            types.append((f"f{number}", kind, None if kind is not msgspec.Raw else ABSENT))
            slots.append(_Slot(attrgetter(f"f{number}"), tuple(fields), inner, kind in _EXACT.values()))
        names = {f"f{number}": name for number, name in enumerate(by_name)}
        for number, name in enumerate(sorted(set(ignored) - set(by_name))):
            types.append((f"i{number}", msgspec.Raw, ABSENT))
            names[f"i{number}"] = name
        struct_type = msgspec.defstruct("Object", types, rename=names, forbid_unknown_fields=True, gc=False)
        return cls(struct_type, tuple(slots), struct_type())

    def hold(self, structs: Sequence[Any], good: Mask, rows: npt.NDArray[np.int64]) -> None:
        """Take `good` from the rows of those that ask for other columns than these, or for none."""
        has_value = np.zeros(len(structs), bool)
        for slot in self.slots:
            tokens = list(map(slot.get, structs))
            if slot.inner is not None:
                at = [place for place, struct in enumerate(tokens) if struct is not None]
                slot.inner.hold([tokens[place] for place in at], good, rows[at])
                has_value[at] = True
            elif slot.is_exact:
                has_value |= np.fromiter((value is not None for value in tokens), bool, len(tokens))
            else:
                is_present, fit = _of_kinds(slot.fields, tokens)
                has_value |= is_present
                good[rows[~fit]] = False
        good[rows[~has_value]] = False

    def columns(self, structs: Sequence[Any], good: Mask, rows: npt.NDArray[np.int64]) -> list[Any]:
        """The columns of objects; takes `good` from the rows of those with a value that does not fit."""
        arrays = []
        for slot in self.slots:
            tokens = list(map(slot.get, structs))
            if slot.inner is not None:
                arrays.append(_struct(slot, tokens, good, rows))
            elif slot.is_exact:
                arrays.append(pa.array(tokens, column_type(slot.fields[0].node)))
            else:
                arrays += _columns(slot.fields, tokens, good, rows)
        return arrays


def _kind(fields: Sequence[Field]) -> Any:
    """What a struct says of the fields of one name. Raises ValueError."""
    (first, *more) = fields
    if not all(isinstance(field.node, Scalar | Record) for field in fields):
        raise ValueError("a list or a map that is declared")
    if more or not first.beside or not isinstance(first.node, Scalar):
        return msgspec.Raw
    return _EXACT.get(first.node.kind, msgspec.Raw)


def _of_kinds(fields: Sequence[Field], tokens: Sequence[msgspec.Raw]) -> tuple[Mask, Mask]:
    """Which tokens are there, and which are of the kinds of the fields."""
    kinds = frozenset(field.beside.removeprefix("__") for field in fields)
    cut = Tokens(tokens)
    is_present = np.asarray(cut.first > 0)
    if kinds != {"double"}:
        fit = [kind is None or kind in kinds for kind in map(kind_of, tokens)]
        return is_present, np.fromiter(fit, bool, len(fit))
    _, misfits = values(Scalar("double"), tokens)
    has_point = np.asarray(pc.fill_null(pc.match_substring_regex(cut.texts, _POINT), True))
    return is_present, has_point if misfits is None else has_point & ~misfits


def _columns(
    fields: Sequence[Field], tokens: Sequence[msgspec.Raw], good: Mask, rows: npt.NDArray[np.int64]
) -> list[Any]:
    """The columns of fields of one name, by their tokens. Objects are not read here."""
    if fields[0].only is None:
        array, misfits = values(_scalar(fields[0]), tokens)
        if misfits is not None:
            good[rows[misfits]] = False
        return [array]
    kinds = list(map(kind_of, tokens))
    good[rows[[kind == "object" for kind in kinds]]] = False
    arrays = []
    for field in fields:
        if isinstance(field.node, Record):
            arrays.append(pa.nulls(len(tokens), column_type(field.node)))
            continue
        own = [token if kind == field.only else ABSENT for token, kind in zip(tokens, kinds, strict=True)]
        array, misfits = values(field.node, own)  # type: ignore[arg-type]
        if misfits is not None:
            good[rows[misfits]] = False
        arrays.append(array)
    return arrays


def _scalar(field: Field) -> Scalar:
    assert isinstance(field.node, Scalar)
    return field.node


def _struct(slot: _Slot, structs: Sequence[Any], good: Mask, rows: npt.NDArray[np.int64]) -> Any:
    assert slot.inner is not None
    inner, is_none = slot.inner, np.fromiter((struct is None for struct in structs), bool, len(structs))
    objects = [inner.empty if struct is None else struct for struct in structs] if is_none.any() else structs
    arrays = inner.columns(objects, good, rows)
    mask = pa.array(is_none) if is_none.any() else None
    return pa.StructArray.from_arrays(arrays, fields=list(column_type(slot.fields[0].node)), mask=mask)
