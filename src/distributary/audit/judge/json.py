"""Does a table's row say what its JSON record says, by Python's own parser?

No schema is followed: a field may be in the column of its name, as a value or as the text of its JSON, or in the column
of what nothing declares, by its place. Each must be somewhere, and every value of the row must come from the record.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from distributary.audit.judge.likeness import moment, names_of
from distributary.audit.judge.plain_values import DAY_US, Day, Moment, nothing
from distributary.audit.judge.said import Simple

_VALUE: Final = "value"
_REST: Final = "_undeclared"
_PLAIN: Final = {"string": "string", "integer": "integer", "bigint": "integer"}


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(schema id, [0], body) of a record with Confluent's header. Raises ValueError, IndexError."""
    if value[0] != 0 or len(value) < 5:
        raise ValueError("no header")
    return int.from_bytes(value[1:5], "big"), [0], value[5:]


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], ObjectSaid]:
    """What reads records of a schema (`texts`: what it refers to, and itself). Raises ValueError."""
    root = json.loads(schema.texts[-1][1])
    declared = root.get("properties", {}) if isinstance(root, dict) else {}
    title = root.get("title") if isinstance(root, dict) else None
    plain = {name: kind for name, part in declared.items() if (kind := _plain_type(part)) is not None}
    return read_as(title if isinstance(title, str) and title else _VALUE, plain)


def _plain_type(part: Any) -> str | None:
    """The type of a part of a schema that says no more than that it is a text, or a whole number."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, list):
        kinds = [one for one in kind if one != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    combined = isinstance(part, dict) and any(word in part for word in ("$ref", "allOf", "anyOf", "oneOf"))
    return _PLAIN.get(kind) if isinstance(kind, str) and not combined else None


def read_as(name: str, plain: Mapping[str, str]) -> Callable[[bytes], ObjectSaid]:
    """What reads records of a type. `plain`: fields that are a `string` or an `integer`, where they are anything."""

    def read(body: bytes) -> ObjectSaid:
        text = body.decode("utf-8-sig")
        return ObjectSaid(name, _parsed(text, parse_constant=_no_number), plain)

    return read


def _parsed(text: str, **more: Any) -> Any:
    return json.loads(text, parse_float=_number, parse_int=_number, **more)


def _number(text: str) -> int | Decimal | str:
    """A number; one that Python cannot hold, and so no column but one of texts, as it is written."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else Decimal(text)
    except (ValueError, ArithmeticError):
        return text


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


@dataclass(frozen=True)
class ObjectSaid:
    """What a record says; what is no object at the top is an object with one field, `value`."""

    name: str
    value: Any
    plain: Mapping[str, str]

    def differs(self, row: Mapping[str, Any]) -> str | None:
        if not isinstance(self.value, dict):
            return _unlike({_VALUE: self.value}, row)
        found = _unlike(self.value, row)
        if found is not None and row.get(_VALUE) is not None and _unlike({_VALUE: self.value}, row) is None:
            return None
        return found

    def simple(self) -> dict[str, Simple]:
        value = self.value if isinstance(self.value, dict) else {}
        found = {}
        for name, kind in self.plain.items():
            said = value.get(name)
            if kind == "string":
                found[name] = Simple(said if isinstance(said, str) else None, None, True)
            else:
                found[name] = Simple(_whole(said), None, False)
        return found

    def has(self, name: str) -> bool:
        return name in self.plain or (isinstance(self.value, dict) and name in self.value)

    def value_of(self, name: str) -> Any:
        return self.value.get(name) if isinstance(self.value, dict) else None

    def text_at(self, path: str) -> str | None:
        found: Any = self.value
        for step in path.split("."):
            if found is None:
                return None
            if not isinstance(found, dict):
                raise TypeError(f"{step}: there is no object")
            found = found.get(step)
        if isinstance(found, bool):
            return str(found).lower()
        return str(found) if isinstance(found, str | int) else None

    @property
    def type_name(self) -> str:
        return self.name


def _whole(said: Any) -> int | None:
    return int(said) if isinstance(said, int | Decimal) and not isinstance(said, bool) else None


def _unlike(value: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """The first column, or field, in which a row and its record are not the same."""
    rest = {}
    own = next((c for c in names_of(tuple(row)).of(_REST) if _is_rest(c, row[c], value)), None)
    if own is not None:
        rest = _parsed(row[own])
        row = {name: kept for name, kept in row.items() if name != own}
    left = dict(rest)
    wrong = _object(value, row, "", left)
    if wrong is not None:
        return wrong
    return next(iter(left), None)


def _is_rest(name: str, kept: Any, value: Mapping[str, Any]) -> bool:
    """Is it the column of what is not declared? A record may have a field of its name, which is then in it."""
    if not (isinstance(kept, str) and kept.startswith("{")):
        return False
    return name not in value or any(name in one and _equal(one[name], value[name]) for one in _spelled(kept))


def _object(value: Mapping[str, Any], kept: Mapping[str, Any], place: str, left: dict[str, Any]) -> str | None:
    """As `_unlike`. `left`: what is not declared, of which is taken what the object explains."""
    names = names_of(tuple(kept))
    explained: set[str] = set()
    for name, said in value.items():
        at = place + _step(name)
        if at in left and _equal(left[at], said):
            del left[at]
            continue
        right = [c for c in names.of(name) if _same(said, kept[c], f"{at}/", left)]
        if not right and (said is not None or any(kept[c] is not None for c in names.of(name))):
            return name
        explained.update(right)
    return next((c for c in names.columns if c not in explained and not nothing(kept[c])), None)


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _same(said: Any, kept: Any, place: str, left: dict[str, Any]) -> bool:
    """Does a column's value say what a field's does?"""
    if said is None or kept is None:
        return said is None and (kept is None or kept == "null")
    if isinstance(kept, str):
        return kept == said or any(_equal(one, said) for one in _spelled(kept))
    if isinstance(kept, dict):
        if not isinstance(said, dict):
            return False
        if said.keys() == kept.keys():
            return all(_same(said[n], kept[n], f"{place}{_step(n)}/", left) for n in said)
        return _object(said, kept, place, left) is None
    if isinstance(kept, list):
        pairs = zip(said, kept, strict=False) if isinstance(said, list) and len(said) == len(kept) else None
        return pairs is not None and all(_same(s, k, f"{place}{n}/", left) for n, (s, k) in enumerate(pairs))
    if isinstance(kept, bool) or isinstance(said, bool):
        return said is kept
    if isinstance(kept, Moment | Day):
        return isinstance(said, str) and moment(said.upper()) == (kept * DAY_US if isinstance(kept, Day) else kept)
    if isinstance(kept, bytes):
        return isinstance(said, str) and _decoded(said) == kept
    if isinstance(kept, float):
        return isinstance(said, int | Decimal) and float(said) == kept
    return isinstance(said, int | Decimal) and said == kept


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _spelled(kept: str) -> Iterator[Any]:
    """What a text says as JSON, where it does."""
    try:
        yield _parsed(kept)
    except (ValueError, RecursionError):
        return


def _equal(one: Any, other: Any) -> bool:
    """The same JSON: `1` is not `true`, though it is for Python."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
