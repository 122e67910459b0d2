from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributary.names import MAX_NAME_CHARS, check_template, quoted, quoted_parts, route_of, table_name

# Letters that the escape itself uses come up often, so that near misses do too.
ROUTES = st.one_of(st.text(min_size=1, max_size=12), st.text(alphabet="x_hA4xX1f-é", min_size=1, max_size=8))
LONG_ROUTES = st.text(alphabet="x_hA4é", min_size=150, max_size=400)
TEMPLATES = st.sampled_from(["{route}", "silver_{route}", "{route}_log", "x_{route}_x", "x{route}"])

HARD_ROUTES = [
    *("Ann", "ann", "ANN", "xAnn", "x_Ann", "a-b", "a_b", "a.b", "a b", "a/b", "x=y", "50% off", "col:on", "O'Brien"),
    *("new york", "é", "e\u0301", "🎮", "DROP TABLE users; --", "_x41_", "x_x41_nn", "_", "__", "x", "x_", "_x", "x_x"),
    *("_delta_log", "_distributary", "__HIVE_DEFAULT_PARTITION__", "..", ".", " ", "\n", "\x00", "a`b", "${env:HOME}"),
    *("g" * 200, "g" * 201, "g" * 300, "G" * 300, "é" * 300, "_x" * 150, "2048", "1e5", "select"),
]


@pytest.mark.parametrize("route", ["ann_game", "a", "2048_game", "a__b", "xenon"])
def test_a_simple_route_is_its_own_table_name(route: str) -> None:
    assert table_name(route) == route


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("Ann", "x_x41_nn"),
        ("xAnn", "x_x78__x41_nn"),
        ("a-b", "a_x2d_b"),
        ("a.b", "a_x2e_b"),
        ("O'Brien", "x_x4f__x27__x42_rien"),
        ("new york", "new_x20_york"),
        ("é", "x_xe9_"),
        ("_x41_", "x_x5f_x41_"),
        ("a_x41_", "a_x5f_x41_"),
        ("_delta_log", "x_x5f_delta_log"),
        ("space_xplorers", "space_x5f_xplorers"),
    ],
)
def test_stored_names_never_change(route: str, name: str) -> None:
    # Tables in users' lakes carry these names: a change here loses them.
    assert table_name(route) == name
    assert route_of(name) == route


def test_a_long_route_keeps_a_readable_prefix_and_its_hash() -> None:
    name = table_name("g" * 300)
    assert name == "g" * 165 + "_xh" + "1512a6f6db80f3445f2af5598dc02ace"
    assert len(name) == MAX_NAME_CHARS
    assert route_of(name) is None


def test_the_longest_name_that_fits_is_not_hashed() -> None:
    assert table_name("g" * MAX_NAME_CHARS) == "g" * MAX_NAME_CHARS
    assert len(table_name("g" * MAX_NAME_CHARS, "silver_{route}")) == MAX_NAME_CHARS


def test_hard_routes_get_names_that_differ_on_a_store_that_folds_case() -> None:
    for template in ("{route}", "x_{route}"):
        assert len({table_name(route, template).lower() for route in HARD_ROUTES}) == len(HARD_ROUTES)


@pytest.mark.parametrize("route", HARD_ROUTES)
def test_a_hard_route_comes_back_from_its_name(route: str) -> None:
    name = table_name(route)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)
    assert route_of(name) in (route, None)
    assert (route_of(name) is None) == ("_xh" in name)


@given(ROUTES, TEMPLATES)
@settings(max_examples=200)
def test_a_name_is_reversible_and_safe(route: str, template: str) -> None:
    name = table_name(route, template)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)
    assert len(name) <= MAX_NAME_CHARS
    assert route_of(name, template) == route


@given(ROUTES, ROUTES, TEMPLATES)
@settings(max_examples=200)
def test_two_routes_never_share_a_name(one: str, other: str, template: str) -> None:
    assert (table_name(one, template).lower() == table_name(other, template).lower()) == (one == other)


@given(LONG_ROUTES, TEMPLATES)
@settings(max_examples=60)
def test_a_hashed_name_is_bounded_and_known_as_hashed(route: str, template: str) -> None:
    name = table_name(route, template)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_]*", name)
    assert len(name) <= MAX_NAME_CHARS
    assert route_of(name, template) in (route, None)
    assert table_name(route + "y", template) != name


@given(st.text(alphabet="x_h4f1a2", min_size=1, max_size=10))
@settings(max_examples=200)
def test_a_name_stands_for_one_route_or_for_none(name: str) -> None:
    try:
        route = route_of(name)
    except ValueError:
        return
    assert route is not None
    assert table_name(route) == name


def test_a_route_that_spells_a_hashed_name_does_not_meet_it() -> None:
    hashed = table_name("G" * 300)
    assert table_name(hashed) != hashed
    assert route_of(table_name(hashed)) in (hashed, None)


@pytest.mark.parametrize(
    "name", ["_delta_log", "Ann", "a_x2D_b", "a_x0041_", "a_x61_", "_x41_nn", "a_x110000_", "a_x", ""]
)
def test_a_name_that_no_route_has_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="route"):
        route_of(name)


@pytest.mark.parametrize("name", ["ann", "silver_", "gold_ann"])
def test_a_name_of_another_template_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"form|not the name"):
        route_of(name, "silver_{route}")


def test_an_empty_route_has_no_table() -> None:
    with pytest.raises(ValueError, match="empty route"):
        table_name("")


@pytest.mark.parametrize(
    "template",
    ["", "silver", "{route}{route}", "Silver_{route}", "_{route}", "a/{route}", "{game}", "a" * 100 + "{route}"],
)
def test_a_template_that_could_break_the_mapping_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        check_template(template)


def test_quoting_doubles_backticks() -> None:
    assert quoted("a`b c") == "`a``b c`"
    assert quoted("order") == "`order`"
    assert quoted("") == "``"


def test_a_name_of_several_parts_has_no_empty_one() -> None:
    assert quoted_parts("main.b`c") == "`main`.`b``c`"
    for dotted in ("", "a..b", ".a"):
        with pytest.raises(ValueError, match="empty"):
            quoted_parts(dotted)
