"""The plan: every route once, loads even, few moves, and new routes where there is room."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributary.errors import ShareInvalid
from distributary.fleet.workflow.placement import TOLERANCE, RouteLoad, WorkflowPlan, make_plan
from distributary.shares import Division, read_plan

LOADS = st.dictionaries(
    st.text(min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 10**6).map(float), st.floats(0, 1e9, allow_subnormal=False)),
    max_size=40,
)


def loads(weights: Mapping[str, float | None]) -> list[RouteLoad]:
    return [RouteLoad(route, weight) for route, weight in weights.items()]


def plan(weights: Mapping[str, float | None], clusters: int, before: Division | None = None) -> WorkflowPlan:
    return make_plan("games", loads(weights), clusters=clusters, before=before)


def even(routes: int, weight: float = 10) -> dict[str, float | None]:
    return {f"game_{n}": weight for n in range(routes)}


@given(LOADS, st.integers(1, 6), st.integers(0, 6), LOADS)
def test_every_route_is_on_exactly_one_cluster(
    weights: dict[str, float | None], clusters: int, earlier: int, others: dict[str, float | None]
) -> None:
    before = plan({**weights, **others}, earlier).division if earlier else None
    found = plan(weights, clusters, before)
    assert len(found.clusters) == clusters
    assert sorted(r for c in found.clusters for r in c.routes) == sorted(weights)
    for route in weights:
        assert sum(share.owns(route) for share in found.division.shares()) == 1


@given(LOADS, st.integers(1, 6))
def test_no_cluster_carries_much_more_than_the_mean_unless_one_route_does(
    weights: dict[str, float | None], clusters: int
) -> None:
    found = plan(weights, clusters)
    total = sum(c.weight for c in found.clusters)
    for cluster in found.clusters:
        largest = max((_weight(weights, r) for r in cluster.routes), default=0.0)
        bound = max((1 + TOLERANCE) * total / clusters, total / clusters + largest)
        assert cluster.weight <= bound * 1.000001 + 0.01


def _weight(weights: Mapping[str, float | None], route: str) -> float:
    known = sorted(w for w in weights.values() if w is not None)
    found = weights[route]
    return found if found is not None else known[len(known) // 2] if known else 1.0


@given(LOADS, st.integers(1, 6))
def test_the_same_loads_again_move_nothing(weights: dict[str, float | None], clusters: int) -> None:
    first = plan(weights, clusters)
    again = plan(weights, clusters, first.division)
    assert again.moves == () and again.division == first.division


@given(LOADS, st.integers(1, 6))
def test_the_order_of_the_routes_does_not_matter(weights: dict[str, float | None], clusters: int) -> None:
    turned = dict(reversed(list(weights.items())))
    assert plan(turned, clusters).division == plan(weights, clusters).division


@given(LOADS, st.integers(1, 12))
def test_no_cluster_has_more_routes_than_it_may(weights: dict[str, float | None], room: int) -> None:
    found = make_plan("games", loads(weights), routes_per_cluster=room)
    assert max(len(c.routes) for c in found.clusters) <= room
    assert len(found.clusters) == max(1, -(-len(weights) // room))


@given(LOADS, st.integers(1, 6))
def test_a_plan_can_be_read_back_by_a_run(weights: dict[str, float | None], clusters: int) -> None:
    found = plan(weights, clusters)
    assert read_plan(json.dumps(found.to_json()), origin="plan.json") == found.division


def test_a_big_route_gets_a_cluster_of_its_own_and_no_new_routes() -> None:
    found = plan({**even(30), "huge": 1000}, 4)
    alone = next(c for c in found.clusters if "huge" in c.routes)
    assert alone.routes == ("huge",) and not alone.takes_new_routes
    assert sorted(len(c.routes) for c in found.clusters) == [1, 10, 10, 10]
    assert {share.owner(f"new {n}") for share in found.division.shares() for n in range(50)} == {1, 2, 3}


def test_a_new_route_goes_to_the_lightest_cluster_and_moves_no_other() -> None:
    first = plan({"a": 50, "b": 40, "c": 30}, 3)
    found = plan({"a": 50, "b": 40, "c": 30, "d": 5}, 3, first.division)
    assert found.moves == () and [(m.route, m.after) for m in found.new] == []
    lightest = min(found.clusters, key=lambda c: c.weight)
    assert "d" in next(c for c in found.clusters if "c" in c.routes).routes and "c" not in first.division.open[:0]
    assert lightest.weight == 35


def test_a_route_that_grew_moves_or_others_make_room_and_that_takes_few_moves() -> None:
    first = plan(even(40), 4)
    grown: dict[str, float | None] = {**even(40), "game_0": 60.0, "game_1": 60.0}
    found = plan(grown, 4, first.division)
    assert max(c.weight for c in found.clusters) <= (1 + TOLERANCE) * sum(c.weight for c in found.clusters) / 4
    assert len(found.moves) <= 6


def test_one_cluster_less_moves_only_its_routes_and_what_balance_takes() -> None:
    first = plan(even(40), 4)
    found = plan(even(40), 3, first.division)
    gone = set(first.clusters[3].routes)
    assert {m.route for m in found.moves} == gone


def test_one_cluster_more_takes_about_its_part() -> None:
    first = plan(even(40), 4)
    found = plan(even(40), 5, first.division)
    assert [c.name for c in found.clusters][:4] == [c.name for c in first.clusters]
    assert 6 <= len(found.moves) <= 10


def test_from_a_division_by_hash_only_the_imbalance_moves() -> None:
    found = plan(even(60), 3, Division.even(3))
    assert len(found.moves) < 15
    assert {c.name for c in found.clusters} == {"c1", "c2", "c3"}


def test_a_route_that_was_never_measured_counts_as_an_average_one() -> None:
    found = plan({"a": 10, "b": 10, "new": None, "c": 10}, 2)
    assert found.unmeasured == 1 and [c.weight for c in found.clusters] == [20, 20]


def test_routes_that_are_gone_are_named() -> None:
    first = plan(even(4), 2)
    assert plan(even(3), 2, first.division).gone == ("game_3",)


def test_clusters_without_any_route_are_planned_too() -> None:
    found = plan({}, 3)
    assert [c.routes for c in found.clusters] == [(), (), ()] and len(found.division.open) == 3


@pytest.mark.parametrize(
    ("clusters", "room"), [(None, None), (0, None), (None, 0), (2, 3)], ids=["none", "zero", "no room", "too small"]
)
def test_numbers_that_cannot_be_are_refused(clusters: int | None, room: int | None) -> None:
    with pytest.raises(ShareInvalid):
        make_plan("games", loads(even(7)), clusters=clusters, routes_per_cluster=room)
