"""Of which table a message is, read with as little of it as can be: the route by which a batch is cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from distributary.changes.debezium.heads import table_names
from distributary.changes.debezium.json_messages import is_notice
from distributary.changes.debezium.message_fields import UNDECODABLE, opened
from distributary.changes.model import Kind, SourceTable


class _Source(msgspec.Struct):
    connector: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class _Change(msgspec.Struct):
    op: str | None = None
    source: _Source | None = None
    payload: _Change | None = None


_DECODER = msgspec.json.Decoder(_Change)


@dataclass
class Routes:
    """`routes`: of the messages at `positions`. `bad`: (position, detail) of what is no change; `passed`: how many
    say nothing of a row (heartbeats, begins and ends of transactions, DDL)."""

    routes: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    passed: int = 0


def routes_of(bodies: Iterable[bytes]) -> Routes:
    """The routes of whole messages (`heads.Form.flattened` off)."""
    routes = Routes()
    for position, body in enumerate(bodies):
        try:
            change = _DECODER.decode(body if body != b"null" else b"{}")
            # As `opened`: a change may have another field of that name.
            change = change if change.op is not None else change.payload or change
        except UNDECODABLE as exc:
            routes.bad.append((position, f"it is no change of Debezium: {exc}"))
            continue
        if change.op == "m" or (change.op is None and _says_nothing(body)):
            routes.passed += 1
            continue
        source = change.source
        names = None if source is None else table_names(msgspec.structs.asdict(source))
        if change.op is None or names is None:
            routes.bad.append(
                (position, "it is no change of Debezium: it has no op, or no source that names its table")
            )
            continue
        routes.routes.append(SourceTable(Kind.GENERIC, *names).route)
        routes.positions.append(position)
    return routes


def _says_nothing(body: bytes) -> bool:
    try:
        return is_notice(opened(body)[1])
    except UNDECODABLE:
        return False


def route_of_topic(topic: str) -> str:
    """Of a topic with rows alone (`flattened`): without the prefix that the connector puts first."""
    return topic.partition(".")[2] or topic


def table_of(route: str) -> SourceTable:
    """The table's names for its route: `table`, `database.table`, `database.schema.table`."""
    first, *rest = route.split(".")
    if not rest:
        return SourceTable(Kind.GENERIC, "", "", first)
    return SourceTable(Kind.GENERIC, first, ".".join(rest[:-1]), rest[-1])
