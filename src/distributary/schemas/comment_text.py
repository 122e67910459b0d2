"""What a schema says of a field, as the comment of a column."""

from __future__ import annotations

from typing import Any, Final

MOST_CHARACTERS: Final = 1_000


def one_line(text: Any) -> str | None:
    """A comment as one line of at most `MOST_CHARACTERS`; None where it says nothing, or is no text. Asterisks that
    stand in front of the lines of a block are no part of it."""
    if not isinstance(text, str):
        return None
    lines = (line.strip().lstrip("*").strip() for line in text.splitlines())
    return " ".join(" ".join(lines).split())[:MOST_CHARACTERS].encode(errors="replace").decode() or None
