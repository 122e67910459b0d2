"""What kind of value a token of JSON is, where columns are named for it (`inferred`)."""

from __future__ import annotations

from typing import Final

import msgspec

from distributary.schemas.json.nodes import Only
from distributary.schemas.json.numbers import as_double, as_integer

__all__ = ["kind_of", "number_kind"]

_SIMPLE: Final = 15
"""So many characters of a number any bigint holds."""
_TOKENS: Final[dict[bytes, Only | None]] = {
    b"": None, b"n": None, b'"': "string", b"{": "object", b"[": "json", b"t": "boolean", b"f": "boolean"
}  # fmt: skip


def kind_of(raw: bytes | msgspec.Raw) -> Only | None:
    """What a token is; None for `null`, and where there is none."""
    token = bytes(raw)
    return _TOKENS[token[:1]] if token[:1] in _TOKENS else number_kind(token.decode())


def number_kind(token: str) -> Only:
    """A whole number that is written as one is a bigint, any other a double; `json` where that one does not hold it."""
    is_whole = not any(sign in token for sign in ".eE")
    if is_whole and (len(token) <= _SIMPLE or as_integer(token) is not None):
        return "bigint"
    return "json" if is_whole or as_double(token) is None else "double"
