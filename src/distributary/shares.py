"""Which routes one process takes when a pipeline is spread over several.

A **division** says how a pipeline's routes are spread over its clusters: some are placed by name, every other route,
also one that nobody has seen yet, goes by its hash. A **share** is one cluster's part. Each route belongs to exactly
one share of a division, and so does a record that names no route: the first share takes those.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from distributary.errors import ShareInvalid
from distributary.names import literal

_FRACTION = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


def route_hash(route: str) -> int:
    """CRC-32 of the route's UTF-8 bytes: the one checksum that Spark SQL and zlib both have."""
    return zlib.crc32(route.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Share:
    """Share `index` (from 0) of `count`. `placed`: routes by the share they were given to; others go by hash to one of
    the shares `open`. `generation`: how many divisions the pipeline has had, with this one; names the state."""

    index: int
    count: int
    name: str
    placed: Mapping[str, int] = field(default_factory=dict, repr=False)
    open: tuple[int, ...] = ()
    generation: int = 1

    def owner(self, route: str | None) -> int:
        """The share that takes the records of `route`."""
        if not route:
            return 0
        placed = self.placed.get(route)
        if placed is not None:
            return placed
        return self.open[route_hash(route) % len(self.open)]

    def owns(self, route: str | None) -> bool:
        return self.owner(route) == self.index

    def condition(self, column: str) -> str:
        """`owns` as a condition of Spark SQL on a quoted column of text. On a partition column, Delta reads no file of
        another share for it."""
        lanes = [str(n) for n, share in enumerate(self.open) if share == self.index]
        # Cast by hand: ANSI mode does not turn text into bytes by itself.
        hashed = (
            f"pmod(crc32(cast({column} AS binary)), {len(self.open)}) IN ({', '.join(lanes)})" if lanes else "false"
        )
        cases = [f"WHEN {column} IS NULL OR {column} = '' THEN {_bool(self.index == 0)}"]
        for mine in (True, False):
            if names := sorted(r for r, share in self.placed.items() if (share == self.index) == mine):
                cases.append(f"WHEN {column} IN ({', '.join(map(literal, names))}) THEN {_bool(mine)}")
        return f"CASE {' '.join(cases)} ELSE {hashed} END"


@dataclass(frozen=True)
class Cluster:
    """One part of a division: its name, and the routes that were placed on it."""

    name: str
    routes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Division:
    """How routes are spread over clusters. `open`: names of the clusters that take routes which are not placed."""

    clusters: tuple[Cluster, ...]
    open: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [c.name for c in self.clusters]
        routes = [r for c in self.clusters for r in c.routes]
        if (
            not names
            or len(set(names)) < len(names)
            or not all(re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", n) for n in names)
        ):
            raise ShareInvalid(what="the division", detail="clusters need different names of a-z, 0-9, _ and -")
        if len(set(routes)) < len(routes) or "" in routes:
            twice = sorted({r for r in routes if routes.count(r) > 1})
            raise ShareInvalid(what="the division", detail=f"every route must be on one cluster; see {twice[:3]}")
        if not self.open or not set(self.open) <= set(names):
            raise ShareInvalid(what="the division", detail="`open` must name at least one of its clusters")

    @classmethod
    def even(cls, clusters: int) -> Self:
        """All routes by hash over so many clusters."""
        if clusters < 1:
            raise ShareInvalid(what=f"{clusters} clusters", detail="allowed: 1 or more")
        names = tuple(f"{n}-of-{clusters}" for n in range(1, clusters + 1))
        return cls(tuple(Cluster(name) for name in names), names)

    def share(self, name: str, generation: int = 1) -> Share:
        """Raises ShareInvalid: no cluster has this name."""
        names = [c.name for c in self.clusters]
        if name not in names:
            raise ShareInvalid(
                what=f"cluster {name!r}", detail=f"there is no such cluster; allowed: {', '.join(names)}"
            )
        placed = {route: n for n, cluster in enumerate(self.clusters) for route in cluster.routes}
        open_to = tuple(n for n, cluster in enumerate(names) if cluster in self.open)
        return Share(names.index(name), len(names), name, placed, open_to, generation)

    def shares(self, generation: int = 1) -> list[Share]:
        return [self.share(cluster.name, generation) for cluster in self.clusters]

    def to_json(self) -> dict[str, Any]:
        return {
            "clusters": [{"name": c.name, "routes": list(c.routes)} for c in self.clusters],
            "open": list(self.open),
        }

    @classmethod
    def from_json(cls, value: Any, *, origin: str = "the plan") -> Self:
        """Of `to_json`, or of a plan, which holds more keys. Raises ShareInvalid."""
        try:
            clusters = tuple(Cluster(str(c["name"]), tuple(_texts(c["routes"]))) for c in value["clusters"])
            return cls(clusters, tuple(_texts(value["open"])))
        except (KeyError, TypeError, ValueError) as e:
            raise ShareInvalid(what=origin, detail=f"not a plan of `distributary workflow plan --json` ({e!r})") from e


def parse_share(text: str) -> Share:
    """`2/3`: the second of three shares by hash. Raises ShareInvalid."""
    match = _FRACTION.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise ShareInvalid(what=f"--share {text!r}", detail="allowed: i/n with 1 <= i <= n, as 1/3, 2/3, 3/3")
    division = Division.even(int(match[2]))
    return division.share(f"{match[1]}-of-{match[2]}")


def read_plan(text: str, *, origin: str) -> Division:
    """The division in the text of a plan file. Raises ShareInvalid."""
    try:
        return Division.from_json(json.loads(text), origin=origin)
    except (ValueError, RecursionError) as e:
        raise ShareInvalid(what=origin, detail=f"not JSON: {e}") from e


def _texts(value: Sequence[Any]) -> list[str]:
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of names is needed")
    return list(value)


def _bool(value: bool) -> str:
    return "true" if value else "false"
