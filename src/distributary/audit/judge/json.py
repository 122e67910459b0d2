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
from distributary.audit.judge.read_payload import Simple

_VALUE: Final = "value"
_REST: Final = "_undeclared"
_PLAIN: Final = {"string": "string", "integer": "integer", "bigint": "integer"}


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(schema id, [0], body) of a record with Confluent's header. Raises ValueError, IndexError."""
    if value[0] != 0 or len(value) < 5:
        raise ValueError("no header")
    return int.from_bytes(value[1:5], "big"), [0], value[5:]


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], JsonPayload]:
    """What reads records of a schema (`texts`: what it refers to, and itself). Raises ValueError."""
    root = json.loads(schema.texts[-1][1])
    declared = root.get("properties", {}) if isinstance(root, dict) else {}
    title = root.get("title") if isinstance(root, dict) else None
    plain = {name: kind for name, declaration in declared.items() if (kind := _plain_type(declaration)) is not None}
    return read_as(title if isinstance(title, str) and title else _VALUE, plain)


def _plain_type(declaration: Any) -> str | None:
    """The type of a part of a schema that says no more than that it is a text, or a whole number."""
    kind = declaration.get("type") if isinstance(declaration, dict) else None
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    combined = isinstance(declaration, dict) and any(
        word in declaration for word in ("$ref", "allOf", "anyOf", "oneOf")
    )
    return _PLAIN.get(kind) if isinstance(kind, str) and not combined else None


def read_as(name: str, plain: Mapping[str, str]) -> Callable[[bytes], JsonPayload]:
    """What reads records of a type. `plain`: fields that are a `string` or an `integer`, where they are anything."""

    def read_record(body: bytes) -> JsonPayload:
        text = body.decode("utf-8-sig")
        return JsonPayload(name, _parsed(text, parse_constant=_no_number), plain)

    return read_record


def _parsed(text: str, **options: Any) -> Any:
    return json.loads(text, parse_float=_number, parse_int=_number, **options)


def _number(text: str) -> int | Decimal | str:
    """A number; one that Python cannot hold, and so no column but one of texts, as it is written."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else Decimal(text)
    except (ValueError, ArithmeticError):
        return text


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


@dataclass(frozen=True)
class JsonPayload:
    """What a record says; what is no object at the top is an object with one field, `value`."""

    name: str
    value: Any
    plain: Mapping[str, str]

    def differs(self, row: Mapping[str, Any]) -> str | None:
        if not isinstance(self.value, dict):
            return _unlike({_VALUE: self.value}, row)
        difference = _unlike(self.value, row)
        if difference is not None and row.get(_VALUE) is not None and _unlike({_VALUE: self.value}, row) is None:
            return None
        return difference

    def simple(self) -> dict[str, Simple]:
        value = self.value if isinstance(self.value, dict) else {}
        simple_values = {}
        for name, kind in self.plain.items():
            field_value = value.get(name)
            if kind == "string":
                simple_values[name] = Simple(field_value if isinstance(field_value, str) else None, None, True)
            else:
                simple_values[name] = Simple(_whole(field_value), None, False)
        return simple_values

    def has(self, name: str) -> bool:
        return name in self.plain or (isinstance(self.value, dict) and name in self.value)

    def value_of(self, name: str) -> Any:
        return self.value.get(name) if isinstance(self.value, dict) else None

    def text_at(self, path: str) -> str | None:
        inner: Any = self.value
        for step in path.split("."):
            if inner is None:
                return None
            if not isinstance(inner, dict):
                raise TypeError(f"{step}: there is no object")
            inner = inner.get(step)
        if isinstance(inner, bool):
            return str(inner).lower()
        return str(inner) if isinstance(inner, str | int) else None

    @property
    def type_name(self) -> str:
        return self.name


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else None


def _unlike(value: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """The first column, or field, in which a row and its record are not the same."""
    rest = {}
    rest_column = next((c for c in names_of(tuple(row)).of(_REST) if _is_rest(c, row[c], value)), None)
    if rest_column is not None:
        rest = _parsed(row[rest_column])
        row = {name: cell for name, cell in row.items() if name != rest_column}
    unexplained = dict(rest)
    wrong = _object(value, row, "", unexplained)
    if wrong is not None:
        return wrong
    return next(iter(unexplained), None)


def _is_rest(name: str, cell: Any, value: Mapping[str, Any]) -> bool:
    """Is it the column of what is not declared? A record may have a field of its name, which is then in it."""
    if not (isinstance(cell, str) and cell.startswith("{")):
        return False
    return name not in value or any(
        name in spelled and _equal(spelled[name], value[name]) for spelled in _spelled(cell)
    )


def _object(value: Mapping[str, Any], cells: Mapping[str, Any], place: str, unexplained: dict[str, Any]) -> str | None:
    """As `_unlike`. `unexplained`: what is not declared, of which is taken what the object explains."""
    names = names_of(tuple(cells))
    explained: set[str] = set()
    for name, field_value in value.items():
        path = place + _step(name)
        if path in unexplained and _equal(unexplained[path], field_value):
            del unexplained[path]
            continue
        right = [c for c in names.of(name) if _same(field_value, cells[c], f"{path}/", unexplained)]
        if not right and (field_value is not None or any(cells[c] is not None for c in names.of(name))):
            return name
        explained.update(right)
    return next((c for c in names.columns if c not in explained and not nothing(cells[c])), None)


def _step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _same(value: Any, cell: Any, place: str, unexplained: dict[str, Any]) -> bool:
    """Does a column's value say what a field's does?"""
    if value is None or cell is None:
        return value is None and (cell is None or cell == "null")
    if isinstance(cell, str):
        return cell == value or any(_equal(spelled, value) for spelled in _spelled(cell))
    if isinstance(cell, dict):
        if not isinstance(value, dict):
            return False
        if value.keys() == cell.keys():
            return all(_same(value[n], cell[n], f"{place}{_step(n)}/", unexplained) for n in value)
        return _object(value, cell, place, unexplained) is None
    if isinstance(cell, list):
        pairs = zip(value, cell, strict=False) if isinstance(value, list) and len(value) == len(cell) else None
        return pairs is not None and all(_same(s, k, f"{place}{n}/", unexplained) for n, (s, k) in enumerate(pairs))
    if isinstance(cell, bool) or isinstance(value, bool):
        return value is cell
    if isinstance(cell, Moment | Day):
        return isinstance(value, str) and moment(value.upper()) == (cell * DAY_US if isinstance(cell, Day) else cell)
    if isinstance(cell, bytes):
        return isinstance(value, str) and _decoded(value) == cell
    if isinstance(cell, float):
        return isinstance(value, int | Decimal) and float(value) == cell
    return isinstance(value, int | Decimal) and value == cell


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _spelled(text: str) -> Iterator[Any]:
    """What a text says as JSON, where it does."""
    try:
        yield _parsed(text)
    except (ValueError, RecursionError):
        return


def _equal(left: Any, right: Any) -> bool:
    """The same JSON: `1` is not `true`, though it is for Python."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)
