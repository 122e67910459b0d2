"""Messages of others that are read as if Debezium had written them, by `envelope.format`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from distributary.changes import maxwell, openlogreplicator
from distributary.changes.debezium.heads import Message
from distributary.changes.debezium.source_table import Routes

Divided = tuple[list[int], list[str], list[bytes]]
"""Of messages that are several changes each: which message, the route and the body of each change."""


class Dialect(NamedTuple):
    routes_of: Callable[[Iterable[bytes]], Routes]
    divided: Callable[
        [Sequence[str], Sequence[bytes | None], Sequence[bytes], Mapping[str, Sequence[str]]], Divided | None
    ]
    as_debezium: Callable[[Message, Sequence[str]], Message]


DIALECTS: Final[Mapping[str, Dialect]] = {
    "maxwell": Dialect(maxwell.routes_of, maxwell.divided, maxwell.as_debezium),
    "openlogreplicator": Dialect(openlogreplicator.routes_of, openlogreplicator.divided, openlogreplicator.as_debezium),
}
