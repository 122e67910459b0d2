"""Records of JSON without a schema: the types that their fields seem to have, for a person who writes them down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["fields_inside", "json_fields", "payload_field", "proposed_columns"]

_LAST_BIGINT: Final = 2**63 - 1
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
MOST: Final = 30
"""Columns that are proposed."""
_PAYLOADS: Final = ("payload", "data", "body", "event", "message", "detail", "details")
"""What people call the field of an envelope that holds the rest."""


def json_fields(value: bytes) -> dict[str, tuple[str, Any]]:
    """Path of each field of an object -> (type of `payload.columns`, value); empty for what is none."""
    try:
        document = json.loads(value.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    fields: dict[str, tuple[str, Any]] = {}
    if isinstance(document, dict):
        _add(fields, document, "")
    return fields


def payload_field(records: Sequence[Mapping[str, tuple[str, Any]]]) -> str | None:
    """A field that looks like the payload of an envelope: in each record an object, or a text that is one."""
    return next((name for name in _PAYLOADS if records and all(_holds(fields, name) for fields in records)), None)


def fields_inside(fields: Mapping[str, tuple[str, Any]], name: str) -> dict[str, tuple[str, Any]]:
    """The fields of the object that a field is, or that it holds as a text."""
    inside = {
        path.removeprefix(f"{name}."): typed_value
        for path, typed_value in fields.items()
        if path.startswith(f"{name}.")
    }
    _, text = fields.get(name, ("", None))
    return inside or (json_fields(text.encode("utf-8", "replace")) if isinstance(text, str) else {})


def _holds(fields: Mapping[str, tuple[str, Any]], name: str) -> bool:
    return bool(fields_inside(fields, name))


def _add(fields: dict[str, tuple[str, Any]], value: Mapping[str, Any], prefix: str) -> None:
    for name, inner in value.items():
        if isinstance(inner, dict) and inner and prefix.count(".") < 3:
            _add(fields, inner, f"{prefix}{name}.")
        else:
            fields[prefix + name] = (_type(inner), inner)


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_LAST_BIGINT <= value <= _LAST_BIGINT else "json"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "timestamp" if _MOMENT.fullmatch(value) else "date" if _DAY.fullmatch(value) else "string"
    if isinstance(value, list):
        kinds = {_type(item) for item in value if item is not None}
        inner = _common(kinds)
        return "null" if inner is None else "json" if inner == "json" else f"array<{inner}>"
    return "null" if value is None else "json"


def _common(kinds: set[str]) -> str | None:
    """The type of values of these types; None where there is none to tell."""
    kinds = kinds - {"null"}
    if len(kinds) < 2:
        return next(iter(kinds), None)
    if kinds == {"bigint", "double"}:
        return "double"
    return "string" if kinds <= {"string", "date", "timestamp"} else "json"


def proposed_columns(records: Iterable[Mapping[str, tuple[str, Any]]]) -> dict[str, str]:
    """Path -> type of the fields that these records have, where a name can be written down."""
    kinds: dict[str, set[str]] = {}
    for fields in records:
        for path, (kind, _) in fields.items():
            kinds.setdefault(path, set()).add(kind)
    inside = {path.rpartition(".")[0] for path in kinds}
    common = {
        path: _common(kinds_seen) for path, kinds_seen in kinds.items() if path not in inside and all(path.split("."))
    }
    return dict([(path, kind) for path, kind in common.items() if kind is not None][:MOST])
