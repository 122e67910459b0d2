"""What is sent: routes, schema versions that grow, the bytes of a record, and what each column must be, as SQL.

Each value follows from the record's number, and each row says by which version it was written. So a judge needs no copy
of what was sent: which columns a row must have, and what stands in them, it works out again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.wire import block, framed, text, varint, whole

UNKNOWN_ID = 2_000_000_000
LEVEL_GROWS_AT = 4
"""From this version on `level` is an int64."""
NEWEST = 11
"""No route gets more versions: the tags of their fields have one byte."""
MASK = 2**32 - 1

BAD = {
    "cut": "CORRUPT_PAYLOAD",
    "other schema": "SCHEMA_MISMATCH",
    "unknown id": "UNKNOWN_SCHEMA_ID",
    "no header": "BAD_MAGIC",
    "envelope": "CORRUPT_ENVELOPE",
}
"""Ways in which a record may be damaged, and the reason that the quarantine must give."""


@dataclass(frozen=True)
class Column:
    """`since`: the first version that has it. `code`: of `struct`. `sql`: its value by `number`, as DuckDB says it."""

    name: str
    tag: bytes
    proto: str
    code: str
    since: int
    sql: str

    def value(self, number: int) -> Any:
        """The same in Python: what `sql` says."""
        if self.name == "player":
            return b"%08x" % (number & MASK)
        if self.name == "score":
            return number * 0.125
        if self.name == "level":
            return number * 3 if self.code == "q" else number % 1000 + 1
        version = self.since
        return {"q": number * version, "d": number * 0.5 + version, "i": number % 997 + version}[self.code]


def _tag(number: int, code: str) -> bytes:
    """A field's number and wire type: 1 for eight bytes, 5 for four, 2 for a length (of eight here)."""
    wire = {"q": 1, "d": 1, "i": 5, "8s": 2}[code]
    return varint(number << 3 | wire) + (b"\x08" if wire == 2 else b"")


_PROTO = {"q": "sfixed64", "d": "double", "i": "sfixed32", "8s": "string"}


def columns(version: int) -> list[Column]:
    """The fields of a version, in their order. `number` and `version` are the first two."""

    def column(number: int, name: str, code: str, since: int, sql: str) -> Column:
        return Column(name, _tag(number, code), f"{_PROTO[code]} {name} = {number};", code, since, sql)

    wide = version >= LEVEL_GROWS_AT
    level = f"CASE WHEN version >= {LEVEL_GROWS_AT} THEN number * 3 ELSE number % 1000 + 1 END"
    fields = [
        column(1, "number", "q", 1, "number"),
        column(2, "version", "i", 1, "version"),
        column(3, "score", "d", 1, "number * 0.125"),
        column(4, "player", "8s", 1, f"printf('%08x', number & {MASK})"),
        column(5, "level", "q" if wide else "i", 1, level),
    ]
    for since in range(2, version + 1):
        code = "qdi"[since % 3]
        sql = {"q": f"number * {since}", "d": f"number * 0.5 + {since}", "i": f"number % 997 + {since}"}[code]
        fields.append(column(4 + since, f"extra_{since}", code, since, sql))
    return fields


def route_name(rank: int) -> str:
    """The route of this rank by Zipf's law, the first is 0."""
    return f"kind_{rank:04d}"


def schema_text(route: str, version: int) -> str:
    fields = "\n".join(f"  {column.proto}" for column in columns(version))
    return f'syntax = "proto3";\nmessage {route.title()} {{\n{fields}\n}}\n'


class Shape:
    """Records of one route and version. All but the values is laid down beforehand, so that a record costs 2 us."""

    def __init__(self, envelope_id: int, schema_id: int, route: str, version: int) -> None:
        self.route, self.version = route, version
        self._envelope_id, self._schema_id = envelope_id, schema_id
        fields = columns(version)
        self._tags = [column.tag for column in fields]
        self._values = [column.value for column in fields[2:]]
        self._body = struct.Struct("<" + "".join(f"{len(column.tag)}s{column.code}" for column in fields))
        empty = self._enveloped(framed(schema_id, bytes(self._body.size)))
        self._head = empty[: -self._body.size]

    def good(self, number: int) -> bytes:
        return self._head + self._bytes(number)

    def bad(self, number: int, way: str) -> bytes:
        """A record that is damaged in one of the ways of `BAD`."""
        body = self._bytes(number)
        if way == "envelope":
            # A text that goes past the end.
            return framed(self._envelope_id, b"\x0a\xff\x7f" + body)
        payload = {
            "cut": framed(self._schema_id, body[:-3]),
            "other schema": framed(self._schema_id, whole(1, number) + body[9:]),
            "unknown id": framed(UNKNOWN_ID, body),
            "no header": b"no header at all",
        }[way]
        return self._enveloped(payload)

    def _bytes(self, number: int) -> bytes:
        parts: list[Any] = []
        values = (number, self.version, *(value(number) for value in self._values))
        for tag, value in zip(self._tags, values, strict=True):
            parts += (tag, value)
        return self._body.pack(*parts)

    def _enveloped(self, payload: bytes) -> bytes:
        body = text(1, self.route) + whole(2, self._schema_id) + block(3, payload)
        return framed(self._envelope_id, body)


@dataclass
class Sent:
    """What the broker acknowledged of one route's good records."""

    rows: int = 0
    total: int = 0
    mixed: int = 0
    versions: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, version: int) -> None:
        self.rows += 1
        self.total += number
        self.mixed ^= number
        self.versions[version] = self.versions.get(version, 0) + 1


@dataclass
class Truth:
    """What must come out. `bad`: (partition, offset) -> reason of the quarantine. `failed`: records of which the sender
    does not know whether the broker has them; there must be none."""

    routes: dict[str, Sent] = field(default_factory=dict)
    bad: dict[tuple[int, int], str] = field(default_factory=dict)
    failed: int = 0

    @property
    def rows(self) -> int:
        return sum(sent.rows for sent in self.routes.values())

    def as_json(self) -> dict[str, Any]:
        routes = {
            name: [sent.rows, sent.total, sent.mixed, list(sent.versions.items())] for name, sent in self.routes.items()
        }
        return {"routes": routes, "bad": [[*place, why] for place, why in self.bad.items()], "failed": self.failed}

    @classmethod
    def of_json(cls, given: dict[str, Any]) -> Truth:
        routes = {
            name: Sent(rows, total, mixed, dict(versions))
            for name, (rows, total, mixed, versions) in given["routes"].items()
        }
        return cls(routes, {(partition, offset): why for partition, offset, why in given["bad"]}, given["failed"])
