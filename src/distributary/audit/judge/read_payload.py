"""What one payload says, whatever its format is, as `verify` compares it with a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Simple(NamedTuple):
    """A value that a column holds as it is: a whole number or a text. `default`: what null in its column means."""

    value: Any
    default: Any
    is_text: bool


class ReadPayload(Protocol):
    """What one payload says."""

    def differs(self, row: Mapping[str, Any]) -> str | None:
        """The first column that does not say what the payload does; None where all do."""
        ...

    def has(self, name: str) -> bool:
        """Does its schema, or where it has none the payload itself, know a field of that name?"""
        ...

    def value_of(self, name: str) -> Any:
        """A field at the top, as a key or an order is told by it; None where it is not set, or there is none."""
        ...

    def text_at(self, path: str) -> str | None:
        """A field as a route; None where it is not set. Raises KeyError, TypeError, ValueError: there is none."""
        ...

    @property
    def type_name(self) -> str:
        """The full name of its type."""
        ...

    def simple(self) -> Mapping[str, Simple]:
        """Fields that tell payloads apart quickly; the same ones for all payloads of a writer."""
        ...
