"""Routes -> clusters by measured load. Pure, and the same for the same input.

A plan begins with where the routes are now and moves as few as it takes: each move costs a hand-over. A route that is
large enough to fill a cluster gets one of its own; what is not known yet goes by hash to the clusters that have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distributary.errors import ShareInvalid
from distributary.shares import Cluster, Division

TOLERANCE = 0.2
"""A cluster may carry so much more than the mean before a route is moved away from it."""
ROUTE_ROWS = 500
"""What a route costs in a batch besides its rows, in rows: a file and a commit take about a millisecond, and a core
decodes and writes some hundred thousand rows a second (docs/benchmarks.md, `route_count` and `single_core`)."""


@dataclass(frozen=True)
class RouteLoad:
    """What a route costs: `weight` in rows of work an hour; `rows_per_sec` for people. None: not measured."""

    route: str
    weight: float | None = None
    rows_per_sec: float | None = None


@dataclass(frozen=True)
class ClusterPlan:
    """What one cluster will carry. `share`: its part of the whole load, from 0 to 1."""

    name: str
    routes: tuple[str, ...]
    weight: float
    share: float
    rows_per_sec: float
    takes_new_routes: bool


@dataclass(frozen=True)
class Move:
    """A route that changes its cluster; `before` None: it had none."""

    route: str
    before: str | None
    after: str


@dataclass(frozen=True)
class WorkflowPlan:
    """A plan. `new`: routes that no cluster has had; `moves`: routes that leave one; `unmeasured`: routes whose load is
    a guess; `gone`: routes that had a cluster and are no more."""

    pipeline: str
    clusters: tuple[ClusterPlan, ...]
    moves: tuple[Move, ...]
    new: tuple[Move, ...]
    gone: tuple[str, ...]
    unmeasured: int

    @property
    def division(self) -> Division:
        open_to = tuple(c.name for c in self.clusters if c.takes_new_routes)
        return Division(tuple(Cluster(c.name, c.routes) for c in self.clusters), open_to)

    def to_json(self) -> dict[str, Any]:
        """Also what `run --plan-file` reads."""
        return {**asdict(self), "open": list(self.division.open)}


def make_plan(
    pipeline: str,
    loads: Sequence[RouteLoad],
    *,
    clusters: int | None = None,
    routes_per_cluster: int | None = None,
    before: Division | None = None,
) -> WorkflowPlan:
    """Place every route on one of `clusters`, or on as many as it takes for `routes_per_cluster` at most.

    Raises ShareInvalid: neither or both are given, or the routes do not fit.
    """
    weights = _weights(loads)
    count = _cluster_count(len(weights), clusters, routes_per_cluster)
    room = routes_per_cluster or len(weights) or 1
    names = _names(count, before)
    owner = _owners(before, weights)
    bins = {name: _Bin(name) for name in names}
    for route in _largest_first(weights):
        if owner.get(route) in bins and len(bins[owner[route]].routes) < room:
            bins[owner[route]].add(route, weights[route])
    placed = {route for packed in bins.values() for route in packed.routes}
    for route in _largest_first({r: w for r, w in weights.items() if r not in placed}):
        _lightest(b for b in bins.values() if len(b.routes) < room).add(route, weights[route])
    _balance(list(bins.values()), room)
    return _plan(pipeline, loads, bins, owner, before)


@dataclass
class _Bin:
    name: str

    def __post_init__(self) -> None:
        self.routes: dict[str, int] = {}
        self.weight = 0

    def add(self, route: str, weight: int) -> None:
        self.routes[route] = weight
        self.weight += weight

    def take(self, route: str) -> int:
        weight = self.routes.pop(route)
        self.weight -= weight
        return weight


def _weights(loads: Sequence[RouteLoad]) -> dict[str, int]:
    """A weight for each route; a route that was not measured counts as the median of those that were.

    In whole thousandths of a row: sums of floats depend on their order, and a route could go to and fro for ever.
    """
    measured = sorted(load.weight for load in loads if load.weight is not None)
    guess = measured[len(measured) // 2] if measured else 1.0
    weights = {load.route: guess if load.weight is None else load.weight for load in loads}
    if len(weights) < len(loads) or "" in weights or any(not math.isfinite(w) or w < 0 for w in weights.values()):
        raise ShareInvalid(what="the routes", detail="each must be named once, with a load of 0 or more")
    return {route: round(weight * 1000) for route, weight in weights.items()}


def _cluster_count(routes: int, clusters: int | None, room: int | None) -> int:
    limits = [n for n in (clusters, room) if n is not None]
    if not limits or min(limits) < 1:
        raise ShareInvalid(
            what="the number of clusters", detail="give --clusters N or --streams-per-cluster K, 1 or more"
        )
    count = clusters or max(1, -(-routes // (room or 1)))
    if room is not None and count * room < routes:
        raise ShareInvalid(what=f"{count} clusters of {room} routes", detail=f"there are {routes} routes to place")
    return count


def _names(count: int, before: Division | None) -> list[str]:
    """Names stay; a division by hash (`1-of-3`) gets names of its own, because its clusters are others."""
    kept_names = [c.name for c in before.clusters][:count] if before is not None and not _is_even(before) else []
    fresh = (f"c{n}" for n in range(1, 2 * count + len(kept_names) + 1))
    return kept_names + [name for name in fresh if name not in kept_names][: count - len(kept_names)]


def _is_even(division: Division) -> bool:
    return division == Division.even(len(division.clusters))


def _owners(before: Division | None, routes: Iterable[str]) -> dict[str, str]:
    """Where each route is now, by the names that the plan will use."""
    if before is None:
        return {}
    any_share = before.shares()[0]
    names = (
        [f"c{n}" for n in range(1, len(before.clusters) + 1)] if _is_even(before) else [c.name for c in before.clusters]
    )
    return {route: names[any_share.owner(route)] for route in routes}


def _largest_first(weights: Mapping[str, int]) -> list[str]:
    return sorted(weights, key=lambda route: (-weights[route], route))


def _lightest(bins: Iterable[_Bin]) -> _Bin:
    return min(bins, key=lambda b: (b.weight, len(b.routes), b.name))


def _balance(bins: list[_Bin], room: int) -> None:
    """Move routes from clusters that carry too much, or to one that carries too little, while that evens them out."""
    mean = sum(b.weight for b in bins) / len(bins)
    while (move := _next_move(bins, mean, room)) is not None:
        route, source, target = move
        target.add(route, source.take(route))


def _next_move(bins: list[_Bin], mean: float, room: int) -> tuple[str, _Bin, _Bin] | None:
    free = [b for b in bins if len(b.routes) < room]
    if not free:
        return None
    lightest = _lightest(free)
    limit = mean if lightest.weight < mean * (1 - TOLERANCE) else mean * (1 + TOLERANCE)
    for heavy in sorted(bins, key=lambda b: (-b.weight, b.name)):
        gap = heavy.weight - lightest.weight
        fitting = [r for r, w in heavy.routes.items() if 0 < w < gap]
        if heavy.weight > limit and fitting:
            # The route that brings the two closest together takes the fewest moves.
            return min(fitting, key=lambda r: (abs(gap / 2 - heavy.routes[r]), r)), heavy, lightest
    return None


def _plan(
    pipeline: str,
    loads: Sequence[RouteLoad],
    bins: Mapping[str, _Bin],
    owner: Mapping[str, str],
    before: Division | None,
) -> WorkflowPlan:
    total = sum(b.weight for b in bins.values())
    mean = total / len(bins)
    rates = {load.route: load.rows_per_sec or 0.0 for load in loads}
    # New routes go where there is room: below the mean, and never beside a route that fills its cluster.
    least = min(b.weight for b in bins.values())
    has_room = {b.name: b.weight <= max(least, mean * (1 - TOLERANCE / 2)) for b in bins.values()}
    clusters = tuple(
        ClusterPlan(
            b.name,
            tuple(sorted(b.routes)),
            b.weight / 1000,
            round(b.weight / total, 4) if total else 0.0,
            round(math.fsum(rates[r] for r in b.routes), 3),
            has_room[b.name],
        )
        for b in bins.values()
    )
    changes = [Move(r, owner.get(r), c.name) for c in clusters for r in c.routes if owner.get(r) != c.name]
    routes_before = {r for c in before.clusters for r in c.routes} if before is not None else set()
    return WorkflowPlan(
        pipeline,
        clusters,
        moves=tuple(m for m in changes if m.before is not None),
        new=tuple(m for m in changes if m.before is None),
        gone=tuple(sorted(routes_before - rates.keys())),
        unmeasured=sum(load.weight is None for load in loads),
    )
