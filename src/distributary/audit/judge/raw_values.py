"""Payloads that are taken as they are: a row must have their very bytes, or their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from distributary.audit.judge.plain_values import nothing
from distributary.audit.judge.read_payload import Simple

_COLUMN = "value"


def unframed(value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
    """(0, [0], the payload): there is no header."""
    return 0, [0], value


def reader(schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], RawPayload]:
    """What reads payloads as `schema.format` says. Raises ValueError: no text."""
    if schema.format == "bytes":
        return RawPayload
    return lambda body: RawPayload(body.decode())


@dataclass(frozen=True)
class RawPayload:
    """What a payload is."""

    value: bytes | str

    def differs(self, row: Mapping[str, Any]) -> str | None:
        if row.get(_COLUMN) != self.value:
            return _COLUMN
        return next((name for name, cell in row.items() if name != _COLUMN and not nothing(cell)), None)

    def simple(self) -> dict[str, Simple]:
        return {_COLUMN: Simple(self.value, None, True)} if isinstance(self.value, str) else {}

    def has(self, name: str) -> bool:
        return name == _COLUMN

    def value_of(self, name: str) -> Any:
        return self.value if name == _COLUMN else None

    def text_at(self, path: str) -> str | None:
        raise KeyError(path)

    @property
    def type_name(self) -> str:
        return _COLUMN
