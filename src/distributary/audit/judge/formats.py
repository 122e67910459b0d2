"""Payload formats as `verify` reads them: by another library than the tasks do, one payload at a time.

A format is a module with the functions of `PayloadJudge`, and a line in `JUDGES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from distributary.audit.judge import avro, json, json_bare, protobuf_rows, raw_values
from distributary.audit.judge.read_payload import ReadPayload

__all__ = ["JUDGES", "PayloadJudge"]


class PayloadJudge(Protocol):
    """One format."""

    def unframed(self, value: bytes, *, zigzag: bool = True) -> tuple[int, list[int], bytes]:
        """(schema id, message indexes, body) of a payload with its header. Raises ValueError, IndexError."""
        ...

    def reader(self, schema: Any, message: Any, *, raw_indexes: bool = False) -> Callable[[bytes], ReadPayload]:
        """What reads the bodies of one writer: it raises ValueError, IndexError, KeyError, TypeError."""
        ...


JUDGES: Final[dict[str, PayloadJudge]] = {
    "protobuf": protobuf_rows,
    "avro": avro,
    "json": json,
    "json_bare": json_bare,
    "bytes": raw_values,
    "text": raw_values,
}
