"""Envelopes of JSON, for `verify`: a field's value as it is written, by Python's own parser."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_READER: Final = json.JSONDecoder()


def text_of(body: bytes) -> str:
    """An envelope as text. Raises ValueError."""
    return body.decode("utf-8-sig")


def unheaded(value: bytes) -> bytes:
    """What is behind Confluent's header. Raises ValueError."""
    if len(value) < 5 or value[0]:
        raise ValueError("no header")
    return value[5:]


def token_at(text: str, path: str) -> str | None:
    """The value at a path of fields, as it is written; None where there is none. Raises ValueError, IndexError."""
    token: str | None = text
    for name in path.split("."):
        token = None if token is None or not token.lstrip().startswith("{") else _field(token, name)
    return token


def _field(text: str, field_name: str) -> str | None:
    """Of a field that is written twice, the last value."""
    value_text, place = None, text.index("{") + 1
    while text[place := _past(text, place)] != "}":
        name, place = _READER.raw_decode(text, place)
        begin = _past(text, text.index(":", place) + 1)
        _, place = _READER.raw_decode(text, begin)
        if name == field_name:
            value_text = text[begin:place]
        place = _past(text, place)
        place += text[place] == ","
    return value_text


def _past(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


def word(token: str | None) -> str | None:
    """A value as a route: text, a whole number as it is written, a truth value."""
    if token is None or re.fullmatch(r"-?[0-9]+|true|false", token):
        return token
    return str(value_of(token)) if token.startswith('"') else None


def value_of(token: str) -> Any:
    return json.loads(token)


def bytes_of(token: str | None, is_text: bool) -> bytes:
    """The payload in a field. `is_text`: a text is the payload, else it is base64. Raises ValueError."""
    if token is None:
        raise ValueError("no payload")
    if not token.startswith('"'):
        if is_text:
            return token.encode()
        raise ValueError("no base64")
    text = str(value_of(token))
    return text.encode() if is_text else base64.b64decode(text, validate=True)
