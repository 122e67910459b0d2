"""What a validation found, as lines for people: key, what is allowed, what was read (never a secret's value)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from distributary.config.base import Model
from distributary.config.pipeline import Pipeline
from distributary.config.secrets import KeyPath, dotted, looks_secret

_MAX_SHOWN_CHARS = 60
_A_KEY = "[key]"
"""What pydantic adds to the place of a fault in a key itself."""
_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_PATTERNS = {
    r"^[a-z0-9][a-z0-9_-]*$": "allowed: a-z, 0-9, _ and -, with a letter or a digit first",
    r"^[a-z0-9][a-z0-9_]*$": "allowed: a-z, 0-9 and _, with a letter or a digit first",
    r"^[a-z0-9][a-z0-9_]{0,199}$": "allowed: a-z, 0-9 and _, with a letter or a digit first, at most 200 characters",
}
_READ = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def problems_of(error: ValidationError, written: Any, lines: dict[KeyPath, int]) -> list[dict[str, str]]:
    """One {"key", "detail"} per fault, in the order of the file.

    Args:
        written: the document before references were resolved, so that no resolved value can be shown.
        lines: line of each key path.
    """
    placed = [_problem(details, written, lines) for details in error.errors(include_url=False)]
    placed.sort(key=lambda item: item[0])
    return [problem for _, problem in placed]


def _problem(details: ErrorDetails, written: Any, lines: dict[KeyPath, int]) -> tuple[int, dict[str, str]]:
    path, annotation = _locate(tuple(key for key in details["loc"] if key != _A_KEY))
    context = details.get("ctx", {})
    if details["type"] == "between_keys":
        path = (*path, *str(context["key"]).split("."))
    elif details["type"].startswith("union_tag"):
        path = (*path, "type")
    detail = _detail(details, path, annotation, _at(written, path))
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), 0)
    if line:
        detail += f" (line {line})"
    return line, {"key": dotted(path) or "file", "detail": detail}


def _detail(details: ErrorDetails, path: KeyPath, annotation: Any, value: Any) -> str:
    kind, context = details["type"], details.get("ctx", {})
    secret = _is_secret(annotation) or looks_secret(path)
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), _keys_of(annotation))
    if kind == "missing":
        return "is required"
    if kind == "between_keys":
        return str(context["detail"])
    if kind in _TYPES:
        return f"allowed: {_TYPES[kind]}; this is {_what(value, secret)}"
    if kind == "string_too_short":
        return "allowed: text; this is empty"
    if kind == "union_tag_not_found":
        return f"is required; allowed: {_quoted(_tags())}"
    if kind == "union_tag_invalid":
        return _unknown_value(value, _tags())
    if kind in ("literal_error", "enum"):
        return _unknown_value(value, _choices(annotation))
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return f"{_shown(value)} is not allowed; {_PATTERNS.get(pattern, f'it must match {pattern}')}"
    text = str(context["error"]) if kind == "value_error" else details["msg"].replace("Input should", "must", 1)
    return text if secret or isinstance(value, dict | list) or value is None else f"{text}; this is {_shown(value)}"


def _unknown_key(key: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(key, allowed, n=1)
    return f"unknown key{_did_you_mean(near)}; allowed: {', '.join(allowed)}"


def _unknown_value(value: Any, allowed: list[str]) -> str:
    near = difflib.get_close_matches(str(value).lower(), [a.lower() for a in allowed], n=1)
    near = [a for a in allowed if a.lower() in near]
    return f"{_shown(value)} is not allowed{_did_you_mean(near)}; allowed: {_quoted(allowed)}"


def _did_you_mean(near: list[str]) -> str:
    return f" (did you mean {near[0]!r}?)" if near else ""


def _what(value: Any, secret: bool) -> str:
    """Kind and value of what was read: what looks like a number may be text."""
    kind = _READ.get(type(value), "empty")
    return kind if secret or not isinstance(value, bool | int | float | str) else f"{kind}: {_shown(value)}"


def _quoted(values: Iterable[str]) -> str:
    return ", ".join(repr(value) for value in values)


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


def _at(document: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _locate(location: tuple[str | int, ...]) -> tuple[KeyPath, Any]:
    """The key path of pydantic's `location`, which also holds the tags of unions, and the annotation there.

    For a key that does not exist, the annotation is the model that lacks it.
    """
    path: list[str | int] = []
    annotation: Any = Pipeline
    for step in location:
        models = models_in(annotation)
        tagged = [model for model in models if step in get_args(_annotation(model, "type"))]
        if tagged and len(models) > 1:
            annotation = tagged[0]
            continue
        path.append(step)
        below = [_annotation(model, str(step)) for model in models]
        annotation = next((b for b in below if b is not None), annotation if models else _items_of(annotation))
    return tuple(path), annotation


def _annotation(model: type[Model], key: str) -> Any:
    fields = model.model_fields
    field = fields.get(key) or next((info for info in fields.values() if info.alias == key), None)
    return None if field is None else field.annotation


def models_in(annotation: Any) -> list[type[Model]]:
    """The models that a value of this annotation may be, itself (not inside a dict or a list)."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, Model) else []
    if get_origin(annotation) in (dict, list):
        return []
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def _items_of(annotation: Any) -> Any:
    return get_args(annotation)[-1] if get_origin(annotation) in (dict, list) else None


def _keys_of(annotation: Any) -> list[str]:
    return [field.alias or key for model in models_in(annotation) for key, field in model.model_fields.items()]


def _choices(annotation: Any) -> list[str]:
    if isinstance(annotation, str):
        return [annotation]
    return [choice for argument in get_args(annotation) for choice in _choices(argument)]


def _tags() -> list[str]:
    return [
        tag
        for model in models_in(Pipeline.model_fields["source"].annotation)
        for tag in _choices(_annotation(model, "type"))
    ]


def _is_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_is_secret(argument) for argument in get_args(annotation))
