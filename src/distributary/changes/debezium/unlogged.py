"""What connectors write in place of a value that was not logged, since it did not change."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from functools import lru_cache
from typing import Any


@lru_cache(8)
def placeholders(text: str) -> tuple[Any, ...]:
    """How the connectors write "not logged": as a text, as bytes, as an array of these or of numbers, as a map."""
    body = text.encode()
    encoded = base64.b64encode(body).decode()
    digest = bytearray(hashlib.md5(body, usedforsecurity=False).digest())
    digest[6], digest[8] = digest[6] & 0x0F | 0x30, digest[8] & 0x3F | 0x80
    named = str(uuid.UUID(bytes=bytes(digest)))
    return text, encoded, body.hex(), [text], [encoded], list(body), {text: text}, named, [named]


@lru_cache(8)
def txns(text: str) -> tuple[bytes, ...]:
    """Of these, one is in every message that holds a placeholder."""
    forms = placeholders(text)
    numbers = str(list(text.encode()[:6])).strip("[]").replace(" ", "")
    return (*(form.encode() for form in forms if isinstance(form, str)), numbers.encode())


def stands_for_unchanged(token: bytes, placeholder: str) -> bool:
    forms = placeholders(placeholder)
    if len(token) > 8 * len(placeholder) or len(token) < len(placeholder):
        return False
    return token[:1] in b'"[{' and json.loads(token) in forms
