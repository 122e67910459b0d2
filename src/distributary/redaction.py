"""Secrets of this process, hidden in all that it says or writes down: a server may repeat what it was sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

MASK: Final = "**********"
SHORTEST: Final = 8
SHORTEST_WORD: Final = 16
"""Shorter ones, and words of letters only that are shorter than this, as `password`, stand in texts by themselves."""

_PAIR: Final = re.compile(r'"([^"]*)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_known: set[str] = set()
_lock = threading.Lock()
_pattern: re.Pattern[str] | None = None


def hide(secret: str) -> None:
    """From now on `redacted` knows it: whole, each of its lines, as JSON escapes it, and as an address does."""
    with _lock:
        forms = {form for form in _forms(secret) if len(form) >= (SHORTEST_WORD if form.isalpha() else SHORTEST)}
        if not forms <= _known:
            _known.update(forms)
            _look_for()


def forget(secrets: Iterable[str]) -> None:
    """They are worth nothing any more: `redacted` need not look for them."""
    with _lock:
        for secret in secrets:
            _known.difference_update(_forms(secret))
        _look_for()


def _look_for() -> None:
    global _pattern
    # The longest first: one may be a part of another.
    longest = sorted(_known, key=len, reverse=True)
    _pattern = re.compile("|".join(map(re.escape, longest))) if longest else None


def _forms(secret: str) -> Iterator[str]:
    for text in (secret, *secret.splitlines(), *_inside(secret)):
        plain = text.strip()
        yield from (plain, json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1], repr(plain)[1:-1])
        yield quote(plain, safe="")


def _inside(secret: str) -> Iterator[str]:
    """What is secret in a key file of JSON, be it whole or not."""
    for key, value in _PAIR.findall(secret):
        if re.search(r"(?i)key|secret|token", key):
            plain = value.replace("\\n", "\n")
            yield from (plain, *(line for line in plain.splitlines() if not line.startswith("-----")))


def redacted(text: str) -> str:
    """`text` with stars in place of each secret."""
    return text if _pattern is None else _pattern.sub(MASK, text)
