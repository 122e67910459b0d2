"""Of which table a message is, read with as little of it as can be: the route by which a batch is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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

    @classmethod
    def read(cls, bodies: Iterable[bytes], what: str, route_of: Callable[[bytes], str | None]) -> Routes:
        """`what`: the messages are, as in "change of Debezium". `route_of`: the route of one, None for one that says
        nothing of a row; it raises what `UNDECODABLE` names for one that is none."""
        routes = cls()
        for position, body in enumerate(bodies):
            try:
                route = route_of(body)
            except UNDECODABLE as exc:
                routes.bad.append((position, f"it is no {what}: {exc}"))
                continue
            if route is None:
                routes.passed += 1
            else:
                routes.routes.append(route)
                routes.positions.append(position)
        return routes


def routes_of(bodies: Iterable[bytes]) -> Routes:
    """The routes of whole messages (`heads.Form.flattened` off)."""
    return Routes.read(bodies, "change of Debezium", _route_of)


def _route_of(body: bytes) -> str | None:
    change = _DECODER.decode(body if body != b"null" else b"{}")
    # As `opened`: a change may have another field of that name.
    change = change if change.op is not None else change.payload or change
    if change.op == "m" or (change.op is None and _says_nothing(body)):
        return None
    names = None if change.source is None else table_names(msgspec.structs.asdict(change.source))
    if change.op is None or names is None:
        raise msgspec.ValidationError("it has no op, or no source that names its table")
    return SourceTable(Kind.GENERIC, *names).route


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
